"""The `sgqn` command. A subcommand is one function with `@command`; its heavy imports stay inside it."""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import inspect
import io
import json as jsonlib
import os
import re
import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import tyro

import sgqn
from sgqn.errors import DataError, Interrupted, InvalidValueError, SgqnError, UnknownNameError

if TYPE_CHECKING:
    from rich.console import Console
    from rich.progress import TaskID

    from sgqn.data import Entry

Flag = Annotated[bool, tyro.conf.FlagCreatePairsOff]
Command = Callable[..., None]

COMMANDS: dict[str, Command] = {}


def command(name: str) -> Callable[[Command], Command]:
    """Make a function the subcommand `name`, which may be two words. Its signature becomes the options."""

    def register(function: Command) -> Command:
        COMMANDS[name] = function
        return function

    return register


def main(argv: Sequence[str] | None = None) -> int:
    """Run `sgqn`; returns the exit code: 0, 2 for what the user can mend, 130 when interrupted."""
    try:
        _run(list(sys.argv[1:] if argv is None else argv))
        sys.stdout.flush()
    except Interrupted as stop:
        print(f"\n{stop}", file=sys.stderr)
        return stop.code
    except SgqnError as error:
        print(f"error: {' '.join(str(error).split())}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        print("interrupted", file=sys.stderr)
        return 130
    except BrokenPipeError:  # the reader of our output has gone, as in `sgqn data | head -1`
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 141
    except OSError as error:  # a full disk, a folder that may not be written to
        print(f"error: {error}", file=sys.stderr)
        return 2
    return 0


def _run(args: list[str]) -> None:
    """Find the command that the first one or two words name, and call it with the rest."""
    words = 2 if " ".join(args[:2]) in COMMANDS else 1
    name = " ".join(args[:words])
    if name in ("", "-h", "--help"):
        _print_help()
    elif name == "--version":
        print(f"sgqn {sgqn.__version__}")
    elif name in COMMANDS:
        _parse(name, args[words:])()
    else:
        raise UnknownNameError("command", name, {known.split()[0] for known in COMMANDS})


def _print_help() -> None:
    print("usage: sgqn COMMAND [OPTIONS]\n")
    print("Visual reinforcement learning that works in scenes it never saw.\n\ncommands:")
    for name, function in COMMANDS.items():
        print(f"  {name:<10}  {(inspect.getdoc(function) or '').splitlines()[0]}")
    print("\n`sgqn COMMAND --help` explains a command; `sgqn --version` prints the version.")


def _parse(name: str, args: list[str]) -> Callable[[], None]:
    """The call that the arguments ask for; made outside of tyro, which would swallow its ValueErrors."""
    function = COMMANDS[name]

    @functools.wraps(function)
    def bind(*positional: Any, **named: Any) -> Any:
        return functools.partial(function, *positional, **named)

    if name == "train":
        return _parse_train(args)
    call: Callable[[], None] = _tyro(name, bind, args)
    return call


def _tyro(name: str, what: Any, args: list[str], **options: Any) -> Any:
    """`tyro.cli`, its boxed complaints as one line."""
    message = io.StringIO()
    try:
        with contextlib.redirect_stderr(message):
            return tyro.cli(what, prog=f"sgqn {name}", args=args, **options)
    except SystemExit as stop:
        if not stop.code:  # --help
            raise
        raise InvalidValueError(f"{_one_line(message.getvalue())} (see `sgqn {name} --help`)") from None


def _one_line(box: str) -> str:
    """The text of tyro's boxed message, without its frame and its pointer to the help."""
    text = " ".join(re.sub(r"^[│|]?(.*?)[│|]?$", r"\1", line) for line in box.splitlines() if line[:1] not in "╭╰+")
    parts = [" ".join(part.split()) for part in re.split(r"[─-]{8,}", text)]
    return "; ".join(part for part in parts if part and not part.startswith("For full helptext"))


# Training


@command("train")
def train() -> None:
    """Train an agent, several (`--seeds 0 1 2`), or go on with a run (`--resume RUN [--steps N]`)."""


def _parse_train(args: list[str]) -> Callable[[], None]:
    """The options' defaults come from the preset and the task, so these two are read first."""
    from sgqn.config import PRESETS, TrainOptions, preset

    name = _peek(args, "--preset", "paper")
    named = (_peek(args, "--task", "walker-walk"), _peek(args, "--agent", "sgqn"))
    defaults = preset(name if name in PRESETS else "paper", *named)
    flat = (tyro.conf.OmitArgPrefixes,)
    options: TrainOptions = _tyro("train", TrainOptions, args, default=TrainOptions(defaults), config=flat)
    if _has(args, "--seeds"):
        for other in ("--resume", "--seed"):
            if _has(args, other):
                raise InvalidValueError(f"--seeds and {other} exclude each other: --seeds names all runs of a queue")
        if not options.seeds:
            raise InvalidValueError("--seeds needs at least one number, such as --seeds 0 1 2")
    if options.resume is not None:
        others = [arg.partition("=")[0] for arg in args if arg.startswith("--")]
        others = [other for other in others if other not in ("--resume", "--steps", "--quiet")]
        if others:
            what = f"{', '.join(others)} cannot be changed, --steps alone can"
            raise InvalidValueError(f"--resume goes on with the configuration that the run was started with: {what}")

    def call() -> None:
        from sgqn import training

        config, out, progress = options.config, options.out, not options.quiet
        if options.seeds:
            folders = training.train_seeds(config, options.seeds, out, progress)
        elif options.resume is not None:
            steps = config.steps if _has(args, "--steps") else None
            folders = [training.resume(options.resume, progress, steps)]
        else:
            folders = [training.train(config, out, progress)]
        for folder in folders:
            print(f"done: {folder}")

    return call


def _has(args: list[str], option: str) -> bool:
    return any(arg == option or arg.startswith(option + "=") for arg in args)


def _peek(args: list[str], option: str, default: str) -> str:
    """The value of an option before the arguments are parsed."""
    for i, arg in enumerate(args):
        if arg == option and i + 1 < len(args):
            return args[i + 1]
        if arg.startswith(option + "="):
            return arg.partition("=")[2]
    return default


@command("evaluate")
def evaluate(
    path: Annotated[tyro.conf.Positional[Path], tyro.conf.arg(metavar="RUN")],
    shift: tuple[str, ...] = ("train", "color_hard", "video_easy", "video_hard"),
    episodes: int = 30,
    seed: int = 0,
    renderer: str = "auto",
    device: str = "cpu",
    json: Flag = False,
) -> None:
    """Play whole episodes with a trained agent, by the benchmark's protocol, in one or several shifts.

    Results are appended to the run's evaluations.jsonl; of an exported or pretrained agent they are printed only.

    Args:
        path: A run's folder, one checkpoint's, an exported one, or a name such as pretrained:walker-walk.
        shift: train, color_easy, color_hard, video_easy, video_hard: one or several.
        episodes: Episodes in each shift.
        seed: Everyone who uses the same seed meets the same episodes.
        renderer: gl (the benchmark's own pixels), warp, or auto.
        device: Where the networks run.
        json: Print JSON instead of a table.
    """
    from rich.console import Console
    from rich.table import Table

    from sgqn.evaluation import record

    with _bars("steps/s") as report:
        lines = record(path, shift, episodes, seed, renderer, device, report)
    if json:
        print(jsonlib.dumps(lines, indent=1))
        return
    table = Table("shift", "return", "episodes", "renderer", "backgrounds")
    for line in lines:
        shown = f"{line['mean']:.0f} ± {line['std']:.0f}"
        table.add_row(line["shift"], shown, str(len(line["returns"])), line["renderer"], line["backgrounds"])
    Console().print(table)


@contextlib.contextmanager
def _bars(unit: str = "") -> Iterator[Callable[[str, int, int], None]]:
    """Progress bars on a terminal, one for each kind of work that `report(what, done, total)` names; time left, and the
    rate where it has a unit."""
    from rich.console import Console
    from rich.progress import Progress, TextColumn

    bars: dict[str, TaskID] = {}
    console = Console(stderr=True)
    columns = [*Progress.get_default_columns(), TextColumn("{task.fields[rate]}")]
    with Progress(*columns, console=console, transient=True, disable=not console.is_terminal) as progress:

        def report(what: str, done: int, total: int) -> None:
            if what not in bars:
                bars[what] = progress.add_task(what, rate="")
            progress.update(bars[what], completed=done, total=total)
            speed = progress.tasks[bars[what]].speed
            if unit and speed:
                progress.update(bars[what], rate=f"{speed:,.0f} {unit}")

        yield report


# Looking into an agent


@command("explain")
def explain(
    paths: Annotated[tyro.conf.Positional[tuple[Path, ...]], tyro.conf.arg(metavar="RUN [RUN ...]")],
    shift: str = "video_hard",
    out: Path = Path("explain.png"),
    method: tuple[str, ...] = (),
    rho: tuple[float, ...] = (),
    frames: int | None = None,
    seed: int = 0,
    renderer: str = "auto",
    device: str = "cpu",
) -> None:
    """Show where agents look: moments of an episode as a sheet (.png), or all of it as a film (.mp4).

    One block of pictures for each run, method and rho. On a sheet all agents are shown the same moments, of the episode
    that the first one plays; in a film each plays its own.

    Args:
        paths: One or several runs of one task: folders of runs, of checkpoints, exported ones, or names such as
            pretrained:walker-walk.
        shift: train, color_easy, color_hard, video_easy, video_hard.
        out: Where to write; the suffix, .png or .mp4, decides which.
        method: gradient, guided_backprop, grad_cam, guided_grad_cam, integrated_gradients, smoothgrad, occlusion,
            rise: one or several; by default the run's own.
        rho: Quantile below which pixels are masked, one or several; by default the run's own.
        frames: Sheet: number of moments, 4 if not given. Film: number of steps, the whole episode if not given.
        seed: Everyone who uses the same seed meets the same episode.
        renderer: gl (the benchmark's own pixels), warp, or auto.
        device: Where the networks run.
    """
    from sgqn import explain as explaining

    with _bars() as report:
        episode = explaining.explain(paths, out, shift, method, rho, frames, seed, renderer, device, report)
    print(f"{out}: {shift}, return of the first agent {episode.rewards.sum():.1f} in {len(episode.rewards)} steps")
    print(f"renderer {episode.renderer}, backgrounds {episode.backgrounds}")


@command("saliency")
def saliency(
    path: Annotated[tyro.conf.Positional[Path], tyro.conf.arg(metavar="RUN")],
    shift: tuple[str, ...] = ("train", "video_hard"),
    episodes: int = 5,
    method: tuple[str, ...] = (),
    rho: float | None = None,
    every: int = 10,
    no_curves: Flag = False,
    seed: int = 0,
    renderer: str = "auto",
    device: str = "cpu",
    json: Flag = False,
) -> None:
    """Measure where an agent looks against the simulator's own mask of the body, in one or several shifts.

    Results are appended to the run's saliency.jsonl, where `sgqn report` finds them; of an exported or pretrained agent
    they are printed only.

    Args:
        path: A run's folder, one checkpoint's, an exported one, or a name such as pretrained:walker-walk.
        shift: train, color_easy, color_hard, video_easy, video_hard: one or several.
        episodes: Episodes in each shift.
        method: gradient, guided_backprop, grad_cam, guided_grad_cam, integrated_gradients, smoothgrad, occlusion,
            rise: one or several; by default the run's own.
        rho: Quantile below which pixels are masked; by default the run's own.
        every: Observations between two that are measured.
        no_curves: Leave out deletion and insertion, the costly part.
        seed: Everyone who uses the same seed meets the same episodes.
        renderer: gl (the benchmark's own pixels), warp, or auto.
        device: Where the networks run.
        json: Print JSON instead of a table.
    """
    from rich.console import Console

    from sgqn.results import looking

    with _bars() as advance:
        options = (seed, renderer, device, every, not no_curves, advance)
        lines = looking.record(path, shift, episodes, method, rho, *options)
    if json:
        print(jsonlib.dumps(lines, indent=1))
    else:
        Console().print(looking.printed(lines))


@command("report")
def report(
    paths: Annotated[tyro.conf.Positional[tuple[Path, ...]], tyro.conf.arg(metavar="RUNS [RUNS ...]")],
    out: Path = Path("report"),
    shift: tuple[str, ...] = (),
    saliency: Flag = False,
    no_pictures: Flag = False,
    seed: int = 0,
    renderer: str = "auto",
    device: str = "cpu",
) -> None:
    """Write a page about any set of runs: tables beside the paper's, learning curves, where the agents look.

    OUT/index.html needs nothing else; OUT/report.md is the same as Markdown, OUT/tables has every table as CSV.

    Args:
        paths: Folders with runs in them, at any depth.
        out: A new or empty folder, or one with an earlier report, which is replaced.
        shift: Shifts for pictures, and for --saliency: one or several; by default train and the hardest evaluated.
        saliency: Measure the saliency of runs where it is not recorded yet; takes minutes.
        no_pictures: Leave out the pictures of what the agents look at, which need checkpoints.
        seed: Of the episode in the pictures, and of the episodes that are measured.
        renderer: gl (the benchmark's own pixels), warp, or auto.
        device: Where the networks run.
    """
    from sgqn.results.report import report as write

    options: dict[str, Any] = {"pictures": not no_pictures, "saliency": saliency, "seed": seed}
    with _bars() as advance:
        made = write(paths, out, shift, renderer=renderer, device=device, on_part=advance, **options)
    for warning in made.warnings:
        print(f"warning: {' '.join(warning.split())}", file=sys.stderr)
    print(f"{made.page}: {made.runs} run{'s' * (made.runs != 1)}")


@command("watch")
def watch(
    path: Annotated[tyro.conf.Positional[Path], tyro.conf.arg(metavar="RUN")],
    shift: str = "video_hard",
    method: str | None = None,
    rho: float | None = None,
    seed: int = 0,
    host: str = "127.0.0.1",
    port: int = 8765,
    renderer: str = "auto",
    device: str = "cpu",
    no_browser: Flag = False,
) -> None:
    """Watch an agent act, live on a local web page: where it looks, its value, its run's learning curves.

    The page chooses shift, method, rho, episode and speed; the options say what it begins with. A run that is still
    training is followed: its curves as they grow, its newest checkpoint at the next episode. Ctrl-C ends it.

    Args:
        path: A run's folder, one checkpoint's, an exported one, or a name such as pretrained:walker-walk.
        shift: train, color_easy, color_hard, video_easy, video_hard.
        method: gradient, guided_backprop, grad_cam, guided_grad_cam, integrated_gradients, smoothgrad, occlusion or
            rise; by default the run's own.
        rho: Quantile below which pixels are masked; by default the run's own.
        seed: Everyone who uses the same seed meets the same episodes.
        host: Address to listen at. Any other than this machine's own lets others watch and change what is shown.
        port: Port to listen at; 0 for any free one.
        renderer: gl (the benchmark's own pixels), warp, or auto.
        device: Where the networks run.
        no_browser: Print the page's address, open no browser.
    """
    from sgqn import watch as live

    live.watch(path, shift, method, rho, seed, host, port, renderer, device, browser=not no_browser)


# Agents to share


@command("export")
def export(
    path: Annotated[tyro.conf.Positional[Path], tyro.conf.arg(metavar="RUN")],
    out: Path,
    precision: Literal["half", "int8"] = "half",
    renderer: str = "auto",
) -> None:
    """Pack a run's agent for sharing: weights in half precision, agent.json, a model card.

    `sgqn evaluate`, `explain` and the others take the folder in place of a run's. Before anything is written the packed
    agent is compared with the trained one, on what that meets in two shifts.

    Args:
        path: A run's folder (its newest checkpoint), or one checkpoint's.
        out: The folder to write; an agent exported there before is replaced.
        precision: half, or int8: large matrices in 8 bits, half as many bytes.
        renderer: gl, warp or auto: what draws the scenes of the comparison.
    """
    from sgqn.pretrained.export import export as pack

    with _bars() as report:
        done = pack(path, out, precision, renderer, report)
    check = done.check
    print(f"{done.folder}: {done.size / 1e6:.1f} MB")
    print(
        f"actions differ by {check['mean']:.2g} in the mean, {check['largest']:.2g} at most, from the trained agent's "
        f"on {check['observations']} observations; masks: IoU {check['masks']:.3f}"
    )


@command("pretrained")
def pretrained(json: Flag = False) -> None:
    """List the trained agents that come with the package.

    Args:
        json: Print JSON instead of a table.
    """
    from sgqn.pretrained import listing

    found = listing.entries()
    print(jsonlib.dumps(found, indent=1)) if json else listing.show(found)


@command("demo")
def demo(
    task: str = "walker-walk",
    agent: str = "sgqn",
    run: Path | None = None,
    shift: str = "video_hard",
    steps: int | None = None,
    out: Path = Path("demo"),
    seed: int = 0,
    renderer: str = "auto",
) -> None:
    """Meet a trained agent: take it into the clean scene and into a distracting one, and see where it looks.

    Needs no data and no GPU. Prints a table; writes a web page that needs nothing else, index.html, and an animation,
    demo.webp, into a folder.

    Args:
        task: The task of a pretrained agent; `sgqn pretrained` lists them.
        agent: Which of the task's pretrained agents.
        run: An agent of your own instead: a run's folder, a checkpoint's or an exported one.
        shift: The distracting scene: color_easy, color_hard, video_easy or video_hard.
        steps: How many steps of the episode; all, but at most 250, if not given.
        out: The folder to write.
        seed: Everyone who uses the same seed meets the same episodes.
        renderer: gl (the benchmark's own pixels), warp, or auto.
    """
    from sgqn import demo as showing

    path = f"pretrained:{task}/{agent}" if run is None else run
    with _bars() as report:
        shown = showing.demo(path, out, shift, steps, seed, renderer, report)
    showing.show(shown)


# Data


@command("data")
def data(json: Flag = False) -> None:
    """Show what data was found where, and how to get the rest (`sgqn data get`).

    Args:
        json: Print JSON instead of a table.
    """
    from sgqn import data as store

    directory, entries = store.data_dir(), store.inventory()
    if json:
        rows = [dataclasses.asdict(entry) | {"path": str(entry.path)} for entry in entries]
        print(jsonlib.dumps({"directory": str(directory), "sets": rows}, indent=2))
    else:
        _print_inventory(directory, entries)


@command("data get")
def data_get(
    kind: tyro.conf.Positional[Literal["dmcgb", "overlay"]],
    source: Annotated[str, tyro.conf.arg(name="from", metavar="PATH_OR_URL")],
) -> None:
    """Install clips and colours (dmcgb) or pictures (overlay) from a folder, an archive or a URL.

    Files are recognised wherever they lie in the source, verified, and put into the data directory. What is
    there already is skipped; a broken download continues when the command is run again.

    Args:
        kind: dmcgb: the benchmark's video_easy/*.mp4, video_hard/*.mp4, color_easy and color_hard;
            overlay: every picture of the source.
        source: A folder (such as a clone of the benchmark's repository), a .zip or .tar archive, or an
            http(s) URL of one.
    """
    from sgqn import data as store

    result = store.get(kind, source)
    print(f"{len(result.installed)} files installed, {len(result.skipped)} were there already")
    print(f"data directory: {result.directory}")
    if result.bad:
        for name, reason in result.bad.items():
            print(f"not installed: {name} {reason}", file=sys.stderr)
        names = list(result.bad)
        more = f" and {len(names) - 5} more" if len(names) > 5 else ""
        raise DataError(f"{len(names)} damaged files were not installed: {', '.join(names[:5])}{more}")


def _print_inventory(directory: Path, entries: list[Entry]) -> None:
    from rich import box
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    origin = "from SGQN_DATA" if os.environ.get("SGQN_DATA") else "the default; set SGQN_DATA to use another"
    console = Console(highlight=False)
    console.print(Text(f"Data directory: {directory} ({origin})"), soft_wrap=True)
    table = Table("set", "found", "state", "what serves", box=box.SIMPLE_HEAD)
    colors = {"complete": "green", "incomplete": "yellow", "missing": "yellow", "damaged": "red"}
    for entry in entries:
        found = f"{entry.found} of {entry.expected}" if entry.expected else str(entry.found)
        serves = "these files" if entry.found else "generated, not the benchmark"
        where = entry.path.relative_to(directory).as_posix()
        table.add_row(where, found, Text(entry.state, style=colors[entry.state]), serves)
    console.print(table)
    for problem in (problem for entry in entries for problem in entry.problems):
        console.print(Text(f"damaged: {problem}", style="red"), soft_wrap=True)
    if missing := [entry.instead for entry in entries if not entry.found]:
        serves = f"Built-in {', '.join(dict.fromkeys(missing))} serve for what is missing; results say so."
        console.print(Text(serves), soft_wrap=True)
    _print_how_to_get(console, entries)


def _print_how_to_get(console: Console, entries: list[Entry]) -> None:
    from rich.text import Text

    from sgqn.data import BENCHMARK, HOW_TO_GET

    lacking = {entry.how for entry in entries if entry.state != "complete"}
    lines = []
    if HOW_TO_GET["dmcgb"] in lacking:
        lines += [
            "",
            f"Clips and colours: the benchmark's repository, {BENCHMARK},",
            "as a clone, a downloaded archive, or straight from the web:",
            f"  git clone {BENCHMARK}",
            "  sgqn data get dmcgb --from dmcontrol-generalization-benchmark",
            f"  {HOW_TO_GET['dmcgb']}",
        ]
    if HOW_TO_GET["overlay"] in lacking:
        lines += ["", "Overlay pictures: Places365 or any folder of images:", f"  {HOW_TO_GET['overlay']}"]
    for line in lines or ["Everything is there."]:
        console.print(Text(line), soft_wrap=True)


# Preview


@command("preview")
def preview(
    task: str = "walker-walk",
    shift: str = "train",
    out: Path = Path("preview.png"),
    renderer: str = "auto",
    seed: int = 0,
    steps: int = 60,
) -> None:
    """Look at a task under a shift: random actions, as a sheet of frames (.png) or a video (.mp4).

    Args:
        task: A task such as walker-walk, ball_in_cup-catch or robot-reach.
        shift: train, color_easy, color_hard, video_easy, video_hard; robots: train, test1, test2, test3.
        out: Where to write; the suffix, .png or .mp4, decides which.
        renderer: gl, warp or auto.
        seed: Seed of the environment and the actions.
        steps: Number of agent steps.
    """
    from sgqn.inspect.preview import preview as write

    with _bars() as report:
        shown = write(task, out, shift, renderer, seed, steps, functools.partial(report, "rendering"))
    print(f"{out}: {task} under {shift}, {steps} random steps, return {shown.total:.1f}")
    print(f"renderer {shown.renderer}, backgrounds {shown.backgrounds}")


if __name__ == "__main__":
    sys.exit(main())
