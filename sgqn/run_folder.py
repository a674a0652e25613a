"""A run's folder: its configuration and its logs."""

from __future__ import annotations

import contextlib
import fcntl
import json
import logging
import os
import re
import socket
import stat
import time
import typing
from collections.abc import Iterable, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from sgqn import plugins, reading
from sgqn.agents import AGENTS, Spec
from sgqn.agents.settings import check_type
from sgqn.config import TrainConfig, versions
from sgqn.envs.families import find_task
from sgqn.errors import BusyError, DataError, InvalidValueError, SgqnError
from sgqn.files import write_atomically
from sgqn.reading import MissingFileError, line

logger = logging.getLogger(__name__)

CONFIG, METRICS, EVALUATIONS, REPLAY = "config.json", "metrics.jsonl", "evaluations.jsonl", "replay"
SALIENCY = "saliency.jsonl"
POLICY = "policy.json"
"""In place of a configuration, in the folder of a policy that was not trained here."""
LOCK = ".lock"
BACK = ".back"
"""Names the checkpoint that the run went back to, until the next one is written."""
ABOUT_THE_MACHINE = ("versions", "machine")
"""Keys of config.json that do not belong to the configuration."""


@dataclass(frozen=True)
class PolicyRecord:
    """What is known of a policy that was evaluated but not trained here: no steps, settings or training returns."""

    name: str
    task: str
    seed: int
    """Which of several policies of the same name, such as the seed that it was trained with."""
    action_repeat: int
    image_size: int
    frame_stack: int
    source: str = ""
    """Where the policy was found, such as package.module:act."""

    @property
    def agent(self) -> str:
        return self.name


def folder_of(config: TrainConfig | PolicyRecord, out: Path) -> Path:
    """Where a run lies. Other characters of a task than letters, digits, '.', '_' and '-' become one '-'."""
    return out / re.sub(r"[^\w.-]+", "-", config.task) / config.agent / str(config.seed)


def write_config(run: Path, config: TrainConfig, machine: dict[str, str] | None = None) -> None:
    """Everything needed to repeat the run, with versions and what the machine does with it."""
    values = {**config.to_dict(), "versions": versions(), "machine": machine or {}}
    write_atomically(run / CONFIG, json.dumps(values, indent=1) + "\n")


def read_config(run: Path) -> TrainConfig:
    path = run / CONFIG
    try:
        return parse_config(reading.read_bytes(path, run), path)
    except MissingFileError as error:
        raise DataError(f"{run} is not a run: it has no {CONFIG}") from error


def parse_config(text: bytes | str, path: Path | str) -> TrainConfig:
    """The configuration in the text of a config.json; `path` is what an error calls it."""
    try:
        values = reading.parse_json(text)
        if not isinstance(values, dict):
            raise TypeError(f"it holds a {type(values).__name__}, not a JSON object")
        return TrainConfig.from_dict({name: values[name] for name in values if name not in ABOUT_THE_MACHINE})
    except (ValueError, TypeError, SgqnError) as error:
        raise DataError(f"{path} is damaged: {line(error)}") from error


def differences(config: TrainConfig, recorded: TrainConfig, kept: str = "in the checkpoint") -> list[str]:
    """What, besides `steps`, differs between a run's configuration and the one that was kept with its checkpoint."""
    return [
        f"{name} is {here!r} there, {there!r} {kept}"
        for name, (there, here) in changes(recorded, config).items()
        if name != "steps"
    ]


def results_folder(config: TrainConfig, home: Path | None, out: Path | None) -> Path | None:
    """Where results of an agent are kept: in its run's folder `home`, or for an exported agent, which has none, in a
    folder of `out` that is created if needed; None if there is neither."""
    if out is None:
        return home
    if home is not None:
        raise InvalidValueError(f"--out {out} is for exported agents: results of this agent are kept in {home}")
    folder = folder_of(config, out)
    if (folder / CONFIG).exists():
        if other := differences(read_config(folder), config, "of the agent"):
            raise InvalidValueError(f"{folder} has another configuration ({'; '.join(other)}): choose another --out")
    else:
        folder.mkdir(parents=True, exist_ok=True)
        write_config(folder, config)
    return folder


def changes(config: TrainConfig, base: TrainConfig) -> dict[str, tuple[Any, Any]]:
    """The options that differ between two configurations, with both values; None for one that `base` does not have.

    An action repeat that is the task's own equals one that is not given.
    """
    ours, others = _options(config), _options(base)
    return {name: (value, others.get(name)) for name, value in ours.items() if value != others.get(name)}


def _options(config: TrainConfig) -> dict[str, Any]:
    """All options of a run by name, those of its agent too."""
    values = config.to_dict()
    values |= values.pop("settings")
    return values | {"action_repeat": find_task(config.task, config.action_repeat).action_repeat}


def write_policy(run: Path, policy: PolicyRecord) -> None:
    needed = plugins.outside(find_task(policy.task).modules)
    values = {**asdict(policy), "plugins": list(needed), "versions": versions()}
    write_atomically(run / POLICY, json.dumps(values, indent=1) + "\n")


def read_policy(run: Path) -> PolicyRecord:
    path = run / POLICY
    try:
        values = reading.mapping(reading.read_json(path, run), "a policy")
        plugins.load(plugins.checked(values.pop("plugins", [])))
        policy = PolicyRecord(**{name: values[name] for name in values if name not in ABOUT_THE_MACHINE})
        for name, kind in typing.get_type_hints(PolicyRecord).items():
            check_type(name, getattr(policy, name), kind)
        find_task(policy.task, policy.action_repeat)
        return policy
    except (ValueError, TypeError, SgqnError) as error:
        raise DataError(f"{path} is damaged: {line(error)}") from error


@contextlib.contextmanager
def hold(run: Path) -> Iterator[None]:
    """Be the only process that trains in a run's folder, which is created if need be and removed if it stays empty.

    Another process that tries gets a `BusyError`. The system releases the lock of a process that dies. On a file system
    without locks, nothing is checked.
    """
    missing = [folder for folder in (run, *run.parents) if not folder.exists()]
    check_links(run)
    handle = _lock(run)
    try:
        os.truncate(handle, 0)
        os.pwrite(handle, f"process {os.getpid()} on {socket.gethostname()}".encode(), 0)
        yield
    finally:
        with contextlib.suppress(OSError):
            os.unlink(run / LOCK)
            for folder in missing:
                folder.rmdir()
        os.close(handle)


def check_links(run: Path) -> None:
    """Refuse a run's folder with links that lead out of it: training writes into the folder, and nowhere else."""
    try:
        paths = sorted(run.iterdir())
    except (FileNotFoundError, NotADirectoryError):  # also if its last owner removes it just now
        return
    for path in paths:
        if path.is_symlink():
            reading.check_inside(path, run)


def _owner(handle: int) -> str:
    """Who holds a lock. The owner writes this right after it gets the lock, so it may take a moment."""
    for _ in range(20):
        time.sleep(0.05)
        if text := os.pread(handle, 200, 0).decode(errors="replace"):
            return text
    return "another process"


def _lock(run: Path) -> int:
    """The open lock file of a run's folder, locked."""
    while True:
        handle = _open_lock(run)
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            owner = _owner(handle)
            os.close(handle)
            raise BusyError(f"{run} is being trained by {owner}: wait for it, or stop it first") from None
        except OSError:  # no locks here
            return handle
        with contextlib.suppress(FileNotFoundError):
            if os.path.samestat(os.fstat(handle), os.stat(run / LOCK)):
                return handle
        os.close(handle)  # its last owner has removed it since


def _open_lock(run: Path, attempts: int = 1000) -> int:
    """The lock file, created with its folder if need be. Their last owner may remove both meanwhile: try again."""
    while True:
        attempts -= 1
        try:
            run.mkdir(parents=True, exist_ok=True)
            handle = os.open(run / LOCK, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_NONBLOCK, 0o644)
            if stat.S_ISREG(os.fstat(handle).st_mode):
                return handle
            os.close(handle)
            raise DataError(f"{run / LOCK}: not a regular file; remove it")
        except IsADirectoryError as error:
            raise DataError(f"{run / LOCK}: not a regular file; remove it") from error
        except (FileNotFoundError, FileExistsError):  # the latter if a folder vanishes within mkdir
            if not attempts:
                raise


def write_back(run: Path, name: str | None) -> None:
    """Remember that the run went back to the checkpoint called `name`, or forget it."""
    if name is None:
        (run / BACK).unlink(missing_ok=True)
    else:
        write_atomically(run / BACK, name)


def read_back(run: Path) -> str | None:
    """The name of the checkpoint that the run went back to, if it has not written another one since."""
    try:
        return reading.read_bytes(run / BACK, run, 100).decode(errors="replace")
    except reading.MissingFileError:
        return None


def append_line(path: Path, values: dict[str, Any]) -> None:
    """One line of JSON, in one write. It is never appended to a line that a kill left half-written."""
    with reading.open_log(path, path.parent) as file:
        size = file.seek(0, 2)
        file.seek(max(0, size - 1))
        start = "\n" if size and file.read(1) != b"\n" else ""
        file.write((start + json.dumps(values) + "\n").encode())


def read_lines(path: Path) -> Iterator[dict[str, Any]]:
    """The lines of a log; what is incomplete or damaged is skipped."""
    return parse_lines(reading.read_lines(path, path.parent))


def parse_lines(lines: Iterable[bytes]) -> Iterator[dict[str, Any]]:
    """The objects in lines of JSON; what is incomplete or damaged is skipped."""
    for text in lines:
        try:
            values = reading.parse_json(text, nan=True)
        except ValueError:
            continue
        if isinstance(values, dict):
            yield values


def rewind(path: Path, step: int) -> None:
    """Drop what a log says about steps after `step`: a resumed run will say it again."""
    if path.exists():
        written = list(reading.read_lines(path, path.parent))
        lines = [values for values in parse_lines(written) if isinstance(values.get("step", 0), int | float)]
        damaged = sum(text.endswith(b"\n") for text in written) - len(lines)
        if damaged > 0:
            logger.warning("%s: %d damaged line%s removed", path, damaged, "s" * (damaged > 1))
        kept = [json.dumps(values) + "\n" for values in lines if values.get("step", 0) <= step]
        write_atomically(path, "".join(kept))


def render_size(config: TrainConfig) -> int:
    """Size of the images that the run's agent is shown: those that crop are shown 100 where the networks see 84."""
    return config.image_size * 100 // 84 if AGENTS[config.agent].crops else config.image_size


def spec_of(config: TrainConfig, action_dim: int, discrete: bool = False) -> Spec:
    """What the run's agent is built for."""
    return Spec(action_dim, 3 * config.frame_stack, config.image_size, render_size(config), discrete)


def read_spec(config: TrainConfig, values: Any) -> Spec:
    """What an agent is built for, from a file; `ValueError` if it does not fit the configuration."""
    spec = Spec.from_dict(values)
    if spec != (expected := spec_of(config, spec.action_dim, spec.discrete)):
        raise ValueError(f"{spec} does not fit the configuration, which is for {expected}")
    return spec
