"""Task families: each declares its tasks, shifts and defaults, and how to simulate them.

A module in this folder that calls `register_family` is a built-in family; others register theirs from outside with
`sgqn.register_family(MyFamily())`. Family modules import simulators only where they use them: listing tasks is quick.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from sgqn import plugins
from sgqn.errors import InvalidValueError, UnknownNameError
from sgqn.registry import import_submodules

if TYPE_CHECKING:
    from sgqn.envs.shifts import Shift
    from sgqn.envs.simulation import Simulation

__all__ = [
    "Defaults",
    "Family",
    "Task",
    "all_renderers",
    "all_shifts",
    "all_tasks",
    "check_renderer",
    "check_shift",
    "families",
    "find_task",
    "register_family",
]


@dataclass(frozen=True)
class Defaults:
    """Default settings of a task."""

    action_repeat: int = 1
    control_steps: int = 1000
    """Control steps until an episode is truncated, for any action repeat."""
    frame_stack: int = 3
    camera: int | str = 0
    """Index or name of the camera in a MuJoCo model."""
    rho: float = 0.95
    augmentation: str | None = None
    """Strong augmentation, instead of the agent's own default."""
    settings: Mapping[str, Any] = field(default_factory=dict)
    """Further hyperparameters, for the agents that have them."""
    steps: int = 500_000
    """Agent steps of a training run."""
    evaluate_shifts: tuple[str, ...] = ("train",)
    """Shifts to evaluate in while training."""
    test_shifts: tuple[str, ...] = ()
    """Shifts to evaluate trained agents in; empty: all."""
    returns: tuple[float, float] | None = None
    """Lowest and highest return of an episode, if known."""


class Family:
    """A set of tasks with the same simulation. Subclasses set the attributes and implement `load`."""

    name: str
    order: int = 1
    """Position in lists of families; ties are in the order of registration."""
    tasks: tuple[str, ...] = ()
    """The listed tasks; names must be unique over all families."""
    open_tasks: str = ""
    """Description of further tasks, for a family without a fixed list."""
    packages: tuple[str, ...] = ()
    """Distributions whose versions a result depends on."""
    shift_texts: Mapping[str, str] = {"train": "the scene as it is"}
    """One line of text for each shift; the first shift is the training scene, the last the hardest."""

    def has(self, task: str) -> bool:
        """Whether the task exists; a family without a fixed list accepts more than the listed ones."""
        return task in self.tasks

    def shifts(self, task: str) -> tuple[str, ...]:
        """The shifts of a task; the first is the training scene."""
        return tuple(self.shift_texts)

    def describe(self, task: str, shift: str) -> str:
        """What a shift changes, in one line."""
        return self.shift_texts[shift]

    def defaults(self, task: str) -> Defaults:
        return Defaults()

    def renderers(self, task: str) -> tuple[str, ...]:
        """The renderers that support a task, the preferred one first.

        `warp` draws scenes in batches; any other name is a renderer that `Simulation.make_renderer` makes.
        """
        return ("gl", "warp")

    def has_masks(self, task: str) -> bool:
        """Whether the renderers can segment the controlled system."""
        return True

    def modules(self, task: str) -> tuple[str, ...]:
        """Modules that another process must import to know a task, besides the family's own."""
        return ()

    def missing(self) -> str | None:
        """One line about missing requirements of the family's tasks and how to get them; None if nothing is missing."""
        return None

    def shift(self, task: str, name: str) -> Shift:
        """The shift called `name`."""
        from sgqn.envs.shifts import Shift

        return Shift(name)

    def load(self, task: Task, shift: Shift) -> Simulation:
        """A simulation of the task in the shift."""
        raise NotImplementedError


@dataclass(frozen=True)
class Task:
    """A task of a family and how many control steps one agent step takes."""

    name: str
    family: Family = field(repr=False)
    action_repeat: int
    defaults: Defaults = field(repr=False)

    @property
    def episode_steps(self) -> int:
        """Agent steps in an episode."""
        return -(-self.defaults.control_steps // self.action_repeat)

    def load(self, shift: str) -> Simulation:
        """A simulation of the task in the shift called `shift`."""
        return self.family.load(self, self.family.shift(self.name, shift))

    @property
    def shifts(self) -> tuple[str, ...]:
        """The shifts of the task: the training scene first, the hardest last."""
        return self.family.shifts(self.name)

    @property
    def test_shifts(self) -> tuple[str, ...]:
        """The shifts to evaluate trained agents in."""
        return self.defaults.test_shifts or self.shifts

    def return_text(self, value: float) -> str:
        """A return, with one decimal unless the task's returns are known to be large numbers."""
        bounds = self.defaults.returns
        return f"{value:.0f}" if bounds is not None and bounds[1] >= 100 else f"{value:.1f}"

    @property
    def modules(self) -> tuple[str, ...]:
        """The modules to import for another process to know this task."""
        return (type(self.family).__module__, *self.family.modules(self.name))


_families: dict[str, Family] = {}


def register_family(family: Family) -> Family:
    """Register a family, and its tasks with Gymnasium. A family of the same class and name is replaced.

    Call it in the module of the family's class: worker processes import that.
    """
    from sgqn.envs.registration import register_tasks

    known = _families.get(family.name)
    if known is not None and type(known).__qualname__ != type(family).__qualname__:
        raise InvalidValueError(f"a family called {family.name!r} is already registered ({type(known).__module__})")
    others = {task: other.name for other in _families.values() if other is not known for task in other.tasks}
    for task in family.tasks:
        if task in others:
            raise InvalidValueError(f"family {family.name!r} lists {task!r}, which is a task of {others[task]!r}")
    _families[family.name] = family
    register_tasks(family)
    return family


def families() -> tuple[Family, ...]:
    """All families; those of this package and of plugins are imported on the first call."""
    built_in()
    plugins.load_installed()
    return tuple(sorted(_families.values(), key=lambda family: family.order))


def built_in() -> tuple[Family, ...]:
    """The families that are registered so far, those of this package in any case."""
    _import_built_in()
    return tuple(_families.values())


@functools.cache
def _import_built_in() -> None:
    import_submodules(__name__)


def all_tasks() -> tuple[str, ...]:
    """Every task that a family lists."""
    return tuple(task for family in families() for task in family.tasks)


def all_renderers() -> tuple[str, ...]:
    """Every renderer that a family names, each once."""
    names = (name for family in families() for task in family.tasks[:1] or ("",) for name in family.renderers(task))
    return tuple(dict.fromkeys(names))


def all_shifts() -> tuple[str, ...]:
    """Every shift that a family declares, each once."""
    names: dict[str, None] = {}
    for family in families():
        names |= dict.fromkeys(family.shift_texts)
        for task in family.tasks:
            names |= dict.fromkeys(family.shifts(task))
    return tuple(names)


def find_task(name: str, action_repeat: int | None = None) -> Task:
    """The task called `name`, with its family's action repeat unless one is given."""
    # Plugins are loaded for unknown names only: worker processes stay light.
    family = next((family for found in (built_in, families) for family in found() if family.has(name)), None)
    if family is None:
        raise UnknownNameError("task", name, all_tasks())
    defaults = family.defaults(name)
    repeat = defaults.action_repeat if action_repeat is None else action_repeat
    if not 1 <= repeat <= defaults.control_steps:
        raise InvalidValueError(f"action_repeat must be between 1 and {defaults.control_steps}, not {repeat!r}")
    return Task(name, family, repeat, defaults)


def check_shift(task: str, shift: str | None) -> str:
    """`shift`, if the task has it; None is the training scene."""
    shifts = find_task(task).family.shifts(task)
    if shift is None:
        return shifts[0]
    if shift not in shifts:
        raise UnknownNameError("shift", shift, shifts)
    return shift


def check_renderer(task: str, renderer: str) -> str:
    """`renderer`, if it is `auto` or supports the task."""
    known = (*find_task(task).family.renderers(task), "auto")
    if renderer not in known:
        raise UnknownNameError("renderer", renderer, known)
    return renderer
