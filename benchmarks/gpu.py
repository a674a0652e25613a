"""Measure speed on a GPU: updates of every agent, their kernels, the roofline, environments, a short training run.

    python benchmarks/gpu.py                                      # everything, about three minutes
    python benchmarks/gpu.py --sections updates --agents sgqn drq
    python benchmarks/gpu.py --tiny                               # on a CPU, to check that the script works

Updates run as in the trainer: sampled from a replay buffer on the device, alternating one update without and one with
the actor, target and auxiliary steps. Times are means over this cycle and medians over windows in which the paths
alternate. The authors' times are those of their code on an H200.
"""

from __future__ import annotations

import gc
import math
import statistics
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any, Literal, get_args

import numpy as np
import torch
import tyro
from _gpu import ACTIONS, CYCLE, NAMES, Report, backend_for, make_agent, rewards, scenes, sizes, table
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.flop_counter import flop_registry

from sgqn.agents import Agent, Phase
from sgqn.attribution import differentiable, guided, switchable_relu
from sgqn.errors import SgqnError
from sgqn.fast.backend import FastBackend
from sgqn.fast.capture import WARMUP, FastRunner, Updates, recorder_for
from sgqn.networks import Encoder
from sgqn.replay import Batch, Replay

BLOCK = CYCLE * 8  # one graph, as in the trainer

AUTHORS = {"sgqn": 116.6, "svea": 75.9, "drq": 27.7, "sac": 31.6}
"""Milliseconds per update of the authors' code on an H200, batch 128."""
Section = Literal["updates", "parts", "roofline", "environments", "training"]
PATHS = {
    "eager fp32": ("eager", "fp32"),
    "captured fp32": ("captured", "fp32"),
    "eager bf16": ("eager", "bf16"),
    "captured bf16": ("captured", "bf16"),
    "cudnn bf16": ("cudnn", "bf16"),
    "kernels bf16": ("kernels", "bf16"),
}
ON_DEMAND = ("captured fp32", "eager bf16")


@dataclass
class Options:
    """What to measure."""

    sections: list[Section] = field(default_factory=lambda: list(get_args(Section)))
    """Parts of the benchmark to run."""
    agents: list[str] = field(default_factory=lambda: list(NAMES))
    """Agents whose updates are measured."""
    all: bool = False
    """Also measure captured updates in fp32 and eager updates in bf16."""
    windows: int = 5
    """Timed windows per path. The median is reported."""
    window_seconds: float = 0.1
    """Length of a window."""
    num_envs: list[int] = field(default_factory=lambda: [16, 64])
    """Numbers of environments to measure."""
    task: str = "walker-walk"
    """Task of the environments and the training run."""
    training_steps: int = 6000
    """Agent steps of the training run after the warm-up."""
    json: Path | None = None
    """Write all numbers to this file."""
    tiny: bool = False
    """Use small networks and few updates, also on a CPU, to check that the script works."""


def main(options: Options) -> int:
    if not torch.cuda.is_available() and not options.tiny:
        print("there is no CUDA device (--tiny runs the script on the CPU)")
        return 2
    if options.tiny:
        few: list[str] = ["sgqn", "soda"]
        agents = few if options.agents == list(NAMES) else options.agents
        options = replace(options, agents=agents, windows=1, window_seconds=0.0, task="cartpole-swingup")
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    torch.backends.cudnn.benchmark = device.type == "cuda"  # as in the trainer
    name = torch.cuda.get_device_name() if device.type == "cuda" else "CPU"
    print(f"{name}, torch {torch.__version__}, CUDA {torch.version.cuda}", flush=True)
    report = Report(options.json)
    report.results["device"] = {"name": name, "torch": torch.__version__, "cuda": torch.version.cuda}
    works: dict[str, Callable[[], Any]] = {
        "updates": lambda: update_costs(options, device),
        "parts": lambda: parts(options, device),
        "roofline": lambda: roofline(options, device, report.results),
        "environments": lambda: environments(options, device),
        "training": lambda: training(options, device),
    }
    for section in options.sections:
        report.section(section, works[section])
        gc.collect()
        if device.type == "cuda":
            torch.cuda.empty_cache()
    costs = {} if "updates" in report.failures else report.results.get("updates", {})
    failures = report.failures + [name for name, found in costs.items() if "FAILED" in found.values()]
    if failures:
        print(f"FAILED: {', '.join(failures)}", flush=True)
    return 1 if failures else 0


# ---- updates


class Learning:
    """Updates of an agent as the trainer runs them."""

    def __init__(self, agent: Agent, replay: Replay, path: FastBackend, block: Sequence[Phase] = BLOCK):
        self.agent, self.block = agent, tuple(block)
        sampler = torch.Generator(replay.device).manual_seed(1)

        def sample(phase: Phase) -> Batch:
            return agent.prepare(replay.sample(agent.sample_size(phase), sampler))

        self.updates = Updates(sample, agent.learn, (agent.generator, agent.preparer, sampler), path, self.block)
        self.path = path
        self.run(WARMUP + 1)

    def run(self, blocks: int) -> None:
        self.updates.run(self.block * blocks)

    @property
    def fell_back(self) -> bool:
        return self.path.name != "eager" and not self.updates._recorder.working


def update_costs(options: Options, device: torch.device) -> dict[str, Any]:
    columns = [name for name in PATHS if options.all or name not in ON_DEMAND]
    if device.type == "cpu":
        columns = ["eager fp32"]
    replays: dict[int, Replay] = {}
    results: dict[str, Any] = {}
    rows = []
    for name in options.agents:
        try:
            results[name] = found = agent_costs(name, columns, replays, options, device)
        except Exception as error:  # continue with the other agents
            print(f"{name} FAILED: {type(error).__name__}: {error}", flush=True)
            results[name] = {"error": str(error), "ms": "FAILED"}
            continue
        best = min((value for value in found.values() if isinstance(value, float)), default=math.nan)
        authors = AUTHORS.get(name)
        cells = [f"{v:.3f}" if isinstance(v, float) else v for v in (found[column] for column in columns)]
        factor = f"{authors / best:.0f}" if authors and not options.tiny else "-"
        rows.append([name, *cells, authors or "-", factor])
        print(f"{name}: {', '.join(f'{c} {v}' for c, v in zip(columns, cells, strict=True))} ms", flush=True)
        gc.collect()  # frees graphs and their memory
    batch = "small" if options.tiny else "128"
    title = f"One update, ms (batch {batch}; fp32 is PyTorch's default, with TF32 in convolutions)"
    table(title, ["agent", *columns, "authors", "times faster"], rows)
    return results


def agent_costs(
    name: str, columns: Sequence[str], replays: dict[int, Replay], options: Options, device: torch.device
) -> dict[str, float | str]:
    """Milliseconds per path, or why it was not measured."""
    found: dict[str, float | str] = {}
    runs: dict[str, Learning] = {}
    size = sizes(name, options.tiny)[0].render_size
    if size not in replays:
        replays[size] = filled_replay(size, device, options.tiny)
    for column in columns:
        try:
            path = backend_for(device, *PATHS[column])
        except SgqnError as error:
            found[column] = "-"
            print(f"{column}: {error}", flush=True)
            continue
        try:
            block = CYCLE if options.tiny else BLOCK
            runs[column] = Learning(make_agent(name, device, options.tiny), replays[size], path, block)
        except Exception as error:  # continue with the other paths
            found[column] = "FAILED"
            print(f"{name}, {column} FAILED: {type(error).__name__}: {error}", flush=True)
    times: dict[str, list[float]] = {column: [] for column in runs}
    cycles = {column: fitting(run.run, options.window_seconds, device) for column, run in runs.items()}
    for _ in range(options.windows):
        for column, run in runs.items():
            seconds = measure(partial(run.run, cycles[column]), device)
            times[column].append(seconds / cycles[column] / len(run.block) * 1e3)
    for column, run in runs.items():
        median = statistics.median(times[column])
        found[column] = f"{median:.3f} (EAGER: capture failed)" if run.fell_back else median
    return found


def filled_replay(size: int, device: torch.device, tiny: bool) -> Replay:
    """A few thousand transitions of 16 environments with moving squares."""
    count, steps = (4, 20) if tiny else (16, 200)
    generator = torch.Generator(device).manual_seed(3)
    frames, places = scenes(count, steps + 1, size, generator)
    replay = Replay(count * steps, count, (3, size, size), (ACTIONS,), device=device)
    replay.start(frames[:, 0])
    no, yes = np.zeros(count, dtype=bool), np.ones(count, dtype=bool)
    for step in range(steps):
        action = 2 * torch.rand(count, ACTIONS, generator=generator, device=device) - 1
        ended = yes if step == steps - 1 else no
        replay.add(action, rewards(places[:, step], action), frames[:, step + 1], no, ended)
    return replay


def measure(work: Callable[[], None], device: torch.device) -> float:
    """Seconds that the work takes, on a GPU by CUDA events."""
    if device.type != "cuda":
        started = time.perf_counter()
        work()
        return time.perf_counter() - started
    start, stop = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    torch.cuda.synchronize()
    start.record()
    work()
    stop.record()
    torch.cuda.synchronize()
    return start.elapsed_time(stop) / 1e3


def fitting(run: Callable[[int], None], seconds: float, device: torch.device) -> int:
    """How many repetitions of `run` fit into a window of so many seconds."""
    run(1)
    once = min(measure(lambda: run(1), device) for _ in range(2))
    return max(1, min(200, round(seconds / max(once, 1e-6))))


# ---- parts of an SGQN update


def parts(options: Options, device: torch.device) -> dict[str, Any]:
    if device.type != "cuda":
        print("parts: needs a CUDA device")
        return {}
    path = backend_for(device)
    size = sizes("sgqn", options.tiny)[0].render_size
    learning = Learning(make_agent("sgqn", device, options.tiny), filled_replay(size, device, options.tiny), path)
    kernels = profile(learning, cycles=10)
    whole, launches = sum(k["us"] for k in kernels), sum(k["launches"] for k in kernels)
    rows = [[k["name"][:100], f"{k['us']:.1f}", f"{k['launches']:.1f}", f"{k['us'] / whole:.1%}"] for k in kernels[:40]]
    rows.append([f"all {len(kernels)}", f"{whole:.1f}", f"{launches:.1f}", "100.0%"])
    table(f"Kernels of one SGQN update ({path.describe()})", ["kernel", "us", "launches", "share"], rows)
    return {"path": path.describe(), "us": whole, "launches": launches, "kernels": kernels}


def profile(learning: Learning, cycles: int) -> list[dict[str, Any]]:
    """Kernels of an update, longest first: microseconds and launches, averaged over the cycle."""
    from torch.autograd import DeviceType
    from torch.profiler import ProfilerActivity
    from torch.profiler import profile as profiled

    learning.run(2)
    torch.cuda.synchronize()
    with profiled(activities=[ProfilerActivity.CUDA]) as profiler:
        learning.run(cycles)
        torch.cuda.synchronize()
    updates = cycles * len(learning.block)
    events = [event for event in profiler.key_averages() if event.device_type == DeviceType.CUDA]
    return [
        {"name": e.key, "us": e.self_device_time_total / updates, "launches": e.count / updates}
        for e in sorted(events, key=lambda e: -e.self_device_time_total)
    ]


# ---- roofline


@dataclass(frozen=True)
class Work:
    """Lower bounds for one pass of the encoder."""

    flop: float
    bytes: float


def encoder_work(encoder: Encoder, size: int, batch: int) -> dict[str, Work]:
    """From the layer sizes, with bf16 features and uint8 images. ReLU gates take one bit; weights are not counted."""
    flops, features = [], []
    convs: list[Any] = list(encoder.convs)
    image = batch * convs[0].in_channels * size * size
    for conv in convs:
        size = (size - 3) // conv.stride[0] + 1
        flops.append(2.0 * batch * size * size * conv.weight.numel())
        features.append(2.0 * batch * size * size * conv.out_channels)
    out, inner = features[-1], sum(features[:-1])
    gates = inner / 16
    forward, backward, kept = sum(flops), 2 * sum(flops) - flops[0], inner + gates
    return {
        "forward": Work(forward, image + out),
        "forward, kept for backward": Work(forward, image + out + kept),
        "guided gradient of the images": Work(forward, out + gates + 4 * image),
        "gradient of the weights": Work(backward, image + out + kept),
        "forward and gradient of the weights": Work(forward + backward, 2 * (image + out + kept)),
    }


def roofline(options: Options, device: torch.device, results: dict[str, Any]) -> dict[str, Any]:
    agent = make_agent("sgqn", device, options.tiny)
    _, settings = sizes("sgqn", options.tiny)
    work = encoder_work(encoder_of(agent), agent.spec.image_size, settings.batch_size)
    flop = update_flop(options, device)
    total = sum(flop.values())
    rows = [[name, f"{value / 1e9:.2f}"] for name, value in flop.items()]
    table("FLOP of one SGQN update", ["operator", "GFLOP"], [*rows, ["all", f"{total / 1e9:.2f}"]])
    found: dict[str, Any] = {"update GFLOP": {name: value / 1e9 for name, value in flop.items()}}
    if device.type != "cuda":
        rows = [[name, f"{w.flop / 1e9:.3f}", f"{w.bytes / 1e6:.2f}"] for name, w in work.items()]
        table("Encoder", ["pass", "GFLOP", "MB (lower bound)"], rows)
        return found
    peak_flops, peak_bytes = peaks(device)
    print(f"peaks: bf16 matmul of 8192^3 {peak_flops / 1e12:.0f} TFLOP/s, copy of 1 GB {peak_bytes / 1e9:.0f} GB/s")
    found |= {"peak TFLOP/s": peak_flops / 1e12, "peak GB/s": peak_bytes / 1e9, "encoder": {}}
    rows = []
    for column in ("kernels bf16", "cudnn bf16", "captured bf16", "captured fp32"):
        try:
            times = encoder_times(agent, backend_for(device, *PATHS[column]), settings.batch_size)
        except Exception as error:
            print(f"{column}: {type(error).__name__}: {error}", flush=True)
            continue
        found["encoder"][column] = times
        for name, w in work.items():
            rate, moved = w.flop / times[name] * 1e3, w.bytes / times[name] * 1e3
            numbers = [f"{times[name]:.4f}", f"{w.flop / 1e9:.1f}", f"{w.bytes / 1e6:.1f}", f"{rate / 1e12:.0f}"]
            shares = [f"{rate / peak_flops:.0%}", f"{moved / 1e9:.0f}", f"{moved / peak_bytes:.0%}"]
            rows.append([f"{column}: {name}", *numbers, *shares])
    columns = ["pass", "ms", "GFLOP", "MB (lower bound)", "TFLOP/s", "of peak", "GB/s", "of peak"]
    table(f"Encoder, batch {settings.batch_size}, in CUDA graphs (captured: PyTorch operators)", columns, rows)
    ms = results.get("updates", {}).get("sgqn", {}).get("kernels bf16") or results.get("parts", {}).get("us", 0) / 1e3
    if isinstance(ms, float) and ms > 0:
        rate = total / ms * 1e3
        print(
            f"one SGQN update: {total / 1e9:.0f} GFLOP in {ms:.3f} ms: {rate / 1e12:.0f} TFLOP/s, "
            f"{rate / peak_flops:.0%} of the peak; at the peak it would take {total / peak_flops * 1e3:.3f} ms"
        )
        found |= {"update ms": ms, "update TFLOP/s": rate / 1e12, "update share of peak": rate / peak_flops}
    return found


def update_flop(options: Options, device: torch.device) -> dict[str, float]:
    """FLOP of the convolutions and matrix products of an eager update, averaged over the cycle, as PyTorch counts."""
    agent = make_agent("sgqn", device, options.tiny)
    replay = filled_replay(agent.spec.render_size, device, options.tiny)
    sampler = torch.Generator(device).manual_seed(0)
    with FlopCounter() as counter:
        for phase in CYCLE:
            agent.update(replay.sample(agent.sample_size(phase), sampler), phase)
    return {name: count / len(CYCLE) for name, count in counter.counts.items()}


class FlopCounter(TorchDispatchMode):
    """Counts per operator with PyTorch's formulas. (PyTorch's FlopCounterMode does not support `autograd.grad`.)"""

    def __init__(self) -> None:
        super().__init__()
        self.counts: Counter[str] = Counter()

    def __torch_dispatch__(self, func: Any, types: Any, args: tuple = (), kwargs: dict | None = None) -> Any:
        out = func(*args, **(kwargs or {}))
        operator = func._overloadpacket
        if operator in flop_registry:
            self.counts[str(operator).removeprefix("aten.")] += flop_registry[operator](
                *args, **(kwargs or {}), out_val=out
            )
        return out


def peaks(device: torch.device) -> tuple[float, float]:
    """FLOP/s of a large bf16 matrix product, and bytes/s read and written by a copy."""
    a, b = (torch.randn(8192, 8192, device=device, dtype=torch.bfloat16) for _ in range(2))
    out = torch.empty_like(a)
    product = repeated(lambda: torch.mm(a, b, out=out), device)
    source = torch.zeros(1 << 30, dtype=torch.uint8, device=device)
    copy = torch.empty_like(source)
    return 2 * 8192**3 / product, 2 * source.numel() / repeated(lambda: copy.copy_(source), device)


def repeated(work: Callable[[], object], device: torch.device, times: int = 20, windows: int = 5) -> float:
    """Seconds per call, as the median of several windows."""

    def window() -> None:
        for _ in range(times):
            work()

    window()
    return statistics.median(measure(window, device) / times for _ in range(windows))


def encoder_of(agent: Any) -> Encoder:
    return agent.learner.encoder


def encoder_times(agent: Agent, path: FastBackend, batch: int) -> dict[str, float]:
    """Milliseconds of the encoder's passes, each in a CUDA graph. Gradients are timed as the increase over forward."""
    encoder, device = encoder_of(agent), path.device
    with torch.no_grad():  # move away from the sparse initialization
        for parameter in encoder.parameters():
            parameter.add_(0.01 * torch.randn_like(parameter))
    size = agent.spec.image_size
    images = scenes(batch, 3, size, torch.Generator(device).manual_seed(5))[0].flatten(1, 2)
    parameters = list(encoder.parameters())
    with torch.no_grad(), path.active():
        gradient = torch.randn_like(encoder(images))

    def forward() -> Tensor:
        return encoder(images)

    def without_graph() -> None:
        with torch.no_grad():
            encoder(images)

    def traced() -> tuple[Tensor, Tensor]:
        obs = differentiable(images)
        with switchable_relu():
            return obs, encoder(obs)

    def of_images() -> None:
        obs, features = traced()
        with guided():
            torch.autograd.grad(features, obs, gradient)

    def of_weights() -> None:
        torch.autograd.grad(forward(), parameters, gradient)

    works = {"free": without_graph, "kept": forward, "traced": traced, "images": of_images, "weights": of_weights}
    ms = {name: graph_time(work, path) * 1e3 for name, work in works.items()}
    return {
        "forward": ms["free"],
        "forward, kept for backward": ms["kept"],
        "guided gradient of the images": ms["images"] - ms["traced"],
        "gradient of the weights": ms["weights"] - ms["kept"],
        "forward and gradient of the weights": ms["weights"],
    }


def graph_time(work: Callable[[], object], path: FastBackend) -> float:
    """Seconds per call. The graph contains twenty calls, so that the launch time does not matter."""
    times = 20

    def once() -> None:
        with path.active():
            work()

    def many() -> None:
        with path.active():
            for _ in range(times):
                work()

    recorder = recorder_for(path, ())
    for _ in range(WARMUP):
        recorder.eagerly(once)
    replay = recorder.capture(many)
    if replay is None:
        raise RuntimeError("the work could not be captured")
    return repeated(replay, path.device, times=3) / times


# ---- environments and training


def environments(options: Options, device: torch.device) -> dict[str, Any]:
    """Agent steps/s with random actions, for whole episodes including resets."""
    import sgqn
    from sgqn.envs.families import find_task

    found, rows = {}, []
    length = find_task(options.task).episode_steps
    for count in [2] if options.tiny else options.num_envs:
        envs = sgqn.make_vec(options.task, count, renderer="warp", device=device)
        try:
            envs.reset(seed=0)
            envs.action_space.seed(0)
            actions = np.stack([envs.action_space.sample() for _ in range(5 if options.tiny else 40)])
            times = []
            for window in range(1 if options.tiny else 4):
                steps = stepping(envs, actions, device)
                started = time.perf_counter()
                envs.reset()
                synchronize(device)
                if window or options.tiny:  # the first window compiles
                    times.append((steps / len(actions), time.perf_counter() - started))
        finally:
            envs.close()
        step, reset = (statistics.median(column) for column in zip(*times, strict=True))
        rate = count * length / (length * step + reset)
        found[str(count)] = {"steps/s": rate, "step ms": step * 1e3, "reset ms": reset * 1e3}
        rows.append([count, f"{rate:,.0f}", f"{step * 1e3:.2f}", f"{reset * 1e3:.1f}"])
    title = f"{options.task}, Warp renderer on {device.type}, random actions"
    table(title, ["environments", "agent steps/s", "step of all (ms)", "reset of all (ms)"], rows)
    return found


def stepping(envs: Any, actions: np.ndarray, device: torch.device) -> float:
    """Seconds that the steps of all environments take."""
    synchronize(device)
    started = time.perf_counter()
    for action in actions:
        envs.step(action)
    synchronize(device)
    return time.perf_counter() - started


def synchronize(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize()


def training(options: Options, device: torch.device) -> dict[str, Any]:
    """A short training run: steps/s, share of collection, set-up time, memory."""
    from sgqn import run_folder
    from sgqn.config import preset
    from sgqn.experience import OffPolicy
    from sgqn.training import COLLECTION, Trainer

    config = preset("tiny" if options.tiny else "paper", options.task)
    if options.tiny:
        config = replace(config, warmup_steps=8, image_size=24)
    config = replace(
        config,
        steps=config.warmup_steps + (24 if options.tiny else options.training_steps),
        device=device.type,
        log_every=4 if options.tiny else 500,
        evaluate_every=0,
        images_every=0,
        checkpoint_every=10**9,
        save_replay=False,
    )
    if device.type == "cuda":
        torch.cuda.reset_peak_memory_stats()
    with tempfile.TemporaryDirectory(prefix="sgqn-benchmark-") as folder:
        started = time.perf_counter()
        trainer = Trainer(config, Path(folder), progress=False)
        built = time.perf_counter() - started
        updates = trainer.runner._updates if isinstance(trainer.runner, FastRunner) else None
        first_updates = noting(updates or trainer.runner, started)
        trainer.run()
        lines = list(run_folder.read_lines(Path(folder) / run_folder.METRICS))
    steady = [line for line in lines if line["step"] >= 2 * config.warmup_steps]  # after the updates of the warm-up
    steps, seconds = (steady[-1][key] - steady[0][key] for key in ("step", "seconds"))
    shares = [line[COLLECTION] for line in steady if COLLECTION in line]
    assert isinstance(trainer.experience, OffPolicy)
    full = Replay(500_000, config.num_envs, action_shape=(trainer.spec.action_dim,), device="meta").nbytes
    found = {
        "path": trainer.backend.describe(),
        "updates captured": "yes" if updates is not None and updates._recorder.working else "no",
        "agent steps/s": steps / seconds,
        "measured steps": steps,
        "share of collection": statistics.mean(shares) if shares else math.nan,
        "set-up: construction (s)": built,
        "set-up: until updates are captured (s)": first_updates[0] if first_updates else math.nan,
        "replay buffer of 500,000 transitions (GB)": full / 1e9,
        "replay buffer of this run (GB)": trainer.experience.replay.nbytes / 1e9,
    }
    if device.type == "cuda":
        free, whole = torch.cuda.mem_get_info()
        found["peak memory of PyTorch (GB)"] = torch.cuda.max_memory_allocated() / 1e9
        found["memory in use on the device (GB)"] = (whole - free) / 1e9
    rows = [[name, value if isinstance(value, str) else f"{value:,.3g}"] for name, value in found.items()]
    table(f"Training sgqn on {options.task}, {config.num_envs} environments", ["quantity", "value"], rows)
    return found


def noting(learning: Any, started: float) -> list[float]:
    """Seconds until the updates are captured, or until they first run where they are not captured."""
    times: list[float] = []

    def after(method: Callable[..., Any]) -> Callable[..., Any]:
        def wrapper(*arguments: Any) -> Any:
            result = method(*arguments)
            times.append(time.perf_counter() - started)
            return result

        return wrapper

    captures = isinstance(learning, Updates) and learning._recorder.working
    name = "_capture" if captures else "update"
    setattr(learning, name, after(getattr(learning, name)))
    return times


if __name__ == "__main__":
    sys.exit(main(tyro.cli(Options, description=__doc__)))
