"""A run's configuration: validated at construction, saved as JSON in the run's folder, sufficient to repeat the run."""

from __future__ import annotations

import dataclasses
import importlib.metadata
import platform
import typing
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal

import tyro

import sgqn
from sgqn import plugins
from sgqn.agents.registry import AGENTS
from sgqn.agents.settings import check_type, validate
from sgqn.attribution.registry import Method
from sgqn.envs.checks import check_seed
from sgqn.envs.families import check_renderer, check_shift, families, find_task
from sgqn.errors import DataError, InvalidValueError, UnknownNameError
from sgqn.reading import line
from sgqn.registry import Registry
from sgqn.runner import PathName, PrecisionName

PRESETS = ("paper", "tiny")


@dataclass(frozen=True)
class TrainConfig:
    """One training run. Steps are agent steps: one action, `action_repeat` control steps, one update.

    Fields set to None use the task's default, settings those of the agent.
    """

    task: str = "walker-walk"
    """Task to train on."""
    agent: str = "sgqn"
    """Agent to train."""
    seed: int = 0
    """Random seed, also the name of the run's folder."""
    steps: int = None  # type: ignore[assignment]  # __post_init__ sets it
    """Total number of agent steps, over all environments."""
    num_envs: int = 16
    """Number of parallel environments."""
    start_from: str | None = None
    """Trained agent whose weights training starts from: a run, checkpoint, exported or pretrained agent."""
    warmup_steps: int = 1000
    """Steps before the first update, with random actions unless the agent is a copy of a trained one."""
    action_repeat: int | None = None
    """Control steps per action."""
    image_size: int = 84
    """Width and height of images in pixels."""
    frame_stack: int = None  # type: ignore[assignment]
    """Number of stacked frames in an observation."""
    renderer: str = None  # type: ignore[assignment]
    """Renderer of training images. Default: warp, if the task supports it."""
    device: str = "auto"
    """Device: cpu, cuda or cuda:1; auto uses a GPU if there is one."""
    precision: PrecisionName = "auto"
    """bf16 multiplies in bfloat16 and keeps weights in float32; auto uses it on GPUs that support it."""
    path: PathName = "auto"
    """Computation path on a GPU; auto is the fastest supported one. kernels: CUDA graphs and fused kernels. cudnn: the
    same with cuDNN's convolutions. captured: only CUDA graphs. eager: neither."""

    replay_capacity: int = 500_000
    """Replay buffer size."""
    overlay_images: int = 4096
    """Number of overlay images (random crops) in memory."""
    overlay_images_renewed_every: int = 50_000
    """Steps in which all overlay images are replaced by new ones."""

    log_every: int = 1000
    """Steps between logged metrics."""
    images_every: int = 50_000
    """Steps between TensorBoard images of observation, mask and predicted mask; 0: never."""
    evaluate_every: int = 50_000
    """Steps between evaluations; 0: never."""
    evaluate_episodes: int = 5
    """Episodes per evaluation and shift."""
    evaluate_shifts: tuple[str, ...] = None  # type: ignore[assignment]
    """Shifts to evaluate in during training."""
    checkpoint_every: int = 50_000
    """Steps between checkpoints. There is also one at the end."""
    keep_checkpoints: int = 2
    """Number of checkpoints to keep."""
    save_replay: bool = True
    """Save the replay buffer with the latest checkpoint, so that a resumed run continues exactly."""

    settings: Any = None
    """Hyperparameters of the agent (an instance of its settings dataclass)."""

    def __post_init__(self) -> None:
        for name, kind in (("task", str), ("agent", str), ("action_repeat", int | None)):  # the others depend on these
            check_type(name, getattr(self, name), kind)
        task = find_task(self.task, self.action_repeat)
        if self.steps is None and AGENTS[self.agent].steps is not None:
            object.__setattr__(self, "steps", AGENTS[self.agent].steps)
        for name in ("steps", "frame_stack", "evaluate_shifts"):
            if getattr(self, name) is None:
                object.__setattr__(self, name, getattr(task.defaults, name))
        if self.renderer is None:
            known = task.family.renderers(self.task)
            object.__setattr__(self, "renderer", "warp" if "warp" in known else known[0])
        if self.settings is None:
            object.__setattr__(self, "settings", settings_for(self.agent, self.task))
        object.__setattr__(self, "seed", check_seed(self.seed))  # a numpy integer has no place in config.json
        validate(self)
        self._check_settings()
        for shift in self.evaluate_shifts:
            check_shift(self.task, shift)
        check_renderer(self.task, self.renderer)
        for name, choices in (("precision", PrecisionName), ("path", PathName)):
            if getattr(self, name) not in typing.get_args(choices):
                raise UnknownNameError(name, getattr(self, name), typing.get_args(choices))
        positive = ("steps", "num_envs", "warmup_steps", "replay_capacity", "log_every", "checkpoint_every")
        counted = ("overlay_images", "overlay_images_renewed_every", "keep_checkpoints", "evaluate_episodes")
        for name in (*positive, *counted):
            if getattr(self, name) < 1:
                raise InvalidValueError(f"{name} must be at least 1, not {getattr(self, name)!r}")
        for name in ("images_every", "evaluate_every"):
            if getattr(self, name) < 0:
                raise InvalidValueError(f"{name} must be at least 0, not {getattr(self, name)!r}; 0 is for never")
        pad = getattr(self.settings, "shift_pad", 0)
        if pad >= self.image_size:
            raise InvalidValueError(f"shift_pad must be below image_size, which is {self.image_size}, not {pad!r}")
        if self.image_size % 4 or self.image_size < 16:
            raise InvalidValueError(f"image_size must be a multiple of 4 and at least 16, not {self.image_size!r}")

    def _check_settings(self) -> None:
        expected = AGENTS[self.agent].settings
        if not isinstance(self.settings, expected):
            kind = type(self.settings).__name__
            raise InvalidValueError(f"settings of agent {self.agent!r} must be a {expected.__name__}, not a {kind}")
        validate(self.settings)

    @property
    def episode_steps(self) -> int:
        return find_task(self.task, self.action_repeat).episode_steps

    @property
    def plugins(self) -> tuple[str, ...]:
        """Modules outside of this package that the run needs: for its agent, its task and its settings."""
        origins = [registry.origin(name) for registry, name in self._named_by_settings()]
        return plugins.outside([AGENTS.origin(self.agent), *find_task(self.task).modules, *origins])

    def check_requirements(self) -> None:
        """Reject settings whose requirements, such as Captum, are not installed."""
        for registry, name in self._named_by_settings():
            if isinstance(found := registry[name], Method):
                found.check()

    def _named_by_settings(self) -> Iterator[tuple[Registry[Any], str]]:
        for one in dataclasses.fields(self.settings):
            if isinstance(registry := one.metadata.get("names", dict)(), Registry):
                yield registry, getattr(self.settings, one.name)

    def to_dict(self) -> dict[str, Any]:
        return {**dataclasses.asdict(self), "plugins": list(self.plugins)}

    @classmethod
    def from_dict(cls, values: dict[str, Any]) -> TrainConfig:
        """The configuration that `to_dict` wrote, also after JSON has turned its tuples into lists."""
        try:
            values = {name: _tupled(value) for name, value in renamed(values).items()}
            settings = {name: _tupled(value) for name, value in values.pop("settings").items()}
            needed = values.pop("plugins", None)
            plugins.load(() if needed is None else plugins.checked(needed))
            kind = AGENTS[values["agent"]].settings
            if needed is None:  # written when all agents shared one set of settings
                names = {one.name for one in dataclasses.fields(kind)}
                settings = {name: value for name, value in settings.items() if name in names}
            return cls(**values, settings=kind(**settings))
        except (TypeError, KeyError, AttributeError, ValueError) as error:
            raise DataError(f"not a run's configuration: {line(error)}") from error


RENAMED = {"pictures": "overlay_images", "pictures_renewed_every": "overlay_images_renewed_every"}
"""Former names of options, which older files have."""


def renamed(values: Mapping[str, Any]) -> dict[str, Any]:
    """Options under their current names."""
    for old, new in RENAMED.items():
        if old in values and new in values:
            raise InvalidValueError(f"{old!r} is the former name of {new!r}: give one of them")
    return {RENAMED.get(name, name): value for name, value in values.items()}


def _tupled(value: Any) -> Any:
    return tuple(value) if isinstance(value, list) else value


@dataclass(frozen=True)
class TrainOptions:
    """Train an agent in the folder OUT/<task>/<agent>/<seed>. Use --resume to continue a stopped run."""

    config: Annotated[TrainConfig, tyro.conf.arg(name="")]
    preset: Literal["paper", "tiny"] = "paper"
    """paper: the paper's hyperparameters. tiny: small networks, a minute or two on two CPU cores."""
    config_file: Annotated[Path | None, tyro.conf.arg(name="config")] = None
    """JSON or TOML file with options, or a run to copy them from. Command line options override it."""
    out: Path = Path("runs")
    """Output folder of the runs."""
    seeds: tuple[int, ...] = ()
    """Seeds of several runs, one after another. Run the command again to resume."""
    devices: tuple[str, ...] = ()
    """With --seeds: devices to train on in parallel, one run on each, such as cuda:0 cuda:1."""
    resume: Path | None = None
    """Run to continue from its newest checkpoint, or one of its checkpoints to go back to, with the configuration it
    was started with; --steps alone may be given with it, to train longer."""
    quiet: Annotated[bool, tyro.conf.FlagCreatePairsOff] = False
    """Hide the progress bar."""
    threads: int | None = None
    """CPU threads of the computation. Default: one per core. 1 is faster for small networks on busy cores."""
    logger: tuple[str, ...] = ()
    """Services to log to, in addition to the files in the run's folder."""


TINY: dict[str, Any] = {
    "steps": 600,
    "num_envs": 4,
    "warmup_steps": 120,
    "image_size": 48,
    "replay_capacity": 2000,
    "overlay_images": 256,
    "overlay_images_renewed_every": 1000,
    "log_every": 100,
    "images_every": 300,
    "evaluate_every": 300,
    "evaluate_episodes": 1,
    "checkpoint_every": 300,
}
TINY_SETTINGS: dict[str, Any] = {
    "encoder_layers": 4,
    "encoder_filters": 8,
    "embedding_dim": 50,
    "hidden_dim": 128,
    "decoder_filters": (16, 8),
    "batch_size": 16,
    "soda_batch_size": 32,
    "rollout_steps": 16,
    "noise_steps": 300,
    "epsilon_steps": 300,
    "learning_rate_decay": 120,
}


def preset(name: str, task: str, agent: str = "sgqn") -> TrainConfig:
    """`paper`: the paper's hyperparameters for the task. `tiny`: small networks that train in a minute or two."""
    if name not in PRESETS:
        raise UnknownNameError("preset", name, PRESETS)
    check_type("task", task, str)
    if name == "paper":
        return TrainConfig(task=task, agent=agent)
    shifts = find_task(task).defaults.evaluate_shifts
    settings = settings_for(agent, task, **TINY_SETTINGS)
    return TrainConfig(task=task, agent=agent, evaluate_shifts=(shifts[0], shifts[-1]), settings=settings, **TINY)


CHOSEN_FIRST = {"preset": "paper", "task": TrainConfig.task, "agent": TrainConfig.agent}
"""Options that the defaults of other options depend on, with their own defaults."""


def configure(options: Mapping[str, Any] | None = None, **more: Any) -> TrainConfig:
    """The configuration for options of `sgqn train`, by name: options of the run, of the agent, and `preset`.

    configure(task="walker-walk", agent="sgqn", rho=0.9, steps=100_000)
    """
    given = {name.replace("-", "_"): _tupled(value) for name, value in {**(options or {}), **more}.items()}
    given = renamed(given)
    base = preset(
        given.pop("preset", "paper"), given.pop("task", TrainConfig.task), given.pop("agent", TrainConfig.agent)
    )
    own = {one.name for one in dataclasses.fields(TrainConfig)} - {"settings"}
    of_agent = {one.name for one in dataclasses.fields(base.settings)}
    for name in given:
        if name not in own | of_agent:
            raise UnknownNameError(f"option of agent {base.agent!r}", name, own | of_agent)
    settings = dataclasses.replace(base.settings, **{name: given[name] for name in given if name in of_agent})
    return dataclasses.replace(base, settings=settings, **{name: given[name] for name in given if name in own})


def settings_for(agent: str, task: str, **values: Any) -> Any:
    """An agent's settings: the task's defaults, overridden by the given values that the agent has."""
    kind, defaults = AGENTS[agent].settings, find_task(task).defaults
    wanted = {"rho": defaults.rho, **defaults.settings}
    if defaults.augmentation is not None:
        wanted["augmentation"] = defaults.augmentation
    wanted |= values
    names = {one.name for one in dataclasses.fields(kind)}
    return kind(**{name: value for name, value in wanted.items() if name in names})


def versions() -> dict[str, str]:
    """Versions of the installed packages that a result depends on."""
    packages = dict.fromkeys(["sgqn", "torch", "numpy", *(name for family in families() for name in family.packages)])
    found = {"python": platform.python_version()}
    for package in (*packages, "gymnasium"):
        try:
            found[package] = importlib.metadata.version(package)
        except importlib.metadata.PackageNotFoundError:
            if package == "sgqn":  # it runs from a clone
                found[package] = sgqn.__version__
    return found
