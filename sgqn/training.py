"""The training loop: collect, update, evaluate, log, checkpoint, resume.

One iteration is one step of all environments and the updates that are due. Everything that a run's future depends on is
in its checkpoints, so a run that was killed continues, on the CPU bit for bit, as if it had never stopped.
"""

from __future__ import annotations

import dataclasses
import errno
import gc
import logging
import math
import signal
import sys
from collections.abc import Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, nullcontext
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.nn.parameter import is_lazy

from sgqn import checkpoint, data, loading, memory, reading, run_folder
from sgqn.agents import AGENTS, Phase, build_agent, check_actions, no_augmentation
from sgqn.augmentations import AUGMENTATIONS, Augmentation, ImageBank, make_augmentation
from sgqn.callbacks import Callback, Reason
from sgqn.config import TrainConfig
from sgqn.envs.families import find_task
from sgqn.envs.vector import make_vec
from sgqn.errors import DataError, Interrupted, InvalidValueError, SgqnError, WorkerError
from sgqn.evaluation import evaluate
from sgqn.experience import Experience, OffPolicy
from sgqn.logs import Logs
from sgqn.replay import is_whole
from sgqn.restore import bounded, check_fits
from sgqn.runner import Backend, choose_backend
from sgqn.signals import asked_to_stop

logger = logging.getLogger(__name__)

EXPLODED = 1e8
"""A loss beyond this is taken for divergence."""

DAYS = 3e9
"""Steps x batch x layers x filters that a CPU needs days for: the paper's run is 2e10."""

LONGEST_CYCLE = 16
"""Updates that are captured as one graph, at most."""

COLLECTION = "time/collection_share"
"""Share of the time between updates: environments, rendering, replay and policy, as far as they hold updates up."""


class DivergedError(SgqnError):
    """Training produced NaN or exploding losses."""


def train(
    config: TrainConfig, out: str | Path = "runs", progress: bool = True, callbacks: Sequence[Callback] = ()
) -> Path:
    """Start the run of `config` in `out/<task>/<agent>/<seed>` and train it to its end; returns this folder."""
    if not isinstance(config, TrainConfig):
        raise InvalidValueError(
            f"train takes a TrainConfig, such as sgqn.configure(task='walker-walk'), not {config!r}"
        )
    config.check_requirements()
    if AGENTS[config.agent].copies and config.start_from is None:
        raise InvalidValueError(f"agent {config.agent!r} copies a trained agent: name that one with --start-from")
    memory.check(config, backend_of(config).device)
    _check_learns(config)
    _check_clips(config)
    folder = run_folder.folder_of(config, Path(out))
    with run_folder.hold(folder):
        if (folder / run_folder.CONFIG).exists():
            how = f"continue it with `sgqn train --resume {folder}`, or choose another --out"
            raise InvalidValueError(f"{folder} holds a run already: {how}")
        if (folder / run_folder.POLICY).exists():
            raise InvalidValueError(f"{folder} has results of a policy of that name: choose another --out")
        with memory.enough():
            Trainer(config, folder, progress, callbacks).run()
    return folder


def resume(
    folder: str | Path, progress: bool = True, steps: int | None = None, callbacks: Sequence[Callback] = ()
) -> Path:
    """Continue a run from its newest checkpoint, or from its beginning where it has none yet.

    `folder` may also be one of its checkpoints: the run goes back to it, and later checkpoints are removed once the
    next one is written. If the run is killed before that, it goes back to the same checkpoint when it is resumed.
    With `steps` it ends there, from now on, instead of where it was to end when it was started.
    """
    chosen = checkpoint.find(folder) if checkpoint.run_of(folder) else None
    folder = checkpoint.run_of(folder) or Path(folder)
    run_folder.read_config(folder)  # a folder without a run must not be locked
    with run_folder.hold(folder):
        config = run_folder.read_config(folder)
        start = chosen or _current(folder)
        if steps is not None:
            config = _with_end(config, steps, checkpoint.step_of(start) if start else 0)
        memory.check(config, backend_of(config).device)
        with memory.enough():
            opened = None if start is None else checkpoint.open_checkpoint(start)
            if opened is not None:
                _check_same_as(config, opened, folder)
            trainer = Trainer(config, folder, progress, callbacks, opened)
            try:
                if opened is not None:
                    trainer.load(opened)
                else:
                    trainer.rewind_logs()
                trainer.run()
            finally:
                trainer.close()
    return folder


def advance(config: TrainConfig, out: Path, progress: bool = True, callbacks: Sequence[Callback] = ()) -> Path:
    """Train the run of `config` to its end from wherever it stands: not started, interrupted or complete."""
    folder = run_folder.folder_of(config, out)
    if not (folder / run_folder.CONFIG).exists():
        return train(config, out, progress, callbacks)
    check_same(config, folder)
    return folder if _complete(config, folder) else resume(folder, progress, callbacks=callbacks)


def complete(config: TrainConfig, step: int, evaluations: Iterable[dict[str, Any]]) -> bool:
    """Whether a run with a checkpoint of `step` has made its last step, and the evaluation that belongs to it."""
    return step >= config.steps and not _not_evaluated(config, step, evaluations)


def _complete(config: TrainConfig, folder: Path) -> bool:
    return complete(config, newest_step(folder), run_folder.read_lines(folder / run_folder.EVALUATIONS))


def _not_evaluated(config: TrainConfig, step: int, evaluations: Iterable[dict[str, Any]]) -> list[str]:
    """The shifts whose evaluation is due at `step` and not in the log, because the run was killed or it failed."""
    if not step or not _passed(config, step, config.evaluate_every):
        return []
    asked: dict[str, Any] = {"step": step, "seed": config.seed}
    if config.renderer != "auto":
        asked["renderer"] = config.renderer
    made = [
        line.get("shift")
        for line in evaluations
        if all(line.get(name) == value for name, value in asked.items())
        and isinstance(returns := line.get("returns"), list)
        and len(returns) == config.evaluate_episodes
    ]
    return [shift for shift in config.evaluate_shifts if shift not in made]


def _passed(config: TrainConfig, step: int, every: int) -> bool:
    """Whether the iteration that ended at `step` went over a multiple of `every`."""
    return every > 0 and step // every > (step - config.num_envs) // every


def _with_end(config: TrainConfig, steps: int, last: int) -> TrainConfig:
    """The configuration of a run that has come to step `last`, with another end, which lies ahead."""
    if steps <= last:
        raise InvalidValueError(f"steps must be above {last}, the last step of this run, not {steps}")
    config = dataclasses.replace(config, steps=steps)
    _check_learns(config, last)
    return config


def _check_learns(config: TrainConfig, last: int = 0) -> None:
    """Refuse what would end before an update is made, by a run that has come to step `last`."""
    if AGENTS[config.agent].experience is not None:
        return  # not a replay: no random steps come first
    refills = last > 0 and not config.save_replay
    rows = -(-config.warmup_steps // config.num_envs)
    first = last * refills + rows * config.num_envs
    if config.steps <= first:
        why = "its replay was not kept, and must be filled again" if refills else "no updates are made"
        raise InvalidValueError(
            f"steps must be above {first}, not {config.steps}, or nothing is learned: "
            f"{why} for {config.warmup_steps} steps (warmup_steps)"
        )


def _check_clips(config: TrainConfig) -> None:
    """Refuse damaged clips of the shifts to evaluate in, which would show hours later."""
    task = find_task(config.task)
    shifts = config.evaluate_shifts if 0 < config.evaluate_every <= config.steps else ()
    kinds = {task.family.shift(config.task, shift).video for shift in shifts} - {None}
    for clip in (clip for kind in sorted(map(str, kinds)) for clip in data.video_clips(kind)):
        if problem := data.clip_problem(clip):
            raise DataError(f"{clip} {problem}: replace it, or leave its shift out of --evaluate-shifts")


def train_seeds(
    config: TrainConfig,
    seeds: Sequence[int],
    out: Path,
    progress: bool = True,
    callbacks: Sequence[Callback] = (),
) -> list[Path]:
    """Train one run for each seed, one after another; returns their folders.

    Called again, it skips what is complete and continues what was interrupted. A run that diverges is reported when
    all others are done.
    """
    seeds = list(seeds)
    if not seeds or len(set(seeds)) < len(seeds):
        raise InvalidValueError(f"seeds must be at least one number and all different, not {seeds!r}")
    configs = [dataclasses.replace(config, seed=seed) for seed in seeds]
    folders = [run_folder.folder_of(one, out) for one in configs]
    for one, folder in zip(configs, folders, strict=True):
        check_same(one, folder)
    failures = []
    for number, (one, folder) in enumerate(zip(configs, folders, strict=True), 1):
        name = f"run {number} of {len(seeds)}: seed {one.seed}"
        started = (folder / run_folder.CONFIG).exists()
        done = started and _complete(one, folder)
        if progress:
            print(name + (" is complete" if done else " continues" if started else ""), file=sys.stderr)
        try:
            advance(one, out, progress, callbacks)
        except DivergedError as error:
            failures.append(f"seed {one.seed}: {error}")  # not the error itself, which would hold the run's memory
        except Interrupted as stop:
            raise Interrupted(f"{stop}, or the whole queue with the same command as before", stop.code) from None
        gc.collect()  # a run's parts refer to each other; the next one may need their memory
    if failures:
        raise DivergedError(f"{len(failures)} of {len(seeds)} runs diverged; {'; '.join(failures)}")
    return folders


def check_same(config: TrainConfig, folder: Path, found: TrainConfig | None = None) -> None:
    """Refuse to continue a run of another configuration, which is `found` or the one in its folder."""
    if found is None and not (folder / run_folder.CONFIG).exists():
        return
    found = found or run_folder.read_config(folder)
    if changes := run_folder.changes(config, found):
        other = [f"{name} is {there!r}, not {asked!r}" for name, (asked, there) in changes.items()]
        only_longer = len(other) == 1 and config.steps > found.steps
        longer = f"train it longer with `sgqn train --resume {folder} --steps {config.steps}`, or "
        how = f"{longer if only_longer else ''}choose another --out"
        raise InvalidValueError(f"{folder} holds a run of another configuration ({'; '.join(other)}): {how}")


def _check_same_as(config: TrainConfig, opened: checkpoint.Opened, folder: Path) -> None:
    """Refuse a configuration that was edited since the checkpoint; `steps` may differ."""
    recorded = opened.metadata.get("config")
    if recorded is not None and (other := run_folder.differences(config, TrainConfig.from_dict(recorded))):
        raise InvalidValueError(
            f"{folder / run_folder.CONFIG} does not fit {opened.folder} ({'; '.join(other)}): "
            "restore it, only steps can change"
        )


def _check_optimizer(optimizer: torch.optim.Optimizer, state: dict[str, Any], name: str) -> None:
    """Refuse the state of another optimizer, which torch takes without a look at shapes and hyperparameters."""
    own = optimizer.state_dict()["param_groups"]
    if len(state["param_groups"]) != len(own):
        raise ValueError(f"the optimizer {name} has {len(state['param_groups'])} groups, not {len(own)}")
    parameters: dict[int, Tensor] = {}
    for saved, group, live in zip(state["param_groups"], own, optimizer.param_groups, strict=True):
        for key in ("params", "lr", "betas", "eps", "weight_decay"):
            if key in group and saved[key] != group[key]:
                raise ValueError(f"{key} of the optimizer {name} differs")
        parameters.update(zip(group["params"], live["params"], strict=True))
    for index, values in state["state"].items():
        for key, value in values.items():
            shape = () if key == "step" else parameters[index].shape
            reading.tensor(value, f"{key} of the optimizer {name}", shape, parameters[index].dtype)


@contextmanager
def _described(folder: Path) -> Iterator[None]:
    """Name the checkpoint whose state does not fit the run: whatever is wrong with it shows where it is used."""
    try:
        yield
    except DataError:
        raise
    except (SgqnError, LookupError, TypeError, ValueError, AttributeError, ArithmeticError, RuntimeError) as error:
        raise DataError(f"{folder}: not a state of this run ({reading.line(error)})") from error


def newest_step(folder: Path) -> int:
    """The step that a run has come to, 0 without a checkpoint."""
    found = _current(folder)
    return checkpoint.step_of(found) if found else 0


def _current(folder: Path) -> Path | None:
    """The checkpoint that a run continues from: the one that it went back to, or the newest."""
    found = checkpoint.list_checkpoints(folder)
    back = run_folder.read_back(folder)
    return next((path for path in found if path.name == back), found[-1] if found else None)


def _exploded(means: dict[str, float]) -> str | None:
    """The first loss that shows divergence, with its value."""
    losses = {name: value for name, value in means.items() if name.startswith("loss/")}
    found = (f"{name} is {value}" for name, value in losses.items() if not abs(value) < EXPLODED)  # NaN neither
    return next(found, None)


def backend_of(config: TrainConfig) -> Backend:
    """How this machine computes the run."""
    return choose_backend(config.device, config.path, config.precision)


class Trainer:
    """All parts of one run."""

    def __init__(
        self,
        config: TrainConfig,
        folder: Path,
        progress: bool = True,
        callbacks: Sequence[Callback] = (),
        start: checkpoint.Opened | None = None,
    ):
        """`start` is the checkpoint to continue from. Its weights bound the size of the networks; `load` reads them."""
        self.config, self.folder, self.callbacks = config, folder, tuple(callbacks)
        entry = AGENTS[config.agent]
        self.backend = backend_of(config)
        self.device = self.backend.device
        trained = loading.load_agent(config.start_from, self.device) if config.start_from and not start else None
        self.envs = make_vec(
            config.task,
            config.num_envs,
            seed=config.seed,
            renderer=config.renderer,
            device=self.device,
            action_repeat=config.action_repeat,
            image_size=run_folder.render_size(config),
            frame_stack=config.frame_stack,
        )
        self.spec = run_folder.spec_of(config, self.envs.action_dim, self.envs.discrete)
        check_actions(config.agent, self.spec)
        self.bank: ImageBank | None = None
        augmentation: Augmentation = no_augmentation
        if entry.augments:
            name = getattr(config.settings, "augmentation", find_task(config.task).defaults.augmentation) or "overlay"
            if AUGMENTATIONS[name].needs_images:
                self.bank = ImageBank(config.overlay_images, config.image_size, config.seed, self.device)
            augmentation = make_augmentation(name, self.bank)
        with bounded(start.weights.header, start.folder) if start else nullcontext():
            self.agent = build_agent(
                config.agent, self.spec, config.settings, augmentation, seed=config.seed, device=self.device
            )
        if trained is not None:
            self.agent.start_from(trained)
        self.experience: Experience = (entry.experience or OffPolicy)(config, self.agent, self.device)
        self.explorer = torch.Generator().manual_seed(config.seed + 2)
        self.step = 0
        drawn_from = (self.agent.generator, self.agent.preparer, *self.experience.generators.values())
        self.runner = self.backend.runner(self.agent, self.experience.sample, drawn_from, self._cycle())
        self.obs: Tensor | None = None
        self.returns = np.zeros(config.num_envs)
        self.logs = Logs(folder, config, progress)
        self._stop: signal.Signals | None = None
        self._saved: tuple[int, int] | None = None  # step and updates of the newest checkpoint
        self._later: list[Path] = []  # checkpoints after the one that the run went back to

    @property
    def updates(self) -> int:
        return self.experience.updates

    @property
    def machine(self) -> dict[str, str]:
        """What this machine brings to the run: how it computes, and the overlay images if there are."""
        images = {} if self.bank is None else {"overlay_images": self.bank.describe()}
        return {**self.backend.to_dict(), **images}

    def _patience(self) -> str:
        """What a user who starts the paper's run on a CPU should know."""
        settings = self.config.settings
        sizes = [getattr(settings, name, 0) for name in ("batch_size", "encoder_layers", "encoder_filters")]
        large = self.config.steps * math.prod(sizes) > DAYS
        return "; at this size that takes days: see --preset tiny" if large and self.device.type == "cpu" else ""

    # ---- the loop

    def run(self) -> None:
        """Train until the configured number of steps is reached, or a signal asks to stop."""
        config = self.config
        try:
            if self.obs is None:
                self.obs, _ = self.envs.reset(seed=config.seed)
                self.experience.start(self.obs)
            # From here on the folder holds a run: what fails before leaves nothing behind that blocks another try.
            self.folder.mkdir(parents=True, exist_ok=True)
            run_folder.write_config(self.folder, config, self.machine)
            with asked_to_stop(self._ask_to_stop), self.logs.open(self.step), self._told(), self._advised():
                self.logs.say(self.backend.describe() + self._patience())
                made = run_folder.read_lines(self.folder / run_folder.EVALUATIONS)
                self._evaluate(_not_evaluated(config, self.step, made))
                while self.step < config.steps:
                    self._catch_up()
                    self._iterate()
                    if self._passed(config.checkpoint_every) or self.step >= config.steps:
                        self.save()  # before the evaluation, which may fail
                    if self._passed(config.evaluate_every):
                        self._evaluate(config.evaluate_shifts)
                    self._check_stop()
                    if any(callback.stopping for callback in self.callbacks):
                        self.save()
                        break
            self._check_stop()
        finally:
            self.close()

    @contextmanager
    def _told(self) -> Iterator[None]:
        """Tell the callbacks that training starts and, whatever happens, how it ended."""
        reason: Reason = "failed"

        def end(callback: Callback) -> None:
            callback.on_end(self.step, reason)

        with ExitStack() as stack:
            for callback in self.callbacks:
                callback.stopping = False
                callback.on_start(self.config.to_dict(), self.folder, self.step)
                stack.callback(end, callback)
            try:
                yield
                reason = "complete" if self.step >= self.config.steps else "stopped"
            except (Interrupted, KeyboardInterrupt):
                reason = "interrupted"
                raise

    @contextmanager
    def _advised(self) -> Iterator[None]:
        """Say how to continue after what is not the run's fault: a worker that died, a full disk, a damaged file."""
        how = f"continue with `sgqn train --resume {self.folder}`"
        try:
            yield
        except (WorkerError, DataError) as error:
            error.args = (f"{error}; {how}",)
            raise
        except OSError as error:
            if error.errno not in (errno.ENOSPC, errno.EDQUOT):
                raise
            raise DataError(f"{self.folder}: the disk is full ({error}); free some space, then {how}") from error

    def _catch_up(self) -> None:
        """Make the updates that are due, but for those that may run while the environments step."""
        spared = self._per_iteration if self.experience.overlaps else 0
        while (due := self.experience.due(self.step)) > spared:
            self.runner.update(self._phases(min(self.config.num_envs, due - spared)))
            self._check_stop()

    def _iterate(self) -> None:
        """One step of every environment; updates run while the physics does."""
        assert self.obs is not None
        actions = self._random_actions() if self.experience.explores(self.step) else self.runner.act(self.obs)
        due = self.experience.due(self.step) if self.experience.overlaps else 0
        self.runner.advance(actions, self._send, self._phases(due))
        obs, rewards, terminated, truncated, info = self.envs.step_wait()
        over = terminated | truncated
        last, first = (info["final_obs"], obs) if over.any() else (obs, None)
        self.experience.add(actions, rewards, last, terminated, truncated, first)
        self.obs = obs
        self.step += self.config.num_envs
        self.returns += rewards
        final = info.get("final_info", {})
        solved = final["success"][over] if "success" in final else ()
        self.logs.episodes(self.returns[over], solved)
        self.returns[over] = 0
        if self.bank is not None and self._passed(self._renewal):
            self.bank.refresh(self.config.overlay_images // 16)
        if self._passed(self.config.log_every):
            self._log()
        for callback in self.callbacks:
            callback.on_step(self.step)

    def _send(self, actions: np.ndarray) -> None:
        """Start a step of the environments, which would call NaN in an action the user's mistake."""
        if not np.isfinite(actions).all():
            cause = _exploded(self.runner.metrics.read())
            raise self._diverged(f"{cause} and actions are NaN" if cause else "actions are NaN or infinite")
        self.envs.step_async(actions)

    def _random_actions(self) -> Tensor:
        shape = (self.config.num_envs, self.spec.action_dim)
        if self.spec.discrete:
            return torch.randint(self.spec.action_dim, shape[:1], generator=self.explorer).to(self.device)
        return (torch.rand(shape, generator=self.explorer) * 2 - 1).to(self.device)

    def _phases(self, count: int) -> list[Phase]:
        """The phases of the next `count` updates, which are counted as made."""
        first = self.experience.updates + 1
        self.experience.updates += max(0, count)
        return [self._phase(update) for update in range(first, first + count)]

    def _phase(self, update: int) -> Phase:
        """What belongs to an update, by its number; the first is 1."""
        return Phase(*(update % every == 0 for every in self.agent.intervals))

    def _cycle(self) -> list[Phase]:
        """The phases until they repeat, as often as fits into the updates of one iteration, if these are not many."""
        period = math.lcm(*self.agent.intervals)
        whole = min(LONGEST_CYCLE, self._per_iteration) // period * period
        return [self._phase(update) for update in range(1, whole + 1)]

    @property
    def _per_iteration(self) -> int:
        """Updates that belong to one iteration of a learner with a replay buffer, rounded down."""
        return max(1, self.config.num_envs // self.agent.update_every)

    @property
    def _renewal(self) -> int:
        """Steps between two renewals of a sixteenth of the overlay crops."""
        return max(1, self.config.overlay_images_renewed_every // 16)

    def _passed(self, every: int) -> bool:
        """Whether the last iteration went over a multiple of `every`."""
        return _passed(self.config, self.step, every)

    # ---- looking

    def _log(self) -> None:
        means = self.runner.metrics.read()
        share = self.runner.stopwatch.read()
        line = self.logs.write(self.step, self.updates, means if share is None else {**means, COLLECTION: share})
        for callback in self.callbacks:
            callback.on_log(self.step, dict(line))
        if (cause := _exploded(means)) is not None:
            raise self._diverged(cause)
        if self._passed(self.config.images_every) and self.updates:
            self._log_images()
        self.runner.stopwatch.skip()

    def _diverged(self, what: str) -> DivergedError:
        """The error to raise, with what can be done about it."""
        kept = checkpoint.newest_good(self.folder)
        where = f"the last good checkpoint is {kept}" if kept else "there is no checkpoint yet"
        return DivergedError(
            f"{what} at step {self.step} after {self.updates} updates: training has diverged; {where}. "
            "A lower --learning-rate or --consistency-weight may help"
        )

    def _log_images(self) -> None:
        """The newest observations of some environments, with attribution mask and predicted mask."""
        assert self.obs is not None
        self.logs.images(self.step, self.agent, self.obs[:4])

    def _evaluate(self, shifts: Sequence[str]) -> None:
        """Evaluate the agent; what goes wrong, such as a damaged clip, does not end training."""
        config = self.config
        for shift in shifts:
            try:
                result = evaluate(
                    self.agent,
                    config.task,
                    shift,
                    config.evaluate_episodes,
                    config.seed,
                    config.renderer,
                    num_workers=0 if config.evaluate_episodes <= 2 else None,
                    action_repeat=config.action_repeat,
                    on_step=partial(self._note_evaluation, shift),
                )
            except SgqnError as error:
                logger.warning("step %d: no evaluation in %s, training continues: %s", self.step, shift, error)
                continue
            line = self.logs.evaluation(self.step, result)
            for callback in self.callbacks:
                callback.on_evaluation(self.step, dict(line))
        self.runner.stopwatch.skip()

    def _note_evaluation(self, shift: str, done: int, total: int) -> None:
        self.logs.note(f"evaluating {shift} {done}/{total}")

    # ---- stopping and going on

    def save(self) -> None:
        """Write a checkpoint of everything, unless nothing has happened since the last one."""
        if self._saved == (self.step, self.updates):
            return
        weights = self.agent.state_dict()
        if broken := reading.not_finite(weights):
            raise self._diverged(broken)
        tag = checkpoint.name(self.step)
        self.experience.save(self.folder / run_folder.REPLAY, tag)
        written = checkpoint.save(
            self.folder,
            self.step,
            weights=weights,
            state=self.state_dict(),
            metadata={"config": self.config.to_dict(), "spec": dataclasses.asdict(self.spec)},
            keep=self.config.keep_checkpoints,
            replaces=self._later,
        )
        self._later = []
        run_folder.write_back(self.folder, None)
        kept = [checkpoint.step_of(path) for path in checkpoint.list_checkpoints(self.folder)]
        self.experience.prune(self.folder / run_folder.REPLAY, [checkpoint.name(step) for step in kept])
        self._saved = (self.step, self.updates)
        for callback in self.callbacks:
            callback.on_checkpoint(self.step, written)
        self.runner.stopwatch.skip()

    def load(self, source: Path | checkpoint.Opened) -> None:
        """Continue from a checkpoint of this run."""
        opened = source if isinstance(source, checkpoint.Opened) else checkpoint.open_checkpoint(source)
        folder = opened.folder
        _check_same_as(self.config, opened, self.folder)
        fits = partial(check_fits, agent=self.agent, origin=folder)
        loaded = checkpoint.load(opened, fits=fits, limit=self._largest_state())
        replay = self.folder / run_folder.REPLAY
        with _described(folder):
            self.agent.load_state_dict(loaded.weights)
            self.load_state_dict(loaded.state)
            self.step = loaded.step
            assert self.obs is not None
            try:
                self.experience.load(replay, checkpoint.name(self.step), loaded.state, self.step, self.obs)
            except DataError as error:
                raise DataError(f"{error}; {self._without(replay)}") from error
        self.runner.reset()
        self._saved = (self.step, self.updates)
        self._later = [one for one in checkpoint.list_checkpoints(self.folder) if checkpoint.step_of(one) > self.step]
        run_folder.write_back(self.folder, folder.name if self._later else None)
        if self._later:
            names = ", ".join(path.name for path in self._later)
            logger.warning("%s: removed once the next checkpoint is written: %s", self.folder, names)
        self.rewind_logs()

    def _largest_state(self) -> int | None:
        """Bytes of tensors that a checkpoint may have besides the weights; None if an experience may keep any."""
        if AGENTS[self.config.agent].experience is not None:
            return None
        weights = sum(tensor.nbytes for tensor in self.agent.state_dict().values() if not is_lazy(tensor))
        observations = self.config.num_envs * self.spec.channels * self.spec.render_size**2
        return 8 * weights + 8 * observations + (self.config.num_envs << 18) + (64 << 20)

    def _without(self, replay: Path) -> str:
        """How to continue where the replay of this step is damaged."""
        how = f"remove {replay} to continue with an empty replay buffer"
        for path in reversed(checkpoint.list_checkpoints(self.folder)):
            if checkpoint.step_of(path) < self.step and is_whole(replay, path.name):
                return f"continue from an earlier checkpoint with `sgqn train --resume {path}`, or {how}"
        return how

    def rewind_logs(self) -> None:
        """Forget what was logged after this step: it will be said again."""
        for name in (run_folder.METRICS, run_folder.EVALUATIONS, run_folder.SALIENCY):
            run_folder.rewind(self.folder / name, self.step)

    def state_dict(self) -> dict[str, Any]:
        """What the agent's weights leave out."""
        return {
            **self.experience.state_dict(),
            "optimizers": {name: optimizer.state_dict() for name, optimizer in self.agent.optimizers.items()},
            "generators": {name: generator.get_state() for name, generator in self._generators().items()},
            "pictures": self.bank.state_dict() if self.bank is not None else None,
            "envs": self.envs.state_dict(),
            "returns": self.returns.copy(),
            "metrics": self.runner.metrics.state_dict(),
            "logs": self.logs.state_dict(),
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        reading.mapping(state["optimizers"], "optimizers", list(self.agent.optimizers))
        for name, optimizer in self.agent.optimizers.items():
            _check_optimizer(optimizer, state["optimizers"][name], name)
            optimizer.load_state_dict(state["optimizers"][name])
        for name, generator in self._generators().items():
            generator.set_state(state["generators"][name])
        if self.bank is not None:
            self.bank.load_state_dict(state["pictures"])
        self.obs = self.envs.load_state_dict(state["envs"])
        if state["returns"].shape != self.returns.shape or not np.isfinite(state["returns"]).all():
            raise ValueError(f"returns are not {len(self.returns)} finite numbers")
        self.returns = state["returns"].astype(self.returns.dtype)
        self.runner.metrics.load_state_dict(state.get("metrics", state["logs"]), self.device)  # older checkpoints
        self.logs.load_state_dict(state["logs"])

    def close(self) -> None:
        self.envs.close()

    def _generators(self) -> dict[str, torch.Generator]:
        own = {"agent": self.agent.generator, "preparer": self.agent.preparer, "explorer": self.explorer}
        return {**own, **self.experience.generators}

    def _check_stop(self) -> None:
        if self._stop is None:
            return
        self.save()
        how = f"continue with `sgqn train --resume {self.folder}`"
        raise Interrupted(f"stopped by {self._stop.name} at step {self.step}, saved; {how}", 128 + self._stop)

    def _ask_to_stop(self, by: signal.Signals) -> None:
        self._stop = by
        self.logs.note(f"{by.name}: saving after this step (again to stop at once)")
