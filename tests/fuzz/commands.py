"""Fuzzed command lines of all commands: valid options with hostile values, unknown names, odd paths.

    python -m tests.fuzz.commands 500 0            # 500 command lines of seed 0, and a count of what happened
    python -m tests.fuzz.commands --run preview --steps 1e9

Each command line runs in a forked process, in a folder of its own, with a limit on memory and time. What still works
after a few seconds is stopped with Ctrl-C. A command line passes if it is "refused" with exit code 2 and one line, or
"ran".
"""

from __future__ import annotations

import collections
import dataclasses
import faulthandler
import hashlib
import inspect
import json
import os
import random
import resource
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import traceback
import typing
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

PASSED = ("refused", "ran")
CPU_SECONDS, SECONDS = 3.0, 20.0
"""Processor time, or time, after which a command is interrupted with Ctrl-C."""
CPU_PATIENCE, PATIENCE = 30.0, 240.0
"""Processor time, or time, that it then has to end. On a busy machine, time alone says little."""
MOST_MEMORY = 1 << 30
"""Bytes that a command may take on top of the process that it is forked from."""
ADDRESS_SPACE = 64 << 30
NOTES = ("warning: ", "not installed: ", "run ", "step ")
"""How lines before the error may start."""
NEVER = ("ray",)
"""Options that would start a cluster."""

MICRO = [
    *("--task", "gym:sgqn/Catch-v0", "--agent", "sgdqn", "--preset", "tiny", "--quiet", "--device", "cpu"),
    *("--steps", "40", "--warmup-steps", "16", "--num-envs", "1", "--image-size", "24", "--encoder-layers", "2"),
    *("--encoder-filters", "4", "--hidden-dim", "16", "--embedding-dim", "8", "--decoder-filters", "4", "4"),
    *("--batch-size", "8", "--overlay-images", "16", "--evaluate-every", "0", "--images-every", "0"),
]
VALID: dict[str, list[list[str]]] = {
    "train": [MICRO, ["--preset", "tiny", "--quiet"], [], ["--resume", "run"], ["--config", "config.toml", *MICRO]],
    "sweep": [["sweep.toml", "--dry-run"], ["sweep.toml", "--quiet"], ["no.toml"]],
    "evaluate": [["run", "--episodes", "1"], ["pretrained:walker-walk"], ["--policy", "policy:act", "--name", "p"]],
    "explain": [["run", "--out", "a.png"], ["run", "run", "--out", "a.mp4"]],
    "saliency": [["run", "--episodes", "1", "--no-curves"]],
    "report": [["run", "--no-images"], ["."]],
    "watch": [["run", "--no-browser", "--port", "0"]],
    "export": [["run", "--out", "exported"], ["run", "--out", "graph", "--format", "onnx"]],
    "pretrained": [[]],
    "demo": [["--run", "run"], []],
    "preview": [["--steps", "2"]],
    "data": [[]],
    "data get": [["overlay", "--from", "pictures"], ["dmcgb", "--from", "clone"]],
}
"""Command lines that work, or would with another task, to which options are added."""

INTEGERS = ["0", "-1", "1", "2", "3", "7", "100", "1e3", "1e9", "1e18", "1e40", str(2**31), str(2**32), str(2**63)]
INTEGERS += [str(2**64), "9" * 5000, "1.5", "nan", "inf", "", " ", "0x10", "1_000", "١", "²", "None", "true", "-0"]
FLOATS = ["0", "0.5", "1", "-1", "2", "nan", "inf", "-inf", "1e308", "1e-400", "1e999", "", "abc", "0,5", "½"]
STRINGS = ["", " ", "-", "--", "x" * 5000, "ünïcödé", "a\nb", "\u202egnp.exe", "🦆", "\udcff", "%s%n{}", "../../keep"]
STRINGS += ["/", "~", "None", "[red]x[/red]", "'; DROP", "a/b", ".", "..", "$(touch x)", "\x1b[31m", "con", "*"]
PATHS = ["run", "broken", "nested", "file.txt", "empty", "loop", "loop/x", "pipe", "folder", "keep", "keep/notes.txt"]
PATHS += ["run/checkpoints", "run/config.json", "run/checkpoints/step_000000024", "/dev/null", "/dev/full", "nowhere"]
PATHS += ["keep/index.html", "folder/new/deep", "a.png", "a.mp4", "file.txt/x", "a" * 300, "ünï.png", "\udcff.png"]
PATHS += ["bad.toml", "config.toml", "config.json", "clone", "pictures", "read-only", "dangling", "/dev/zero", "a\nb"]
NAMES = ["pretrained:", "pretrained:walker-walk", "pretrained:../keep", "hf:", "hf:a/b", "http://127.0.0.1:9/a.zip"]
TASKS = ["gym:sgqn/Catch-v0", "cartpole-swingup", "walker-walk", "gym:", "gym:no:Such-v0", "gym:CartPole-v1", "robot-x"]


class Outcome(NamedTuple):
    """What a command line did: the kind, and the evidence."""

    kind: str
    arguments: list[str]
    evidence: str


# Command lines


def command_lines(seed: int) -> Iterator[list[str]]:
    """An endless sequence, determined by the seed."""
    options = _options()
    rng = random.Random(seed)
    while True:
        name = rng.choice(sorted(VALID))
        line = [*name.split(), *rng.choice(VALID[name])]
        for _ in range(rng.choice((0, 1, 1, 1, 2, 2, 3))):
            option = rng.choice(sorted(options[name]) or ["json"])
            line += _given(rng, option, options[name].get(option, bool))
        if rng.random() < 0.1:
            line.insert(rng.randrange(len(line) + 1), rng.choice([*STRINGS, *PATHS, "--bogus", "-x", "--help"]))
        if rng.random() < 0.05:
            line = [*rng.choice((["--plugin", "no.such"], ["--plugin", "json"], ["--log-level", "debug"])), *line]
        if rng.random() < 0.05:
            line.pop(rng.randrange(len(line)))
        yield line


def _options() -> dict[str, dict[str, Any]]:
    """The options of every command, with their types."""
    from sgqn.agents import AGENTS
    from sgqn.cli import COMMANDS
    from sgqn.config import TrainConfig, TrainOptions
    from sgqn.registry import import_submodules

    import_submodules("sgqn.cli")
    found = {}
    for name, command in COMMANDS.items():
        hints = typing.get_type_hints(command.function)
        known = inspect.signature(command.function).parameters
        found[name] = {option: hint for option, hint in hints.items() if option in known and option not in NEVER}
    for kind in (TrainOptions, TrainConfig, *(AGENTS[agent].settings for agent in AGENTS)):
        hints = typing.get_type_hints(kind)
        found["train"] |= {one.name: hints[one.name] for one in dataclasses.fields(kind)}
    found["train"] = {"config" if name == "config_file" else name: kind for name, kind in found["train"].items()}
    del found["train"]["settings"]
    return found


def _given(rng: random.Random, option: str, hint: Any) -> list[str]:
    """An option of that type, with a value that need not be of the type."""
    flag = "--" + {"source": "from"}.get(option, option).replace("_", "-")
    if option in ("path", "paths", "file", "kind"):  # positional
        return [rng.choice([*PATHS, *NAMES, *STRINGS])]
    text = str(hint)
    count = rng.choice((0, 1, 2, 3)) if "tuple" in text else 1
    if hint is bool:
        count = int(rng.random() < 0.1)
    if rng.random() < 0.05:
        pool = STRINGS
    elif option == "task":
        pool = [*TASKS, *STRINGS]
    elif option == "host":
        pool = ["127.0.0.1", "256.1.1.1", "nonsense.invalid", *STRINGS]
    elif "Path" in text:
        pool = PATHS
    elif "int" in text:
        pool = INTEGERS
    elif "float" in text:
        pool = FLOATS
    else:
        pool = [*_names(option), *STRINGS]
    values = [rng.choice(pool) for _ in range(count)]
    return [f"{flag}={values[0]}"] if count == 1 and rng.random() < 0.2 else [flag, *values]


def _names(option: str) -> list[str]:
    """Registered names for an option, and some that are nearly right."""
    from sgqn.agents import AGENTS
    from sgqn.attribution import METHODS
    from sgqn.augmentations import AUGMENTATIONS
    from sgqn.envs.families import all_renderers, all_shifts

    known: dict[str, Iterable[str]] = {
        "agent": AGENTS,
        "shift": all_shifts(),
        "evaluate_shifts": all_shifts(),
        "method": [*METHODS, "smoothgrad:samples=1000000000", "rise:masks=0", "smoothgrad:samples="],
        "attribution": [*METHODS, "smoothgrad:samples=1e9"],
        "augmentation": AUGMENTATIONS,
        "renderer": [*all_renderers(), "auto"],
        "device": ["cpu", "cuda", "cuda:0", "cuda:-1", "cpu:99", "meta", "tpu"],
        "devices": ["cpu", "cuda:7"],
        "policy": ["policy:act", "policy:nothing", "no.such:act", ":", "policy"],
        "logger": ["wandb", "mlflow", "none"],
    }
    names = list(known.get(option, ["auto", "half", "int8", "onnx", "paper", "tiny", "kernels", "bf16"]))
    return names + [name[:-1] for name in names[:3]]


# The world that they run in


def make_world(folder: Path) -> None:
    """The files that the command lines name, below `folder`; commands run in `folder/work`."""
    from tests.helpers import tiny_config, untrained_run, write_clip, write_image

    work = folder / "work"
    for name in ("work", "home", "tmp", "data", "outside"):
        (folder / name).mkdir(parents=True)
    untrained_run(work / "run", tiny_config())
    for name, text in {"broken": "[1, 2]", "nested": "[" * 100_000}.items():
        (work / name).mkdir()
        (work / name / "config.json").write_text(text)
    for name in ("folder", "keep", "read-only"):
        (work / name).mkdir()
    (work / "keep" / "notes.txt").write_text("precious")
    (work / "keep" / "index.html").write_text("<title>mine</title>")
    (work / "keep" / "agent.json").write_text("{}")
    (folder / "outside" / "notes.txt").write_text("precious")
    (work / "read-only").chmod(0o555)
    (work / "file.txt").write_text("text\n")
    (work / "empty").touch()
    (work / "config.toml").write_text('task = "gym:sgqn/Catch-v0"\nagent = "sgdqn"\npreset = "tiny"\n')
    (work / "config.json").write_text('{"task": "walker-walk", "steps": 1e30}')
    (work / "bad.toml").write_text("task = [[[\n")
    small = 'task = "gym:sgqn/Catch-v0"\nagent = "sgdqn"\npreset = "tiny"\nseed = [0, 1]\nsteps = 200\n'
    (work / "sweep.toml").write_text(small)
    (work / "policy.py").write_text("def act(obs):\n    return [0] * len(obs)\n")
    (work / "loop").symlink_to("loop")
    (work / "dangling").symlink_to("nothing")
    os.mkfifo(work / "pipe")
    write_image(work / "pictures" / "a.png")
    write_clip(work / "clone" / "video_easy" / "video0.mp4")
    (work / "clone" / "video_easy" / "video1.mp4").write_bytes(b"no video")


def _kept(folder: Path) -> dict[str, str]:
    """What no command may change: everything outside of the working directory, and the files of others in it."""
    found = {}
    for root in (folder / "outside", folder / "work" / "keep", folder / "home"):
        for path in sorted(root.rglob("*")):
            if path.is_file() and ".cache" not in path.parts:
                found[str(path)] = hashlib.sha256(path.read_bytes()).hexdigest()
    return found


def _changed(folder: Path, before: dict[str, str]) -> list[str]:
    after = _kept(folder)
    inside = str(folder / "work")
    gone = [name for name, digest in before.items() if after.get(name) != digest]
    new = [name for name in after if name not in before and not name.startswith(inside)]
    strange = [str(path) for path in folder.iterdir() if path.name not in ("work", "home", "tmp", "data", "outside")]
    return gone + new + strange


# Running


def run(line: Sequence[str], world: Path) -> Outcome:
    """Run a command line in a copy of the world, in a forked process."""
    line = list(line)
    with tempfile.TemporaryDirectory(prefix="sgqn-fuzz-") as temporary:
        folder = Path(temporary) / "world"
        _copy(world, folder)
        before = _kept(folder)
        log = Path(temporary) / "stderr"
        base = _resident()
        pid = os.fork()
        if pid == 0:
            _command(line, folder, log)
        hung, code, most = _watch(pid)
        errors = log.read_text(errors="surrogateescape") if log.exists() else ""
        evidence = f"exit code {code}: {errors[-1500:]}"
        if hung:
            kind = "hang"
        elif most - base > MOST_MEMORY:
            kind, evidence = "memory", f"{(most - base) / 1e9:.1f} GB; {evidence}"
        elif changed := _changed(folder, before):
            kind, evidence = "wrote elsewhere", f"{changed}; {evidence}"
        else:
            kind = _judged(code, errors)
        (folder / "work" / "read-only").chmod(0o755)
        return Outcome(kind, line, evidence)


def _copy(world: Path, folder: Path) -> None:
    def passed_over(directory: str, names: list[str]) -> list[str]:
        return [name for name in names if name == "pipe"]

    shutil.copytree(world, folder, symlinks=True, ignore=passed_over)
    os.mkfifo(folder / "work" / "pipe")


def _command(line: list[str], folder: Path, log: Path) -> typing.NoReturn:
    code = 1
    try:
        os.setsid()
        os.chdir(folder / "work")
        os.environ.setdefault("WARP_CACHE_PATH", str(Path.home() / ".cache" / "warp"))  # kernels compile for minutes
        os.environ |= {"HOME": str(folder / "home"), "TMPDIR": str(folder / "tmp"), "SGQN_DATA": str(folder / "data")}
        tempfile.tempdir = None
        resource.setrlimit(resource.RLIMIT_AS, (ADDRESS_SPACE, ADDRESS_SPACE))
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
        sys.path.insert(0, "")
        for stream, path in ((0, os.devnull), (1, os.devnull), (2, str(log))):
            os.dup2(os.open(path, os.O_RDWR | os.O_CREAT), stream)
        signal.signal(
            signal.SIGINT, signal.default_int_handler
        )  # which is ignored where a shell runs in the background
        faulthandler.register(signal.SIGUSR1, file=2)
        from sgqn.cli import main

        try:
            code = main(line)
        except SystemExit as stop:
            code = stop.code if isinstance(stop.code, int) else int(stop.code is not None)
        except BaseException:
            traceback.print_exc()
        sys.stdout.flush()
        sys.stderr.flush()
    finally:
        os._exit(code)


def _watch(pid: int) -> tuple[bool, int, int]:
    """Wait for a process, and interrupt it after a while: whether it hung, its exit code, the most memory it took."""
    start, asked, used = time.monotonic(), 0.0, 0.0
    while True:
        found, status, usage = os.wait4(pid, os.WNOHANG)
        if found:
            return False, os.waitstatus_to_exitcode(status), usage.ru_maxrss << 10
        now, processor = time.monotonic(), _processor_seconds(pid)
        if not asked and (now - start > SECONDS or processor > CPU_SECONDS):
            os.kill(pid, signal.SIGINT)
            asked, used = now, processor
        if asked and (now - asked > PATIENCE or processor - used > CPU_PATIENCE):
            os.kill(pid, signal.SIGUSR1)  # print where it hangs
            time.sleep(0.5)
            os.killpg(pid, signal.SIGKILL)
            _, status, usage = os.wait4(pid, 0)
            return True, os.waitstatus_to_exitcode(status), usage.ru_maxrss << 10
        time.sleep(0.01)


def _processor_seconds(pid: int) -> float:
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def _resident() -> int:
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def _judged(code: int, errors: str) -> str:
    """Whether an exit code and what was printed tell a user what happened."""
    *notes, last = errors.strip("\n").split("\n")
    if "Traceback" in errors:
        return "traceback"
    if code in (0, 130):
        return "ran"
    clear = last.startswith("error: ") and len(last) > len("error: ")
    return "refused" if code == 2 and clear and all(note.startswith(NOTES) for note in notes) else "traceback"


def run_all(lines: Iterable[Sequence[str]], seconds: float | None = None) -> list[Outcome]:
    """Run command lines one after another, as many as fit into the time. Call it in a process without threads."""
    import torch

    torch.set_num_threads(1)
    _warm_up()
    found: list[Outcome] = []
    with tempfile.TemporaryDirectory(prefix="sgqn-fuzz-") as temporary:
        world = Path(temporary) / "world"
        make_world(world)
        end = None if seconds is None else time.monotonic() + seconds
        for line in lines:
            if end is not None and time.monotonic() > end:
                break
            found.append(run(line, world))
            if found[-1].kind not in PASSED:
                print(f"{found[-1].kind}: {json.dumps(found[-1].arguments)}\n{found[-1].evidence}", file=sys.stderr)
    return found


def _warm_up() -> None:
    """Import what commands import, so that forked processes do not."""
    import torch.utils.tensorboard  # noqa: F401

    import sgqn.demo
    import sgqn.evaluation
    import sgqn.explain
    import sgqn.export.onnx
    import sgqn.inspect.preview
    import sgqn.policies
    import sgqn.results.report
    import sgqn.sweep
    import sgqn.training
    import sgqn.watch  # noqa: F401
    from sgqn.envs.families import families

    families()


def outcomes(count: int, seed: int, seconds: float | None = None) -> collections.Counter[str]:
    """Run `count` command lines of a seed, or as many as fit into `seconds`; how many had which outcome.

    They run in a process of its own, which forks: the calling one may have threads. Failures are printed to stderr.
    """
    root = Path(__file__).parents[2]
    environment = os.environ | {"PYTHONPATH": str(root), "OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1"}
    command = [sys.executable, "-m", "tests.fuzz.commands", str(count), str(seed)]
    command += [] if seconds is None else ["--seconds", str(seconds)]
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True, env=environment, cwd=root, check=True)
    return collections.Counter(json.loads(done.stdout.splitlines()[-1]))


def main(arguments: Sequence[str]) -> None:
    if arguments[:1] == ["--run"]:
        found = run_all([arguments[1:]])
        print(found[0].evidence)
    else:
        count, seed = int(arguments[0]), int(arguments[1])
        seconds = float(arguments[3]) if arguments[2:3] == ["--seconds"] else None
        generated = command_lines(seed)
        found = run_all((next(generated) for _ in range(count)), seconds)
    print(json.dumps(collections.Counter(outcome.kind for outcome in found)))


if __name__ == "__main__":
    main(sys.argv[1:])
