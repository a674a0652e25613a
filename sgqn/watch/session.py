"""The shared state of page, simulation and attribution: settings from the page, results for it."""

from __future__ import annotations

import dataclasses
import math
import threading
import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

from sgqn import attribution
from sgqn.envs.families import check_shift
from sgqn.errors import InvalidValueError, UnknownNameError

SLOWEST, FASTEST = 0.1, 100.0
"""Limits of the speed; 1 is real time."""
LARGEST = 2**31 - 1
"""Largest seed and episode."""
COMMANDS = ("restart", "step")
PATIENCE = 15.0
"""Seconds without a request after which nobody is watching: longer than a page waits for an answer."""


@dataclass(frozen=True)
class Settings:
    """The settings of the page."""

    shift: str
    method: str
    rho: float
    seed: int = 0
    episode: int = 0
    paused: bool = False
    speed: float = 1.0

    def __post_init__(self) -> None:
        _of_kind("shift", self.shift, str)  # the session checks whether its task has it
        attribution.check(_of_kind("method", self.method, str))
        if not 0 <= _of_kind("rho", self.rho, (int, float)) < 1:
            raise InvalidValueError(f"rho must lie in [0, 1), not {self.rho}: 0.95 keeps one pixel in twenty")
        for name in ("seed", "episode"):
            if not 0 <= _of_kind(name, number := getattr(self, name), int) <= LARGEST:
                raise InvalidValueError(f"{name} must lie between 0 and {LARGEST}, not {number}")
        _of_kind("paused", self.paused, bool)
        if not SLOWEST <= _of_kind("speed", self.speed, (int, float)) <= FASTEST:
            raise InvalidValueError(f"speed must lie between {SLOWEST} and {FASTEST:g}, not {self.speed}")


def _of_kind(name: str, value: Any, kind: type | tuple[type, ...]) -> Any:
    """The value if it has that type; a page may send anything."""
    if not isinstance(value, kind) or (isinstance(value, bool) and kind is not bool):
        what = {str: "a name", int: "an integer", bool: "true or false", (int, float): "a number"}[kind]
        raise InvalidValueError(f"{name} must be {what}, not {value!r}")
    return value


class Start(NamedTuple):
    """Which episode to play; when it changes, another one starts."""

    shift: str
    seed: int
    episode: int
    restarts: int


class Session:
    """Receives settings and publishes named parts of the view; thread-safe.

    Every change of a part gets a version larger than all before, including those of an earlier server. A page sends the
    last version that it has, and receives only newer parts.
    """

    def __init__(self, settings: Settings, task: str):
        check_shift(task, settings.shift)
        self.changed = threading.Condition()
        self.settings, self.task = settings, task
        self.stopped = False
        self._restarts = 0
        self._steps_due = 0
        self._version = int(1000 * time.time())
        self._parts: dict[str, tuple[int, Any]] = {}
        self._last_asked = -math.inf
        self.publish("settings", dataclasses.asdict(settings))

    @property
    def start(self) -> Start:
        return Start(self.settings.shift, self.settings.seed, self.settings.episode, self._restarts)

    @property
    def watched(self) -> bool:
        """Whether a page asked recently."""
        return time.monotonic() - self._last_asked < PATIENCE

    def control(self, values: Mapping[str, Any]) -> Settings:
        """Change settings, restart or make one step; if anything is invalid, raise and change nothing."""
        wanted = dict(values)
        commands = {name: wanted.pop(name) for name in COMMANDS if name in wanted}
        known = [field.name for field in dataclasses.fields(Settings)]
        for name in wanted:
            if name not in known:
                raise UnknownNameError("control", name, (*known, *COMMANDS))
        for name, value in commands.items():
            if value is not True:
                raise InvalidValueError(f"{name} must be true, not {value!r}")
        if "seed" in wanted:
            wanted.setdefault("episode", 0)
        if "step" in commands:
            wanted["paused"] = True
        with self.changed:
            before = self.start
            changed = dataclasses.replace(self.settings, **wanted)
            check_shift(self.task, changed.shift)
            self._set(changed)
            self._restarts += "restart" in commands
            self._steps_due = 0 if self.start != before or not self.settings.paused else self._steps_due
            self._steps_due += "step" in commands
            self.changed.notify_all()
            return self.settings

    def next_episode(self, after: Start) -> None:
        """Continue with the following episode, unless another one was chosen meanwhile."""
        with self.changed:
            if self.start == after:
                self._set(dataclasses.replace(self.settings, episode=(after.episode + 1) % LARGEST))

    def wait_turn(self, start: Start, seconds: float) -> bool:
        """Wait until the next step is due, at speed 1 `seconds` after this call; False if the episode should end.

        While paused, or while nobody is watching, a step is due only if it was requested.
        """
        since = time.monotonic()
        with self.changed:
            while not self.stopped and self.start == start:
                if self._steps_due:
                    self._steps_due -= 1
                    return True
                left = since + seconds / self.settings.speed - time.monotonic()
                plays = self.watched and not self.settings.paused
                if plays and left <= 0:
                    return True
                self.changed.wait(left if plays else None)
            return False

    def wait_other(self, start: Start) -> None:
        """Wait until another episode is chosen."""
        with self.changed:
            self.changed.wait_for(lambda: self.stopped or self.start != start)

    def publish(self, name: str, value: Any, only_for: Start | None = None) -> None:
        """Publish a part, unless it belongs to an episode that is no longer played."""
        with self.changed:
            if only_for is None or only_for == self.start:
                self._version += 1
                self._parts[name] = self._version, value
                self.changed.notify_all()

    def news(self, after: int, timeout: float) -> tuple[int, dict[str, Any]]:
        """The version, and the parts newer than `after`, as soon as there are any or the timeout has passed."""
        with self.changed:
            self._asked()
            if after > self._version:  # from another server
                after = 0
            self.changed.wait_for(lambda: self.stopped or self._version > after, timeout)
            self._asked()
            return self._version, {name: value for name, (version, value) in self._parts.items() if version > after}

    def rest(self, seconds: float) -> bool:
        """Wait; False as soon as the session ends."""
        with self.changed:
            return not self.changed.wait_for(lambda: self.stopped, seconds)

    def stop(self) -> None:
        with self.changed:
            self.stopped = True
            self.changed.notify_all()

    def _set(self, settings: Settings) -> None:
        if settings != self.settings:
            self.settings = settings
            self.publish("settings", dataclasses.asdict(settings))

    def _asked(self) -> None:
        """Record that a page is open; a waiting simulation continues."""
        slept = not self.watched
        self._last_asked = time.monotonic()
        if slept:
            self.changed.notify_all()


def part_of(name: str, number: int) -> str:
    """The name of an agent's part of the view: `frame` of the first agent, `frame2` of the second."""
    return name if number == 0 else f"{name}{number + 1}"


def finite(number: float) -> float | None:
    """For JSON, which has no NaN."""
    return number if math.isfinite(number) else None
