"""Damage real files of a run and of an exported agent, read them, and judge what happens.

    outcomes(1000, seed=0)    # counts by outcome; benchmarks/fuzz.py prints them

A case is refused with one line, or accepted. What is accepted must be the original content. There are two exceptions.
Logs and config.json have no checksum, because people edit them: a changed value within its range is another value. And
whoever recomputes all checksums can always write another valid agent: without signatures, other finite weights or
another learning rate are not wrong, only different. So a changed content is "another" if the case forged the checksums,
or if the file has none, and if the content passes the checks of `_plausible`. Everything else that is accepted with a
changed content is "silent": damage that no checksum found, or a forged file that breaks a rule which every file written
by this package keeps.
"""

from __future__ import annotations

import atexit
import contextlib
import dataclasses
import hashlib
import json
import os
import shutil
import signal
import stat
import tempfile
import time
import traceback
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import hypothesis
import numpy as np
import torch
from hypothesis import HealthCheck, Phase, given
from hypothesis import strategies as st
from safetensors.torch import load as unpack
from safetensors.torch import save as pack

from sgqn import checkpoint, evaluation, loading, memory, run_folder, training
from sgqn.errors import SgqnError, WorkerError
from sgqn.export import card
from sgqn.pretrained import package
from sgqn.results.runs import RunEvaluation, find_runs
from tests.helpers import tiny_config

SECONDS = 10.0
"""A case that takes longer hangs."""
GROWTH = 1 << 30
"""Bytes of memory that a case may need."""
FAILURES = ("traceback", "lines", "hang", "memory", "silent", "wrote elsewhere")
STEPS = (8, 16)
"""The checkpoints of the run."""

REFUSED, UNCHANGED, ANOTHER = "refused", "accepted unchanged", "another valid file"

LOGS = ("run/metrics.jsonl", "run/evaluations.jsonl", "run/saliency.jsonl")
OLD, NEW = (f"run/checkpoints/{checkpoint.name(step)}" for step in STEPS)
OLD_REPLAY, NEW_REPLAY = (f"run/replay/{checkpoint.name(step)}.replay.json" for step in STEPS)
JSONS = ("run/config.json", f"{NEW}/manifest.json", f"{NEW}/state.json", NEW_REPLAY, "agent/agent.json")
TENSORS = (
    f"{NEW}/weights.safetensors",
    f"{NEW}/state.safetensors",
    "run/replay/transitions",
    "agent/weights.safetensors",
)
FILES = (*JSONS, *TENSORS, *LOGS, "run/replay/frames")
UNSEALED = ("run/config.json", *LOGS)
"""Files without a checksum."""


@dataclass(frozen=True)
class Case:
    """One way to damage a file, and who reads it then."""

    kind: str
    file: str
    reader: str
    place: int = 0
    """Which byte, value or tensor: taken modulo how many there are."""
    value: int = 0
    """Which bit or replacement."""
    forged: bool = False
    """Whether the checksums are computed again."""


# The originals


@cache
def originals() -> Path:
    """A folder with a trained run and an exported agent, written once by the package itself."""
    torch.set_num_threads(1)
    home = Path(tempfile.mkdtemp(prefix="sgqn-fuzz-"))
    atexit.register(shutil.rmtree, home, ignore_errors=True)
    config = tiny_config(
        steps=STEPS[-1], warmup_steps=4, num_envs=2, overlay_images=4, log_every=4, images_every=0, evaluate_every=0,
        evaluate_shifts=("train",), checkpoint_every=STEPS[0], replay_capacity=12, device="cpu",
        settings={"batch_size": 2},
    )  # fmt: skip
    training.train(config, home / "runs", progress=False)
    run = home / "run"
    run_folder.folder_of(config, home / "runs").rename(run)
    shutil.rmtree(home / "runs")
    for path in run.glob("events.*"):
        path.unlink()
    for step in STEPS:
        found = RunEvaluation(config.task, "train", 0, "warp", "none", (1.0, 2.0), step)
        run_folder.append_line(run / run_folder.EVALUATIONS, {**found.to_dict(), "step": step})
        line = {
            "step": step, "task": config.task, "shift": "train", "seed": 0, "renderer": "warp", "backgrounds": "none",
            "method": "gradient", "rho": 0.95, "fill": "random", "every": 1, "frames": 2, "returns": [1.0],
            "means": {"iou": 0.5}, "errors": {"iou": None}, "curves": {"shown": [1.0, 0.5]},
        }  # fmt: skip
        run_folder.append_line(run / run_folder.SALIENCY, line)
    loaded = checkpoint.load(run / "checkpoints" / checkpoint.name(STEPS[-1]))
    agent = loading.load_agent(run)
    weights = {name: tensor for name, tensor in loaded.weights.items() if name not in agent.left_out()}
    about = {"returns": [], "curve": [], "machine": {}, "versions": {}, "precision": "half", "pictures": "generated"}
    about["check"] = {"observations": 1, "shifts": ["train"], "mean": 0.0, "largest": 0.0, "masks": 1.0}
    packed = package.Package(config, agent.spec, STEPS[-1], package.pack(weights), about)
    (home / "agent").mkdir()
    for name, content in packed.files(card.write(packed)).items():
        (home / "agent" / name).write_bytes(content.encode() if isinstance(content, str) else content)
    (home / "outside").mkdir()
    (home / "outside" / "secret.json").write_text('{"step": 1}\n')
    return home


@cache
def _trainer() -> training.Trainer:
    """A trainer for all cases that resume: starting its worker processes takes seconds."""
    config = run_folder.read_config(originals() / "run")
    trainer = training.Trainer(config, originals() / "run", progress=False)
    atexit.register(trainer.close)
    return trainer


# Readers: each returns what it has read, as plain values


def _weights_of(agent: Any) -> dict[str, Any]:
    return {"weights": {name: value.clone() for name, value in agent.state_dict().items()}, "spec": agent.spec}


def _load_agent(home: Path, target: str) -> dict[str, Any]:
    return _weights_of(loading.load_agent(home / target))


def _load(home: Path, target: str) -> dict[str, Any]:
    trained = loading.load(home / target)
    return {
        **_weights_of(trained.agent),
        "config": trained.config,
        "step": trained.step,
        "precision": trained.precision,
    }


def _report(home: Path, target: str) -> dict[str, Any]:
    found = find_runs(home / "run").runs[0]
    fields = {one.name: getattr(found, one.name) for one in dataclasses.fields(found)}
    return {"run": {name: repr(value) for name, value in fields.items() if name != "path"}}


def _resume(home: Path, target: str) -> dict[str, Any]:
    """What `training.resume` does until training continues, with a trainer that exists already."""
    trainer, run = _trainer(), home / "run"
    with run_folder.hold(run):
        config = run_folder.read_config(run)
        memory.check(config, torch.device("cpu"))
        opened = checkpoint.open_checkpoint(checkpoint.find(run))
        training._check_same_as(config, opened, run)
        trainer.folder, trainer.logs._folder = run, run
        try:
            trainer.load(opened)
        except SgqnError as error:
            if isinstance(error.__cause__, WorkerError):  # its process is gone
                _trainer().close()
                _trainer.cache_clear()
            raise
        state = trainer.state_dict()
        state["logs"].pop("seconds")
        replay = trainer.experience.replay.state_dict()  # type: ignore[attr-defined]
        return {**_weights_of(trainer.agent), "step": trainer.step, "state": state, "replay": replay}


def _resume_in_full(home: Path, target: str) -> dict[str, Any]:
    training.resume(home / "run", progress=False)
    return _load(home, "run")


def _evaluate(home: Path, target: str) -> dict[str, Any]:
    return {"line": evaluation.record(home / target, ["train"], episodes=1, renderer="warp")}


READERS: dict[str, Callable[[Path, str], dict[str, Any]]] = {
    "load_agent": _load_agent,
    "load": _load,
    "report": _report,
    "resume": _resume,
    "resume in full": _resume_in_full,
    "evaluate": _evaluate,
}


def readers_of(file: str, slow: bool = False) -> list[str]:
    """Who reads a file. Two readers take seconds each."""
    if file.startswith("agent"):
        return ["load_agent", "load", *["evaluate"] * slow]
    if file.startswith("run/replay"):
        return ["resume", *["resume in full"] * slow]
    if file in LOGS:
        return ["report", "resume"]
    both = ["load_agent", "load", "resume", *["resume in full", "evaluate"] * slow]
    return [*both, "report"] if file == "run/config.json" else both


# Damage

NASTY: tuple[Any, ...] = (
    None, True, False, -1, 0, 1, 2, 2**31, 10**9, 2**53, 2**63, 2**64, 10**30, 0.5, 1e308, float("nan"), float("inf"),
    "", "x", "x" * 5000, "../../outside/secret.json", "/dev/zero", "line\nbreak", [], {}, [1, 2], {"a": 1}, [[[[]]]],
    ["os"], ["antigravity"], "0" * 64, "F64", "bool", "$tensor", {"$tensor": "x"}, {"$float": "nan"},
)  # fmt: skip
"""Values that replace others in JSON."""
SPECIAL = ("pipe", "folder", "missing", "link out", "link to a device", "loop", "dangling", "socket", "huge", "zeros")
"""What takes the place of a file."""
TRAPS = (".lock", "config.json.tmp", "metrics.jsonl.tmp", "metrics.jsonl", "evaluations.jsonl", "replay", "checkpoints")
"""Names in a run's folder that become links to somewhere else."""
SIZES = ("hidden_dim", "encoder_filters", "encoder_layers", "embedding_dim", "image_size", "frame_stack", "num_envs",
         "replay_capacity", "batch_size")  # fmt: skip


def find(home: Path, name: str) -> Path:
    """A file; those of the replay have checksums in their names."""
    found = sorted(home.glob(f"{name}-*")) if not (home / name).exists() else []
    return found[-1] if found else home / name


def damage(case: Case, home: Path) -> None:
    """Apply a case to a copy of the originals."""
    KINDS[case.kind](case, find(home, case.file))
    if case.forged:
        reseal(home)


def _flip(case: Case, path: Path) -> None:
    data = bytearray(path.read_bytes())
    data[case.place % len(data)] ^= 1 << case.value % 8
    path.write_bytes(data)


def _cut(case: Case, path: Path) -> None:
    data = path.read_bytes()
    path.write_bytes(data[: case.place % len(data)])


def _grow(case: Case, path: Path) -> None:
    path.write_bytes(path.read_bytes() + bytes([case.value % 256]) * (1 + case.place % 5000))


def _places(value: Any, place: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    inner = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, item in inner:
        yield (*place, key)
        yield from _places(item, (*place, key))


def _edit(values: Any, case: Case) -> Any:
    """The values with one of them replaced, removed, renamed or deeply nested."""
    places = list(_places(values))
    if not places or case.value % 40 == 39:
        return NASTY[case.place % len(NASTY)]
    *above, key = places[case.place % len(places)]
    parent = values
    for step in above:
        parent = parent[step]
    if case.value % 40 == 38:
        del parent[key]
    elif case.value % 40 == 37 and isinstance(parent, dict):
        parent[f"{key}_"] = parent.pop(key)
    elif case.value % 40 == 36:
        deep: Any = parent[key]
        for _ in range(200):
            deep = [deep]
        parent[key] = deep
    else:
        parent[key] = NASTY[case.value % 40 % len(NASTY)]
    return values


def _edit_json(case: Case, path: Path) -> None:
    if path.suffix == ".jsonl":
        lines = path.read_text().splitlines()
        index = case.place % len(lines)
        lines[index] = json.dumps(_edit(json.loads(lines[index]), dataclasses.replace(case, place=case.place // 7)))
        path.write_text("\n".join(lines) + "\n")
    else:
        path.write_text(json.dumps(_edit(json.loads(path.read_text()), case)))


def _replace_json(case: Case, path: Path) -> None:
    texts = (
        "[" * 100_000,
        '{"a":' * 100_000,
        "[1,2]",
        "null",
        '"text"',
        "",
        "\x00",
        "1" * 5000,
        "{}",
        "[[],[]]" * 50_000,
    )
    path.write_text(texts[case.value % len(texts)])


def _edit_header(case: Case, path: Path) -> None:
    """Lie in the header of a safetensors file."""
    data = path.read_bytes()
    length = int.from_bytes(data[:8], "little")
    header = json.loads(data[8 : 8 + length])
    name = sorted(header)[case.place % len(header)]
    about = header[name]
    match case.value % 10:
        case 0 | 1 if "shape" in about:
            about["shape"] = [(10**6, 10**6, 10**6), (-1,), (2**63,), (1.5,), ("x",), (0,)][case.place % 6]
        case 2 if "shape" in about:
            about["dtype"] = ("F64", "F16", "I8", "U8", "BOOL", "C64", "X", 1, None)[case.place % 9]
        case 3 if "shape" in about:
            about["data_offsets"] = [(0, 2**62), (-4, 0), (8, 4), (0,), (0, 1, 2), ("0", "4")][case.place % 6]
        case 4 if "shape" in about:
            about["shape"] = about["shape"][::-1] if len(about["shape"]) > 1 else [1, *about["shape"]]
        case 5:
            header[name + "x"] = header.pop(name)
        case 6:
            header["more"] = {"dtype": "F32", "shape": [0], "data_offsets": [len(data) - 8 - length] * 2}
        case 7:
            header = _edit(header, case)
        case 8:
            length = (0, 1, 2**40, 2**63, len(data))[case.place % 5]
            path.write_bytes(length.to_bytes(8, "little") + data[8:])
            return
        case _:
            del header[name]
    text = json.dumps(header).encode()
    path.write_bytes(len(text).to_bytes(8, "little") + text + data[8 + int.from_bytes(data[:8], "little") :])


def _edit_tensor(case: Case, path: Path) -> None:
    """Store a tensor of other values, dtype or shape in a valid file."""
    tensors = unpack(path.read_bytes())
    name = sorted(tensors)[case.place % len(tensors)]
    value = tensors[name]
    match case.value % 10:
        case 0 | 1:
            value = value.clone()
            if value.numel():
                broken = (float("nan"), float("inf"), float("-inf")) if value.is_floating_point() else (-1, 2, 2**62)
                value.view(-1)[case.place % value.numel()] = torch.tensor(broken[case.place % 3]).to(value.dtype)
        case 2:
            value = value.to(torch.float64)
        case 3:
            value = value.to(torch.int64)
        case 4:
            value = value.to(torch.bool)
        case 5:
            value = value.repeat(2, *[1] * (value.ndim - 1)) if value.ndim else value.repeat(2)
        case 6:
            value = value[..., :0]
        case 7:
            tensors[name + ".more"] = torch.zeros(3)
        case 8:
            value = torch.full_like(value, 1)
        case _:
            tensors.pop(name)
    if name in tensors:
        tensors[name] = value.contiguous()
    path.write_bytes(pack(tensors, metadata={"format": "pt"}))


def _home(path: Path) -> Path:
    return next(parent for parent in path.parents if (parent / "outside").is_dir())


def _special(case: Case, path: Path) -> None:
    outside = _home(path) / "outside"
    content = path.read_bytes()
    path.unlink()
    match SPECIAL[case.value % len(SPECIAL)]:
        case "pipe":
            os.mkfifo(path)
        case "folder":
            path.mkdir()
        case "link out":
            (outside / "copy").write_bytes(content)
            path.symlink_to(outside / "copy")
        case "link to a device":
            path.symlink_to("/dev/zero")
        case "loop":
            path.symlink_to(path)
        case "dangling":
            path.symlink_to(outside / "nothing")
        case "socket":
            os.mknod(path, stat.S_IFSOCK | 0o600)
        case "huge":  # no bytes on the disk
            path.touch()
            os.truncate(path, 1 << 36)
        case "zeros":
            path.write_bytes(bytes(len(content)))


def _trap(case: Case, path: Path) -> None:
    """Links with which reading or resuming would write outside of the run's folder."""
    home = _home(path)
    trap = home / "run" / TRAPS[case.value % len(TRAPS)]
    if trap.is_dir():
        shutil.move(trap, home / "outside" / trap.name)
        trap.symlink_to(home / "outside" / trap.name)
    else:
        trap.unlink(missing_ok=True)
        trap.symlink_to(home / "outside" / ("secret.json", "new")[case.place % 2])


def _swap(case: Case, path: Path) -> None:
    """Exchange what belongs to different steps, or to run and agent."""
    home = _home(path)
    pairs = [
        (home / OLD, home / NEW),
        (home / OLD_REPLAY, home / NEW_REPLAY),
        *((home / OLD / name, home / NEW / name) for name in checkpoint._FILES),
        (home / OLD / "manifest.json", home / NEW / "manifest.json"),
        (home / NEW / "weights.safetensors", home / "agent" / "weights.safetensors"),
        (home / NEW / "weights.safetensors", home / NEW / "state.safetensors"),
    ]
    one, other = pairs[case.place % len(pairs)]
    aside = one.with_name("aside")
    one.rename(aside)
    other.rename(one)
    aside.rename(other)


def _enlarge(case: Case, path: Path) -> None:
    """Ask for a huge agent, in all places that say how large it is."""
    home = _home(path)
    name = SIZES[case.place % len(SIZES)]
    size = (10**4, 10**5, 4 * 10**6, 2**31, 2**40)[case.value % 5]
    for file, inner in (
        ("run/config.json", ()),
        (f"{NEW}/state.json", ("metadata", "config")),
        ("agent/agent.json", ("config",)),
    ):
        whole = json.loads((home / file).read_text())
        config = whole
        for key in inner:
            config = config[key]
        (config if name in config else config["settings"])[name] = size
        spec = whole.get("spec") or whole.get("metadata", {}).get("spec")
        if spec and name == "image_size":
            spec["image_size"] = spec["render_size"] = size
        if spec and name == "frame_stack":
            spec["channels"] = 3 * size
        (home / file).write_text(json.dumps(whole))


KINDS: dict[str, Callable[[Case, Path], None]] = {
    "flip": _flip,
    "cut": _cut,
    "grow": _grow,
    "edit": _edit_json,
    "replace": _replace_json,
    "header": _edit_header,
    "tensor": _edit_tensor,
    "special": _special,
    "trap": _trap,
    "swap": _swap,
    "enlarge": _enlarge,
}


def _sha256(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


def _digest(values: Any) -> str:
    return _sha256(json.dumps(values, sort_keys=True).encode())


def _content(path: Path) -> bytes:
    """The content of a file that an attacker can compute a checksum of."""
    about = os.lstat(path)
    if not stat.S_ISREG(about.st_mode) or about.st_size > 1 << 30:
        raise OSError("not a regular file of a usual size")
    return path.read_bytes()


def reseal(home: Path) -> None:
    """Compute all checksums again, as an attacker would."""
    for manifest in home.glob("run/replay/*.replay.json"):
        with contextlib.suppress(Exception):  # what is no manifest any more needs no checksum
            document = json.loads(manifest.read_text())
            for chunk in (*document["body"]["frames"], *document["body"]["rows"]):
                data = _content(manifest.parent / chunk["file"])
                chunk.update(size=len(data), sha256=_sha256(data))
            document["sha256"] = _digest(document["body"])
            manifest.write_text(json.dumps(document))
    for folder in home.glob("run/checkpoints/step_*"):
        with contextlib.suppress(Exception):
            manifest = folder / "manifest.json"
            values = json.loads(manifest.read_text())
            for name in checkpoint._FILES:
                with contextlib.suppress(OSError):
                    data = _content(folder / name)
                    values["files"][name].update(size=len(data), sha256=_sha256(data))
            values.pop("sha256", None)
            manifest.write_text(json.dumps({**values, "sha256": _digest(values)}))
    with contextlib.suppress(Exception):
        about = json.loads((home / "agent" / "agent.json").read_text())
        data = _content(home / "agent" / "weights.safetensors")
        about["weights"].update(size=len(data), sha256=_sha256(data))
        about.pop("sha256", None)
        (home / "agent" / "agent.json").write_text(json.dumps({**about, "sha256": _digest(about)}))


def forget_replay(home: Path) -> None:
    """Make the checkpoints those of an earlier version, which do not say which replay is theirs."""
    for path in home.glob("run/checkpoints/*/state.json"):
        with contextlib.suppress(Exception):
            tree = json.loads(path.read_text())
            tree["state"]["replay"] = True
            path.write_text(json.dumps(tree))


# Judging


class Hang(BaseException):
    """Not an `Exception`, which readers might catch."""


@contextlib.contextmanager
def _deadline(seconds: float) -> Iterator[None]:
    def stop(*_: Any) -> None:
        raise Hang

    before = signal.signal(signal.SIGALRM, stop)
    signal.setitimer(signal.ITIMER_REAL, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


def _memory(key: str) -> int:
    """A figure of /proc/self/status in bytes; 0 on other systems."""
    status = Path("/proc/self/status")
    lines = status.read_text().splitlines() if status.exists() else []
    return next((int(line.split()[1]) * 1024 for line in lines if line.startswith(key)), 0)


def _reset_peak() -> None:
    with contextlib.suppress(OSError):
        Path("/proc/self/clear_refs").write_text("5")


def _same(one: Any, other: Any) -> bool:
    if isinstance(one, torch.Tensor) or isinstance(other, torch.Tensor):
        return (
            isinstance(other, torch.Tensor)
            and isinstance(one, torch.Tensor)
            and one.dtype == other.dtype
            and torch.equal(one, other)
        )
    if isinstance(one, np.ndarray):
        return isinstance(other, np.ndarray) and one.dtype == other.dtype and np.array_equal(one, other)
    if isinstance(one, dict):
        return (
            isinstance(other, dict) and one.keys() == other.keys() and all(_same(one[key], other[key]) for key in one)
        )
    if isinstance(one, list | tuple):
        return type(one) is type(other) and len(one) == len(other) and all(map(_same, one, other))
    return type(one) is type(other) and one == other


@cache
def _original(reader: str, target: str) -> dict[str, Any]:
    home = Path(tempfile.mkdtemp(prefix="sgqn-fuzz-original-"))
    try:
        shutil.copytree(originals(), home, dirs_exist_ok=True)
        return READERS[reader](home, target)
    finally:
        shutil.rmtree(home)


def _plausible(found: dict[str, Any], original: dict[str, Any]) -> bool:
    """Whether a content that differs from the original obeys the rules that every written file keeps."""
    if "weights" in found:
        described = [
            {name: (value.dtype, value.shape) for name, value in one["weights"].items()} for one in (found, original)
        ]
        finite = all(value.isfinite().all() for value in found["weights"].values())
        if described[0] != described[1] or not finite or found["spec"] != original["spec"]:
            return False
    if "replay" in found:
        replay = found["replay"]
        if replay["config"] != original["replay"]["config"] or replay["row_count"] != original["replay"]["row_count"]:
            return False
        if not all(replay[key].isfinite().all() for key in ("action", "reward", "discount")):
            return False
        numbers = replay["numbers"]
        if numbers.min() < replay["first_frame"] or numbers.max() >= replay["frame_count"]:
            return False
    return found.get("step") == original.get("step")


def _outside(home: Path) -> dict[str, bytes | None]:
    """Everything next to the run and the agent."""
    found = sorted((home / "outside").rglob("*"))
    return {str(path): path.read_bytes() if path.is_file() and not path.is_symlink() else None for path in found}


def judge(case: Case, log: Callable[[str], None] | None = None) -> str:
    """Damage, read, and say what happened."""
    target = case.file.split("/")[0]
    expected = _original(case.reader, target)
    home = Path(tempfile.mkdtemp(prefix="sgqn-fuzz-case-"))
    try:
        shutil.copytree(originals(), home, dirs_exist_ok=True)
        if case.forged and case.reader == "resume" and case.place % 2:
            forget_replay(home)
            reseal(home)
        damage(case, home)
        outcome, detail = _read(case, home, target, expected)
        if log and outcome in FAILURES:
            log(f"{outcome}: {case}\n{detail}")
        return outcome
    finally:
        shutil.rmtree(home)


def _read(case: Case, home: Path, target: str, expected: dict[str, Any]) -> tuple[str, str]:
    before = _outside(home)
    _reset_peak()
    resident, started = _memory("VmRSS"), time.monotonic()
    found, detail, outcome = None, "", REFUSED
    try:
        slow = case.reader in ("resume in full", "evaluate")  # these play, and start processes
        with _deadline(SECONDS * (6 if slow else 1)):
            found = READERS[case.reader](home, target)
    except SgqnError as error:
        detail = str(error)
        if len(detail.splitlines()) != 1 or len(detail) > 4000:
            outcome = "lines"
    except Hang:
        outcome, detail = "hang", f"more than {SECONDS} s"
    except Exception:
        outcome, detail = "traceback", traceback.format_exc()
    grown = _memory("VmHWM") - resident
    if outcome in (REFUSED, "lines") and found is None and time.monotonic() - started > SECONDS * 6:
        return "hang", detail
    if _outside(home) != before:
        return "wrote elsewhere", "a file outside of the run's folder changed"
    if grown > GROWTH:
        return "memory", f"{grown / 1e9:.1f} GB"
    if found is None:
        return outcome, detail
    if _same(found, expected):
        return UNCHANGED, ""
    what = SPECIAL[case.value % len(SPECIAL)] if case.kind == "special" else ""
    older = what == "missing" and case.file.endswith("manifest.json")  # incomplete: the checkpoint before it is used
    free = case.forged or case.file in UNSEALED
    if case.reader == "evaluate" or older or (free and _plausible(found, expected)):
        return ANOTHER, ""
    return "silent", "; ".join(key for key in found if not _same(found[key], expected.get(key)))


# Strategies

_KINDS_OF = {".json": ("edit", "replace"), ".jsonl": ("edit", "replace"), ".safetensors": ("header", "tensor")}


@st.composite
def cases(draw: st.DrawFn, slow: bool = False) -> Case:
    """Any case; `slow` also draws readers that take seconds, now and then."""
    file = draw(st.sampled_from(FILES))
    suffix = ".safetensors" if file == "run/replay/transitions" else Path(file).suffix
    own = _KINDS_OF.get(suffix, ())
    kinds = ["flip", "cut", "grow", "special", *own, *own, *own]
    kinds += [] if file.startswith("agent") else ["trap", "swap"]
    kind = draw(st.sampled_from([*kinds, "enlarge"]))
    rare = slow and draw(st.integers(0, 24)) == 0
    reader = draw(st.sampled_from(readers_of(file, rare)))
    numbers = st.integers(0, 10**6)
    return Case(kind, file, reader, draw(numbers), draw(st.integers(0, 119)), draw(st.booleans()))


def outcomes(count: int, seed: int, log: Callable[[str], None] | None = print) -> Counter[str]:
    """How often each outcome occurs in `count` cases. `log` is told about failures."""
    counted: Counter[str] = Counter()
    checks = list(HealthCheck)

    @hypothesis.seed(seed)
    @hypothesis.settings(
        max_examples=count, database=None, deadline=None, phases=[Phase.generate], suppress_health_check=checks
    )
    @given(cases(slow=True))
    def run(case: Case) -> None:
        counted[judge(case, log)] += 1

    run()
    return counted
