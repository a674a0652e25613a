"""The training loop: collect, update, evaluate, log, checkpoint, resume.

One iteration is one step of all environments and as many updates. Everything that a run's future depends on is in its
checkpoints, so a run that was killed goes on, on the CPU bit for bit, as if it had never stopped.
"""

from __future__ import annotations

import dataclasses
import gc
import logging
import math
import signal
import sys
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from sgqn import attribution, checkpoint, run
from sgqn.agents import Phase, build_agent, find_agent, no_augmentation
from sgqn.agents.base import Metrics
from sgqn.augmentations import PictureBank, make_augmentation
from sgqn.config import TrainConfig
from sgqn.envs.vector import check_device, make_vec
from sgqn.errors import Interrupted, InvalidValueError, SgqnError
from sgqn.evaluation import evaluate
from sgqn.fast import paths
from sgqn.fast.capture import Policy, Stopwatch, Updates, recorder_for
from sgqn.logs import Logs
from sgqn.replay import Batch, Replay, prune
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


def train(config: TrainConfig, out: Path, progress: bool = True) -> Path:
    """Start the run of `config` in `out/<task>/<agent>/<seed>` and train it to its end."""
    find_agent(config.agent)
    attribution.check(config.settings.attribution)
    _check_learns(config)
    path = path_of(config)
    folder = run.folder_of(config, out)
    if (folder / run.CONFIG).exists():
        raise InvalidValueError(
            f"{folder} holds a run already: continue it with `sgqn train --resume {folder}`, or choose another --out"
        )
    folder.mkdir(parents=True, exist_ok=True)
    run.write_config(folder, config, path.to_dict())
    Trainer(config, folder, progress).run()
    return folder


def resume(folder: Path, progress: bool = True, steps: int | None = None) -> Path:
    """Go on with a run from its newest checkpoint, or from its beginning where it has none yet.

    With `steps` it ends there, from now on, instead of where it was to end when it was started.
    """
    config = run.read_config(folder)
    if steps is not None:
        config = _with_end(config, steps, _newest_step(folder))
    trainer = Trainer(config, folder, progress)
    try:
        if checkpoint.list_checkpoints(folder):
            trainer.load(checkpoint.find(folder))
        else:
            trainer.rewind_logs()
        trainer.run()
    finally:
        trainer.close()
    return folder


def _with_end(config: TrainConfig, steps: int, last: int) -> TrainConfig:
    """The configuration of a run that has come to step `last`, with another end, which lies ahead."""
    if steps <= last:
        raise InvalidValueError(f"steps must be above {last}, the last step of this run, not {steps}")
    config = dataclasses.replace(config, steps=steps)
    _check_learns(config, last)
    return config


def _check_learns(config: TrainConfig, last: int = 0) -> None:
    """Refuse what would end before an update is made, by a run that has come to step `last`."""
    refills = last > 0 and not config.save_replay
    rows = -(-config.warmup_steps // config.num_envs)
    first = last * refills + rows * config.num_envs
    if config.steps <= first:
        why = "its replay was not kept, and must be filled again" if refills else "actions are random"
        raise InvalidValueError(
            f"steps must be above {first}, not {config.steps}, or nothing is learned: "
            f"{why} for {config.warmup_steps} steps (warmup_steps)"
        )


def train_seeds(config: TrainConfig, seeds: Sequence[int], out: Path, progress: bool = True) -> list[Path]:
    """Train one run for each seed, one after another; returns their folders.

    Called again, it skips what is complete and goes on with what was interrupted. A run that diverges is reported when
    all others are done.
    """
    seeds = list(seeds)
    if not seeds or len(set(seeds)) < len(seeds):
        raise InvalidValueError(f"seeds must be at least one number and all different, not {seeds!r}")
    configs = [dataclasses.replace(config, seed=seed) for seed in seeds]
    folders = [run.folder_of(one, out) for one in configs]
    for one, folder in zip(configs, folders, strict=True):
        _check_same(one, folder)
    failures = []
    for number, (one, folder) in enumerate(zip(configs, folders, strict=True), 1):
        name = f"run {number} of {len(seeds)}: seed {one.seed}"
        started = (folder / run.CONFIG).exists()
        done = started and _newest_step(folder) >= one.steps
        if progress:
            print(name + (" is complete" if done else " goes on" if started else ""), file=sys.stderr)
        try:
            if started and not done:
                resume(folder, progress)
            elif not started:
                train(one, out, progress)
        except DivergedError as error:
            failures.append(f"seed {one.seed}: {error}")  # not the error itself, which would hold the run's memory
        except Interrupted as stop:
            raise Interrupted(f"{stop}, or the whole queue with the same command as before", stop.code) from None
        gc.collect()  # a run's parts refer to each other; the next one may need their memory
    if failures:
        raise DivergedError(f"{len(failures)} of {len(seeds)} runs diverged; {'; '.join(failures)}")
    return folders


def _check_same(config: TrainConfig, folder: Path) -> None:
    """Refuse to go on with a run of another configuration."""
    if not (folder / run.CONFIG).exists():
        return
    asked, found = config.to_dict(), run.read_config(folder).to_dict()
    asked |= asked.pop("settings")
    found |= found.pop("settings")
    other = [f"{name} is {found[name]!r}, not {asked[name]!r}" for name in asked if asked[name] != found[name]]
    if other:
        only_longer = len(other) == 1 and asked["steps"] > found["steps"]
        longer = f"train it longer with `sgqn train --resume {folder} --steps {asked['steps']}`, or "
        how = f"{longer if only_longer else ''}choose another --out"
        raise InvalidValueError(f"{folder} holds a run of another configuration ({'; '.join(other)}): {how}")


def _newest_step(folder: Path) -> int:
    """The step of a run's newest checkpoint, 0 without any."""
    found = checkpoint.list_checkpoints(folder)
    return checkpoint.step_of(found[-1]) if found else 0


def path_of(config: TrainConfig) -> paths.Path:
    """The way that the run's computation goes on this machine."""
    automatic = "cuda" if torch.cuda.is_available() else "cpu"
    device = check_device(automatic if config.device == "auto" else config.device)
    return paths.choose(device, config.path, config.precision)


class Trainer:
    """All parts of one run."""

    def __init__(self, config: TrainConfig, folder: Path, progress: bool = True):
        self.config, self.folder = config, folder
        recipe, settings = find_agent(config.agent), config.settings
        self.path = path_of(config)
        self.device = self.path.device
        if self.device.type == "cuda":
            torch.backends.cudnn.benchmark = True
        self.envs = make_vec(
            config.task,
            config.num_envs,
            seed=config.seed,
            renderer=config.renderer,
            device=self.device,
            action_repeat=config.action_repeat,
            image_size=run.spec_of(config, 1).render_size,
            frame_stack=config.frame_stack,
        )
        self.spec = run.spec_of(config, self.envs.action_dim)
        self.bank: PictureBank | None = None
        if recipe.augments and settings.augmentation == "overlay":
            self.bank = PictureBank(config.pictures, config.image_size, config.seed, self.device)
        self.agent = build_agent(
            config.agent,
            self.spec,
            settings,
            make_augmentation(settings.augmentation, self.bank) if recipe.augments else no_augmentation,
            seed=config.seed,
            device=self.device,
        )
        self.replay: Replay  # made by `run` or `load`: there may be no memory for two
        self.sampler = torch.Generator(self.device).manual_seed(config.seed + 1)
        self.explorer = torch.Generator().manual_seed(config.seed + 2)
        self.step, self.updates = 0, 0
        self.learn_from = config.warmup_steps
        self.forgiven = 0  # updates that a run resumed without its replay could not make
        generators = (self.agent.generator, self.agent.preparer, self.sampler)
        recorder = recorder_for(self.path, generators)
        self.learning = Updates(self._sample, self._learn, generators, self.path, self._cycle(), recorder=recorder)
        self.policy = Policy(self._act, generators, self.path, recorder=recorder)
        self.stopwatch = Stopwatch(self.device)
        self.obs: Tensor | None = None
        self._host_actions = torch.empty(0)
        self.returns = np.zeros(config.num_envs)
        self.logs = Logs(folder, config, progress)
        self._stop: signal.Signals | None = None
        self._saved: tuple[int, int] | None = None  # step and updates of the newest checkpoint

    @property
    def machine(self) -> dict[str, str]:
        """What this machine brings to the run: the way of its computation, and the overlay's pictures if there are."""
        pictures = {} if self.bank is None else {"pictures": self.bank.describe()}
        return {**self.path.to_dict(), **pictures}

    def _patience(self) -> str:
        """What whoever starts the paper's run on a CPU wants to know."""
        settings = self.config.settings
        large = self.config.steps * settings.batch_size * settings.encoder_layers * settings.encoder_filters > DAYS
        return "; at this size that takes days: see --preset tiny" if large and self.device.type == "cpu" else ""

    # ---- the loop

    def run(self) -> None:
        """Train until the configured number of steps is reached, or a signal asks to stop."""
        config = self.config
        try:
            run.write_config(self.folder, config, self.machine)
            with asked_to_stop(self._ask_to_stop), self.logs.open(self.step):
                self.logs.say(self.path.describe() + self._patience())
                if self.obs is None:
                    self.obs, _ = self.envs.reset(seed=config.seed)
                    self._begin_replay(self.obs)
                while self.step < config.steps:
                    while self.due > config.num_envs:  # the updates that the warm-up has put off
                        self._update(min(config.num_envs, self.due - config.num_envs))
                        self._check_stop()
                    self._iterate()
                    if self._passed(config.evaluate_every):
                        self._evaluate()
                    if self._passed(config.checkpoint_every) or self.step >= config.steps:
                        self.save()
                    self._check_stop()
            self._check_stop()
        finally:
            self.close()

    @property
    def due(self) -> int:
        """Updates that are owed: one per step, once the replay holds enough to learn from."""
        return self.step - self.forgiven - self.updates if self.step >= self.learn_from else 0

    def _iterate(self) -> None:
        """One step of every environment; the updates run while the physics does."""
        assert self.obs is not None
        actions = self._actions(self.obs)
        if self.device.type == "cuda":  # the updates are queued before the host waits for the actions: no gap
            ready = self._to_host(actions)
            self._update(self.due)
            ready.synchronize()
            self.envs.step_async(self._host_actions.numpy())
        else:
            self.envs.step_async(actions.numpy())
            self._update(self.due)
        obs, rewards, terminated, truncated, info = self.envs.step_wait()
        over = terminated | truncated
        last = info["final_obs"] if over.any() else obs
        self.replay.add(actions, rewards, last, terminated, truncated, reset_obs=obs if over.any() else None)
        self.obs = obs
        self.step += self.config.num_envs
        self.returns += rewards
        self.logs.episodes(self.returns[over])
        self.returns[over] = 0
        if self.bank is not None and self._passed(self._renewal):
            self.bank.refresh(self.config.pictures // 16)
        if self._passed(self.config.log_every):
            self._log()

    def _to_host(self, actions: Tensor) -> torch.cuda.Event:
        """Copy to the host without waiting; the event tells when the actions are there."""
        if self._host_actions.shape != actions.shape:
            self._host_actions = torch.empty(actions.shape, pin_memory=True)
        self._host_actions.copy_(actions, non_blocking=True)
        return torch.cuda.current_stream(self.device).record_event()

    def _actions(self, obs: Tensor) -> Tensor:
        """Random during the warm-up, then drawn from the policy."""
        if self.step >= self.config.warmup_steps:
            return self.policy(obs)
        shape = (self.config.num_envs, self.spec.action_dim)
        return (torch.rand(shape, generator=self.explorer) * 2 - 1).to(self.device)

    def _act(self, obs: Tensor) -> Tensor:
        return self.agent.act(obs, deterministic=False).float()

    def _update(self, count: int) -> None:
        """The next `count` updates."""
        if count > 0:
            self.stopwatch.begin()
            self.learning.run([self._phase(self.updates + i) for i in range(1, count + 1)])
            self.stopwatch.end()
            self.updates += count

    def _sample(self, phase: Phase) -> Batch:
        """What an update learns from, prepared for it."""
        return self.agent.prepare(self.replay.sample(self.agent.sample_size(phase), self.sampler))

    def _learn(self, batch: Batch, phase: Phase) -> Metrics:
        """One update: tensors only, as the sampling before it, so that they can be captured."""
        return self.agent.learn(batch, phase)

    def _phase(self, update: int) -> Phase:
        """What belongs to an update, by its number; the first is 1."""
        settings = self.config.settings
        return Phase(
            actor=update % settings.actor_every == 0,
            targets=update % settings.targets_every == 0,
            auxiliary=update % settings.auxiliary_every == 0,
        )

    def _cycle(self) -> list[Phase]:
        """The phases until they repeat, and again, as many as one iteration has, if they are not too many."""
        settings = self.config.settings
        period = math.lcm(settings.actor_every, settings.targets_every, settings.auxiliary_every)
        whole = min(LONGEST_CYCLE, self.config.num_envs) // period * period
        return [self._phase(update) for update in range(1, whole + 1)]

    @property
    def _renewal(self) -> int:
        """Steps between two renewals of a sixteenth of the pictures."""
        return max(1, self.config.pictures_renewed_every // 16)

    def _passed(self, every: int) -> bool:
        """Whether the last iteration went over a multiple of `every`."""
        return every > 0 and self.step // every > (self.step - self.config.num_envs) // every

    # ---- looking

    def _log(self) -> None:
        means = self.learning.tally.read()
        share = self.stopwatch.read()
        self.logs.write(self.step, self.updates, means if share is None else {**means, COLLECTION: share})
        for name, value in means.items():
            if name.startswith("loss/") and not (math.isfinite(value) and abs(value) < EXPLODED):
                kept = checkpoint.newest_good(self.folder)
                where = f"the last good checkpoint is {kept}" if kept else "there is no checkpoint yet"
                raise DivergedError(
                    f"{name} is {value} after {self.updates} updates: training has diverged; {where}. "
                    "A lower --learning-rate or --consistency-weight may help"
                )
        if self._passed(self.config.images_every) and len(self.replay) and self.updates:
            self._log_images()
        self.stopwatch.skip()

    def _log_images(self) -> None:
        """Observation, attribution mask and predicted mask of some stored transitions, with a generator aside."""
        generator = torch.Generator(self.device).manual_seed(self.step)
        batch = self.replay.sample(4, generator)
        self.logs.images(self.step, self.agent, batch)

    def _evaluate(self) -> None:
        config = self.config
        for shift in config.evaluate_shifts:
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
            self.logs.evaluation(self.step, result)
        self.stopwatch.skip()

    def _note_evaluation(self, shift: str, done: int, total: int) -> None:
        self.logs.note(f"evaluating {shift} {done}/{total}")

    # ---- stopping and going on

    def save(self) -> None:
        """Write a checkpoint of everything, unless nothing has happened since the last one."""
        if self._saved == (self.step, self.updates):
            return
        tag = checkpoint.name(self.step)
        if self.config.save_replay:
            self.replay.save(self.folder / run.REPLAY, tag)
        checkpoint.save(
            self.folder,
            self.step,
            weights=self.agent.state_dict(),
            state=self.state_dict(),
            metadata={"config": self.config.to_dict(), "action_dim": self.spec.action_dim},
            keep=self.config.keep_checkpoints,
        )
        if self.config.save_replay:
            kept = [checkpoint.step_of(path) for path in checkpoint.list_checkpoints(self.folder)]
            prune(self.folder / run.REPLAY, [checkpoint.name(step) for step in kept])
        self._saved = (self.step, self.updates)
        self.stopwatch.skip()

    def load(self, folder: Path) -> None:
        """Continue from a checkpoint of this run."""
        loaded = checkpoint.load(folder)
        self.agent.load_state_dict(loaded.weights)
        self.load_state_dict(loaded.state)
        self.step = loaded.step
        self.rewind_logs()
        if loaded.state["replay"]:
            tag = checkpoint.name(self.step)
            self.replay = Replay.load(self.folder / run.REPLAY, tag, self.device, self._capacity)  # it may have grown
        else:
            self.learn_from = self.step + self.config.warmup_steps
            logger.warning(
                "the replay was not kept: the run fills a new one and learns on from step %d", self.learn_from
            )
            self.forgiven = self.step - self.updates
            assert self.obs is not None
            self._begin_replay(self.obs)
        self.learning.reset()
        self.policy.reset()
        self._saved = (self.step, self.updates)

    def rewind_logs(self) -> None:
        """Forget what was logged after this step: it will be said again."""
        for name in (run.METRICS, run.EVALUATIONS, run.SALIENCY):
            run.rewind(self.folder / name, self.step)

    def state_dict(self) -> dict[str, Any]:
        """What the agent's weights leave out."""
        return {
            "updates": self.updates,
            "learn_from": self.learn_from,
            "forgiven": self.forgiven,
            "optimizers": {name: optimizer.state_dict() for name, optimizer in self.agent.optimizers.items()},
            "generators": {name: generator.get_state() for name, generator in self._generators().items()},
            "pictures": self.bank.state_dict() if self.bank is not None else None,
            "envs": self.envs.state_dict(),
            "returns": self.returns.copy(),
            "metrics": self.learning.tally.state_dict(),
            "logs": self.logs.state_dict(),
            "replay": self.config.save_replay,
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.updates, self.learn_from, self.forgiven = (state[k] for k in ("updates", "learn_from", "forgiven"))
        for name, optimizer in self.agent.optimizers.items():
            optimizer.load_state_dict(state["optimizers"][name])
        for name, generator in self._generators().items():
            generator.set_state(state["generators"][name])
        if self.bank is not None:
            self.bank.load_state_dict(state["pictures"])
        self.obs = self.envs.load_state_dict(state["envs"])
        self.returns = state["returns"].copy()
        metrics = state.get("metrics", state["logs"])  # where older checkpoints have them
        self.learning.tally.load_state_dict(metrics, self.device)
        self.logs.load_state_dict(state["logs"])

    def close(self) -> None:
        self.envs.close()

    def _generators(self) -> dict[str, torch.Generator]:
        return {
            "agent": self.agent.generator,
            "preparer": self.agent.preparer,
            "sampler": self.sampler,
            "explorer": self.explorer,
        }

    @property
    def _capacity(self) -> int:
        return min(self.config.replay_capacity, max(self.config.steps, self.config.num_envs))

    def _begin_replay(self, obs: Tensor) -> None:
        config = self.config
        size = self.spec.render_size
        self.replay = Replay(
            self._capacity,
            config.num_envs,
            frame_shape=(3, size, size),
            action_shape=(self.spec.action_dim,),
            stack=config.frame_stack,
            discount=config.settings.discount,
            device=self.device,
            shortest_episode=min(40, config.episode_steps),
        )
        self.replay.start(obs)

    def _check_stop(self) -> None:
        if self._stop is None:
            return
        self.save()
        how = f"continue with `sgqn train --resume {self.folder}`"
        raise Interrupted(f"stopped by {self._stop.name} at step {self.step}, saved; {how}", 128 + self._stop)

    def _ask_to_stop(self, by: signal.Signals) -> None:
        self._stop = by
        self.logs.note(f"{by.name}: saving after this step (again to stop at once)")
