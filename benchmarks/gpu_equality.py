"""Compare the fast paths with fp32: gradients, masks, losses and 50 consecutive updates, for every agent.

    python benchmarks/gpu_equality.py                       # on a CUDA device, about two minutes
    python benchmarks/gpu_equality.py --agents sgqn drq
    python benchmarks/gpu_equality.py --tiny                # on a CPU, to check that the script works

All paths start from the same state (an agent after a few fp32 updates, because new convolutions are nearly all zeros)
with the same batches, optimizers and random numbers. fp32 is without TF32. "autocast" is PyTorch's bf16 autocast,
eager; "captured" is the same in CUDA graphs; "cudnn" adds fused kernels for everything except convolutions; "kernels"
uses fused kernels for everything, captured and eager.

One update: the gradients passed to each optimizer are compared with fp32. Each optimizer then steps along the fp32
gradient, so that the next optimizer is compared at the same weights. The cosine must be at least 0.998. If autocast
misses this limit for a tensor of an optimizer (SODA's loss is a difference of two similar vectors), the tensors of that
optimizer are compared together over four batches: the median loss of cosine may be 1.5 times that of autocast and the
upper quartile twice that of autocast, plus 0.001.

Many updates, captured as in training: the distance of the weights from the fp32 weights, relative to the distance that
the fp32 weights moved. It is chaotic: for a single agent, the drift of the encoder may be twice or half that of
autocast by chance. The limit therefore applies to the geometric mean over agents, which may be 1.25 times that of
autocast. A single network of one agent may drift 2.5 times as far, plus the distance between two eager runs of the
fused kernels (different summation order), plus 0.02. Captured and eager updates are compared in the same units, with
the distance between two eager runs as the reference.
"""

from __future__ import annotations

import gc
import os
import sys
from collections import defaultdict
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any

os.environ.setdefault("ONEDNN_MAX_CPU_ISA", "AVX512_CORE")  # some CPUs report bf16 instructions they lack

import numpy as np
import torch
import tyro
from _gpu import CYCLE, NAMES, Report, backend_for, make_agent, make_batches, table
from torch import Tensor

from sgqn.agents import Phase
from sgqn.agents.sgqn import SGQN
from sgqn.errors import SgqnError
from sgqn.fast.backend import FastBackend
from sgqn.fast.capture import WARMUP, Recorder, Updates
from sgqn.replay import Batch
from sgqn.training import LONGEST_CYCLE

COSINE, IOU = 0.998, 0.95
NEGLIGIBLE = 1e-5
"""Relative to the largest gradient norm. Tensors below are rounding errors of fp32 and are skipped, such as biases
before SODA's batch norms, whose exact gradient is zero."""
NOISE = {0.5: 1.5, 0.75: 2.0}
"""Limits by quantile, relative to autocast, where bf16 itself does not reach the cosine."""
NOISE_BATCHES = 4
"""Batches for these quantiles. On a single batch, two bf16 computations may differ by more than the limits."""
ALONE, TOGETHER = 2.5, 1.25
"""Limits of the drift relative to autocast: for one network of one agent, and in the geometric mean over agents."""
EAGER = "kernels, eager"
FULL = Phase(True, True, True)


@dataclass
class Options:
    """What to compare."""

    agents: list[str] = field(default_factory=lambda: list(NAMES))
    """Agents to compare."""
    updates: int = 50
    """Number of consecutive updates."""
    before: int = 10
    """Updates before the comparison. After many more, TD errors of opposite signs nearly cancel in the gradient."""
    batches: int = 10
    """Number of different batches."""
    json: Path | None = None
    """Write all numbers to this file."""
    tiny: bool = False
    """Use small networks and few updates, to check that the script works. On a CPU, every fast path is autocast."""


@dataclass(frozen=True)
class Way:
    """A path, and whether its updates are captured."""

    path: FastBackend
    captured: bool


def main(options: Options) -> int:
    if not torch.cuda.is_available() and not options.tiny:
        print("there is no CUDA device (--tiny runs the script on the CPU)")
        return 2
    if options.tiny:
        few: list[str] = ["sgqn", "soda"]
        agents = few if options.agents == list(NAMES) else options.agents
        options = replace(options, agents=agents, updates=4, before=2, batches=2)
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    torch.backends.cudnn.allow_tf32 = torch.backends.cuda.matmul.allow_tf32 = False
    ways = find_ways(device)
    print(f"torch {torch.__version__}, {backend_for(device).describe()}", flush=True)
    report = Report(options.json)
    for name in options.agents:
        report.section(name, partial(compare, name, ways, device, options))
        gc.collect()
    found = {name: result for name, result in report.results.items() if "error" not in result}
    show(found, ways, options)
    problems = [f"{name}: stopped by an error" for name in report.failures]
    problems += [f"{name}: {problem}" for name, result in found.items() for problem in result["problems"]]
    problems += judge_together(found)
    for problem in problems:
        print(f"- {problem}")
    count = f"{len(options.agents)} agents, {options.updates} updates"
    print(f"FAIL: {len(problems)} problems ({count})" if problems else f"PASS ({count})", flush=True)
    return 1 if (report.failures if options.tiny else problems) else 0  # tiny networks need not meet the limits


def find_ways(device: torch.device) -> dict[str, Way]:
    if device.type == "cpu":
        fast = Way(FastBackend(device, "CPU", "eager", "bf16"), False)
        return {
            "fp32": Way(backend_for(device), False),
            **dict.fromkeys(("autocast", "captured", "cudnn", "kernels", EAGER), fast),
        }
    asked = {
        "fp32": ("eager", "fp32", False),
        "autocast": ("eager", "bf16", False),
        "captured": ("captured", "bf16", True),
        "cudnn": ("cudnn", "bf16", True),
        "kernels": ("kernels", "bf16", True),
        EAGER: ("kernels", "bf16", False),
    }
    ways = {}
    for name, (path, precision, captured) in asked.items():
        try:
            ways[name] = Way(backend_for(device, path, precision), captured)
        except SgqnError as error:
            print(f"{name}: {error}", flush=True)
    return ways


# ---- one agent


def compare(name: str, ways: dict[str, Way], device: torch.device, options: Options) -> dict[str, Any]:
    subject = Subject(name, device, options)
    subject.run(ways["fp32"], options.before)
    subject.mark()
    result: dict[str, Any] = {"problems": []}
    for part in (one_update, masks, many_updates):
        result |= part(subject, ways, options, result["problems"])
    return result


class Subject:
    """An agent that is updated on several paths from one state."""

    def __init__(self, name: str, device: torch.device, options: Options):
        self.agent = make_agent(name, device, options.tiny)
        size = max(self.agent.sample_size(phase) for phase in CYCLE)
        generator = torch.Generator(device).manual_seed(1)
        self.batches = make_batches(options.batches, size, self.agent.spec.render_size, generator)
        self.position = torch.zeros(1, dtype=torch.int64, device=device)
        self.gradients: dict[str, dict[str, Tensor]] = {}  # of the last update, by optimizer
        self.given: dict[str, dict[str, Tensor]] = {}  # gradients that replace the computed ones
        self.watched = False
        self.skip = 0  # batches to skip in watched updates
        names = {id(parameter): name for name, parameter in self.agent.named_parameters()}
        for optimizer_name, optimizer in self.agent.optimizers.items():
            own = {names[id(p)]: p for group in optimizer.param_groups for p in group["params"]}
            optimizer.register_step_pre_hook(self._watcher(optimizer_name, own))

    def _watcher(self, name: str, parameters: dict[str, Tensor]) -> Callable[..., None]:
        def before(*_: object) -> None:
            if not self.watched:
                return
            self.gradients[name] = {key: p.grad.clone() for key, p in parameters.items() if p.grad is not None}
            for key, gradient in self.given.get(name, {}).items():
                parameters[key].grad = gradient

        return before

    def run(self, way: Way, count: int) -> dict[str, float]:
        """Run `count` updates in the trainer's cycle and return the metrics of the last cycle."""
        updates = self._updates(way, CYCLE * (LONGEST_CYCLE // len(CYCLE)))  # one graph, as in training
        phases = [CYCLE[i % len(CYCLE)] for i in range(count)]
        updates.run(phases[: -len(CYCLE)])
        updates.metrics.read()
        updates.run(phases[-len(CYCLE) :])
        self._check(updates, way)
        return updates.metrics.read()

    def run_watched(self, way: Way) -> dict[str, float]:
        """Run one full update from the marked state, keep its gradients and return its metrics."""
        self.watched, self.gradients = True, {}
        updates = self._updates(way, ())
        for _ in range(WARMUP if way.captured else 0):
            updates.run([FULL])
        self.restore()
        self.position += self.skip
        updates.metrics.read()
        updates.run([FULL])
        self._check(updates, way)
        self.watched = False
        return updates.metrics.read()

    def batch(self, size: int) -> Batch:
        """The next batch. The position is a tensor, so that captured updates advance it too."""
        number = self.position % len(self.batches.obs)
        self.position += 1
        return Batch(*(part.index_select(0, number)[0, :size] for part in self.batches))

    def mark(self) -> None:
        self._state = [tensor.clone() for tensor in self._tensors()]
        self._random = [generator.get_state() for generator in self._generators()]

    @torch.no_grad()
    def restore(self) -> None:
        """Restore the marked state in place, so that captured updates stay valid."""
        for tensor, value in zip(self._tensors(), self._state, strict=True):
            tensor.copy_(value)
        for generator, state in zip(self._generators(), self._random, strict=True):
            generator.set_state(state)

    def weights(self) -> dict[str, Tensor]:
        return {name: p.detach().clone() for name, p in self.agent.named_parameters() if p.requires_grad}

    def _updates(self, way: Way, cycle: tuple[Phase, ...]) -> Updates[Phase, Batch]:
        def sample(phase: Phase) -> Batch:
            return self.agent.prepare(self.batch(self.agent.sample_size(phase)))

        recorder = None if way.captured else Recorder()
        return Updates(sample, self.agent.learn, self._generators(), way.path, cycle, recorder=recorder)

    def _generators(self) -> list[torch.Generator]:
        return [self.agent.generator, self.agent.preparer]

    def _check(self, updates: Updates[Phase, Batch], way: Way) -> None:
        if way.captured and not updates._recorder.working:
            raise RuntimeError("the updates could not be captured and ran eagerly")

    def _tensors(self) -> list[Tensor]:
        states = [state for optimizer in self.agent.optimizers.values() for state in optimizer.state.values()]
        of_optimizers = [value for state in states for value in state.values() if isinstance(value, Tensor)]
        return [*self.agent.state_dict().values(), *of_optimizers, self.position]


def one_update(subject: Subject, ways: dict[str, Way], options: Options, problems: list[str]) -> dict[str, Any]:
    """Compare gradients by optimizer and tensor, and losses."""
    losses, gradients = gradients_of_one_update(subject, ways)
    noisy = [name for name, of in gradients.items() if min(of["cosine"]["autocast"].values()) < COSINE]
    lost: dict[str, dict[str, list[float]]] = {name: defaultdict(list) for name in noisy}
    for number in range(NOISE_BATCHES if noisy else 0):
        subject.skip = number
        more = gradients if number == 0 else gradients_of_one_update(subject, ways)[1]
        for optimizer in noisy:
            for name, cosines in more[optimizer]["cosine"].items():
                lost[optimizer][name] += [1 - c for c in cosines.values()]
    subject.skip = 0
    for optimizer, of in gradients.items():
        for name, cosines in of["cosine"].items():
            if optimizer in noisy:
                found = too_noisy(lost[optimizer][name], lost[optimizer]["autocast"])
            else:
                found = [
                    f"gradient of {key} has cosine {c:.4f}, autocast's {of['cosine']['autocast'][key]:.4f}"
                    for key, c in cosines.items()
                    if c < COSINE
                ]
            problems += [f"{name}: the {optimizer}'s {problem}" for problem in found]
    noise = {
        optimizer: {name: [float(np.quantile(of, q)) for q in NOISE] for name, of in by_way.items()}
        for optimizer, by_way in lost.items()
    }
    return {"gradients": gradients, "noise": noise, "losses of one update": losses}


def gradients_of_one_update(subject: Subject, ways: dict[str, Way]) -> tuple[dict[str, Any], dict[str, Any]]:
    """Losses by path; cosines with the fp32 gradients and relative norms by optimizer, path and tensor."""
    subject.given = {}
    losses = {"fp32": only_losses(subject.run_watched(ways["fp32"]))}
    reference, found = subject.gradients, {}
    subject.given = reference
    for name, way in ways.items():
        if name != "fp32":
            losses[name] = only_losses(subject.run_watched(way))
            found[name] = subject.gradients
    subject.given = {}
    result = {}
    for optimizer, gradients in reference.items():
        largest = max(float(gradient.norm()) for gradient in gradients.values())
        kept = [key for key, gradient in gradients.items() if float(gradient.norm()) > NEGLIGIBLE * largest]
        cosines: dict[str, dict[str, float]] = defaultdict(dict)
        scales: dict[str, dict[str, float]] = defaultdict(dict)
        for name, own in found.items():
            for key in kept:
                cosines[name][key], scales[name][key] = likeness(own[optimizer][key], gradients[key])
        result[optimizer] = {"skipped": sorted(set(gradients) - set(kept)), "cosine": cosines, "size": scales}
    return losses, result


def too_noisy(lost: list[float], autocast: list[float]) -> list[str]:
    """Check gradients that are noisy in bf16 against the noise of autocast, over all tensors together."""
    problems = []
    for quantile, factor in NOISE.items():
        own, usual = float(np.quantile(lost, quantile)), float(np.quantile(autocast, quantile))
        if own > factor * usual + 0.001:
            problems.append(f"gradients lose {own:.4f} of the cosine ({quantile} quantile), autocast's {usual:.4f}")
    return problems


def likeness(gradient: Tensor, reference: Tensor) -> tuple[float, float]:
    """Cosine with the reference, and norm relative to it."""
    a, b = gradient.double().flatten(), reference.double().flatten()
    return float(a @ b / (a.norm() * b.norm()).clamp_min(1e-300)), float(a.norm() / b.norm())


def masks(subject: Subject, ways: dict[str, Way], options: Options, problems: list[str]) -> dict[str, Any]:
    """IoU with the fp32 masks of one batch: mean and minimum over images."""
    agent = subject.agent
    if not isinstance(agent, SGQN):
        return {}
    subject.restore()
    batch = subject.batch(agent.batch_size)
    found = {}
    for name, way in ways.items():
        with way.path.active():
            found[name] = agent.saliency(batch)
    reference, overlaps = found.pop("fp32"), {}
    for name, mask in found.items():
        shared, either = (mask & reference).sum(dim=(1, 2, 3)), (mask | reference).sum(dim=(1, 2, 3))
        overlaps[name] = {"mean": float((shared / either).mean()), "least": float((shared / either).min())}
        if overlaps[name]["mean"] < IOU and name != "autocast":
            problems.append(f"{name}: masks overlap by {overlaps[name]['mean']:.3f}")
    return {"masks": overlaps}


def many_updates(subject: Subject, ways: dict[str, Way], options: Options, problems: list[str]) -> dict[str, Any]:
    """Compare the weights after many updates, by network."""
    losses, ends = {}, {}
    subject.restore()
    start = subject.weights()
    again = {f"{name} again": ways[name] for name in ("autocast", EAGER) if name in ways}
    for name, way in {**ways, **again}.items():
        subject.restore()
        losses[name] = only_losses(subject.run(way, options.updates))
        ends[name] = subject.weights()
    moved = distances(ends["fp32"], start)
    drifts = {}
    for name in ways:
        if name != "fp32":
            drifts[name] = relative(distances(ends[name], ends["fp32"]), moved)
    noises = {
        eager: relative(distances(ends[eager], ends[f"{eager} again"]), moved)
        for eager in ("autocast", EAGER)
        if eager in ways
    }
    for name in ("captured", "cudnn", "kernels"):
        for network, drift in drifts.get(name, {}).items():
            usual = drifts["autocast"][network]
            noise = 0.0 if name == "captured" else noises.get(EAGER, noises["autocast"])[network]
            if not drift <= ALONE * usual + noise + 0.02:
                problems.append(
                    f"{name}: {network} drifts by {drift:.3f}, autocast's by {usual:.3f}, noise {noise:.3f}"
                )
    pairs = {}
    for name, eager in (("captured", "autocast"), ("kernels", EAGER)):
        if name not in ways:
            continue
        apart = relative(distances(ends[name], ends[eager]), moved)
        pairs[name] = {network: [apart[network], noises[eager][network]] for network in apart}
        for network, (distance, usual) in pairs[name].items():
            if not distance <= 3 * usual + 0.5 * drifts["autocast"][network] + 0.01:
                problems.append(f"{name}: {network} is {distance:.3f} from its eager run, two eager runs {usual:.3f}")
    return {"moved": moved, "drift": drifts, "captured and eager": pairs, "losses at the end": losses}


def judge_together(found: dict[str, Any]) -> list[str]:
    """Compare the drift of every network with that of autocast over all agents that have it, and print the ratios."""
    rows, problems = [], []
    networks = list(dict.fromkeys(network for result in found.values() for network in result["moved"]))
    for network in networks:
        having = [result["drift"] for result in found.values() if result["drift"]["autocast"].get(network, 0) > 0.005]
        if not having:
            continue
        means = {
            name: float(np.exp(np.mean([np.log(max(d[name][network], 1e-4) / d["autocast"][network]) for d in having])))
            for name in having[0]
            if name != "autocast"
        }
        rows.append([network, len(having), *(f"{mean:.2f}" for mean in means.values())])
        problems += [
            f"{network}: {name} drifts {mean:.2f} times as far as autocast, over {len(having)} agents"
            for name, mean in means.items()
            if mean > TOGETHER and len(having) > 2 and name != EAGER
        ]
    names = [name for name in next(iter(found.values()))["drift"] if name != "autocast"] if found else []
    table("Drift relative to autocast, geometric mean over agents", ["network", "agents", *names], rows)
    return problems


def distances(a: dict[str, Tensor], b: dict[str, Tensor]) -> dict[str, float]:
    squares: dict[str, float] = defaultdict(float)
    for name in a:
        squares[network_of(name)] += float((a[name] - b[name]).double().square().sum())
    return {network: square**0.5 for network, square in squares.items()}


def relative(distance: dict[str, float], to: dict[str, float]) -> dict[str, float]:
    return {network: value / max(to[network], 1e-12) for network, value in distance.items()}


def network_of(parameter: str) -> str:
    """encoder, projection, heads, actor, log_alpha, decoder, projector or predictor."""
    return parameter.removeprefix("learner.").removeprefix("critic.").split(".")[0]


def only_losses(metrics: dict[str, float]) -> dict[str, float]:
    return {name.removeprefix("loss/"): value for name, value in metrics.items() if name.startswith("loss/")}


# ---- tables


def show(found: dict[str, Any], ways: dict[str, Way], options: Options) -> None:
    fast = [name for name in ways if name != "fp32"]
    best = next(name for name in ("kernels", "cudnn", "captured") if name in ways)
    rows, worst = [], []
    for agent, result in found.items():
        for optimizer, of in result["gradients"].items():
            ranked = sorted(of["cosine"][best].items(), key=lambda item: item[1])
            sizes = [of["size"][best][key] for key, _ in ranked]
            rows.append(
                [agent, optimizer, len(ranked), len(of["skipped"])]
                + [f"{min(of['cosine'][name].values()):.5f}" for name in fast]
                + [" / ".join(str(sum(c < COSINE for c in of["cosine"][n].values())) for n in ("autocast", best))]
                + [f"{min(sizes):.3f} to {max(sizes):.3f}"]
            )
            if len(ranked) > 1:
                lowest = [f"{k} {c:.5f} ({of['cosine']['autocast'][k]:.5f})" for k, c in ranked[:3]]
                worst.append([f"{agent}, {optimizer}", ", ".join(lowest)])
    below = f"below {COSINE}: autocast / {best}"
    title = "One update: minimum cosine with the fp32 gradient over tensors"
    table(title, ["agent", "optimizer", "tensors", "skipped", *fast, below, f"norms, {best}"], rows)
    table(f"The three tensors with the lowest cosine, {best} (autocast)", ["agent, optimizer", "tensors"], worst)
    left_out = sorted({k for r in found.values() for of in r["gradients"].values() for k in of["skipped"]})
    if left_out:
        print(f"Skipped, below {NEGLIGIBLE:.0e} of the largest norm: {', '.join(left_out)}\n")
    rows = [
        [f"{agent}, {optimizer}", *(" / ".join(f"{lost:.4f}" for lost in by_way[name]) for name in fast)]
        for agent, result in found.items()
        for optimizer, by_way in result["noise"].items()
    ]
    if rows:
        title = f"Gradients that are noisy in bf16, over {NOISE_BATCHES} batches: 1 - cosine, "
        table(title + " / ".join(f"{q} quantile" for q in NOISE), ["agent, optimizer", *fast], rows)
    rows = [
        [agent, *(f"{result['masks'][name]['mean']:.4f} ({result['masks'][name]['least']:.3f})" for name in fast)]
        for agent, result in found.items()
        if "masks" in result
    ]
    if rows:
        table("Masks: IoU with fp32, mean over images (minimum)", ["agent", *fast], rows)
    show_losses("One update: losses", "losses of one update", found, ways)
    rows = [
        [agent, network, f"{moved:.3f}", *(f"{result['drift'][name][network]:.3f}" for name in fast)]
        for agent, result in found.items()
        for network, moved in result["moved"].items()
    ]
    title = f"{options.updates} updates: distance from the fp32 weights, relative to how far these moved"
    table(title, ["agent", "network", "moved", *fast], rows)
    rows = []
    for agent, result in found.items():
        for name, pairs in result["captured and eager"].items():
            network, (apart, noise) = max(pairs.items(), key=lambda item: item[1][0])
            rows.append([agent, name, network, f"{apart:.4f}", f"{noise:.4f}"])
    title = f"{options.updates} updates, captured and eager: distance in the same units, for the network furthest apart"
    table(title, ["agent", "path", "network", "captured and eager", "two eager runs"], rows)
    show_losses(f"Losses after {options.updates} updates, mean of the last two", "losses at the end", found, ways)


def show_losses(title: str, key: str, found: dict[str, Any], ways: dict[str, Way]) -> None:
    rows = [
        [agent, loss, *(f"{result[key][name][loss]:.5g}" for name in ways)]
        for agent, result in found.items()
        for loss in result[key]["fp32"]
    ]
    table(title, ["agent", "loss", *ways], rows)


if __name__ == "__main__":
    sys.exit(main(tyro.cli(Options, description=__doc__)))
