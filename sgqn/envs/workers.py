"""Simulations in worker processes. With `warp`, workers send poses and the parent renders; else workers render."""

from __future__ import annotations

import contextlib
import json
import os
import socket
import subprocess
import sys
import tempfile
import weakref
from collections.abc import Sequence
from typing import IO, Any

import numpy as np
import torch
from gymnasium import spaces
from torch import Tensor

from sgqn.envs import worker
from sgqn.envs.families import Task
from sgqn.envs.shifts import Shift
from sgqn.envs.simulation import MujocoSimulation
from sgqn.envs.warp import WarpRenderer, num_cores
from sgqn.envs.worker import SharedArrays, Spec
from sgqn.errors import InvalidValueError, WorkerError

ANSWER_SECONDS = 120.0
"""Seconds without a response after which a worker is considered dead."""


class WorkerStage:
    """A `Stage` whose simulations run in worker processes, one or several per process."""

    def __init__(
        self,
        task: Task,
        shift: Shift,
        num_envs: int,
        size: int,
        renderer: str,
        device: torch.device,
        masks: bool,
        num_workers: int | None = None,
    ):
        if "__main__" in task.modules:
            raise InvalidValueError(
                f"task {task.name!r} is defined in a script, which workers cannot import: "
                "move it to a module or use num_workers=0"
            )
        self._shift, self._device, self._want_masks = shift, device, masks
        probe = task.family.load(task, shift)
        self.num_envs, self.action_space = num_envs, probe.action_space
        self.agent_step_seconds = probe.agent_step_seconds
        discrete = isinstance(probe.action_space, spaces.Discrete)
        arrays: Spec = {
            "actions": ([num_envs], "int64") if discrete else ([num_envs, probe.action_dim], "float64"),
            "rewards": ([num_envs], "float64"),
            "terminated": ([num_envs], "bool"),
            "truncated": ([num_envs], "bool"),
        }
        if probe.success is not None:
            arrays["successes"] = ([num_envs], "bool")
        if renderer == "warp":
            assert isinstance(probe, MujocoSimulation)
            arrays["scenes"] = ([num_envs, probe.scene.size], "float32")
        else:
            arrays["frames"] = ([num_envs, size, size, 3], "uint8")
            if masks:
                arrays["masks"] = ([num_envs, size, size], "bool")
            if probe.has_screen and shift.video is not None:
                arrays["screens"] = ([num_envs, size, size], "bool")
        self._shared = SharedArrays(arrays)
        count = min(num_envs, num_workers or num_cores())
        config = {
            "modules": list(task.modules),
            "task": task.name,
            "action_repeat": task.action_repeat,
            "shift": shift.name,
            "size": size,
            "arrays": arrays,
        }
        dealt = [part.tolist() for part in np.array_split(np.arange(num_envs), count)]
        try:
            self._workers = [_Worker({**config, "worlds": worlds}, self._shared) for worlds in dealt]
        finally:
            self._shared.close_descriptor()
        self._finalizer = weakref.finalize(self, _stop, self._workers)
        # The parent prepares its renderer while the workers start.
        self._warp: WarpRenderer | None = None
        if isinstance(probe, MujocoSimulation) and renderer == "warp":
            self._warp = WarpRenderer(probe, num_envs, size, device, masks)
        probe.close()
        self._gather()

    def reset(self, worlds: Sequence[int], seed: int, episodes: Sequence[int]) -> None:
        request = {"worlds": list(worlds), "seed": seed, "episodes": list(episodes)}
        self._ask(worker.RESET, [request] * len(self._workers))
        if self._warp is not None:
            self._warp.set_appearances(worlds, [self._shift.appearance(seed, episode) for episode in episodes])

    def step_async(self, actions: np.ndarray) -> None:
        self._shared["actions"][:] = actions
        self._scatter(worker.STEP, [None] * len(self._workers))

    def step_wait(self) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        self._gather()
        shared = self._shared
        return shared["rewards"].copy(), shared["terminated"].copy(), shared["truncated"].copy()

    def frames(self) -> Tensor:
        if self._warp is not None:
            return self._warp.frames(self._shared["scenes"])
        return self._copy("frames")

    def masks(self) -> Tensor | None:
        if not self._want_masks:
            return None
        return self._warp.masks() if self._warp is not None else self._copy("masks")

    def screens(self) -> Tensor | None:
        return self._copy("screens") if "screens" in self._shared else None

    def successes(self) -> np.ndarray | None:
        return self._shared["successes"].copy() if "successes" in self._shared else None

    def states(self) -> list[dict[str, Any]]:
        answers = self._ask(worker.STATE, [None] * len(self._workers))
        merged = {int(world): state for answer in answers for world, state in answer.items()}
        return [merged[world] for world in range(self.num_envs)]

    def restore(self, states: Sequence[dict[str, Any]]) -> None:
        plain = {str(world): worker.plain(state) for world, state in enumerate(states)}
        # One environment of each worker at a time: some play an episode again, and the time to answer is limited.
        for i in range(max((len(w.worlds) for w in self._workers), default=1)):
            requests = [{str(world): plain[str(world)] for world in w.worlds[i : i + 1]} for w in self._workers]
            self._ask(worker.RESTORE, requests)
        if self._warp is not None:
            appearances = [self._shift.appearance(int(s["seed"]), int(s["episode"])) for s in states]
            self._warp.set_appearances(range(self.num_envs), appearances)

    def close(self) -> None:
        self._finalizer()
        if self._warp is not None:
            self._warp.close()

    def _copy(self, name: str) -> Tensor:
        return torch.from_numpy(self._shared[name].copy()).to(self._device)

    def _ask(self, kind: bytes, requests: Sequence[Any]) -> list[Any]:
        self._scatter(kind, requests)
        return self._gather()

    def _scatter(self, kind: bytes, requests: Sequence[Any]) -> None:
        self._attend(lambda one, request: one.send(kind, request), requests)

    def _gather(self) -> list[Any]:
        return self._attend(lambda one, _: one.receive(), self._workers)

    def _attend(self, act: Any, items: Sequence[Any]) -> list[Any]:
        """Call a function for every worker; if one fails, stop all of them and raise its error."""
        if not self._workers:
            raise WorkerError("this environment is closed")
        try:
            return [act(one, item) for one, item in zip(self._workers, items, strict=True)]
        except WorkerError:
            self._finalizer()
            raise


class _Worker:
    """The parent's end of one worker process."""

    def __init__(self, config: dict[str, Any], shared: SharedArrays):
        self.worlds: list[int] = config["worlds"]
        self._connection, theirs = socket.socketpair()
        self._connection.settimeout(ANSWER_SECONDS)
        self._errors: IO[bytes] = tempfile.TemporaryFile()  # noqa: SIM115 (closed in `join`)
        config = {**config, "connection": theirs.fileno(), "memory": shared.descriptor}
        environment = {
            **os.environ,
            "PYTHONPATH": os.pathsep.join(path or os.getcwd() for path in sys.path),
            "OMP_NUM_THREADS": "1",
        }
        self.process = subprocess.Popen(
            [sys.executable, "-m", "sgqn.envs.worker", json.dumps(config)],
            pass_fds=(theirs.fileno(), shared.descriptor),
            stdin=subprocess.DEVNULL,
            stdout=self._errors,
            stderr=self._errors,
            env=environment,
            start_new_session=True,  # Ctrl-C is for the parent, which then closes its workers
        )
        theirs.close()

    def send(self, kind: bytes, request: Any) -> None:
        try:
            worker.send(self._connection, kind, request)
        except OSError as error:
            raise self._died() from error

    def receive(self) -> Any:
        try:
            kind, answer = worker.receive(self._connection)
        except TimeoutError as error:
            message = f"{self._name} has not answered for {ANSWER_SECONDS:.0f} seconds"
            raise WorkerError(message) from error
        except (EOFError, OSError) as error:
            raise self._died() from error
        if kind == worker.ERROR:
            error_ = WorkerError(f"{self._name} failed: {answer['error']}")
            error_.add_note(answer["traceback"])
            raise error_
        return answer

    def dismiss(self) -> None:
        """Ask the worker to exit."""
        with contextlib.suppress(OSError):
            worker.send(self._connection, worker.CLOSE)
        self._connection.close()

    def join(self) -> None:
        """Wait until the worker has exited; kill it if necessary."""
        for last_resort in (self.process.terminate, self.process.kill, None):
            try:
                self.process.wait(timeout=3)
                break
            except subprocess.TimeoutExpired:
                if last_resort is not None:
                    last_resort()
        self._errors.close()

    @property
    def _name(self) -> str:
        return f"the worker of environment{'s' if len(self.worlds) > 1 else ''} {_span(self.worlds)}"

    def _died(self) -> WorkerError:
        try:
            code: int | None = self.process.wait(timeout=3)
        except subprocess.TimeoutExpired:
            code = None
        self._errors.seek(0)
        lines = self._errors.read().decode(errors="replace").strip().splitlines()
        how = f"was killed by signal {-code}" if code is not None and code < 0 else f"ended with code {code}"
        last = f": {lines[-1]}" if lines else ""
        error = WorkerError(f"{self._name} {how}{last}")
        if lines:
            error.add_note("\n".join(lines[-30:]))
        return error


def _span(worlds: list[int]) -> str:
    return str(worlds[0]) if len(worlds) == 1 else f"{worlds[0]}-{worlds[-1]}"


def _stop(workers: list[_Worker]) -> None:
    for one in workers:
        one.dismiss()
    for one in workers:
        one.join()
    workers.clear()
