"""Replay memory: uint8, every frame stored once, stacks and next stacks built at sampling.

Two rings, both filled in the order of time:

- frames: one slot per rendered frame. An episode of T transitions takes T + 1 slots.
- transitions: action, reward, discount and the `stack + 1` frame slots that make obs (the first `stack`) and
  next obs (the last `stack`). N environments step in lockstep, so one `add` writes one row of N transitions.

Storing the slots (8 bytes each, compared with 21,168 for a frame) makes sampling exact at episode boundaries and at the
write head without any search: every stored transition is valid, they lie in one contiguous window of the ring, and a
uniform draw is `(start + random % size) % capacity`. `start` and `size` live on the device, so a captured CUDA graph
that samples stays right while the replay grows and wraps.

n-step returns need no additional memory. The next transition of the same environment is `num_envs` places further, and
it belongs to the same episode if and only if its obs ends with the frame that next obs ends with.
"""

from __future__ import annotations

import hashlib
import json
import math
import os
import re
import zlib
from collections.abc import Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from itertools import pairwise
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import ArrayLike
from safetensors.torch import save as save_tensors
from torch import Tensor

from sgqn import reading
from sgqn.errors import DataError, InvalidValueError
from sgqn.files import write_atomically
from sgqn.reading import TensorInfo, line

FORMAT = 1
CHUNK_BYTES = 64 << 20  # frames in one file, before compression: bounds the memory that saving needs
MANIFEST = ".replay.json"
_CHUNK_NAME = re.compile(r"(frames|transitions)-\d{12}-[0-9a-f]{16}\.bin")
_MANIFEST_LIMIT = 16 << 20  # bytes; a full replay has some hundred chunks
_ACTION_DTYPES = {name: getattr(torch, name) for name in ("float32", "float64", "int64", "int32")}
_TAG = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]*")
_WORKERS = min(4, os.cpu_count() or 1)  # zlib, hashing and files release the interpreter's lock


class Batch(NamedTuple):
    """Transitions on the replay's device. `discount` is gamma, or 0 where the episode terminated.

    With n-step returns, a transition spans k <= n steps: `reward` is sum_i gamma^i r_i, `discount` gamma^k or 0,
    `next_obs` the observation after the k-th. k < n where the episode ends earlier, or has not been played further yet.
    """

    obs: Tensor  # uint8 (B, stack * C, H, W)
    action: Tensor  # (B, *action_shape)
    reward: Tensor  # float32 (B,)
    discount: Tensor  # float32 (B,)
    next_obs: Tensor  # uint8 (B, stack * C, H, W)


class Replay:
    """Ring of the newest transitions of `num_envs` environments, first in, first out.

    It holds `capacity` transitions (rounded up to whole rows of `num_envs`) when episodes have at least
    `shortest_episode` transitions; with shorter ones frames run out first and the oldest rows leave earlier.
    On the CPU, memory becomes resident only as it is filled.
    """

    def __init__(
        self,
        capacity: int,
        num_envs: int,
        frame_shape: tuple[int, int, int] = (3, 84, 84),
        action_shape: tuple[int, ...] = (),
        action_dtype: torch.dtype = torch.float32,
        stack: int = 3,
        discount: float = 0.99,
        device: str | torch.device = "cpu",
        shortest_episode: int = 50,
        n_steps: int = 1,
    ):
        sizes = {
            "capacity": capacity,
            "num_envs": num_envs,
            "stack": stack,
            "shortest_episode": shortest_episode,
            "n_steps": n_steps,
        }
        for name, value in sizes.items():
            if value < 1:
                raise InvalidValueError(f"replay: {name} must be at least 1, got {value!r}")
        if not 0 <= discount <= 1:
            raise InvalidValueError(f"replay: discount must lie in [0, 1], got {discount!r}")
        self.num_envs = num_envs
        self.frame_shape = tuple(frame_shape)
        self.action_shape = tuple(action_shape)
        self.action_dtype = action_dtype
        self.stack = stack
        self.discount = discount
        self.device = torch.device(device)
        self.shortest_episode = shortest_episode
        self.n_steps = n_steps

        self._max_rows = -(-capacity // num_envs)
        self.capacity = self._max_rows * num_envs
        # One frame per transition, one more per episode, and some rows of at most 2 N frames: those that the
        # oldest transition's stack reaches back to, and the newest stacks, which must survive in any case.
        self._max_frames = self.capacity + -(-self.capacity // shortest_episode) + 2 * (stack + 1) * num_envs
        self._frames = self._zeros((self._max_frames, *self.frame_shape), torch.uint8)
        self._slots = self._zeros((self.capacity, stack + 1), torch.int64)
        self._action = self._zeros((self.capacity, *self.action_shape), action_dtype)
        self._reward = self._zeros((self.capacity,), torch.float32)
        self._discount = self._zeros((self.capacity,), torch.float32)
        # The window of valid transitions, on the device for sampling.
        self._start = torch.zeros((), dtype=torch.int64, device=self.device)
        self._size = torch.zeros((), dtype=torch.int64, device=self.device)

        # The host's books. Frames and rows are numbered from the beginning of time; a number modulo the
        # ring's length is its place. `_row_oldest` is the oldest frame that a row needs: per environment it
        # never decreases with time, so neither does the row's minimum: the valid rows are the newest ones.
        self._frame_count = 0
        self._row_count = 0
        self._first_row = 0
        self._row_oldest = np.zeros(self._max_rows, dtype=np.int64)
        self._newest = np.zeros((num_envs, stack), dtype=np.int64)  # the frames of the current stacks
        self._running = False
        self._saved: _Saved | None = None

    def _zeros(self, shape: tuple[int, ...], dtype: torch.dtype) -> Tensor:
        """Zeros; on the CPU the system's untouched pages, which are not resident before they are written."""
        try:
            if self.device.type == "cpu":
                return torch.from_numpy(np.zeros(shape, dtype=torch.empty(0, dtype=dtype).numpy().dtype))
            return torch.zeros(shape, dtype=dtype, device=self.device)
        except (MemoryError, torch.OutOfMemoryError) as error:
            size = f"{int(np.prod(shape)) * dtype.itemsize / 1e9:.1f} GB"
            raise InvalidValueError(
                f"a replay of {self.capacity} transitions needs {size}, more than {self.device} has"
            ) from error

    def __len__(self) -> int:
        """Number of transitions that can be sampled now."""
        return (self._row_count - self._first_row) * self.num_envs

    @property
    def nbytes(self) -> int:
        """Bytes when full (on the CPU resident only as far as filled)."""
        return sum(t.nbytes for t in (self._frames, self._slots, self._action, self._reward, self._discount))

    # -- filling ---------------------------------------------------------------------------------------------

    def start(self, obs: Tensor | np.ndarray) -> None:
        """All environments start an episode at `obs` (N, stack * C, H, W): `stack` copies of the first frame.
        Unfinished episodes end without a transition to the new ones.
        """
        self._newest[:] = self._write_frames(self._newest_frames(obs, "obs"))[:, None]
        self._running = True
        self._move_window()

    def add(
        self,
        action: Tensor | np.ndarray,
        reward: Tensor | np.ndarray,
        next_obs: Tensor | np.ndarray,
        terminated: ArrayLike,
        truncated: ArrayLike,
        reset_obs: Tensor | np.ndarray | None = None,
    ) -> None:
        """Store one step of every environment: `action` in the current obs gave `reward` and `next_obs`.

        Where an episode ended, `next_obs` is its last observation and `reset_obs` (N, ...; other rows are
        not read) the next one's first. If all ended, `reset_obs` may wait for `start`. Nothing here waits for
        a GPU if the flags are on the host; pinned buffers must stay untouched until their copy has run.
        """
        if not self._running:
            raise InvalidValueError("replay: call start(obs) first (also after an end without reset_obs)")
        ended = self._flags(terminated, "terminated")
        done = ended | self._flags(truncated, "truncated")
        if done.any() and not done.all() and reset_obs is None:
            raise InvalidValueError("replay: some episodes ended: reset_obs must hold the next ones' first obs")
        action = self._per_env(action, self.action_dtype, self.action_shape, "action")
        reward = self._per_env(reward, torch.float32, (), "reward")
        next_frames = self._newest_frames(next_obs, "next_obs")
        first_frames = None
        if done.any() and reset_obs is not None:
            first_frames = self._newest_frames(reset_obs, "reset_obs")

        # Frame numbers (N, stack + 1): the current stack, then the next frame.
        numbers = np.concatenate([self._newest, self._write_frames(next_frames)[:, None]], axis=1)
        row = self._row_count % self._max_rows
        place = slice(row * self.num_envs, (row + 1) * self.num_envs)
        self._slots[place] = self._upload(numbers % self._max_frames)
        self._action[place] = action
        self._reward[place] = reward
        self._discount[place] = self._upload(np.where(ended, 0, self.discount).astype(np.float32))
        self._row_oldest[row] = numbers.min()
        self._row_count += 1

        self._newest = numbers[:, 1:].copy()
        if first_frames is not None:
            if not done.all():
                rows = self._upload(np.flatnonzero(done), first_frames.device)
                first_frames = first_frames.index_select(0, rows)
            self._newest[done] = self._write_frames(first_frames)[:, None]
        self._running = first_frames is not None or not done.any()
        self._move_window()

    def _newest_frames(self, obs: Tensor | np.ndarray, name: str) -> Tensor:
        """The newest frame (N, C, H, W) of each stack; a frame alone is a stack of one."""
        obs = torch.as_tensor(obs)
        channels, *size = self.frame_shape
        fits = obs.ndim == 4 and obs.shape[0] == self.num_envs and list(obs.shape[2:]) == size
        if not fits or obs.shape[1] < channels or obs.dtype != torch.uint8:
            expected = f"{torch.uint8} {(self.num_envs, self.stack * channels, *size)}"
            raise InvalidValueError(f"replay: {name} must be {expected}, got {obs.dtype} {tuple(obs.shape)}")
        return obs[:, -channels:]

    def _flags(self, values: ArrayLike, name: str) -> np.ndarray:
        flags = np.asarray(values.cpu() if isinstance(values, Tensor) else values, dtype=bool)
        if flags.shape != (self.num_envs,):
            raise InvalidValueError(f"replay: {name} must have shape ({self.num_envs},), got {flags.shape}")
        return flags

    def _per_env(self, values: Tensor | np.ndarray, dtype: torch.dtype, shape: tuple[int, ...], name: str) -> Tensor:
        tensor = torch.as_tensor(values)
        shape = (self.num_envs, *shape)
        if tensor.shape != shape:
            raise InvalidValueError(f"replay: {name} must have shape {shape}, got {tuple(tensor.shape)}")
        return tensor.detach().to(self.device, dtype, non_blocking=True)

    def _upload(self, array: np.ndarray, device: torch.device | None = None) -> Tensor:
        # Pageable memory: the driver has its own copy of these few bytes before the call returns, without
        # waiting for the device, so a temporary array is safe here (a reused pinned buffer would not be).
        return torch.from_numpy(array).to(device or self.device, non_blocking=True)

    def _write_frames(self, frames: Tensor) -> np.ndarray:
        """Append frames (n, C, H, W) to the ring; returns their numbers (n,)."""
        numbers = np.arange(self._frame_count, self._frame_count + len(frames))
        self._put_frames(self._frame_count, frames)
        self._frame_count += len(frames)
        return numbers

    def _put_frames(self, number: int, frames: Tensor) -> None:
        """Copy frames to the places of `number`, `number + 1`, ...: one slice, or two around the end."""
        slot = number % self._max_frames
        fit = min(len(frames), self._max_frames - slot)
        self._frames[slot : slot + fit].copy_(frames[:fit], non_blocking=True)
        if fit < len(frames):
            self._frames[: len(frames) - fit].copy_(frames[fit:], non_blocking=True)

    def _move_window(self) -> None:
        """Drop rows that were overwritten, or whose frames were, also on the device."""
        oldest_frame = self._frame_count - self._max_frames
        first = max(self._first_row, self._row_count - self._max_rows)
        while first < self._row_count and self._row_oldest[first % self._max_rows] < oldest_frame:
            first += 1
        self._first_row = first
        self._start.fill_(first % self._max_rows * self.num_envs)
        self._size.fill_(len(self))

    # -- sampling --------------------------------------------------------------------------------------------

    def sample(self, batch_size: int, generator: torch.Generator) -> Batch:
        """A uniform batch, with replacement. `generator` must live on the replay's device."""
        return self.gather(self.sample_indices(batch_size, generator))

    def sample_indices(self, batch_size: int, generator: torch.Generator) -> Tensor:
        """Places (B,) of uniformly drawn transitions; never waits for the device.

        62 random bits modulo the size: a bias below 1e-12, where float32 draws over 500,000 show theirs.
        """
        if len(self) == 0:
            raise InvalidValueError("replay: nothing to sample yet")
        bits = torch.randint(1 << 62, (batch_size,), generator=generator, device=self.device)
        return (self._start + bits % self._size) % self.capacity

    def gather(self, indices: Tensor) -> Batch:
        """The transitions that begin at `indices` (B,), as `sample_indices` gives them."""
        if self.n_steps > 1:
            return self._gather_steps(indices)
        slots = self._slots.index_select(0, indices)  # (B, stack + 1)
        return Batch(
            obs=self._stacks(slots[:, :-1]),
            action=self._action.index_select(0, indices),
            reward=self._reward.index_select(0, indices),
            discount=self._discount.index_select(0, indices),
            next_obs=self._stacks(slots[:, 1:]),
        )

    def _gather_steps(self, indices: Tensor) -> Batch:
        """Transitions of up to n steps. Those of the rows written last end at the newest observation."""
        ahead = torch.arange(self.n_steps, device=self.device) * self.num_envs  # (n,)
        places = (indices[:, None] + ahead) % self.capacity  # (B, n)
        slots = self._slots[places]  # (B, n, stack + 1)
        stored = (indices - self._start)[:, None] % self.capacity + ahead < self._size
        continues = (slots[:, :-1, -1] == slots[:, 1:, -2]) & stored[:, 1:]  # (B, n - 1): into the next step
        taken = torch.cat([torch.ones_like(stored[:, :1]), continues.cumprod(dim=1).bool()], dim=1)  # (B, n)
        discounts = torch.where(taken, self._discount[places], 1.0).cumprod(dim=1)
        rewards = torch.where(taken, self._reward[places], 0.0)
        last = taken.sum(dim=1)[:, None, None] - 1
        return Batch(
            obs=self._stacks(slots[:, 0, :-1]),
            action=self._action.index_select(0, indices),
            reward=rewards[:, 0] + (discounts[:, :-1] * rewards[:, 1:]).sum(dim=1),
            discount=discounts[:, -1].clone(),
            next_obs=self._stacks(slots.take_along_dim(last, dim=1)[:, 0, 1:]),
        )

    def _stacks(self, slots: Tensor) -> Tensor:
        channels, height, width = self.frame_shape
        frames = self._frames.index_select(0, slots.reshape(-1))  # (B * stack, C, H, W)
        return frames.view(len(slots), self.stack * channels, height, width)

    # -- state in memory -------------------------------------------------------------------------------------

    def config(self) -> dict[str, Any]:
        """The arguments that make an empty replay like this one, as plain values, without the device."""
        return {
            "capacity": self.capacity,
            "num_envs": self.num_envs,
            "frame_shape": list(self.frame_shape),
            "action_shape": list(self.action_shape),
            "action_dtype": str(self.action_dtype).removeprefix("torch."),
            "stack": self.stack,
            "discount": self.discount,
            "shortest_episode": self.shortest_episode,
            "n_steps": self.n_steps,
        }

    def state_dict(self) -> dict[str, Any]:
        """The state for sampling and filling: tensors on the host (the filled part), plain values."""
        counters = self._counters()
        return {
            "config": self.config(),
            **counters,
            "frames": self._read_frames(counters["first_frame"], self._frame_count),
            **self._read_rows(self._first_row, self._row_count),
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore `state_dict`: the same generator then gives the same samples."""
        if {"n_steps": 1, **state["config"]} != self.config():  # older states have no n_steps
            raise InvalidValueError(f"replay: state of {state['config']} does not fit {self.config()}")
        self._put_frames(state["first_frame"], state["frames"])
        self._put_rows(state["first_row"], state)
        self._set_counters(state)

    def _counters(self) -> dict[str, Any]:
        return {
            "first_frame": self._oldest_frame(),
            "frame_count": self._frame_count,
            "first_row": self._first_row,
            "row_count": self._row_count,
            "newest": self._newest.tolist(),
            "running": self._running,
        }

    def _set_counters(self, state: dict[str, Any]) -> None:
        self._frame_count = int(state["frame_count"])
        self._first_row = int(state["first_row"])
        self._row_count = int(state["row_count"])
        self._newest = np.array(state["newest"], dtype=np.int64).reshape(self.num_envs, self.stack)
        self._running = bool(state["running"])
        self._saved = None
        self._move_window()

    def _oldest_frame(self) -> int:
        """Number of the oldest frame that a stored or a coming transition needs."""
        oldest = int(self._newest.min()) if self._running else self._frame_count
        if len(self):
            oldest = min(oldest, int(self._row_oldest[self._first_row % self._max_rows]))
        return oldest

    def _read_frames(self, first: int, end: int) -> Tensor:
        """Copies of frames number `first` to `end` (exclusive), in order, on the host."""
        slot = first % self._max_frames
        over = max(0, slot + end - first - self._max_frames)  # how many lie beyond the ring's end
        head = self._frames[slot : slot + end - first - over]
        return torch.cat([head, self._frames[:over]]).cpu()

    def _read_rows(self, first: int, end: int) -> dict[str, Tensor]:
        """Rows `first` to `end` (exclusive), in order, on the host; frames by number, not by slot."""
        places = self._places(first, end)
        last = self._frame_count - 1
        slots = self._slots.index_select(0, places).cpu()
        return {
            "numbers": last - (last - slots) % self._max_frames,  # the newest frame written to that slot
            "action": self._action.index_select(0, places).cpu(),
            "reward": self._reward.index_select(0, places).cpu(),
            "discount": self._discount.index_select(0, places).cpu(),
        }

    def _put_rows(self, first: int, rows: dict[str, Tensor]) -> None:
        numbers = rows["numbers"]
        end = first + len(numbers) // self.num_envs
        if first == end:
            return
        oldest = numbers.view(end - first, -1).amin(dim=1)
        self._row_oldest[np.arange(first, end) % self._max_rows] = oldest.numpy()
        places = self._places(first, end)
        self._slots[places] = (numbers % self._max_frames).to(self.device)
        self._action[places] = rows["action"].to(self.device)
        self._reward[places] = rows["reward"].to(self.device)
        self._discount[places] = rows["discount"].to(self.device)

    def _places(self, first: int, end: int) -> Tensor:
        """Where the transitions of rows `first` to `end` (exclusive) lie in the ring."""
        return torch.arange(first * self.num_envs, end * self.num_envs, device=self.device) % self.capacity

    # -- state on disk ---------------------------------------------------------------------------------------

    def save(self, folder: str | Path, tag: str = "latest", compression: int = 1) -> None:
        """Write `<folder>/<tag>.replay.json` and chunk files with what the last save to this folder had not.

        Several tags may share a folder (one per checkpoint) and then share chunks; chunks that no tag names
        any more are deleted. A kill at any moment leaves every tag whole. `compression` is zlib's level.
        """
        folder = Path(folder).resolve()
        path = _manifest_path(folder, tag)
        folder.mkdir(parents=True, exist_ok=True)
        counters = self._counters()
        frames: list[_Chunk] = []
        rows: list[_Chunk] = []
        if self._saved and self._saved.folder == folder:
            frames = [chunk for chunk in self._saved.frames if chunk.end > counters["first_frame"]]
            rows = [chunk for chunk in self._saved.rows if chunk.end > self._first_row]
            if not all(chunk.lies_in(folder) for chunk in frames + rows):
                frames, rows = [], []  # the files were deleted: start over

        def write_frames(first: int) -> _Chunk:
            end = min(first + length, self._frame_count)
            raw = self._read_frames(first, end).numpy().tobytes()
            data = zlib.compress(raw, compression) if compression else raw
            return _write_chunk(folder, "frames", first, end, data, "zlib" if compression else "raw")

        length = max(1, CHUNK_BYTES // int(np.prod(self.frame_shape)))
        first = frames[-1].end if frames else counters["first_frame"]
        with ThreadPoolExecutor(_WORKERS) as pool:
            frames += pool.map(write_frames, range(first, self._frame_count, length))
        first = rows[-1].end if rows else self._first_row
        if first < self._row_count:
            data = save_tensors(self._read_rows(first, self._row_count))
            rows.append(_write_chunk(folder, "transitions", first, self._row_count, data, "raw"))

        chunks = {"frames": [c._asdict() for c in frames], "rows": [c._asdict() for c in rows]}
        body = {"format": FORMAT, "config": self.config(), **counters, **chunks}
        write_atomically(path, json.dumps({"sha256": _digest(body), "body": body}, indent=1).encode())
        self._saved = _Saved(folder, frames, rows)
        prune(folder)

    @classmethod
    def load(
        cls,
        folder: str | Path,
        tag: str = "latest",
        device: str | torch.device = "cpu",
        capacity: int = 0,
        expected: Mapping[str, Any] | None = None,
        rows: int | None = None,
        largest: int = 1 << 40,
    ) -> Replay:
        """The replay that `save` wrote, or a larger one, of `capacity`, with the same transitions in it.

        A missing, truncated or altered file is a `DataError` naming it, and so is a replay whose `config` differs from
        what is `expected`, that has not seen this many `rows`, or whose capacity is above `largest`.
        """
        folder = Path(folder).resolve()
        path = _manifest_path(folder, tag)
        body = _read_manifest(path)
        try:
            options = _checked_config(body["config"], expected or {}, largest)
            if rows is not None and body["row_count"] != rows:
                raise ValueError(f"of another step: it has seen {body['row_count']} rows of transitions, not {rows}")
            replay = cls(**{**options, "capacity": max(options["capacity"], capacity), "device": device})
            chunks = replay._checked_chunks(body)
            with ThreadPoolExecutor(_WORKERS) as pool:
                list(pool.map(lambda chunk: replay._load_frames(folder, chunk, body), chunks["frames"]))
            for chunk in chunks["rows"]:
                replay._load_rows(folder, chunk, body)
            replay._set_counters(body)
        except (KeyError, TypeError, ValueError, OverflowError) as error:
            raise DataError(f"{path}: not a replay that belongs here ({line(error)})") from error
        replay._saved = _Saved(folder, chunks["frames"], chunks["rows"])
        return replay

    def _checked_chunks(self, body: dict[str, Any]) -> dict[str, list[_Chunk]]:
        """The lists of chunks, which hold exactly the frames and rows of the counters."""
        chunks = {}
        for key, kind, first, end, most in (
            ("frames", "frames", "first_frame", "frame_count", self._max_frames),
            ("rows", "transitions", "first_row", "row_count", self._max_rows),
        ):
            found = [_Chunk.read_from(values, kind, most) for values in _listed(body[key], key)]
            start = reading.integer(body[first], first)
            stop = reading.integer(body[end], end, start, start + most)
            if not _covers(found, start, stop):
                raise ValueError(f"its chunks do not hold all {kind}")
            chunks[key] = found
        if not isinstance(body["running"], bool):
            raise ValueError(f"running must be true or false, not {body['running']!r}")
        low, high = (body["first_frame"], body["frame_count"] - 1) if body["running"] else (0, 1 << 53)
        newest = _listed(body["newest"], "newest")
        if len(newest) != self.num_envs or any(len(_listed(stack, "newest")) != self.stack for stack in newest):
            raise ValueError(f"newest must have {self.num_envs} stacks of {self.stack} frames")
        for stack in newest:
            numbers = [reading.integer(number, "a frame of newest", low, high) for number in stack]
            if numbers != sorted(numbers):
                raise ValueError("the frames of newest are not in order")
        return chunks

    def check_actions(self, count: int) -> None:
        """Refuse discrete actions that do not exist."""
        if self._action.numel() and not 0 <= int(self._action.min()) <= int(self._action.max()) < count:
            raise DataError(f"the replay has discrete actions that are not from 0 to {count - 1}")

    def fingerprint(self) -> str:
        """A checksum of the counters and the newest rows, by which a checkpoint knows the replay that was saved with
        it."""
        rows = self._read_rows(max(self._first_row, self._row_count - 64), self._row_count)
        digest = hashlib.sha256(repr((self._row_count, self._frame_count, self._newest.tolist())).encode())
        for key in _ROW_KEYS:
            digest.update(rows[key].contiguous().numpy().tobytes())
        return digest.hexdigest()

    def _load_frames(self, folder: Path, chunk: _Chunk, body: dict[str, Any]) -> None:
        data = chunk.read(folder, int(np.prod(self.frame_shape)) * (chunk.end - chunk.first))
        skip = max(0, body["first_frame"] - chunk.first)  # a chunk may begin with frames nobody needs
        frames = torch.frombuffer(bytearray(data), dtype=torch.uint8).view(-1, *self.frame_shape)
        self._put_frames(chunk.first + skip, frames[skip:])

    def _load_rows(self, folder: Path, chunk: _Chunk, body: dict[str, Any]) -> None:
        path, count = folder / chunk.file, (chunk.end - chunk.first) * self.num_envs
        expected = {
            "numbers": TensorInfo(torch.int64, (count, self.stack + 1)),
            "action": TensorInfo(self.action_dtype, (count, *self.action_shape)),
            "reward": TensorInfo(torch.float32, (count,)),
            "discount": TensorInfo(torch.float32, (count,)),
        }
        size = sum(math.prod(info.shape) * 8 for info in expected.values())
        rows = reading.unpack(chunk.content(folder, size + (1 << 16)), path, expected)
        skip = max(0, body["first_row"] - chunk.first)
        rows = {key: rows[key][skip * self.num_envs :] for key in _ROW_KEYS}
        numbers, discount = rows["numbers"], rows["discount"]
        low, high = (int(limit) for limit in numbers.aminmax())
        if low < body["first_frame"] or high >= body["frame_count"] or (numbers.diff(dim=1) < 0).any():
            raise DataError(f"{path}: transitions of frames that are not there")
        if not all(rows[key].isfinite().all() for key in ("action", "reward")):
            raise DataError(f"{path}: actions or rewards that are not finite")
        if not ((discount >= 0) & (discount <= 1)).all():
            raise DataError(f"{path}: discounts that are not between 0 and 1")
        self._put_rows(chunk.first + skip, rows)


def is_whole(folder: str | Path, tag: str) -> bool:
    """Whether all files of a tag are there and undamaged."""
    folder = Path(folder)
    try:
        body = _read_manifest(_manifest_path(folder, tag))
        for key, kind in (("frames", "frames"), ("rows", "transitions")):
            for values in _listed(body[key], key):
                _Chunk.read_from(values, kind).content(folder)
    except (DataError, KeyError, TypeError, ValueError):
        return False
    return True


def prune(folder: str | Path, keep: Iterable[str] | None = None) -> None:
    """Remove the tags of `folder` that are not in `keep` (None: keep all), and chunks without a tag."""
    folder = Path(folder)
    if keep is not None:
        kept = {_manifest_path(folder, tag) for tag in keep}
        for path in set(folder.glob("*" + MANIFEST)) - kept:
            path.unlink()
    named: set[str] = set()
    for path in folder.glob("*" + MANIFEST):
        try:
            body = _read_manifest(path)
            named.update(chunk["file"] for key in ("frames", "rows") for chunk in body[key])
        except (DataError, KeyError, TypeError):
            return  # what a damaged list needs is unknown: delete nothing
    for path in folder.iterdir():
        name = path.name.removesuffix(".tmp")
        if name != path.name:
            stale = bool(_CHUNK_NAME.fullmatch(name)) or name.endswith(MANIFEST)
        else:
            stale = bool(_CHUNK_NAME.fullmatch(name)) and name not in named
        if stale:
            path.unlink(missing_ok=True)


_ROW_KEYS = ("numbers", "action", "reward", "discount")


class _Chunk(NamedTuple):
    """One file of frames or rows `first` to `end` (exclusive). Named by its checksum, it never changes."""

    file: str
    first: int
    end: int
    size: int
    sha256: str
    coding: str

    @classmethod
    def read_from(cls, values: Any, kind: str, most: int = 1 << 53) -> _Chunk:
        """A chunk of a list in a file, of at most so many frames or rows."""
        chunk = cls(**reading.mapping(values, "a chunk", cls._fields))
        if not isinstance(chunk.file, str) or not _CHUNK_NAME.fullmatch(chunk.file) or not chunk.file.startswith(kind):
            raise ValueError(f"a chunk of {kind} cannot be named {chunk.file!r}")
        if chunk.coding not in ("raw", "zlib"):
            raise ValueError(f"unknown coding {chunk.coding!r} of {chunk.file}")
        first = reading.integer(chunk.first, f"first of {chunk.file}")
        reading.integer(chunk.end, f"end of {chunk.file}", first + 1, first + most)
        reading.integer(chunk.size, f"size of {chunk.file}")
        reading.sha256(chunk.sha256, f"checksum of {chunk.file}")
        return chunk

    def lies_in(self, folder: Path) -> bool:
        path = folder / self.file
        return path.is_file() and path.stat().st_size == self.size

    def content(self, folder: Path, limit: int | None = None) -> bytes:
        """The verified bytes of the file."""
        path = folder / self.file
        if limit is not None and self.size > limit:
            raise DataError(f"{path}: altered, {self.size} bytes where at most {limit} belong")
        data = reading.read_bytes(path, folder, self.size)
        reading.verify(data, path, self.size, self.sha256)
        return data

    def read(self, folder: Path, length: int) -> bytes:
        """The verified and decoded bytes, which must come to `length`."""
        data = self.content(folder, length + length // 1000 + (1 << 16))  # what cannot be compressed grows a little
        if self.coding == "zlib":
            try:
                data = zlib.decompressobj().decompress(data, length + 1)
            except zlib.error as error:
                raise DataError(f"{folder / self.file}: {error}") from error
        if len(data) != length:
            raise DataError(f"{folder / self.file}: {len(data)} bytes instead of {length}")
        return data


class _Saved(NamedTuple):
    """The state of a folder after the last save or load."""

    folder: Path
    frames: list[_Chunk]
    rows: list[_Chunk]


def _covers(chunks: list[_Chunk], first: int, end: int) -> bool:
    """Whether the chunks follow one another without a gap from `first` or before up to `end`."""
    if not chunks:
        return first == end
    joined = all(a.end == b.first for a, b in pairwise(chunks))
    return joined and chunks[0].first <= first < chunks[0].end and chunks[-1].end == end


def _write_chunk(folder: Path, kind: str, first: int, end: int, data: bytes, coding: str) -> _Chunk:
    sha256 = hashlib.sha256(data).hexdigest()
    name = f"{kind}-{first:012d}-{sha256[:16]}.bin"
    write_atomically(folder / name, data)
    return _Chunk(name, first, end, len(data), sha256, coding)


def _manifest_path(folder: Path, tag: str) -> Path:
    if not _TAG.fullmatch(tag):
        raise InvalidValueError(f"replay: a tag is letters, digits, '_', '-' and '.', got {tag!r}")
    return folder / (tag + MANIFEST)


def _read_manifest(path: Path) -> dict[str, Any]:
    document = reading.read_json(path, path.parent, _MANIFEST_LIMIT)
    try:
        document = reading.mapping(document, "the list of chunks", ("sha256", "body"))
        body = reading.mapping(document["body"], "body")
        if document["sha256"] != _digest(body):
            raise DataError(f"{path}: altered, its checksum differs")
        if body["format"] != FORMAT or isinstance(body["format"], bool):
            raise DataError(f"{path}: format {body['format']!r}, this version reads {FORMAT}")
    except (ValueError, KeyError, TypeError) as error:
        raise DataError(f"{path}: truncated or not a replay's list of chunks ({line(error)})") from error
    return body


def _checked_config(config: Any, expected: Mapping[str, Any], largest: int) -> dict[str, Any]:
    """The arguments of a replay, from a file: of the expected values, and of a capacity of at most `largest`."""
    found = {"n_steps": 1, **reading.mapping(config, "config")}  # older ones have no n_steps
    for name in ("num_envs", "stack", "shortest_episode", "n_steps"):
        reading.integer(found[name], name, 1, 1 << 20)
    reading.integer(found["capacity"], "capacity", 1, largest + found["num_envs"])  # it is rounded up to whole rows
    if not 0 <= reading.number(found["discount"], "discount") <= 1:
        raise ValueError(f"discount must be between 0 and 1, not {found['discount']!r}")
    for name, most in (("frame_shape", 3), ("action_shape", 2)):
        if len(_listed(found[name], name)) > most:
            raise ValueError(f"{name} must have at most {most} sizes")
        found[name] = tuple(reading.integer(size, f"a size of {name}", 1, 1 << 20) for size in found[name])
    if found["action_dtype"] not in _ACTION_DTYPES:
        raise ValueError(f"action_dtype must be one of {', '.join(_ACTION_DTYPES)}, not {found['action_dtype']!r}")
    found["action_dtype"] = _ACTION_DTYPES[found["action_dtype"]]
    for name, value in expected.items():
        if found[name] != value:
            raise ValueError(f"of another configuration: {name} is {found[name]!r}, not {value!r}")
    return found


def _listed(value: Any, what: str) -> list[Any]:
    if not isinstance(value, list):
        raise ValueError(f"{what} must be a list, not a {type(value).__name__}")
    return value


def _digest(body: dict[str, Any]) -> str:
    return hashlib.sha256(json.dumps(body, sort_keys=True).encode()).hexdigest()
