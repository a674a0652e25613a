"""Read files that may be damaged, or made by somebody else: of a bounded size, of known types, checked before use.

Only regular files inside a folder are opened: no pipe, no device, no link that leads out of it. JSON has a bounded
depth and numbers that fit into 64 bits. The header of a safetensors file is checked before memory for its tensors is
allocated.
"""

from __future__ import annotations

import hashlib
import json
import math
import os
import re
import stat
from collections.abc import Iterator, Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple

import safetensors.torch
import torch
from safetensors import SafetensorError
from torch import Tensor

from sgqn.errors import DataError

JSON_LIMIT = 4 << 20
"""Bytes of a JSON file; a configuration has two thousand, the description of an exported agent some ten thousand."""
LOG_LIMIT = 256 << 20
"""Bytes of a log; that of the longest run has less than one million."""
MAX_DEPTH = 32
"""Nested lists and objects; a checkpoint's state has up to ten."""
MAX_CONTAINERS = 2_000_000
"""Lists and objects in a JSON file: even empty ones take a hundred bytes of memory each."""
HEADER_LIMIT = 4 << 20
"""Bytes of the header of a safetensors file; that of an agent has some ten thousand."""

_SHA256 = re.compile(r"[0-9a-f]{64}")
_DTYPES = {
    "BOOL": torch.bool, "U8": torch.uint8, "I8": torch.int8, "I16": torch.int16, "I32": torch.int32,
    "I64": torch.int64, "F16": torch.float16, "BF16": torch.bfloat16, "F32": torch.float32, "F64": torch.float64,
}  # fmt: skip
"""Names of dtypes in the header of a safetensors file. Those of other dtypes stay strings."""


class MissingFileError(DataError):
    """A file that does not exist."""


def line(error: BaseException) -> str:
    """An error as a part of one line."""
    text = " ".join(str(error).split()) or type(error).__name__
    return text if len(text) <= 400 else text[:397] + "..."


# Files


def home(folder: Path) -> str:
    """The real path of what the links of a folder may lead to: the folder itself, or the cache of the Hugging Face Hub,
    whose `snapshots/REVISION/FILE` are links into `blobs`."""
    real = os.path.realpath(folder)
    parent = os.path.dirname(real)
    cache = os.path.dirname(parent)
    is_cache = os.path.basename(parent) == "snapshots" and os.path.isdir(os.path.join(cache, "blobs"))
    return cache if is_cache else real


def check_inside(path: Path, folder: Path) -> str:
    """The real path of a file or folder, which need not exist; a link that leads out of `folder` is a `DataError`."""
    real, root = os.path.realpath(path), home(folder)
    if real != root and not real.startswith(root.rstrip(os.sep) + os.sep):
        raise DataError(f"{path}: a link that leads out of {folder}; replace it by a copy")
    return real


def open_file(path: Path, folder: Path) -> BinaryIO:
    """A regular file inside `folder`, opened for reading. Never waits, as opening a pipe would."""
    real = check_inside(path, folder)
    try:
        if not stat.S_ISREG(os.stat(real).st_mode):  # opening a device may have effects
            raise DataError(f"{path}: not a regular file")
        file = os.fdopen(os.open(real, os.O_RDONLY | os.O_NONBLOCK | os.O_NOFOLLOW | os.O_CLOEXEC), "rb")
    except FileNotFoundError as error:
        raise MissingFileError(f"{path}: missing") from error
    except OSError as error:
        raise DataError(f"{path}: cannot be read ({error.strerror})") from error
    if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
        file.close()
        raise DataError(f"{path}: not a regular file")
    return file


def open_log(path: Path, folder: Path) -> BinaryIO:
    """A regular file inside `folder`, created if need be, to read and append to."""
    real = check_inside(path, folder)
    try:
        flags = os.O_RDWR | os.O_APPEND | os.O_CREAT | os.O_NONBLOCK | os.O_NOFOLLOW | os.O_CLOEXEC
        handle = os.open(real, flags, 0o666)
    except OSError as error:
        raise DataError(f"{path}: cannot be written to ({error.strerror})") from error
    if not stat.S_ISREG(os.fstat(handle).st_mode):
        os.close(handle)
        raise DataError(f"{path}: not a regular file")
    return os.fdopen(handle, "rb+", buffering=0)


def read_bytes(path: Path, folder: Path, limit: int = JSON_LIMIT) -> bytes:
    """The content of a regular file inside `folder` that has at most `limit` bytes."""
    with open_file(path, folder) as file:
        try:
            size = os.fstat(file.fileno()).st_size
            data = file.read(limit + 1) if size <= limit else b""
        except OSError as error:
            raise DataError(f"{path}: cannot be read ({error.strerror})") from error
    if size > limit or len(data) > limit:
        raise DataError(f"{path}: altered, {max(size, len(data))} bytes where at most {limit} belong")
    return data


def read_lines(path: Path, folder: Path) -> Iterator[bytes]:
    """The lines of a log inside `folder`, which need not exist; lines of more than `JSON_LIMIT` bytes are cut."""
    try:
        with open_file(path, folder) as file:
            if (size := os.fstat(file.fileno()).st_size) > LOG_LIMIT:
                raise DataError(f"{path}: {size} bytes, where at most {LOG_LIMIT} belong")
            while found := file.readline(JSON_LIMIT):
                yield found
    except MissingFileError:
        return
    except OSError as error:
        raise DataError(f"{path}: cannot be read ({error.strerror})") from error


# JSON


def parse_json(data: bytes | str, nan: bool = False, wide: bool = False) -> Any:
    """The value in a JSON text; `ValueError` for what is nested too deeply, too large or not a number.

    `nan` allows NaN and infinity, which Python writes although JSON has neither, `wide` integers of more than 64 bits.
    """
    text = data.decode() if isinstance(data, bytes) else data
    if text.count("[") + text.count("{") > MAX_CONTAINERS:
        raise ValueError(f"more than {MAX_CONTAINERS} lists and objects")
    try:
        value = json.loads(text)
    except RecursionError as error:
        raise ValueError("nested too deeply") from error
    _check_values(value, nan, wide)
    return value


def read_json(path: Path, folder: Path, limit: int = JSON_LIMIT, nan: bool = False) -> Any:
    """The value in a JSON file inside `folder`."""
    try:
        return parse_json(read_bytes(path, folder, limit), nan)
    except ValueError as error:
        raise DataError(f"{path}: truncated or not JSON ({line(error)})") from error


def _check_values(value: Any, nan: bool, wide: bool) -> None:
    level = [value]
    for _ in range(MAX_DEPTH):
        below: list[Any] = []
        for one in level:
            if isinstance(one, dict):
                below.extend(one.values())
            elif isinstance(one, list):
                below.extend(one)
            elif isinstance(one, int) and not wide and not -(1 << 63) <= one < 1 << 64:
                raise ValueError("an integer of more than 64 bits")
            elif isinstance(one, float) and not nan and not math.isfinite(one):
                raise ValueError(f"{one} is not a finite number")
        if not below:
            return
        level = below
    raise ValueError("nested too deeply")


def integer(value: Any, what: str, low: int = 0, high: int = (1 << 53)) -> int:
    """An integer from `low` to `high`; anything else is a `ValueError` that calls it `what`."""
    if not isinstance(value, int) or isinstance(value, bool) or not low <= value <= high:
        raise ValueError(f"{what} must be an integer from {low} to {high}, not {_shown(value)}")
    return value


def number(value: Any, what: str) -> float:
    """A finite number."""
    if not isinstance(value, int | float) or isinstance(value, bool) or not math.isfinite(value):
        raise ValueError(f"{what} must be a finite number, not {_shown(value)}")
    return float(value)


def mapping(value: Any, what: str, keys: Sequence[str] | None = None) -> dict[str, Any]:
    """An object, with exactly these keys if any are given."""
    if not isinstance(value, dict) or not all(isinstance(key, str) for key in value):
        raise ValueError(f"{what} must be an object, not {_shown(value)}")
    if keys is not None and value.keys() != set(keys):
        raise ValueError(f"{what} must have {', '.join(sorted(keys))}, not {_shown(sorted(value))}")
    return value


def sha256(value: Any, what: str) -> str:
    """A checksum as it is written in a file."""
    if not isinstance(value, str) or not _SHA256.fullmatch(value):
        raise ValueError(f"{what} must be a SHA-256 checksum, not {_shown(value)}")
    return value


def tensor(value: Any, what: str, shape: Sequence[int], dtype: torch.dtype) -> Tensor:
    """A tensor of this shape and dtype, finite if it holds floating point numbers."""
    if not isinstance(value, Tensor) or value.shape != tuple(shape) or value.dtype != dtype:
        found = f"{value.dtype} {(*value.shape,)}" if isinstance(value, Tensor) else type(value).__name__
        raise ValueError(f"{what} must be {dtype} {(*shape,)}, not {found}")
    if value.is_floating_point() and not value.isfinite().all():
        raise ValueError(f"{what} is not finite")
    return value


def _shown(value: Any) -> str:
    text = repr(value) if not isinstance(value, dict | list) or len(value) < 20 else type(value).__name__
    return text if len(text) <= 60 else text[:57] + "..."


# Tensors


class TensorInfo(NamedTuple):
    """What the header of a safetensors file says about a tensor."""

    dtype: torch.dtype | str
    shape: tuple[int, ...]

    def __str__(self) -> str:
        return f"{self.dtype} {self.shape}"


class TensorFile:
    """A safetensors file inside `folder`, whose header is read first; `load` reads and verifies the rest."""

    def __init__(self, path: Path, folder: Path, size: int, checksum: str):
        self.path, self.folder, self.size, self.checksum = path, folder, size, checksum

    @cached_property
    def header(self) -> dict[str, TensorInfo]:
        """Dtype and shape of each tensor; they account for every byte of the file."""
        with open_file(self.path, self.folder) as file:
            found = os.fstat(file.fileno()).st_size
            if found != self.size:
                raise DataError(f"{self.path}: truncated or altered, {found} bytes instead of {self.size}")
            length = int.from_bytes(file.read(8), "little")
            if not 2 <= length <= min(HEADER_LIMIT, found - 8):
                raise DataError(f"{self.path}: not a safetensors file (a header of {length} bytes)")
            data = file.read(length)
        try:
            return _parse_header(data, self.size - 8 - length)
        except ValueError as error:
            raise DataError(f"{self.path}: not a safetensors file ({line(error)})") from error

    def check(self) -> None:
        """Compare the file with its checksum, without having all of it in memory."""
        assert self.header is not None
        digest = hashlib.sha256()
        with open_file(self.path, self.folder) as file:
            while block := file.read(1 << 20):
                digest.update(block)
        if digest.hexdigest() != self.checksum:
            raise DataError(f"{self.path}: altered, its checksum differs")

    def load(self) -> dict[str, Tensor]:
        """The tensors, read once and only if they are those of the checksum."""
        expected = self.header
        data = read_bytes(self.path, self.folder, self.size)
        verify(data, self.path, self.size, self.checksum)
        return unpack(data, self.path, expected)


def verify(data: bytes, path: Path, size: int, checksum: str) -> None:
    """Compare the content of a file with the size and checksum that are written elsewhere."""
    if len(data) != size:
        raise DataError(f"{path}: truncated or altered, {len(data)} bytes instead of {size}")
    if hashlib.sha256(data).hexdigest() != checksum:
        raise DataError(f"{path}: altered, its checksum differs")


def unpack(data: bytes, path: Path, expected: Mapping[str, TensorInfo] | None = None) -> dict[str, Tensor]:
    """The tensors in the content of a safetensors file, which are the `expected` ones by name, dtype and shape."""
    try:
        length = int.from_bytes(data[:8], "little")
        header = _parse_header(data[8 : 8 + length], len(data) - 8 - length)
        if expected is not None and (wrong := difference(header, expected)):
            raise ValueError(wrong)
        return safetensors.torch.load(data)
    except (SafetensorError, ValueError, KeyError, TypeError, RuntimeError) as error:
        raise DataError(f"{path}: not a safetensors file that belongs here ({line(error)})") from error


def difference(found: Mapping[str, TensorInfo], expected: Mapping[str, TensorInfo]) -> str | None:
    """The first difference between two headers, None if they are the same."""
    if missing := expected.keys() - found.keys():
        return f"{min(missing)} is missing"
    if more := found.keys() - expected.keys():
        return f"{min(more)} does not belong there"
    for name, info in expected.items():
        if found[name] != info:
            return f"{name} is {found[name]}, not {info}"
    return None


def described(tensors: Mapping[str, Tensor]) -> dict[str, TensorInfo]:
    """What the header of a file of these tensors says."""
    return {name: TensorInfo(value.dtype, tuple(value.shape)) for name, value in tensors.items()}


def not_finite(weights: Mapping[str, Tensor]) -> str | None:
    """Which of the weights are NaN or infinite, None if all are finite."""
    broken = (name for name, tensor in weights.items() if not tensor.isfinite().all())
    return next((f"{name} has weights that are NaN or infinite" for name in broken), None)


def check_finite(weights: Mapping[str, Tensor], origin: object) -> None:
    """Refuse weights that are NaN or infinite."""
    if broken := not_finite(weights):
        raise DataError(f"{origin}: {broken}")


def _parse_header(data: bytes, length: int) -> dict[str, TensorInfo]:
    """The header of a safetensors file that has `length` bytes of tensors."""
    values = mapping(parse_json(data), "the header")
    values.pop("__metadata__", None)
    found: dict[str, TensorInfo] = {}
    spans = []
    for name, about in values.items():
        if not isinstance(about, dict) or about.keys() != {"dtype", "shape", "data_offsets"}:
            raise ValueError(f"{name} is not described")
        dtype, shape, offsets = about["dtype"], about["shape"], about["data_offsets"]
        if not isinstance(dtype, str) or not isinstance(shape, list) or not isinstance(offsets, list):
            raise ValueError(f"{name} is not described")
        sizes = tuple(integer(size, f"a size of {name}") for size in shape)
        first, end = (integer(offset, f"an offset of {name}", 0, length) for offset in offsets)
        kind = _DTYPES.get(dtype, dtype)
        if isinstance(kind, torch.dtype) and end - first != math.prod(sizes) * kind.itemsize:
            raise ValueError(f"{name} of {kind} {sizes} has {end - first} bytes")
        found[name] = TensorInfo(kind, sizes)
        spans.append((first, end))
    position = 0
    for first, end in sorted(spans):
        if first != position or end < first:
            raise ValueError("its tensors overlap or leave gaps")
        position = end
    if position != length:
        raise ValueError(f"{length} bytes of tensors where {position} belong")
    return found
