"""Measure the replay buffer: resident memory when empty and full, cost of add, sample, save and load.

    python benchmarks/replay_memory.py [--capacity 100000] [--device cuda] [--save FOLDER]
    python benchmarks/replay_memory.py --tiny              # check that the script works, in seconds

Expected: 2.2 GB for 100,000 transitions of 84x84x3, almost nothing when empty, and a sampling time that does not depend
on how many transitions are stored (except for the processor's caches).
"""

from __future__ import annotations

import argparse
import os
import resource
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import torch

from sgqn.replay import Replay

ENVS = 16
EPISODE = 250
BATCH = 128


def resident() -> float:
    """Resident memory of this process in GB (the peak where the current value is not available)."""
    statm = Path("/proc/self/statm")
    if statm.exists():
        return int(statm.read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE") / 1e9
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024 / 1e9


def seconds(work: Callable[[], object], device: str, repeat: int = 1) -> float:
    begin = time.perf_counter()
    for _ in range(repeat):
        work()
    if device == "cuda":
        torch.cuda.synchronize()
    return (time.perf_counter() - begin) / repeat


def fill(replay: Replay, transitions: int, images: torch.Tensor) -> None:
    """Add episodes of 250 steps with frames from `images` (3 * ENVS, 9, 84, 84)."""
    action = torch.zeros(ENVS, 6, device=replay.device)
    reward = torch.zeros(ENVS, device=replay.device)
    over, running = [True] * ENVS, [False] * ENVS
    for step in range(1, transitions // ENVS + 1):
        shift = step % (2 * ENVS)
        obs = images[shift : shift + ENVS]
        replay.add(action, reward, obs, running, over if step % EPISODE == 0 else running, obs)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--capacity", type=int, default=100_000)
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu")
    parser.add_argument("--save", type=Path, help="also save to and load from a temporary folder in this one")
    parser.add_argument("--tiny", action="store_true", help="use a small buffer, to check that the script works")
    options = parser.parse_args()
    if options.tiny:
        options.capacity, options.save = 2000, options.save or Path(tempfile.gettempdir())
    device = options.device
    generator = torch.Generator(device).manual_seed(0)
    images = torch.randint(256, (3 * ENVS, 9, 84, 84), dtype=torch.uint8, device=device, generator=generator)

    warm_up = Replay(1000, ENVS, action_shape=(6,), device=device)  # so that memory of torch itself is not counted
    warm_up.start(images[:ENVS])
    fill(warm_up, 2000, images)
    for _ in range(10):
        warm_up.sample(BATCH, generator)
    base = resident() - (0 if device == "cuda" else warm_up.nbytes / 1e9)
    del warm_up

    replay = Replay(options.capacity, ENVS, action_shape=(6,), device=device)
    replay.start(images[:ENVS])
    print(f"{options.capacity:,} transitions of 84x84x3, {ENVS} environments, {device}")
    print(f"allocated when full   {replay.nbytes / 1e9:8.3f} GB")
    print(f"resident while empty  {resident() - base:8.3f} GB")
    for share in (0.01, 0.1, 1.0):
        more = int(share * replay.capacity) - len(replay)
        cost = seconds(lambda more=more: fill(replay, more, images), device) / (more / ENVS)  # type: ignore[misc]
        replay.sample(BATCH, generator)
        took = seconds(lambda: replay.sample(BATCH, generator), device, repeat=30)
        print(
            f"{len(replay):>9,} stored: add {cost * 1e6:7.0f} us per step of {ENVS}, "
            f"sample {took * 1e3:6.2f} ms per batch of {BATCH}, resident {resident() - base:6.3f} GB"
        )
    fill(replay, replay.capacity // 4, images)
    print(f"wrapped around:  resident {resident() - base:6.3f} GB")
    if device == "cuda":
        print(f"on the device    {torch.cuda.max_memory_allocated() / 1e9:6.3f} GB")
    if options.save:
        with tempfile.TemporaryDirectory(dir=options.save) as folder:
            print(f"save all   {seconds(lambda: replay.save(folder), device):6.1f} s")
            size = sum(path.stat().st_size for path in Path(folder).iterdir())
            print(f"on disk    {size / 1e9:6.3f} GB (random pixels, which do not compress)")
            fill(replay, replay.capacity // 10, images)
            print(f"save 10 % more {seconds(lambda: replay.save(folder), device):6.1f} s")
            print(f"load       {seconds(lambda: Replay.load(folder, device=device), device):6.1f} s")


if __name__ == "__main__":
    main()
