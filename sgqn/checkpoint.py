"""Checkpoints: atomic, verified, free of pickle.

    <run>/checkpoints/step_000100000/
      weights.safetensors    the agent's module state dict, names as in the module
      state.json             all the rest as a tree of plain values; "$..." objects are what JSON lacks (see `_Encoder`)
      state.safetensors      the tensors and arrays of that tree, named by their place in it
      manifest.json          format, step, versions, size and SHA-256 of the other files, and its own SHA-256

A folder of that name is always whole: it is written under another name, flushed to the disk and renamed. Replacing a
step moves the old folder aside (suffix `.old`) for an instant; should the process die in that instant, the old folder
still counts as that step's checkpoint.

Checksums find damage, not forgery: somebody who also rewrites the manifest can store other numbers, but never code.
Files are read by `sgqn.reading`: what does not belong into a checkpoint is refused before memory for it is allocated.
"""

from __future__ import annotations

import fcntl
import functools
import hashlib
import json
import math
import os
import re
import shutil
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import safetensors.torch
import torch
from torch import Tensor

import sgqn
from sgqn import reading
from sgqn.device import total_memory
from sgqn.errors import DataError, InvalidValueError
from sgqn.reading import TensorFile, TensorInfo, line

FORMAT = 1
FOLDER = "checkpoints"
WEIGHTS, STATE, TENSORS, MANIFEST = "weights.safetensors", "state.json", "state.safetensors", "manifest.json"

_FILES = (WEIGHTS, STATE, TENSORS)
_MANIFEST_LIMIT = 1 << 20  # bytes; a real one has less than one thousand
_STATE_LIMIT = 100 << 20  # bytes; gym environments keep the actions of their episodes
_STEP = re.compile(r"step_(\d{9,})(\.old)?", re.ASCII)
_OLD = ".old"
_TEMPORARY = ".tmp-"
_ARRAY_KINDS = "biufcSUMm"  # numpy's kinds of plain bytes: no objects, no structures


class Checkpoint(NamedTuple):
    """What `load` returns, as it was given to `save`."""

    step: int
    weights: dict[str, Tensor]
    state: dict[str, Any]
    metadata: dict[str, Any]


# -- saving --------------------------------------------------------------------------------------------------------


def save(
    run: str | Path,
    step: int,
    *,
    weights: Mapping[str, Tensor],
    state: Mapping[str, Any],
    metadata: Mapping[str, Any] | None = None,
    keep: int | None = None,
    replaces: Iterable[Path] = (),
) -> Path:
    """Write the checkpoint of `step` into the folder `run`, all or nothing; returns its folder.

    `state` and `metadata` nest dicts, lists and tuples of tensors, numpy arrays, numbers, strings, bools and None.
    With `keep`, only this checkpoint and the `keep - 1` before it stay; later steps do too, unless `replaces` names
    them: the checkpoints that a run which went back to an earlier one makes again. They go once this one is written.
    """
    if keep is not None and keep < 1:
        raise InvalidValueError(f"checkpoint: keep must be at least 1, got {keep!r}")
    target = Path(run) / FOLDER / name(step)
    files = _serialise(step, weights, state, metadata or {})
    try:
        _make_folder(target.parent)
        with _lock(target.parent):
            _tidy(target.parent)
            _write(target, files)
            for path in replaces:
                if step_of(path) != step:
                    _discard(path)
            if keep is not None:
                _prune(Path(run), step, keep)
    except OSError as error:
        reason = error.strerror or error
        raise DataError(f"{target}: cannot be saved ({reason}); earlier checkpoints are untouched") from error
    return target


def name(step: int) -> str:
    """The name of a step's checkpoint folder; also a good tag for what is stored elsewhere with it (the replay)."""
    if step < 0:
        raise InvalidValueError(f"checkpoint: step must be at least 0, got {step!r}")
    return f"step_{step:09d}"


def _serialise(
    step: int, weights: Mapping[str, Tensor], state: Mapping[str, Any], metadata: Mapping[str, Any]
) -> dict[str, bytes]:
    """The checkpoint's files as bytes; fails before anything touches the disk."""
    encoder = _Encoder()
    try:
        tree = json.dumps(encoder.encode({"metadata": metadata, "state": state}, ""), allow_nan=False)
    except RecursionError as error:
        raise InvalidValueError("checkpoint: the state is nested too deeply, or holds itself") from error
    except ValueError as error:  # an integer of thousands of digits
        raise InvalidValueError(f"checkpoint: the state cannot be written as JSON ({error})") from error
    files = {
        WEIGHTS: _pack({key: _host_copy(value, f"weights[{key!r}]") for key, value in weights.items()}),
        STATE: tree.encode(),
        TENSORS: _pack(encoder.tensors),
    }
    manifest: dict[str, Any] = {
        "format": FORMAT,
        "step": step,
        "versions": {"sgqn": sgqn.__version__, "torch": torch.__version__},
        "files": {key: {"size": len(data), "sha256": _sha256(data)} for key, data in files.items()},
    }
    manifest["sha256"] = _digest(manifest)
    files[MANIFEST] = json.dumps(manifest, indent=1).encode()
    return files


def _pack(tensors: Mapping[str, Tensor]) -> bytes:
    if "__metadata__" in tensors:
        raise InvalidValueError("checkpoint: safetensors keeps the name '__metadata__' for itself")
    return safetensors.torch.save(dict(tensors), metadata={"format": "pt"})


def _host_copy(tensor: Any, where: str) -> Tensor:
    """A contiguous copy on the host that shares memory with nothing, as safetensors wants it."""
    if not isinstance(tensor, Tensor):
        raise InvalidValueError(f"checkpoint: {where} must be a tensor, got {type(tensor).__name__}")
    if tensor.layout != torch.strided or tensor.is_meta or not _storable(tensor.dtype):
        kind = f"{tensor.dtype} {tensor.layout} on {tensor.device}"
        raise InvalidValueError(f"checkpoint: {where} cannot be stored as safetensors ({kind})")
    return tensor.detach().cpu().clone(memory_format=torch.contiguous_format)


@functools.cache
def _storable(dtype: torch.dtype) -> bool:
    try:
        return bool(safetensors.torch.save({"": torch.empty(0, dtype=dtype)}))
    except (KeyError, ValueError, RuntimeError):
        return False


class _Encoder:
    """Turns nested state into JSON values and collects its tensors and arrays under names that tell their place.

    What JSON lacks becomes an object with one key that begins with "$": `$tuple`, `$float` (nan, inf), `$tensor`,
    `$numpy` (bytes, with dtype and shape) and `$items` (a dict with keys that are not plain strings).
    """

    def __init__(self) -> None:
        self.tensors: dict[str, Tensor] = {}

    def encode(self, value: Any, where: str) -> Any:
        if isinstance(value, Tensor):
            node: dict[str, Any] = {"$tensor": self._add(_host_copy(value, where), where)}
            return node if value.device.type == "cpu" else {**node, "accelerator": True}
        if isinstance(value, np.ndarray | np.generic):  # before float: np.float64 is one
            return self._array(value, where)
        if isinstance(value, float) and not math.isfinite(value):
            return {"$float": repr(float(value))}
        if value is None or isinstance(value, bool | int | float | str):
            return value
        if isinstance(value, Mapping):
            return self._mapping(value, where)
        if isinstance(value, list | tuple):
            nodes = [self.encode(item, f"{where}.{i}") for i, item in enumerate(value)]
            return nodes if isinstance(value, list) else {"$tuple": nodes}
        kinds = "tensors, numpy arrays, numbers, strings, bools, None, and dicts, lists and tuples of them"
        raise InvalidValueError(f"checkpoint: {where.lstrip('.')} is a {type(value).__name__}; it can hold {kinds}")

    def _mapping(self, value: Mapping[Any, Any], where: str) -> dict[str, Any]:
        nodes = [(key, self.encode(item, f"{where}.{key}")) for key, item in value.items()]
        if all(type(key) is str and not key.startswith("$") for key, _ in nodes):
            return dict(nodes)
        for key, _ in nodes:
            if isinstance(key, Tensor):
                raise InvalidValueError(f"checkpoint: {where.lstrip('.')} has a tensor as a key")
        return {"$items": [[self.encode(key, f"{where}.key"), node] for key, node in nodes]}

    def _array(self, value: np.ndarray | np.generic, where: str) -> dict[str, Any]:
        array = np.asarray(value)
        if array.dtype.kind not in _ARRAY_KINDS:
            raise InvalidValueError(f"checkpoint: {where.lstrip('.')} is an array of {array.dtype}: not plain numbers")
        data = torch.from_numpy(np.frombuffer(array.tobytes(), dtype=np.uint8).copy())
        node = {"$numpy": self._add(data, where), "dtype": array.dtype.str, "shape": list(array.shape)}
        return node if isinstance(value, np.ndarray) else {**node, "scalar": True}

    def _add(self, tensor: Tensor, where: str) -> str:
        key = where.lstrip(".").encode("ascii", "backslashreplace").decode()
        while key in self.tensors:  # {"a.b": x, "a": {"b": y}}
            key += "'"
        self.tensors[key] = tensor
        return key


def _make_folder(folder: Path) -> None:
    if not folder.is_dir():
        folder.mkdir(parents=True, exist_ok=True)
        _flush(folder.parent)


@contextmanager
def _lock(folder: Path) -> Iterator[None]:
    """One saver at a time, so that any temporary folder seen inside is a dead process's. Best effort: some network
    file systems have no such lock."""
    handle = os.open(folder, os.O_RDONLY)
    try:
        with suppress(OSError):
            fcntl.flock(handle, fcntl.LOCK_EX)
        yield
    finally:
        with suppress(OSError):
            fcntl.flock(handle, fcntl.LOCK_UN)  # closing alone would not do, had another thread forked meanwhile
        os.close(handle)


def _tidy(folder: Path) -> None:
    """Finish what a killed process left: remove its temporary folders, put back the folder that it moved away."""
    for path in list(folder.iterdir()):
        if path.name.startswith(_TEMPORARY):
            shutil.rmtree(path, ignore_errors=True)
        elif _STEP.fullmatch(path.name) and path.name.endswith(_OLD):
            target = path.with_name(path.name.removesuffix(_OLD))
            if _is_complete(target):
                _discard(path)
            else:
                _discard(target)
                path.rename(target)


def _write(target: Path, files: Mapping[str, bytes]) -> None:
    """Write the folder under another name, flush it to the disk and rename it, with the old one in reach throughout."""
    temporary = target.with_name(f"{_TEMPORARY}{target.name}-{os.getpid()}")
    old = target.with_name(target.name + _OLD)
    try:
        temporary.mkdir()
        for key, data in files.items():
            with open(temporary / key, "wb") as file:
                file.write(data)
                file.flush()
                os.fsync(file.fileno())
        _flush(temporary)
        if target.exists():
            target.rename(old)
        temporary.rename(target)
        _flush(target.parent)
    finally:
        if temporary.exists():
            shutil.rmtree(temporary, ignore_errors=True)
    _discard(old)


def _prune(run: Path, step: int, keep: int) -> None:
    older = [path for path in list_checkpoints(run) if step_of(path) < step]
    for path in older[: max(0, len(older) - (keep - 1))]:
        _discard(path)


def _discard(folder: Path) -> None:
    """Remove a checkpoint that is not needed any more; renamed first, it is never seen half gone."""
    doomed = folder.with_name(f"{_TEMPORARY}{folder.name}-gone")
    with suppress(OSError):
        folder.rename(doomed)
        shutil.rmtree(doomed)


def _flush(folder: Path) -> None:
    """Make a folder's entries survive a power cut."""
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


# -- finding -------------------------------------------------------------------------------------------------------


def step_of(checkpoint: str | Path) -> int:
    """The step that a checkpoint folder's name tells."""
    match = _STEP.fullmatch(Path(checkpoint).name)
    if not match:
        raise InvalidValueError(f"{checkpoint}: a checkpoint folder is named like {name(100_000)}")
    return int(match[1])


def list_checkpoints(run: str | Path) -> list[Path]:
    """The checkpoint folders of a run in the order of steps: those with a manifest, not verified further."""
    folder = Path(run) / FOLDER
    found: dict[int, Path] = {}
    for path in sorted(folder.glob("step_*")):  # "step_X" comes before "step_X.old" and wins
        if _STEP.fullmatch(path.name) and _is_complete(path):
            found.setdefault(step_of(path), path)
    return [found[step] for step in sorted(found)]


def newest_good(run: str | Path) -> Path | None:
    """The newest checkpoint of a run that passes every check of `load`, or None."""
    return _newest_good(list_checkpoints(run))


def run_of(path: str | Path) -> Path | None:
    """The folder of the run that a checkpoint folder, which need not be complete, belongs to; None for other paths."""
    path = Path(os.path.abspath(path))
    return path.parent.parent if path.parent.name == FOLDER and _STEP.fullmatch(path.name) else None


def find(path: str | Path) -> Path:
    """The checkpoint that `path` means: a checkpoint folder itself, or the newest complete one of a run's folder."""
    path = Path(path)
    if not path.is_dir():
        what = "not a folder" if path.exists() else "no such folder"
        raise DataError(f"{path}: {what}; expected a run's folder or one of its checkpoints")
    if _is_complete(path):
        return path
    if _STEP.fullmatch(path.name):
        raise DataError(f"{path / MANIFEST}: missing, the checkpoint is incomplete{_hint(path)}")
    checkpoints = list_checkpoints(path.parent if path.name == FOLDER else path)
    if not checkpoints:
        below = sorted({found.parents[2] for found in path.glob(f"*/{FOLDER}/*/{MANIFEST}")})
        wanted = (
            f"did you mean {below[0]}?" if below else f"expected a run's folder ({FOLDER}/{name(100_000)}/{MANIFEST})"
        )
        raise DataError(f"{path}: no checkpoint here; {wanted}")
    return checkpoints[-1]


def _is_complete(path: Path) -> bool:
    """Whether there is a manifest. A pipe or a broken link counts: reading it reports the damage."""
    return os.path.lexists(path / MANIFEST)


def _newest_good(checkpoints: list[Path]) -> Path | None:
    for path in reversed(checkpoints):
        with suppress(DataError):
            opened = Opened(path)
            opened.tensors.check()
            opened.load_weights()
            return path
    return None


def _hint(checkpoint: Path) -> str:
    """What to say after the failure of a checkpoint: which older one of the same run is good."""
    run = run_of(checkpoint)
    if run is None:
        return ""
    older = _newest_good([path for path in list_checkpoints(run) if step_of(path) < step_of(checkpoint)])
    return f"; use {older} instead" if older else ""


# -- loading -------------------------------------------------------------------------------------------------------

Fits = Callable[[Mapping[str, TensorInfo]], None]
"""Raises an error unless these names, dtypes and shapes are those of the expected weights."""


class Opened:
    """A checkpoint whose manifest and state.json were read and verified. Its tensors are read by `load`."""

    def __init__(self, checkpoint: str | Path):
        self.folder = Path(checkpoint)
        self.root = run_of(self.folder) or self.folder
        manifest = _read_manifest(self.folder / MANIFEST, self.root)
        self.step: int = manifest["step"]
        if _STEP.fullmatch(self.folder.name) and step_of(self.folder) != self.step:
            raise DataError(f"{self.folder}: renamed, it is the checkpoint of step {self.step}")
        files = {key: (about["size"], about["sha256"]) for key, about in manifest["files"].items()}
        self.weights, self.tensors = (
            TensorFile(self.folder / key, self.root, *files[key]) for key in (WEIGHTS, TENSORS)
        )
        self._tree = self._read_tree(*files[STATE])

    def _read_tree(self, size: int, checksum: str) -> dict[str, Any]:
        path = self.folder / STATE
        data = reading.read_bytes(path, self.root, min(size, _STATE_LIMIT))
        reading.verify(data, path, size, checksum)
        try:
            return reading.mapping(reading.parse_json(data, wide=True), "the state", ("metadata", "state"))
        except ValueError as error:
            raise DataError(f"{path}: not a checkpoint's state ({line(error)})") from error

    @property
    def metadata(self) -> dict[str, Any]:
        """The metadata of a checkpoint that has no tensors in it."""
        return self._decoded("metadata", _Decoder({}, torch.device("cpu")))

    def load_weights(self, fits: Fits | None = None) -> dict[str, Tensor]:
        """The weights, on the host; NaN and infinity are refused."""
        if fits is not None:
            fits(self.weights.header)
        self._check_size(self.weights)
        weights = self.weights.load()
        reading.check_finite(weights, self.folder)
        return weights

    def load(
        self, device: str | torch.device = "cpu", fits: Fits | None = None, limit: int | None = None
    ) -> Checkpoint:
        """All of it; see `load`."""
        weights = self.load_weights(fits)
        self._check_size(self.tensors, limit)
        decoder = _Decoder(self.tensors.load(), torch.device(device))
        state, metadata = (self._decoded(key, decoder) for key in ("state", "metadata"))
        if left := decoder.tensors.keys() - decoder.used:
            raise DataError(f"{self.tensors.path}: {min(left)} does not belong there")
        return Checkpoint(self.step, {key: value.to(device) for key, value in weights.items()}, state, metadata)

    def _decoded(self, key: str, decoder: _Decoder) -> dict[str, Any]:
        try:
            decoded = decoder.decode(self._tree[key])
            if not isinstance(decoded, dict):
                raise ValueError(f"{key} must be an object, not a {type(decoded).__name__}")
            return decoded
        except (ValueError, KeyError, TypeError, OverflowError) as error:
            raise DataError(f"{self.folder / STATE}: not a checkpoint's state ({line(error)})") from error

    def _check_size(self, file: TensorFile, limit: int | None = None) -> None:
        limit = total_memory(torch.device("cpu")) // 4 if limit is None else limit
        if file.size > limit:
            raise DataError(f"{file.path}: {file.size} bytes, where at most {limit} belong")


@contextmanager
def _hinted(checkpoint: Path) -> Iterator[None]:
    try:
        yield
    except DataError as error:
        raise DataError(f"{error}{_hint(checkpoint)}") from error


def open_checkpoint(checkpoint: str | Path) -> Opened:
    """Read the manifest and the metadata of a checkpoint folder, to decide whether and how to load the rest."""
    with _hinted(Path(checkpoint)):
        opened = Opened(checkpoint)
        opened.weights.header  # noqa: B018  # read now, so that an error offers another checkpoint
        return opened


def load_weights(opened: Opened, fits: Fits | None = None) -> dict[str, Tensor]:
    """The weights alone, on the host."""
    with _hinted(opened.folder):
        return opened.load_weights(fits)


def load(
    checkpoint: str | Path | Opened,
    device: str | torch.device = "cpu",
    fits: Fits | None = None,
    limit: int | None = None,
) -> Checkpoint:
    """Read a checkpoint folder (see `find`); a missing, damaged or foreign file is a `DataError` that names it.

    Weights go to `device`, and so do those tensors of the state that an accelerator held when they were saved; others
    (random states, observations) stay on the host, where their owners expect them. `fits` looks at the names, dtypes
    and shapes of the weights before they are read. `limit` is the largest size of the state's tensors, in bytes.
    """
    folder = checkpoint.folder if isinstance(checkpoint, Opened) else Path(checkpoint)
    with _hinted(folder):
        opened = checkpoint if isinstance(checkpoint, Opened) else Opened(folder)
        return opened.load(device, fits, limit)


def _read_manifest(path: Path, root: Path) -> dict[str, Any]:
    """The manifest, checked: this format, its own checksum, and exactly the files of a checkpoint."""
    manifest = reading.read_json(path, root, _MANIFEST_LIMIT)
    try:
        manifest = reading.mapping(manifest, "the manifest")
        version, digest = manifest["format"], manifest.pop("sha256")
        if version != FORMAT or isinstance(version, bool):
            raise DataError(f"{path}: format {version!r}, this version reads {FORMAT}")
        if digest != _digest(manifest):
            raise DataError(f"{path}: altered, its checksum differs")
        reading.mapping(manifest, "the manifest", ("format", "step", "versions", "files"))
        reading.integer(manifest["step"], "step")
        if sorted(reading.mapping(manifest["files"], "files")) != sorted(_FILES):
            raise DataError(f"{path}: lists {sorted(manifest['files'])} instead of {sorted(_FILES)}")
        for key, about in manifest["files"].items():
            reading.mapping(about, key, ("size", "sha256"))
            reading.integer(about["size"], f"the size of {key}")
            reading.sha256(about["sha256"], f"the checksum of {key}")
    except (ValueError, KeyError, TypeError) as error:
        raise DataError(f"{path}: truncated or not a checkpoint's manifest ({line(error)})") from error
    return manifest


class _Decoder:
    """The inverse of `_Encoder`. Every tensor has one place, so that a small file cannot become a large state."""

    def __init__(self, tensors: Mapping[str, Tensor], device: torch.device):
        self.tensors, self.device = tensors, device
        self.used: set[str] = set()

    def decode(self, node: Any) -> Any:
        if isinstance(node, list):
            return [self.decode(item) for item in node]
        if not isinstance(node, dict):
            return node
        tag = next((key for key in node if key.startswith("$")), None)
        if tag is None:
            return {key: self.decode(item) for key, item in node.items()}
        if node.keys() - {tag} - _BESIDE_TAG.get(tag, set()):
            raise ValueError(f"unknown keys next to {tag!r}")
        match tag:
            case "$tuple":
                return tuple(self.decode(item) for item in _listed(node[tag]))
            case "$items":
                return {self.decode(key): self.decode(item) for key, item in map(_listed, _listed(node[tag]))}
            case "$float" if node[tag] in ("nan", "inf", "-inf"):
                return float(node[tag])
            case "$tensor":
                tensor = self._take(node[tag])
                return tensor.to(self.device) if node.get("accelerator") else tensor
            case "$numpy":
                return _decode_array(self._take(node[tag]), node)
        raise ValueError(f"unknown tag {tag!r}")

    def _take(self, name: Any) -> Tensor:
        if not isinstance(name, str) or name in self.used or name not in self.tensors:
            raise ValueError(f"the tensor {name!r} is missing or used twice")
        self.used.add(name)
        return self.tensors[name]


_BESIDE_TAG = {"$tensor": {"accelerator"}, "$numpy": {"dtype", "shape", "scalar"}}


def _listed(value: Any) -> list[Any]:
    if not isinstance(value, list):
        raise ValueError(f"a list is expected, not a {type(value).__name__}")
    return value


def _decode_array(data: Tensor, node: dict[str, Any]) -> np.ndarray | np.generic:
    if not isinstance(node["dtype"], str):
        raise ValueError(f"unknown dtype {node['dtype']!r}")
    dtype, shape = np.dtype(node["dtype"]), tuple(reading.integer(size, "a size") for size in _listed(node["shape"]))
    sizes = (data.nbytes, dtype.itemsize * math.prod(shape))
    if dtype.kind not in _ARRAY_KINDS or data.dtype != torch.uint8 or sizes[0] != sizes[1]:
        raise ValueError(f"an array of {dtype} {shape} does not fit its bytes")
    if dtype.itemsize == 0 and math.prod(shape) > 1:
        raise ValueError(f"an array of {shape} empty strings")
    array = np.ndarray(shape, dtype, buffer=data.numpy().tobytes()).copy()
    return array[()] if node.get("scalar") else array


def _sha256(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


def _digest(manifest: Mapping[str, Any]) -> str:
    return _sha256(json.dumps(manifest, sort_keys=True).encode())
