"""Runs read back from their folders: configuration, evaluations, measured saliency, learning curve."""

from __future__ import annotations

import dataclasses
import math
import os
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from functools import cached_property, partial
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

from sgqn import checkpoint, pretrained, reading, run_folder
from sgqn.agents import AGENTS
from sgqn.config import TrainConfig, preset
from sgqn.envs.families import find_task
from sgqn.errors import DataError, InvalidValueError, SgqnError
from sgqn.evaluation import Evaluation
from sgqn.pretrained import package
from sgqn.run_folder import PolicyRecord
from sgqn.saliency import Saliency

T = TypeVar("T")

_BESIDE = ("machine", "versions")

_LEARNING = ("image_size", "frame_stack", "replay_capacity")
"""Options besides the agent's settings that affect learning. The number of steps is shown separately."""


@dataclass(frozen=True)
class RunEvaluation(Evaluation):
    """An evaluation of a run's agent as it was after `step` training steps."""

    step: int | None
    """None if that is not known, as of a policy that was not trained here."""
    weights: str = package.PRECISIONS[0]
    """Their precision: that of the run, or of an agent that was exported from it."""


@dataclass(frozen=True)
class RunSaliency(Saliency):
    """Where a run's agent looked after `step` training steps."""

    step: int
    weights: str = package.PRECISIONS[0]

    @property
    def kind(self) -> tuple[str, str, float, str]:
        """What two measurements must share to be the same one, made again."""
        return self.shift, self.method, self.rho, self.fill


@dataclass(frozen=True)
class Curve:
    """Mean return of the training episodes that ended before each step, and the wall time until then."""

    steps: tuple[int, ...]
    returns: tuple[float, ...]
    seconds: tuple[float, ...]


@dataclass(frozen=True)
class Run:
    """One training run, finished or not, or the evaluations of a policy that was not trained here."""

    path: Path
    about: TrainConfig | PolicyRecord
    evaluations: tuple[RunEvaluation, ...] = ()
    """In the order in which they were made."""
    curve: Curve = Curve((), (), ())
    steps: int = 0
    """How far the run has come, by its log."""
    seconds: float = 0.0
    """The wall time that this took, evaluations included."""
    saliency: tuple[RunSaliency, ...] = ()
    """In the order in which it was measured."""
    machine: dict[str, str] = field(default_factory=dict)
    """What the training ran on: `device`, `path`, `precision`, `note`; empty where the run does not say."""
    versions: dict[str, str] = field(default_factory=dict)

    @property
    def foreign(self) -> bool:
        """Whether this is a policy that was not trained here: its steps, settings and training returns are unknown."""
        return isinstance(self.about, PolicyRecord)

    @property
    def config(self) -> TrainConfig:
        """The configuration of the training, which a foreign policy does not have."""
        assert isinstance(self.about, TrainConfig)
        return self.about

    @property
    def task(self) -> str:
        return self.about.task

    @property
    def agent(self) -> str:
        return self.about.agent

    @property
    def seed(self) -> int:
        return self.about.seed

    @property
    def action_repeat(self) -> int:
        return find_task(self.task, self.about.action_repeat).action_repeat

    @property
    def rho(self) -> float | None:
        """The quantile of the attribution's mask; None for agents that have none."""
        return None if self.foreign or not AGENTS[self.agent].masks else self.config.settings.rho

    @property
    def overlay_images(self) -> str:
        """The source of the overlay images, such as `1,000 files`; older runs have it under another name."""
        return self.machine.get("overlay_images") or self.machine.get("pictures", "")

    @property
    def checkpoint(self) -> Path | None:
        """The newest one."""
        found = checkpoint.list_checkpoints(self.path)
        return found[-1] if found else None

    @cached_property
    def weights(self) -> Path | None:
        """Where its agent can be loaded from: the newest checkpoint, or the pretrained agent that is this run's."""
        if (newest := self.checkpoint) is not None:
            return newest
        folder = None if self.foreign else pretrained.available().get(f"{self.task}/{self.agent}")
        if folder is None:
            return None
        try:
            about = package.read_about(folder)
            config = TrainConfig.from_dict(about["config"])
        except SgqnError:
            return folder  # loading it reports what is wrong
        return folder if self.is_of(config) and about["step"] >= self.steps else None

    def is_of(self, config: TrainConfig) -> bool:
        """Whether an exported agent's configuration is this run's."""
        return not self.foreign and not run_folder.changes(config, self.config)

    @property
    def training_return(self) -> float | None:
        """Mean return of the episodes in the last tenth of the training; None before the first episode has ended."""
        last = [value for at, value in zip(self.curve.steps, self.curve.returns, strict=True) if at > 0.9 * self.steps]
        return sum(last) / len(last) if last else None

    @cached_property
    def other_settings(self) -> dict[str, tuple[Any, Any]]:
        """What differs from the preset `paper`, except steps, action repeat and rho, with our value and the paper's.

        Empty if that is not known.
        """
        if self.foreign:
            return {}
        found = run_folder.changes(self.config, preset("paper", self.task, self.agent))
        names = {*_LEARNING, *(field.name for field in dataclasses.fields(self.config.settings))} - {"rho"}
        return {name: values for name, values in found.items() if name in names}

    def evaluation(self, shift: str) -> RunEvaluation | None:
        """The one that counts: of the newest step, of the most precise weights, that with the most episodes.

        Then OpenGL's, then the latest.
        """
        found = [evaluation for evaluation in self.evaluations if evaluation.shift == shift]
        return max(reversed(found), key=rank, default=None)

    def looks(self) -> dict[tuple[str, str, float, str], RunSaliency]:
        """Of each kind of measurement the one that counts, as of evaluations."""
        kinds = dict.fromkeys(found.kind for found in self.saliency)
        return {kind: max((f for f in reversed(self.saliency) if f.kind == kind), key=rank) for kind in kinds}


class Found(NamedTuple):
    """The runs in some folders, and one line about everything there that could not be used."""

    runs: list[Run]
    warnings: list[str]


def find_runs(paths: str | Path | Iterable[str | Path]) -> Found:
    """Every run at or below the paths, each once. Raises `DataError` if there is none that can be read."""
    paths = [paths] if isinstance(paths, str | Path) else list(paths)
    if not paths:
        raise InvalidValueError("no folder of runs given")
    runs: dict[Path, Run] = {}
    warnings: list[str] = []
    for path in map(Path, paths):
        folders = list(_folders(path, warnings))
        if not folders and path.is_dir():
            files = f"{run_folder.CONFIG} or {run_folder.POLICY}"
            warnings.append(f"no run in {path}: no folder there has a {files}")
        for folder in folders:
            if folder.resolve() not in runs:
                try:
                    runs[folder.resolve()] = _read(folder, warnings)
                except DataError as error:
                    warnings.append(str(error))
    warnings = list(dict.fromkeys(warnings))
    if not runs:
        more = f" (and {len(warnings) - 1} more that cannot be used)" if len(warnings) > 1 else ""
        raise DataError(warnings[0] + more)
    found = sorted(runs.values(), key=lambda run: (run.task, run.agent, run.seed, str(run.path)))
    return Found(found, warnings + list(_doubles(found)))


def with_settings(runs: Iterable[Run], *, action_repeat: int | None = None, rho: float | None = None) -> list[Run]:
    """The runs with this action repeat and rho; where None, those with the paper's for their task."""
    return [
        run
        for run in runs
        if run.action_repeat == (action_repeat or find_task(run.task).action_repeat)
        and (run.rho is None or math.isclose(run.rho, own_rho(run.task) if rho is None else rho))
    ]


def own_rho(task: str) -> float:
    """The paper's rho for a task."""
    return find_task(task).defaults.rho


def by_seed(runs: Iterable[Run], task: str, agent: str, shift: str) -> dict[int, Run]:
    """Seed -> run, of those evaluated in the shift; of two with one seed the one evaluated later, as in a run."""
    found: dict[int, tuple[tuple[int, int, int, bool], Run]] = {}
    for run in runs:
        evaluation = run.evaluation(shift) if (run.task, run.agent) == (task, agent) else None
        if evaluation is not None and (run.seed not in found or rank(evaluation) > found[run.seed][0]):
            found[run.seed] = rank(evaluation), run
    return {seed: found[seed][1] for seed in sorted(found)}


def scores(runs: Iterable[Run], shift: str) -> dict[str, dict[str, dict[int, float]]]:
    """Task -> agent -> seed -> mean return in the shift. Narrow the runs down `with_settings` first."""
    runs = list(runs)
    table: dict[str, dict[str, dict[int, float]]] = {}
    for task, agent in dict.fromkeys((run.task, run.agent) for run in runs):
        for seed, run in by_seed(runs, task, agent, shift).items():
            evaluation = run.evaluation(shift)
            assert evaluation is not None
            table.setdefault(task, {}).setdefault(agent, {})[seed] = evaluation.mean
    return table


# ---------------------------------------------------------------- reading


def rank(evaluation: RunEvaluation | RunSaliency) -> tuple[int, int, int, bool]:
    """Which of two counts: the newest step, the most precise weights, the most episodes, then OpenGL."""
    rounding = package.PRECISIONS.index(evaluation.weights)
    return (
        -1 if evaluation.step is None else evaluation.step,
        -rounding,
        evaluation.episodes,
        evaluation.renderer == "gl",
    )


def _folders(path: Path, warnings: list[str]) -> Iterator[Path]:
    """The folders of runs and of recorded policies, in order; what lies in a run's folder is its own."""
    if not path.is_dir():
        warnings.append(f"{path} is not a folder" if path.exists() else f"{path} does not exist")
        return
    for folder, below, files in os.walk(path, onerror=lambda error: warnings.append(f"cannot read {error.filename}")):
        below.sort()
        if {run_folder.CONFIG, run_folder.POLICY} & set(files):
            below.clear()
            yield Path(folder)


def _read(folder: Path, warnings: list[str]) -> Run:
    if not (folder / run_folder.CONFIG).exists():
        about = run_folder.read_policy(folder)
        played = _parsed(folder / run_folder.EVALUATIONS, partial(_evaluation, about.task, foreign=True), warnings)
        return Run(folder, about, tuple(played))
    config, machine, versions = _config(folder)
    metrics = _parsed(folder / run_folder.METRICS, _metric, warnings)
    ended = [line for line in metrics if math.isfinite(line.mean_return)]
    if AGENTS[config.agent].copies:
        ended = []  # the episodes while training are the trained agent's
    curve = Curve(
        steps=tuple(line.step for line in ended),
        returns=tuple(line.mean_return for line in ended),
        seconds=tuple(line.seconds for line in ended),
    )
    last = metrics[-1] if metrics else _Metric(0, math.nan, 0.0)
    evaluations = _parsed(folder / run_folder.EVALUATIONS, partial(_evaluation, config.task), warnings)
    looks = _parsed(folder / run_folder.SALIENCY, partial(_saliency, config.task), warnings)
    of_training = (curve, last.step, last.seconds)
    return Run(folder, config, tuple(evaluations), *of_training, tuple(looks), machine, versions)


def _config(folder: Path) -> tuple[TrainConfig, dict[str, str], dict[str, str]]:
    """The configuration, and what the file says about machine and versions."""
    try:
        config = run_folder.read_config(folder)
        if not isinstance(config.agent, str) or not isinstance(config.seed, int):
            raise InvalidValueError(f"agent {config.agent!r}, seed {config.seed!r}")
        beside = reading.read_json(folder / run_folder.CONFIG, folder)
        machine, versions = (_texts(beside.get(name) or {}, name) for name in _BESIDE)
        return config, machine, versions
    except (SgqnError, OSError, TypeError, ValueError) as error:
        reason = reading.line(error)
        raise DataError(
            reason if str(folder) in reason else f"{folder / run_folder.CONFIG} is damaged: {reason}"
        ) from error


def _texts(values: Any, what: str) -> dict[str, str]:
    return {name: str(value) for name, value in reading.mapping(values, what).items()}


def _parsed(path: Path, parse: Callable[[dict[str, Any]], T], warnings: list[str]) -> list[T]:
    """The lines of a log; what is not what it should be is passed over, with one warning."""
    found: list[T] = []
    wrong = whole = written = 0
    try:
        for text in reading.read_lines(path, path.parent):
            written += bool(text.strip())
            for line in run_folder.parse_lines([text]):
                whole += 1
                try:
                    found.append(parse(line))
                except (KeyError, TypeError, ValueError, OverflowError, AttributeError):
                    wrong += 1
    except (OSError, DataError) as error:
        warnings.append(f"{path} is damaged: {reading.line(error)}")
    if written > whole:
        broken = written - whole
        warnings.append(f"{path}: {broken} line{'s' * (broken > 1)} passed over: half-written, or not JSON")
    if wrong:
        warnings.append(f"{path}: {wrong} line{'s' * (wrong > 1)} passed over: a number is missing or not finite")
    return found


class _Metric(NamedTuple):
    step: int
    mean_return: float
    """nan if no episode ended."""
    seconds: float


def _metric(line: dict[str, Any]) -> _Metric:
    return _Metric(int(line["step"]), float(line.get("episode/return", math.nan)), _finite(line["seconds"]))


def _evaluation(task: str, line: dict[str, Any], foreign: bool = False) -> RunEvaluation:
    returns = tuple(_finite(value) for value in line["returns"])
    if line["task"] != task or not returns:
        raise ValueError
    names = [str(line[name]) for name in ("shift", "renderer", "backgrounds")]
    solved = tuple(bool(value) for value in line["successes"]) if "successes" in line else None
    made_with = (int(line["seed"]), names[1], names[2])
    step = None if foreign and line["step"] is None else int(line["step"])
    return RunEvaluation(task, names[0], *made_with, returns, step, _weights(line), successes=solved)


def _saliency(task: str, line: dict[str, Any]) -> RunSaliency:
    if line["task"] != task:
        raise ValueError
    means, errors = ({str(k): _or_nan(v) for k, v in line[name].items()} for name in ("means", "errors"))
    curves = {str(name): tuple(_or_nan(value) for value in values) for name, values in line["curves"].items()}
    lengths = {len(values) for values in curves.values()}
    if not means or len(lengths) > 1 or bool(curves) != ("shown" in curves):
        raise ValueError
    names = [str(line[name]) for name in ("shift", "renderer", "backgrounds", "method", "fill")]
    shift, renderer, backgrounds, method, fill = names
    returns = tuple(_finite(value) for value in line["returns"])
    rho, every, frames = _finite(line["rho"]), int(line["every"]), int(line["frames"])
    made_with = (int(line["seed"]), renderer, backgrounds, method, rho, fill, every, frames)
    return RunSaliency(task, shift, *made_with, returns, means, errors, curves, int(line["step"]), _weights(line))


def _weights(line: dict[str, Any]) -> str:
    """Logs of earlier versions have evaluations of the trained weights only."""
    precision = str(line.get("weights", package.PRECISIONS[0]))
    if precision not in package.PRECISIONS:
        raise ValueError
    return precision


def _or_nan(value: Any) -> float:
    return math.nan if value is None else _finite(value)


def _finite(value: Any) -> float:
    if not math.isfinite(number := float(value)):
        raise ValueError
    return number


def _doubles(runs: list[Run]) -> Iterator[str]:
    """A word about runs that only one of can stand in a table."""
    first: dict[tuple[Any, ...], Run] = {}
    for run in runs:
        before = first.setdefault((run.task, run.agent, run.seed, run.action_repeat, run.rho), run)
        if before is not run:
            yield (
                f"{before.path} and {run.path} are runs of the same task, agent and seed: "
                "of each shift the one evaluated after more steps counts"
            )
