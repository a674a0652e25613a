"""Compare the time of one SGQN update with a direct implementation of the authors' update, and show where it goes.

    python benchmarks/update_cost.py                    # the paper's sizes on the CPU, some minutes
    python benchmarks/update_cost.py --attributions gradient grad_cam smoothgrad:samples=4      # of other methods
    python benchmarks/update_cost.py --attributions gradient grad_cam --device cuda
    python benchmarks/update_cost.py --tiny             # check that the script works, in seconds

The schedule is a cycle of two updates: one with the actor, target and auxiliary steps, one without. The reference
computes the same losses (checked first), with separate passes for the attribution before and after every critic step
and ordinary tensors. It is measured a second time without attributions that no auxiliary step uses. All variants are
measured alternately in one process; medians are reported.

With `--attributions`, updates of SGQN with these attribution methods are compared with updates with guided
backpropagation instead. On a CPU their processor time is measured, which other processes hardly change. On a GPU they
run as in the trainer, by its fastest path.
"""

from __future__ import annotations

import copy
import json
import logging
import math
import statistics
import time
from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Literal
from unittest.mock import patch

import torch
import torch.nn.functional as F
import tyro
from rich.console import Console
from rich.progress import track
from rich.table import Table
from torch import Tensor, nn

import sgqn.agents.sgqn
from sgqn.agents import Phase, Spec, build_agent
from sgqn.agents.sgqn import SGQN, SGQNSettings
from sgqn.augmentations import overlay, random_shift
from sgqn.config import preset
from sgqn.replay import Batch
from sgqn.runner import Backend, choose_backend

CYCLE = (Phase(True, True, True), Phase(False, False, False))
ACTIONS = 6
TASK = "walker-walk"
CPU = torch.device("cpu")
REFERENCE = "guided_backprop"


@dataclass
class Options:
    """What to measure."""

    batch_size: int = 128
    """Batch size."""
    cycles: int = 7
    """Measured cycles of two updates."""
    threads: int = 2
    """CPU threads."""
    attributions: tuple[str, ...] = ()
    """Compare updates with these attribution methods with those with guided_backprop."""
    mask: Literal["quantile", "soft"] = "quantile"
    """Mask of these updates."""
    device: str = "cpu"
    """Device of these updates: cpu, cuda or cuda:1."""
    tiny: bool = False
    """Use a small network and batch and one cycle, to check that the script works."""
    json: bool = False
    """Print JSON instead of tables."""


def main(options: Options) -> None:
    torch.set_num_threads(options.threads)
    settings, spec = replace(preset("paper", TASK).settings, batch_size=options.batch_size), Spec(ACTIONS)
    if options.tiny:
        torch.set_num_threads(1)
        options = replace(options, cycles=1, threads=1)
        settings = replace(preset("tiny", TASK).settings, batch_size=4)
        spec = Spec(ACTIONS, image_size=24, render_size=24)
    if options.attributions:
        compare_attributions(options, spec, settings)
        return
    check_same_losses(spec, replace(settings, batch_size=min(8, settings.batch_size)))

    batch = make_batch(spec, settings.batch_size)
    ours = make_agent(spec, settings)
    reference, frugal = Reference(ours), Reference(ours, attribute_always=False)
    updates = {
        "sgqn": ours.update,
        "reference": reference.update,
        "reference, no unused attribution": frugal.update,
    }
    seconds: dict[str, list[float]] = defaultdict(list)
    for update in updates.values():
        run_cycle(update, batch)
    for _ in track(range(options.cycles), description="cycles", disable=options.json):
        for name, update in updates.items():
            seconds[name].append(run_cycle(update, batch) / len(CYCLE))
    shares = parts(ours, batch, max(1, options.cycles // 2))
    show(options, settings, {name: statistics.median(values) for name, values in seconds.items()}, shares)
    if options.tiny:
        compare_attributions(replace(options, attributions=("grad_cam", "smoothgrad:samples=2")), spec, settings)


def show(options: Options, settings: SGQNSettings, seconds: dict[str, float], shares: dict[str, float]) -> None:
    ratios = {name: seconds["sgqn"] / value for name, value in seconds.items()}
    if options.json:
        print(json.dumps({"seconds": seconds, "ratio": ratios, "shares": shares}, indent=1))
        return
    table = Table(title=f"one SGQN update, batch {settings.batch_size}, {options.threads} CPU threads")
    for column in ("update", "ms", "time of sgqn / this"):
        table.add_column(column, justify="left" if column == "update" else "right")
    for name, value in seconds.items():
        table.add_row(name, f"{value * 1e3:.0f}", f"{ratios[name]:.0%}")
    where = Table(title="where the time of sgqn goes")
    where.add_column("part")
    where.add_column("share", justify="right")
    for name, share in sorted(shares.items(), key=lambda item: -item[1]):
        where.add_row(name, f"{share:.1%}")
    console = Console(width=100)
    console.print(table)
    console.print(where)


def make_agent(spec: Spec, settings: SGQNSettings, device: torch.device = CPU) -> SGQN:
    images = torch.randint(256, (256, 3, spec.image_size, spec.image_size), dtype=torch.uint8)
    agent = build_agent("sgqn", spec, settings, partial(overlay, images=images.to(device)), device=device)
    assert isinstance(agent, SGQN)
    with torch.no_grad():  # move away from the sparse initialization, as training does
        generator = torch.Generator().manual_seed(1)
        for parameter in agent.parameters():
            parameter.add_(0.01 * torch.randn(parameter.shape, generator=generator).to(device))
    learner: Any = agent.learner
    learner.target.load_state_dict(learner.critic.state_dict())
    return agent


def make_batch(spec: Spec, size: int) -> Batch:
    generator = torch.Generator().manual_seed(0)
    shape = (size, spec.channels, spec.image_size, spec.image_size)
    obs, next_obs = (torch.randint(256, shape, dtype=torch.uint8, generator=generator) for _ in range(2))
    action = torch.rand(size, ACTIONS, generator=generator) * 2 - 1
    return Batch(obs, action, torch.rand(size, generator=generator), torch.full((size,), 0.99), next_obs)


def run_cycle(update: Callable[[Batch, Phase], object], batch: Batch) -> float:
    start = time.perf_counter()
    for phase in CYCLE:
        update(batch, phase)
    return time.perf_counter() - start


def check_same_losses(spec: Spec, settings: SGQNSettings) -> None:
    """Check that both compute the same losses in one cycle with the same weights, batch and random numbers.

    In double precision, because the first steps of Adam depend on the sign of even the smallest gradients.
    """
    ours = make_agent(spec, settings).double()
    reference = Reference(ours)
    batch = make_batch(spec, settings.batch_size)
    for phase in CYCLE:
        left, right = ours.update(batch, phase), reference.update(batch, phase)
        for name, value in right.items():
            torch.testing.assert_close(left[name], value, rtol=1e-4, atol=1e-6, msg=f"{name}: {left[name]}, {value}")


# ---- attribution methods


class Updates:
    """Updates with one attribution method, as the trainer runs them."""

    def __init__(self, backend: Backend, spec: Spec, settings: SGQNSettings):
        self._device, on_gpu = backend.device, backend.device.type == "cuda"
        agent = make_agent(spec, settings, backend.device)
        batch = Batch(*(part.to(backend.device) for part in make_batch(spec, settings.batch_size)))
        self._cycle = CYCLE * 8 if on_gpu else CYCLE  # what the trainer captures in one graph
        generators = (agent.generator, agent.preparer)
        self._runner = backend.runner(agent, lambda phase: agent.prepare(batch), generators, self._cycle)
        self.note = "captured" if backend.name != "eager" else "eager"
        with said("sgqn.fast.capture") as lines:
            for _ in range(3 if on_gpu else 1):  # enough to be captured and replayed
                self.run()
        self.note = lines[0] if lines else self.note
        self.kept = self._runner.metrics.read()["mask/kept"]

    def run(self) -> float:
        """Seconds of one update, averaged over the cycle: on a CPU of processor time, all threads together."""
        clock = time.perf_counter if self._device.type == "cuda" else time.process_time
        self._wait()
        start = clock()
        self._runner.update(self._cycle)
        self._wait()
        return (clock() - start) / len(self._cycle)

    def _wait(self) -> None:
        if self._device.type == "cuda":
            torch.cuda.synchronize(self._device)


def compare_attributions(options: Options, spec: Spec, settings: SGQNSettings) -> None:
    backend = choose_backend(options.device)
    names = list(dict.fromkeys((REFERENCE, *options.attributions)))
    runs = {
        name: Updates(backend, spec, replace(settings, attribution=name, mask=options.mask))
        for name in track(names, description="methods", disable=options.json)
    }
    seconds: dict[str, list[float]] = defaultdict(list)
    for _ in track(range(options.cycles), description="cycles", disable=options.json):
        for name, run in runs.items():
            seconds[name].append(run.run())
    # Ratios of neighbours in time, so that other work on the machine matters less.
    ratios = {
        name: statistics.median(one / other for one, other in zip(values, seconds[REFERENCE], strict=True))
        for name, values in seconds.items()
    }
    milliseconds = {name: statistics.median(values) * 1e3 for name, values in seconds.items()}
    if options.json:
        found = {"ms": milliseconds, "ratio": ratios, "note": {name: run.note for name, run in runs.items()}}
        print(json.dumps({"backend": backend.to_dict(), "mask": options.mask, **found}, indent=1))
        return
    on_cpu = backend.device.type == "cpu"
    where = backend.describe() + (f", processor time, {options.threads} threads" if on_cpu else "")
    table = Table(title=f"one SGQN update, batch {settings.batch_size}, {options.mask} mask; {where}")
    for column in ("attribution", "ms", f"time / {REFERENCE}", "pixels kept", "run"):
        table.add_column(column, justify="left" if column in ("attribution", "run") else "right")
    for name, value in milliseconds.items():
        cells = (f"{value:.{0 if value > 100 else 2}f}", f"{ratios[name]:.2f}", f"{runs[name].kept:.1%}")
        table.add_row(name, *cells, runs[name].note)
    Console(width=140).print(table)


@contextmanager
def said(logger: str) -> Iterator[list[str]]:
    """The messages of a logger meanwhile."""
    lines: list[str] = []
    handler = logging.Handler()
    handler.emit = lambda record: lines.append(record.getMessage())  # type: ignore[method-assign]
    logging.getLogger(logger).addHandler(handler)
    try:
        yield lines
    finally:
        logging.getLogger(logger).removeHandler(handler)


# ---- where the time goes


def parts(agent: SGQN, batch: Batch, cycles: int) -> dict[str, float]:
    """Share of each part. Time counts for the outermost part that it is spent in, except for optimizer steps."""
    spent: dict[str, float] = defaultdict(float)
    stack, since = ["other"], time.perf_counter()

    def switch() -> None:
        nonlocal since
        now = time.perf_counter()
        spent[stack[-1]] += now - since
        since = now

    @contextmanager
    def part(name: str) -> Iterator[None]:
        switch()
        stack.append(name if stack[-1] == "other" or name == "optimizer" else stack[-1])
        yield
        switch()
        stack.pop()

    def timed(function: Callable, name: str) -> Callable:
        def wrapper(*args: Any, **kwargs: Any) -> Any:
            with part(name):
                return function(*args, **kwargs)

        return wrapper

    learner: Any = agent.learner
    places: list[tuple[Any, str, str]] = [
        (learner, "prepare", "views"),
        (learner, "td_target", "TD target"),
        (agent.saliency, "trace", "forward on obs"),
        (agent.saliency, "values", "forward on obs"),
        (agent.saliency, "attribution", "attribution"),
        (agent.saliency, "mask", "mask"),
        (sgqn.agents.sgqn, "fill", "mask"),
        (agent, "fill_value", "mask"),
        (learner, "encode", "forward on masked obs, and for the actor"),
        (learner, "values", "forward on masked obs, and for the actor"),
        (torch.autograd, "backward", "backward of the critic losses"),
        (learner, "actor_step", "actor step"),
        (agent, "auxiliary_step", "auxiliary step"),
        (learner, "target_step", "targets"),
        *((optimizer, "step", "optimizer") for optimizer in agent.optimizers.values()),
    ]
    with ExitStack() as patches:
        for owner, method, name in places:
            patches.enter_context(patch.object(owner, method, timed(getattr(owner, method), name)))
        since = time.perf_counter()
        for _ in range(cycles):
            run_cycle(agent.update, batch)
        switch()
    return {name: value / sum(spent.values()) for name, value in spent.items()}


# ---- the authors' update


class Reference:
    """A direct implementation of SG-SAC with the weights of an agent: plain modules, one pass per computed quantity."""

    def __init__(self, agent: SGQN, attribute_always: bool = True):
        learner: Any = agent.learner
        assert isinstance(agent.settings, SGQNSettings)
        self.settings = settings = agent.settings
        self.attribute_always = attribute_always
        self.augmentation = agent.augmentation
        self.generator = torch.Generator()
        self.generator.set_state(agent.generator.get_state())
        self.preparer = torch.Generator()
        self.preparer.set_state(agent.preparer.get_state())
        self.log_alpha = learner.log_alpha.detach().clone().requires_grad_()
        assert agent.decoder is not None
        critic, actor, decoder = copy.deepcopy((learner.critic, learner.actor, agent.decoder))
        convs = [layer for conv in critic.encoder.convs for layer in (nn.ReLU(), conv)][1:]
        self.cnn = nn.Sequential(*convs)
        self.projection = project(critic.projection)
        self.q1, self.q2 = critic.heads.q1, critic.heads.q2
        self.critic = nn.ModuleList([self.cnn, self.projection, self.q1, self.q2])
        self.actor = nn.ModuleList([project(actor.projection), actor.head.layers])
        self.target = copy.deepcopy(self.critic)
        self.decoder = nn.Sequential(
            decoder.linear,
            nn.Unflatten(1, decoder.base_shape),
            *(nn.ReLU(), decoder.conv1, nn.Upsample(scale_factor=2)),
            *(nn.ReLU(), decoder.conv2, nn.Upsample(scale_factor=2)),
            *(nn.ReLU(), decoder.conv3),
        )
        auxiliary = nn.ModuleList([self.cnn, self.projection, self.decoder])
        self.critic_adam = torch.optim.Adam(self.critic.parameters(), settings.learning_rate)
        self.actor_adam = torch.optim.Adam(self.actor.parameters(), settings.learning_rate)
        self.alpha_adam = torch.optim.Adam([self.log_alpha], settings.temperature_learning_rate, betas=(0.5, 0.999))
        self.auxiliary_adam = torch.optim.Adam(auxiliary.parameters(), settings.auxiliary_learning_rate)

    def update(self, batch: Batch, phase: Phase) -> dict[str, Tensor]:
        dtype = self.log_alpha.dtype
        obs = self.shifted(batch.obs)
        losses = self.update_critic(obs, batch)
        if phase.auxiliary or self.attribute_always:
            mask = self.mask(self.attribution(obs, batch.action))
        if phase.actor:
            losses |= self.update_actor(obs)
        if phase.targets:
            with torch.no_grad():
                taus = [self.settings.encoder_tau] * 2 + [self.settings.critic_tau] * 2
                for tau, target, online in zip(taus, self.target, self.critic, strict=True):
                    for slow, fast in zip(target.parameters(), online.parameters(), strict=True):
                        slow.copy_(tau * fast + (1 - tau) * slow)
        if phase.auxiliary:
            augmented = self.augmentation(obs, self.generator).to(dtype)
            embedding = self.projection(self.cnn(augmented / 255).flatten(1))
            logits = self.decoder(torch.cat([embedding, batch.action], 1))
            losses["loss/mask"] = loss = F.binary_cross_entropy_with_logits(logits, mask.to(dtype))
            self.auxiliary_adam.zero_grad()
            loss.backward()
            self.auxiliary_adam.step()
        return {name: loss.detach() for name, loss in losses.items()}

    def shifted(self, obs: Tensor) -> Tensor:
        return random_shift(obs, self.preparer, self.settings.shift_pad).to(self.log_alpha.dtype)

    def update_critic(self, obs: Tensor, batch: Batch) -> dict[str, Tensor]:
        share = torch.rand((), generator=self.generator)
        with torch.no_grad():
            next_obs = self.shifted(batch.next_obs)
            action, log_pi = self.policy(next_obs)
            target = torch.min(*self.values(self.target, next_obs, action)) - self.log_alpha.exp() * log_pi
            target = batch.reward + batch.discount * target
        values = self.values(self.critic, obs, batch.action)
        loss = torch.stack([F.mse_loss(q, target) for q in values]).sum()
        mask = self.mask(self.attribution(obs, batch.action))
        masked = obs * mask
        masked[mask < 1] = (obs.min() + share * (obs.max() - obs.min())).to(obs.dtype)
        of_masked = self.values(self.critic, masked, batch.action)
        errors = [F.mse_loss(q, masked_q) for q, masked_q in zip(values, of_masked, strict=True)]
        consistency = self.settings.consistency_weight * torch.stack(errors).sum()
        self.critic_adam.zero_grad()
        (loss + consistency).backward()
        self.critic_adam.step()
        return {"loss/critic": loss, "loss/consistency": consistency}

    def update_actor(self, obs: Tensor) -> dict[str, Tensor]:
        action, log_pi = self.policy(obs, detach=True)
        q = torch.min(*self.values(self.critic, obs, action, detach=True))
        actor_loss = (self.log_alpha.exp().detach() * log_pi - q).mean()
        self.actor_adam.zero_grad()
        actor_loss.backward()
        self.actor_adam.step()
        alpha_loss = (self.log_alpha.exp() * (-log_pi + ACTIONS).detach()).mean()
        self.alpha_adam.zero_grad()
        alpha_loss.backward()
        self.alpha_adam.step()
        return {"loss/actor": actor_loss, "loss/temperature": alpha_loss}

    def values(self, critic: nn.ModuleList, obs: Tensor, action: Tensor, detach: bool = False) -> tuple[Tensor, Tensor]:
        cnn, projection, q1, q2 = critic
        features = cnn(obs / 255).flatten(1)
        joined = torch.cat([projection(features.detach() if detach else features), action], 1)
        return q1(joined).squeeze(1), q2(joined).squeeze(1)

    def policy(self, obs: Tensor, detach: bool = False) -> tuple[Tensor, Tensor]:
        projection, layers = self.actor
        features = self.cnn(obs / 255).flatten(1)
        mu, log_std = layers(projection(features.detach() if detach else features)).chunk(2, 1)
        log_std = -10 + 6 * (torch.tanh(log_std) + 1)
        noise = torch.randn(mu.shape, generator=self.generator)
        sample = mu + noise * log_std.exp()
        log_slope = 2 * (math.log(2) - sample - F.softplus(-2 * sample))  # log(1 - tanh^2), exact where tanh saturates
        log_pi = torch.distributions.Normal(0, 1).log_prob(noise) - log_std - log_slope
        return torch.tanh(sample), log_pi.sum(1)

    def attribution(self, obs: Tensor, action: Tensor) -> Tensor:
        """Guided backpropagation of the first critic, with hooks on the ReLUs and a separate forward pass."""
        relus = [layer for net in (self.cnn, self.q1) for layer in net if isinstance(layer, nn.ReLU)]
        hooks = [relu.register_full_backward_hook(positive_part) for relu in relus]
        obs = obs.detach().requires_grad_()
        value, _ = self.values(self.critic, obs, action)
        (attribution,) = torch.autograd.grad(value.sum(), obs)
        for hook in hooks:
            hook.remove()
        return attribution

    def mask(self, attribution: Tensor) -> Tensor:
        masks = []
        for frame in attribution.split(3, dim=1):
            strength = frame.abs().amax(1)
            threshold = torch.quantile(strength.flatten(1), self.settings.rho, 1)
            masks.append((strength >= threshold[:, None, None]).unsqueeze(1).repeat(1, 3, 1, 1))
        return torch.cat(masks, 1)


def positive_part(_: nn.Module, gradient: Any, __: Any) -> tuple[Tensor]:
    return (F.relu(gradient[0]),)


def project(projection: Any) -> nn.Sequential:
    return nn.Sequential(projection.linear, projection.norm, nn.Tanh())


if __name__ == "__main__":
    main(tyro.cli(Options, description=__doc__))
