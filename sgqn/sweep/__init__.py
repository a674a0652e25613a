"""Many runs from one file: on this machine, or over the machines of a Ray cluster.

plan        the runs that a file asks for
storage     where they lie
work        one run, in a process of its own
local       processes of this machine
cluster     tasks of a Ray cluster
queue       start, follow, retry, stop
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from sgqn.errors import InvalidValueError
from sgqn.sweep.plan import Planned, Resources, plan, read
from sgqn.sweep.queue import Entry, Pool, survey, work_through
from sgqn.sweep.storage import Storage, open_storage

__all__ = ["Entry", "Planned", "Resources", "plan", "read", "sweep"]


def sweep(
    runs: str | Path | Sequence[Planned],
    out: str | Path = "runs",
    ray: str | None = None,
    devices: Sequence[str] = (),
    live: bool = True,
) -> list[str]:
    """Train all runs of a sweep file, or of a plan, that are not complete yet; returns where they lie.

    `out` is a folder or an fsspec URL; `ray` the address of a Ray cluster, `auto` or `local`; `devices` what this
    machine computes on without Ray, each device for one run at a time. All input is checked before a run starts.
    """
    if ray is not None and devices:
        raise InvalidValueError("devices are of this machine alone: with Ray, give [resources] in the sweep file")
    planned = read(runs) if isinstance(runs, str | Path) else list(runs)
    for run in planned:
        run.config.check_requirements()
    storage = open_storage(out)
    storage.check()
    entries = survey(planned, storage)
    if any(entry.state != "complete" for entry in entries):
        work_through(entries, _pool(storage, ray, devices), storage, live)
    return [f"{storage.where}/{run.name}" for run in planned]


def _pool(storage: Storage, ray: str | None, devices: Sequence[str]) -> Pool:
    if ray is None:
        from sgqn.sweep.local import LocalPool

        return LocalPool(storage, devices)
    from sgqn.sweep.cluster import RayPool

    return RayPool(storage, ray)
