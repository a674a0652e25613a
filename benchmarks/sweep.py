"""Sweeps on one machine and on a Ray cluster of three nodes on which a worker and a node are killed.

    python benchmarks/sweep.py            # 8 runs each way: minutes on two cores
    python benchmarks/sweep.py --tiny     # 3 shorter runs, without a comparison of times

Prints a table in Markdown: the time of one and of two runs at a time without Ray, with one core for each, and how many
runs on the cluster are equal to those bit for bit. Fails if one is not.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import re
import signal
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from sgqn import checkpoint, run_folder
from sgqn.sweep import Planned, plan, sweep

OPTIONS: dict[str, Any] = {
    "task": "cartpole-swingup",
    "preset": "tiny",
    "action_repeat": 50,
    "resources": {"cpus": 1},
    "steps": 400,
    "num_envs": 2,
    "image_size": 36,
    "checkpoint_every": 100,
    "evaluate_every": 0,
    "images_every": 0,
}
SIZES: dict[bool, dict[str, Any]] = {
    False: {"agent": ["sgqn", "sac"], "seed": [0, 1, 2, 3]},
    True: {"agent": "sac", "seed": [0, 1, 2], "image_size": 24},
}
TIMES = ("seconds", "steps_per_second", "time/collection_share")
PATIENCE = 300.0


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tiny", action="store_true", help="three shorter runs, without a comparison of times")
    tiny = parser.parse_args().tiny
    runs = plan({**OPTIONS, **SIZES[tiny]})
    seconds: dict[int, float] = {}
    killed: list[str] = []
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder)
        for slots in (2,) if tiny else (1, 2):
            with cores(slots):
                start = time.monotonic()
                sweep(runs, out / str(slots), devices=["cpu"] * slots, live=False)
                seconds[slots] = time.monotonic() - start
        with cluster_of(2) as cluster:
            threading.Thread(
                target=kill_worker_and_node, args=(cluster, runs, out / "ray", killed), daemon=True
            ).start()
            sweep(runs, out / "ray", ray=cluster.address, live=False)
        same = sum(left_by(out / "ray" / run.name) == left_by(out / "2" / run.name) for run in runs)
    rows = [("runs", str(len(runs)))]
    rows += [(f"without Ray, {slots} at a time", f"{taken:.0f} s") for slots, taken in seconds.items()]
    rows += [] if tiny else [("speedup", f"{seconds[1] / seconds[2]:.2f}")]
    rows += [("killed on the Ray cluster", " and ".join(killed) or "nothing")]
    rows += [("complete there, and bitwise equal to the runs without Ray", f"{same} of {len(runs)}")]
    print("| | |", "|---|---|", *(f"| {name} | {value} |" for name, value in rows), sep="\n")
    if same < len(runs) or (len(killed) < 2 and not tiny):  # tiny runs may be over too soon
        sys.exit(1)


@contextlib.contextmanager
def cores(count: int) -> Iterator[None]:
    """Use this many of the cores, also in processes that are started meanwhile: a run has a process for its simulators,
    which would otherwise use the core of another run."""
    allowed = os.sched_getaffinity(0)
    os.sched_setaffinity(0, sorted(allowed)[:count])
    try:
        yield
    finally:
        os.sched_setaffinity(0, allowed)


@contextlib.contextmanager
def cluster_of(nodes: int) -> Iterator[Any]:
    """A Ray cluster: a head without room for runs, and nodes with one CPU each."""
    import ray
    from ray.cluster_utils import Cluster

    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    cluster = Cluster(initialize_head=True, head_node_args={"num_cpus": 0, "include_dashboard": False})
    try:
        for _ in range(nodes):
            cluster.add_node(num_cpus=1)
        yield cluster
    finally:
        ray.shutdown()
        cluster.shutdown()


def kill_worker_and_node(cluster: Any, runs: list[Planned], out: Path, killed: list[str]) -> None:
    """Kill the process of a run, then the node of another one, each after a checkpoint."""
    first = training_process(runs, out)
    os.kill(first, signal.SIGKILL)
    killed.append("a worker")
    raylet = _parent(training_process(runs, out, {first}))
    node = next(node for node in cluster.worker_nodes if node.all_processes["raylet"][0].process.pid == raylet)
    cluster.remove_node(node, allow_graceful=False)
    killed.append("a node")


def training_process(runs: list[Planned], out: Path, but: set[int] | frozenset[int] = frozenset()) -> int:
    """A process, of none of those given, that trains a run that has a checkpoint."""
    until = time.monotonic() + PATIENCE
    while time.monotonic() < until:
        for run in runs:
            with contextlib.suppress(OSError, IndexError):
                newest = checkpoint.step_of(checkpoint.list_checkpoints(out / run.name)[-1])
                holder = re.match(r"process (\d+)", (out / run.name / run_folder.LOCK).read_text())
                if holder and int(holder[1]) not in but and newest < run.config.steps:
                    return int(holder[1])
        time.sleep(0.02)
    raise TimeoutError(f"no run has been training for {PATIENCE:g} s")


def _parent(pid: int) -> int:
    return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])


def left_by(folder: Path) -> dict[str, Any]:
    """What two runs must share to be the same bit for bit: metrics without times, weights, the rest of the state."""
    lines = [json.loads(line) for line in (folder / run_folder.METRICS).read_text().splitlines()]
    newest = checkpoint.list_checkpoints(folder)[-1]
    files = {name: (newest / name).read_bytes() for name in (checkpoint.WEIGHTS, checkpoint.TENSORS)}
    return {"metrics": [{key: line[key] for key in line if key not in TIMES} for line in lines], **files}


if __name__ == "__main__":
    main()
