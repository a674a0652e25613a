"""A worker process: steps simulations, and renders them if they are rendered one at a time. Does not import torch.

Actions, rewards, scenes and frames lie in memory shared with the parent; messages are a length, one letter and JSON.
"""

from __future__ import annotations

import importlib
import json
import mmap
import os
import socket
import struct
import sys
import tempfile
import traceback
from typing import Any

import numpy as np

Spec = dict[str, tuple[list[int], str]]
_LENGTH = struct.Struct("!I")
STEP, RESET, STATE, RESTORE, CLOSE, OK, ERROR = b"s", b"r", b"g", b"p", b"c", b"k", b"e"


class SharedArrays:
    """Named numpy arrays in anonymous shared memory: nothing is left behind, however the processes end."""

    def __init__(self, spec: Spec, descriptor: int | None = None):
        offsets, size = {}, 0
        for name, (shape, dtype) in spec.items():
            offsets[name] = size
            size += -(-int(np.prod(shape)) * np.dtype(dtype).itemsize // 64) * 64
        if descriptor is None:
            descriptor = _anonymous_file()
            os.ftruncate(descriptor, max(size, 1))
        self.spec, self.descriptor = spec, descriptor
        self._memory = mmap.mmap(descriptor, max(size, 1))
        self._arrays = {
            name: np.ndarray(tuple(shape), dtype, buffer=self._memory, offset=offsets[name])
            for name, (shape, dtype) in spec.items()
        }

    def __getitem__(self, name: str) -> np.ndarray:
        return self._arrays[name]

    def __contains__(self, name: str) -> bool:
        return name in self._arrays

    def close_descriptor(self) -> None:
        """Call it once all processes have it: the arrays stay, and nothing is left open when they go."""
        os.close(self.descriptor)


def _anonymous_file() -> int:
    if hasattr(os, "memfd_create"):
        return os.memfd_create("sgqn")
    with tempfile.TemporaryFile() as file:
        return os.dup(file.fileno())


def send(connection: socket.socket, kind: bytes, content: Any = None) -> None:
    body = kind if content is None else kind + json.dumps(content).encode()
    connection.sendall(_LENGTH.pack(len(body)) + body)


def receive(connection: socket.socket) -> tuple[bytes, Any]:
    """The next message; EOFError where the other side is gone."""
    (length,) = _LENGTH.unpack(_read(connection, _LENGTH.size))
    body = _read(connection, length)
    return body[:1], json.loads(body[1:]) if length > 1 else None


def _read(connection: socket.socket, length: int) -> bytes:
    parts = bytearray()
    while len(parts) < length:
        part = connection.recv(length - len(parts))
        if not part:
            raise EOFError
        parts += part
    return bytes(parts)


class _Simulations:
    """The worlds of one worker."""

    def __init__(self, config: dict[str, Any], shared: SharedArrays):
        from sgqn.envs.families import find_task

        for module in config["modules"]:  # those that register families
            importlib.import_module(module)
        task = find_task(config["task"], config["action_repeat"])
        self._shared = shared
        self._worlds: dict[int, Any] = {world: task.load(config["shift"]) for world in config["worlds"]}
        drawn = self._worlds if "frames" in shared else {}
        self._renderers = {world: simulation.make_renderer(config["size"]) for world, simulation in drawn.items()}

    def reset(self, request: dict[str, Any]) -> None:
        for world, episode in zip(request["worlds"], request["episodes"], strict=True):
            if world in self._worlds:
                self._worlds[world].reset(episode, request["seed"])
                self._show(world, new_episode=True)

    def step(self) -> None:
        shared = self._shared
        for world, simulation in self._worlds.items():
            reward, terminated, truncated = simulation.step(shared["actions"][world])
            shared["rewards"][world] = reward
            shared["terminated"][world] = terminated
            shared["truncated"][world] = truncated
            self._show(world)

    def states(self) -> dict[str, Any]:
        return {str(world): plain(simulation.state()) for world, simulation in self._worlds.items()}

    def restore(self, states: dict[str, Any]) -> None:
        for world, state in states.items():
            self._worlds[int(world)].restore(state)
            self._show(int(world), new_episode=True)

    def _show(self, world: int, new_episode: bool = False) -> None:
        """Write the state of a world that the parent needs to shared memory."""
        if "successes" in self._shared:
            self._shared["successes"][world] = self._worlds[world].success
        if not self._renderers:
            self._worlds[world].write_scene(self._shared["scenes"][world])
            return
        renderer = self._renderers[world]
        if new_episode:
            renderer.start()
        self._shared["frames"][world] = renderer.frame()
        if "masks" in self._shared:
            self._shared["masks"][world] = renderer.mask()
        if "screens" in self._shared:
            self._shared["screens"][world] = renderer.screen()


def plain(state: dict[str, Any]) -> dict[str, Any]:
    return {key: value.tolist() if isinstance(value, np.ndarray) else value for key, value in state.items()}


def main() -> None:
    config = json.loads(sys.argv[1])
    connection = socket.socket(fileno=config["connection"])
    try:
        shared = SharedArrays(config["arrays"], config["memory"])
        simulations = _Simulations(config, shared)
        send(connection, OK)
        while True:
            kind, request = receive(connection)
            answer = None
            if kind == STEP:
                simulations.step()
            elif kind == RESET:
                simulations.reset(request)
            elif kind == STATE:
                answer = simulations.states()
            elif kind == RESTORE:
                simulations.restore(request)
            elif kind == CLOSE:
                return
            send(connection, OK, answer)
    except (EOFError, ConnectionError):
        return  # the parent is gone
    except Exception as error:
        message = {"error": f"{type(error).__name__}: {error}", "traceback": traceback.format_exc()}
        send(connection, ERROR, message)


if __name__ == "__main__":
    main()
