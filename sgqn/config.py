"""A run's configuration: validated when made, saved as JSON beside the run, complete enough to repeat it."""

from __future__ import annotations

import dataclasses
import importlib.metadata
import platform
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any, Literal

import tyro

import sgqn
from sgqn.agents.settings import AgentSettings
from sgqn.envs.tasks import RENDERERS, SHIFTS, check_seed, find_task
from sgqn.errors import DataError, InvalidValueError, UnknownNameError
from sgqn.fast.paths import PATHS, PRECISIONS

RHO = {"cartpole": 0.98, "ball_in_cup": 0.98}
"""The paper's quantile by domain; 0.95 elsewhere."""


@dataclass(frozen=True)
class TrainConfig:
    """One training run. Steps are agent steps: one action, `action_repeat` control steps, one update."""

    task: str = "walker-walk"
    """A task of dm_control as domain-task, such as walker-walk or ball_in_cup-catch."""
    agent: str = "sgqn"
    """sac, drq, rad, soda, svea, svea_soda, sgqn, sac_consistency or sac_selfsup."""
    seed: int = 0
    """Of networks, environments and everything else that is drawn; it names the run's folder."""
    steps: int = 500_000
    """Agent steps at which the run ends, those of all environments together."""
    num_envs: int = 16
    """Environments stepped together; updates per agent step stay one, whatever their number."""
    warmup_steps: int = 1000
    """Random actions before the first update; as many updates follow at once."""
    action_repeat: int | None = None
    """Control steps an action lasts; the paper's of the task if not given."""
    image_size: int = 84
    """Width and height of what the networks see, in pixels."""
    frame_stack: int = 3
    """Frames in one observation."""
    renderer: str = "warp"
    """warp, gl or auto. Agents trained on Warp's pictures act as well in OpenGL's."""
    device: str = "auto"
    """Where everything is computed: cpu, cuda or cuda:1; auto takes a GPU where there is one."""
    precision: Literal["auto", "bf16", "fp32"] = "auto"
    """bf16 multiplies in bfloat16 and keeps weights in float32; auto does so on GPUs that can."""
    path: Literal["auto", "eager", "captured", "cudnn", "kernels"] = "auto"
    """kernels: in CUDA graphs, with fused kernels. cudnn: with cuDNN's convolutions. captured: graphs alone. eager:
    neither. auto: the fastest."""

    replay_capacity: int = 500_000
    """Transitions that are kept to learn from, the newest."""
    pictures: int = 4096
    """Random crops held for the overlay; as many are renewed over every `pictures_renewed_every` steps."""
    pictures_renewed_every: int = 50_000
    """Steps in which all pictures of the overlay are renewed, a sixteenth at a time."""

    log_every: int = 1000
    """Steps between two lines of metrics."""
    images_every: int = 50_000
    """Steps between pictures of observation, mask and predicted mask in TensorBoard; 0 for none."""
    evaluate_every: int = 50_000
    """Steps between two evaluations; 0 for none during training."""
    evaluate_episodes: int = 5
    """Episodes of each evaluation, in each shift."""
    evaluate_shifts: tuple[str, ...] = ("train", "video_easy", "video_hard")
    """Where the agent is evaluated: train, color_easy, color_hard, video_easy, video_hard."""
    checkpoint_every: int = 50_000
    """Steps between two checkpoints; there is one at the end too."""
    keep_checkpoints: int = 2
    """How many checkpoints are kept, the newest."""
    save_replay: bool = True
    """Keep the replay with the newest checkpoint, so that a resumed run goes on bit for bit."""

    settings: AgentSettings = field(default_factory=AgentSettings)

    def __post_init__(self) -> None:
        find_task(self.task, self.action_repeat)
        for shift in self.evaluate_shifts:
            if shift not in SHIFTS:
                raise UnknownNameError("shift", shift, SHIFTS)
        if self.renderer not in RENDERERS:
            raise UnknownNameError("renderer", self.renderer, RENDERERS)
        if self.precision not in PRECISIONS:
            raise UnknownNameError("precision", self.precision, PRECISIONS)
        if self.path not in PATHS:
            raise UnknownNameError("path", self.path, PATHS)
        positive = ("steps", "num_envs", "warmup_steps", "replay_capacity", "log_every", "checkpoint_every")
        for name in (*positive, "pictures", "pictures_renewed_every", "keep_checkpoints", "evaluate_episodes"):
            if getattr(self, name) < 1:
                raise InvalidValueError(f"{name} must be at least 1, not {getattr(self, name)!r}")
        object.__setattr__(self, "seed", check_seed(self.seed))  # a numpy integer has no place in config.json
        if self.image_size % 4 or self.image_size < 16:
            raise InvalidValueError(f"image_size must be a multiple of 4 from 16 on, not {self.image_size!r}")

    @property
    def episode_steps(self) -> int:
        return find_task(self.task, self.action_repeat).episode_steps

    def to_dict(self) -> dict[str, Any]:
        return dataclasses.asdict(self)

    @classmethod
    def from_dict(cls, values: dict[str, Any]) -> TrainConfig:
        """The configuration that `to_dict` wrote, also after JSON has made lists of its tuples."""
        try:
            values = dict(values)
            settings = dict(values.pop("settings"))
            settings["decoder_filters"] = tuple(settings["decoder_filters"])
            values["evaluate_shifts"] = tuple(values["evaluate_shifts"])
            return cls(**values, settings=AgentSettings(**settings))
        except (TypeError, KeyError, ValueError) as error:
            raise DataError(f"not a run's configuration: {error}") from error


@dataclass(frozen=True)
class TrainOptions:
    """Train an agent. Every run has a folder OUT/<task>/<agent>/<seed>; one that was killed goes on with --resume."""

    config: Annotated[TrainConfig, tyro.conf.arg(name="")]
    preset: Literal["paper", "tiny"] = "paper"
    """paper: the paper's hyperparameters. tiny: small networks, a minute or two on two CPU cores."""
    out: Path = Path("runs")
    """Where runs are kept."""
    seeds: tuple[int, ...] = ()
    """One run after another, one for each seed; the same command again goes on where it was stopped."""
    resume: Path | None = None
    """Continue this run from its newest checkpoint, with the configuration it was started with, or to another end:
    --steps is the one option that may stand beside."""
    quiet: Annotated[bool, tyro.conf.FlagCreatePairsOff] = False
    """Show no progress bar."""


def preset(name: str, task: str) -> TrainConfig:
    """`paper`: the paper's table for the task. `tiny`: a small network that trains in a minute or two on two cores."""
    rho = RHO.get(task.partition("-")[0], 0.95)
    if name == "paper":
        return TrainConfig(task=task, settings=AgentSettings(rho=rho))
    if name == "tiny":
        return TrainConfig(
            task=task,
            steps=600,
            num_envs=4,
            warmup_steps=120,
            image_size=48,
            replay_capacity=2000,
            pictures=256,
            pictures_renewed_every=1000,
            log_every=100,
            images_every=300,
            evaluate_every=300,
            evaluate_episodes=1,
            evaluate_shifts=("train", "video_hard"),
            checkpoint_every=300,
            settings=AgentSettings(
                rho=rho,
                encoder_layers=4,
                encoder_filters=8,
                embedding_dim=50,
                hidden_dim=128,
                decoder_filters=(16, 8),
                batch_size=16,
                soda_batch_size=32,
            ),
        )
    raise UnknownNameError("preset", name, ("paper", "tiny"))


def versions() -> dict[str, str]:
    """Versions of what a result depends on."""
    packages = ("sgqn", "torch", "numpy", "mujoco", "dm_control", "mujoco-warp", "warp-lang", "gymnasium")
    found = {"python": platform.python_version()}
    for package in packages:
        try:
            found[package] = importlib.metadata.version(package)
        except importlib.metadata.PackageNotFoundError:  # of sgqn: it runs from a clone
            found[package] = sgqn.__version__ if package == "sgqn" else "unknown"
    return found
