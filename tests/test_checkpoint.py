"""Checkpoints: exact round trips, damage and malice refused, and a kill at any moment that costs nothing."""

from __future__ import annotations

import hashlib
import itertools
import json
import math
import mmap
import os
import pickle
import random
import shutil
import signal
import subprocess
import sys
import time
from collections import OrderedDict
from contextlib import suppress
from io import BytesIO
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp
from safetensors.torch import load_file
from torch import nn

from sgqn import checkpoint
from sgqn.errors import DataError, InvalidValueError

FILES = ("weights.safetensors", "state.safetensors", "state.json", "manifest.json")


def write(run: Path, step: int = 100, value: int = 0, size: int = 100, keep: int | None = None) -> Path:
    """A small checkpoint that tells in every file which one it is."""
    weights = {"layer.weight": torch.full((size,), value)}
    return checkpoint.save(run, step, weights=weights, state={"value": value, "x": torch.tensor(value)}, keep=keep)


def value_of(folder: Path) -> int:
    """The value that `write` stored, after checking that all of the checkpoint agrees on it."""
    loaded = checkpoint.load(folder)
    assert (loaded.weights["layer.weight"] == loaded.state["value"]).all()
    assert loaded.state["x"] == loaded.state["value"]
    return loaded.state["value"]


def names(run: Path) -> list[str]:
    return sorted(path.name for path in (run / "checkpoints").iterdir())


def same(a: Any, b: Any) -> bool:
    """Equal in type, dtype, shape and every bit, at every depth; also the order of dicts."""
    if type(a) is not type(b):
        return False
    if isinstance(a, torch.Tensor):
        raw = [t.detach().clone(memory_format=torch.contiguous_format).reshape(-1).view(torch.uint8) for t in (a, b)]
        return a.dtype == b.dtype and a.shape == b.shape and torch.equal(*raw)
    if isinstance(a, np.ndarray | np.generic):
        return a.dtype == b.dtype and a.shape == b.shape and a.tobytes() == b.tobytes()
    if isinstance(a, dict):
        return same(list(a.items()), list(b.items()))
    if isinstance(a, list | tuple):
        return len(a) == len(b) and all(map(same, a, b))
    if isinstance(a, float):
        return a.hex() == b.hex()
    return a == b


# -- round trips ---------------------------------------------------------------------------------------------------

DTYPES = [
    torch.bool, torch.uint8, torch.int8, torch.int32, torch.int64, torch.uint16, torch.uint64,
    torch.float16, torch.bfloat16, torch.float32, torch.float64, torch.complex64, torch.float8_e4m3fn,
]  # fmt: skip


@st.composite
def tensors(draw: st.DrawFn) -> torch.Tensor:
    """Any dtype, 0 to 3 dimensions, also empty, transposed, strided and expanded."""
    dtype = draw(st.sampled_from(DTYPES))
    shape = draw(st.lists(st.integers(0, 3), max_size=3))
    size = math.prod(shape) * dtype.itemsize
    data = draw(st.binary(min_size=size, max_size=size))
    raw = torch.tensor(list(data), dtype=torch.uint8)
    tensor = (raw % 2 if dtype == torch.bool else raw).view(dtype).reshape(shape)
    match draw(st.sampled_from(["plain", "transposed", "strided", "expanded"])):
        case "transposed":
            return tensor.permute(tuple(reversed(range(tensor.ndim))))
        case "strided" if tensor.ndim:
            return tensor[::2]
        case "expanded":
            return tensor.expand(2, *shape)
    return tensor


ARRAY_DTYPES = hnp.scalar_dtypes() | hnp.unicode_string_dtypes() | hnp.byte_string_dtypes()
ARRAYS = ARRAY_DTYPES.flatmap(lambda dtype: hnp.arrays(dtype, hnp.array_shapes(min_dims=0, min_side=0, max_side=3)))
SCALARS = st.sampled_from([np.float64(0.1), np.float32("nan"), np.int8(-1), np.bool_(True), np.str_("a"), np.uint64(7)])
TEXT = st.text(st.characters()) | st.sampled_from(["$tuple", "$", "__metadata__", "a.b", ""])
PLAIN = st.none() | st.booleans() | st.integers() | st.floats() | TEXT
KEYS = TEXT | st.integers() | st.booleans() | st.none() | st.tuples(st.integers(), TEXT)
NESTED = st.recursive(
    PLAIN | tensors() | ARRAYS | SCALARS,
    lambda inner: st.lists(inner) | st.lists(inner).map(tuple) | st.dictionaries(KEYS, inner),
    max_leaves=12,
)


@given(state=st.dictionaries(KEYS, NESTED), metadata=st.dictionaries(TEXT, PLAIN))
@settings(max_examples=60, deadline=None)
def test_nested_state_comes_back_exactly(
    tmp_path_factory: pytest.TempPathFactory, state: dict[Any, Any], metadata: dict[str, Any]
) -> None:
    run = tmp_path_factory.getbasetemp() / "nested"
    loaded = checkpoint.load(checkpoint.save(run, 1, weights={}, state=state, metadata=metadata))
    assert same(loaded.state, state)
    assert same(loaded.metadata, metadata)


def test_edge_values_come_back_exactly(tmp_path: Path) -> None:
    state = {
        "floats": [math.nan, math.inf, -math.inf, -0.0, 0.1, 5e-324, 1e308],
        "integers": [2**200, -1, True, 1, False, 0],
        "keys": {0: "int", "0": "str", (1, "a"): None, None: 1, -1: {"$tensor": "no tensor"}},
        "empty": [[], (), {}, "", torch.empty(0, 3), np.empty((2, 0), np.float32)],
        "scalars": [torch.tensor(1.5), np.array(2), np.float64(0.1), np.array("text"), np.datetime64("2020-01-01")],
        "order": {"b": 1, "a": 2},
        "a.b": torch.tensor(1),
        "a": {"b": torch.tensor(2)},
        "arrays": [np.arange(6, dtype=">i4").reshape(2, 3).T, np.ones(2, np.complex128), np.ones(1, np.longdouble)],
    }
    assert same(checkpoint.load(checkpoint.save(tmp_path, 1, weights={}, state=state)).state, state)


def test_loaded_arrays_and_tensors_are_writable_and_their_own(tmp_path: Path) -> None:
    base, array = torch.zeros(4, 4), np.zeros(3)
    state = {"a": base, "b": base[1], "c": base.T, "array": array, "again": array}
    loaded = checkpoint.load(checkpoint.save(tmp_path, 1, weights={"w": base, "tied": base}, state=state))
    for tensor in (*loaded.weights.values(), loaded.state["a"], loaded.state["b"]):
        tensor.add_(1)
    loaded.state["array"] += 1
    assert loaded.weights["tied"].max() == loaded.state["b"].max() == 1
    assert loaded.state["c"].max() == loaded.state["again"].max() == base.max() == 0


def test_subclasses_come_back_as_their_base(tmp_path: Path) -> None:
    state = OrderedDict(size=torch.Size([1, 2]), parameter=nn.Parameter(torch.ones(2)))
    loaded = checkpoint.load(checkpoint.save(tmp_path, 1, weights={}, state=state)).state
    assert same(loaded, {"size": (1, 2), "parameter": torch.ones(2)})
    assert not loaded["parameter"].requires_grad


def test_weights_need_nothing_but_safetensors(tmp_path: Path) -> None:
    module = nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4))
    folder = checkpoint.save(tmp_path, 100_000, weights=module.state_dict(), state={}, metadata={"agent": "sgqn"})
    assert folder == tmp_path / "checkpoints" / "step_000100000"
    assert sorted(path.name for path in folder.iterdir()) == sorted(FILES)
    stored = load_file(folder / "weights.safetensors")
    assert same(sorted(stored.items()), sorted(module.state_dict().items()))
    loaded = checkpoint.load(folder)
    assert (loaded.step, loaded.state, loaded.metadata) == (100_000, {}, {"agent": "sgqn"})
    assert json.loads((folder / "manifest.json").read_text())["versions"]["torch"] == torch.__version__


def test_the_same_state_makes_the_same_bytes(tmp_path: Path) -> None:
    for run in ("a", "b"):
        write(tmp_path / run)
    for name in FILES:
        first, second = ((tmp_path / run / "checkpoints/step_000000100" / name).read_bytes() for run in "ab")
        assert first == second


@pytest.mark.parametrize(
    ("state", "where"),
    [
        ({"a": {"b": [1, {2, 3}]}}, "state.a.b.1 is a set"),
        ({"a": np.array([object()])}, "state.a is an array of object"),
        ({"a": np.zeros(2, dtype="i4,f4")}, "state.a is an array of"),
        ({"a": torch.zeros(2, dtype=torch.complex128)}, "state.a cannot be stored"),
        ({"a": torch.zeros(2).to_sparse()}, "state.a cannot be stored"),
        ({"a": torch.zeros(2, device="meta")}, "state.a cannot be stored"),
        ({"a": {torch.zeros(2): 1}}, "state.a has a tensor as a key"),
        ({"a": 10**5000}, "JSON"),
    ],
)
def test_what_cannot_be_stored_is_named_before_anything_is_written(
    tmp_path: Path, state: dict[str, Any], where: str
) -> None:
    with pytest.raises(InvalidValueError, match=where):
        checkpoint.save(tmp_path, 1, weights={}, state=state)
    assert not list(tmp_path.iterdir())


def test_bad_arguments_are_refused(tmp_path: Path) -> None:
    loop: dict[str, Any] = {}
    loop["self"] = loop
    bad: list[dict[str, Any]] = [
        {"step": -1},
        {"keep": 0},
        {"state": loop},
        {"weights": {"w": 1}},
        {"weights": {"__metadata__": torch.zeros(1)}},
    ]
    for change in bad:
        with pytest.raises(InvalidValueError, match="checkpoint"):
            checkpoint.save(**{"run": tmp_path, "step": 1, "weights": {}, "state": {}, **change})
    assert not list(tmp_path.iterdir())


# -- going on where a run stopped ----------------------------------------------------------------------------------


class Trainer:
    """A tiny training run that draws from every kind of generator."""

    def __init__(self) -> None:
        first, last = nn.Linear(4, 8), nn.Linear(8, 1)
        self.model = nn.Sequential(first, nn.BatchNorm1d(8), nn.ReLU(), last)
        groups: list[dict[str, Any]] = [
            {"params": first.parameters(), "betas": (0.5, 0.9)},
            {"params": last.parameters()},
        ]
        self.optimizer = torch.optim.AdamW(
            groups,
            lr=1e-2,
            amsgrad=True,
        )
        self.schedule = torch.optim.lr_scheduler.CosineAnnealingLR(self.optimizer, 50)
        self.generator = torch.Generator().manual_seed(1)
        self.rng = np.random.default_rng(2)
        self.old_rng = np.random.RandomState(3)
        self.python = random.Random(4)

    def train(self, steps: int) -> None:
        for _ in range(steps):
            x = torch.randn(16, 4, generator=self.generator) * self.python.random() + self.old_rng.normal()
            y = torch.from_numpy(self.rng.normal(size=(16, 1)).astype(np.float32))
            self.optimizer.zero_grad()
            ((nn.functional.dropout(self.model(x), 0.2) - y) ** 2).mean().backward()
            self.optimizer.step()
            self.schedule.step()

    def save(self, run: Path, step: int) -> Path:
        state = {
            "optimizer": self.optimizer.state_dict(),
            "schedule": self.schedule.state_dict(),
            "torch": torch.get_rng_state(),
            "generator": self.generator.get_state(),
            "numpy": self.rng.bit_generator.state,
            "old_numpy": self.old_rng.get_state(),
            "python": self.python.getstate(),
        }
        return checkpoint.save(run, step, weights=self.model.state_dict(), state=state)

    def load(self, folder: Path) -> None:
        loaded = checkpoint.load(folder)
        self.model.load_state_dict(loaded.weights)
        self.optimizer.load_state_dict(loaded.state["optimizer"])
        self.schedule.load_state_dict(loaded.state["schedule"])
        torch.set_rng_state(loaded.state["torch"])
        self.generator.set_state(loaded.state["generator"])
        self.rng.bit_generator.state = loaded.state["numpy"]
        self.old_rng.set_state(loaded.state["old_numpy"])
        self.python.setstate(loaded.state["python"])


def test_a_resumed_run_continues_bit_for_bit(tmp_path: Path) -> None:
    torch.manual_seed(0)
    trainer = Trainer()
    trainer.train(7)
    folder = trainer.save(tmp_path / "a", 7)
    trainer.train(7)
    end = trainer.save(tmp_path / "a", 14)

    torch.manual_seed(99)
    resumed = Trainer()
    resumed.load(folder)
    resumed.train(7)
    end_of_resumed = resumed.save(tmp_path / "b", 14)
    assert same(dict(resumed.model.state_dict()), dict(trainer.model.state_dict()))
    assert (end / "manifest.json").read_bytes() == (end_of_resumed / "manifest.json").read_bytes()  # all checksums


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
def test_tensors_of_an_accelerator_go_to_the_device_and_others_stay(tmp_path: Path) -> None:
    state = {"moment": torch.ones(3, device="cuda"), "rng": torch.cuda.get_rng_state()}
    folder = checkpoint.save(tmp_path, 1, weights={"w": torch.ones(2, device="cuda")}, state=state)
    for device in ("cuda", "cpu"):
        loaded = checkpoint.load(folder, device)
        assert loaded.weights["w"].device.type == loaded.state["moment"].device.type == device
        assert loaded.state["rng"].device.type == "cpu"
        torch.cuda.set_rng_state(loaded.state["rng"])


# -- damage and malice ---------------------------------------------------------------------------------------------


def forge(folder: Path) -> None:
    """Make the manifest fit whatever lies in the folder, as an attacker would."""
    files = {name: (folder / name).read_bytes() for name in FILES if name != "manifest.json"}
    entries = {name: {"size": len(data), "sha256": hashlib.sha256(data).hexdigest()} for name, data in files.items()}
    forge_manifest(folder, entries)


def forge_manifest(folder: Path, files: Any, **fields: Any) -> None:
    """A manifest with these `files` and a checksum of its own that fits."""
    step = checkpoint.step_of(folder)
    manifest = {"format": 1, "step": step, "versions": {}, "files": files, **fields}
    manifest["sha256"] = hashlib.sha256(json.dumps(manifest, sort_keys=True).encode()).hexdigest()
    (folder / "manifest.json").write_text(json.dumps(manifest))


def refused(folder: Path, file: str, match: str | None = None) -> str:
    """Loading must fail in one line that names the file; returns it."""
    with pytest.raises(DataError, match=match) as error:
        checkpoint.load(folder)
    message = str(error.value)
    assert str(folder / file) in message
    assert "\n" not in message
    return message


@pytest.mark.parametrize("file", FILES)
def test_a_damaged_file_is_refused_and_the_older_checkpoint_offered(tmp_path: Path, file: str) -> None:
    older = write(tmp_path, 100)
    newer = write(tmp_path, 200)
    path = newer / file
    good = path.read_bytes()
    offer = f"; use {older} instead"

    for length in {0, 1, 8, len(good) // 2, len(good) - 1}:
        path.write_bytes(good[:length])
        assert refused(newer, file, "truncated").endswith(offer)
    for place in (0, len(good) // 2, len(good) - 2):
        path.write_bytes(good[:place] + bytes([good[place] ^ 1]) + good[place + 1 :])
        assert refused(newer, file).endswith(offer)
    path.write_bytes(good + b" " * (1 << 20))
    assert refused(newer, file, "altered").endswith(offer)
    path.unlink()
    assert refused(newer, file, "missing").endswith(offer)
    path.mkdir()
    assert refused(newer, file, "not a regular file").endswith(offer)
    path.rmdir()
    os.mkfifo(path)
    assert refused(newer, file, "not a regular file").endswith(offer)
    path.unlink()
    path.write_bytes(good)
    assert value_of(newer) == 0


def test_only_a_good_older_checkpoint_is_offered(tmp_path: Path) -> None:
    folders = [write(tmp_path, step) for step in (100, 200, 300, 400)]
    (folders[1] / "weights.safetensors").write_bytes(b"")
    (folders[2] / "state.json").unlink()
    assert refused(folders[2], "state.json").endswith(f"; use {folders[0]} instead")
    assert checkpoint.newest_good(tmp_path) == folders[3]
    (folders[3] / "state.safetensors").write_bytes(b"")
    assert checkpoint.newest_good(tmp_path) == folders[0]
    (folders[0] / "state.safetensors").write_bytes(b"")
    assert checkpoint.newest_good(tmp_path) is None
    assert "instead of" in refused(folders[3], "state.safetensors")
    assert "; use" not in refused(folders[3], "state.safetensors")


class Malice:
    """Creates a file when it is unpickled."""

    def __init__(self, marker: Path):
        self.marker = marker

    def __reduce__(self) -> Any:
        return (os.mkdir, (str(self.marker),))


@pytest.mark.parametrize("file", FILES)
@pytest.mark.parametrize("kind", ["pickle", "torch"])
@pytest.mark.parametrize("forged", [False, True])
def test_a_malicious_pickle_is_never_executed(tmp_path: Path, file: str, kind: str, forged: bool) -> None:
    marker = tmp_path / "executed"
    older, newer = write(tmp_path, 100), write(tmp_path, 200)
    path = newer / file
    if kind == "pickle":
        path.write_bytes(pickle.dumps(Malice(marker)))
    else:
        torch.save(Malice(marker), path)
    if forged and file != "manifest.json":
        forge(newer)
    assert refused(newer, file).endswith(f"; use {older} instead")
    assert checkpoint.newest_good(tmp_path) == older
    assert not marker.exists()
    torch.load(BytesIO(path.read_bytes()), weights_only=False) if kind == "torch" else pickle.loads(path.read_bytes())
    assert marker.exists(), "the test's own pickle does nothing"


@pytest.mark.parametrize("name", ["../../secret", "/etc/passwd", "extra.bin", "weights.safetensors/../x"])
def test_a_manifest_can_name_no_other_files(tmp_path: Path, name: str) -> None:
    folder = write(tmp_path)
    files = json.loads((folder / "manifest.json").read_text())["files"]
    forge_manifest(folder, {**files, name: files["state.json"]})
    refused(folder, "manifest.json", "lists")
    del files["weights.safetensors"]
    forge_manifest(folder, {**files, name: files["state.json"]})
    refused(folder, "manifest.json", "lists")


def test_strange_manifests_are_refused(tmp_path: Path) -> None:
    folder = write(tmp_path)
    good = json.loads((folder / "manifest.json").read_text())["files"]
    strange: list[Any] = [
        None,
        [],
        3,
        {},
        dict.fromkeys(good),
        {name: [1, 2] for name in good},
        {name: {} for name in good},
    ]
    for files in strange:
        forge_manifest(folder, files)
        refused(folder, "manifest.json")
    forge_manifest(folder, good, step="1")
    refused(folder, "manifest.json")
    forge_manifest(folder, good, format=2)
    refused(folder, "manifest.json", "format 2, this version reads 1")
    forge_manifest(folder, {name: {**entry, "size": -1} for name, entry in good.items()})
    refused(folder, "manifest.json")
    for text in ("", "[]", "null", '"text"', "[" * 100_000, "\x00", "{}"):
        (folder / "manifest.json").write_text(text)
        refused(folder, "manifest.json")


JSON = st.recursive(
    PLAIN | st.sampled_from(["state.x", "<f8", "O", "<U9999999999", "i4,O", "nan"]),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(
            st.sampled_from(["$tuple", "$items", "$float", "$tensor", "$numpy", "$x", "dtype", "shape", "scalar"]),
            inner,
        )
    ),
    max_leaves=8,
)


@given(tree=JSON, inside=st.booleans())
@settings(max_examples=60, deadline=None)
def test_a_forged_tree_loads_as_data_or_is_refused(
    tmp_path_factory: pytest.TempPathFactory, tree: Any, inside: bool
) -> None:
    folder = write(tmp_path_factory.getbasetemp() / "forged")
    (folder / "state.json").write_text(json.dumps({"metadata": {}, "state": tree} if inside else tree))
    forge(folder)
    with suppress(DataError):
        checkpoint.load(folder)


def test_a_very_deep_tree_is_refused(tmp_path: Path) -> None:
    folder = write(tmp_path)
    for deep in ("[" * 100_000, '{"state": ' + "[" * 900 + "]" * 900 + ', "metadata": {}}'):
        (folder / "state.json").write_text(deep)
        forge(folder)
        refused(folder, "state.json")


# -- finding -------------------------------------------------------------------------------------------------------


def test_find_takes_a_run_its_checkpoints_or_one_checkpoint(tmp_path: Path) -> None:
    folders = [write(tmp_path, step) for step in (900, 1_234_567_890, 20_000)]
    in_order = [folders[0], folders[2], folders[1]]
    assert checkpoint.list_checkpoints(tmp_path) == in_order
    assert [checkpoint.step_of(path) for path in in_order] == [900, 20_000, 1_234_567_890]
    assert checkpoint.find(tmp_path) == checkpoint.find(tmp_path / "checkpoints") == folders[1]
    assert checkpoint.find(str(folders[0])) == folders[0]
    shutil.copytree(folders[0], tmp_path / "best")  # a copy may have any name
    assert value_of(checkpoint.find(tmp_path / "best")) == 0


def test_find_ignores_what_is_not_complete(tmp_path: Path) -> None:
    good = write(tmp_path, 100)
    folder = good.parent
    shutil.copytree(good, folder / ".tmp-step_000000200-1")
    shutil.copytree(good, folder / "step_2")
    shutil.copytree(good, folder / "step_000000300.bak")
    (folder / "step_000000400").mkdir()
    (folder / "step_000000500").write_text("a file")
    assert checkpoint.find(tmp_path) == good
    with pytest.raises(DataError, match=r"manifest.json: missing, the checkpoint is incomplete; use .*100 instead"):
        checkpoint.find(folder / "step_000000400")


def test_find_says_what_it_expected(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    for path, match in [("nowhere", "no such folder"), ("file", "not a folder"), ("", "no checkpoint here")]:
        with pytest.raises(DataError, match=f"{match}; expected a run's folder"):
            checkpoint.find(tmp_path / path)
    with pytest.raises(InvalidValueError, match="step_000100000"):
        checkpoint.step_of("runs/a")
    assert checkpoint.list_checkpoints(tmp_path) == []
    assert checkpoint.newest_good(tmp_path) is None


# -- keeping, replacing, dying -------------------------------------------------------------------------------------


def test_older_checkpoints_and_left_overs_go(tmp_path: Path) -> None:
    write(tmp_path, 100)
    (tmp_path / "checkpoints" / ".tmp-step_000000200-1").mkdir()
    (tmp_path / "checkpoints" / "notes.txt").touch()
    for step in (200, 300, 400):
        write(tmp_path, step)
    write(tmp_path, 500, keep=3)
    assert names(tmp_path) == ["notes.txt", "step_000000300", "step_000000400", "step_000000500"]
    write(tmp_path, 350, keep=1)  # a run that went back: what it writes must stay, whatever lies ahead
    assert names(tmp_path) == ["notes.txt", "step_000000350", "step_000000400", "step_000000500"]


def test_a_step_can_be_replaced_and_an_interrupted_replacement_counts(tmp_path: Path) -> None:
    write(tmp_path, 100, value=1)
    folder = write(tmp_path, 100, value=2)
    assert value_of(folder) == 2
    assert names(tmp_path) == [folder.name]
    old = folder.rename(folder.with_name(folder.name + ".old"))  # as if killed between the two renames
    assert checkpoint.find(tmp_path) == checkpoint.newest_good(tmp_path) == old
    assert value_of(old) == 2
    write(tmp_path, 200)
    assert names(tmp_path) == ["step_000000100", "step_000000200"]
    shutil.copytree(folder, old)  # as if killed before the old one was removed
    write(tmp_path, 200)
    assert names(tmp_path) == ["step_000000100", "step_000000200"]
    folder.rename(old)
    folder.mkdir()  # not ours, but in the way
    write(tmp_path, 100, value=3)
    assert value_of(folder) == 3
    assert names(tmp_path) == ["step_000000100", "step_000000200"]


def test_a_full_disk_costs_no_earlier_checkpoint(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = write(tmp_path, 100, value=1)

    def no_space(_: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", no_space)
    with pytest.raises(DataError, match=r"step_000000100: cannot be saved \(No space left on device\)"):
        write(tmp_path, 100, value=2, keep=1)
    assert names(tmp_path) == [folder.name]
    assert value_of(folder) == 1


def die_everywhere(run: Path) -> None:
    """Replace a checkpoint in processes that die at the first, second, ... change of the file system."""
    torch.set_num_threads(1)
    write(run / "warm", 1)  # what is imported on first use is no change of the run
    events = {"open", "os.mkdir", "os.rename", "os.remove", "os.rmdir"}
    outcomes = []
    for fatal in itertools.count(1):
        shutil.rmtree(run / "checkpoints", ignore_errors=True)
        write(run, 10, value=0)
        write(run, 20, value=1)
        pid = os.fork()
        if pid == 0:
            count = itertools.count(1)
            sys.addaudithook(lambda event, _: os._exit(9) if event in events and next(count) == fatal else None)  # noqa: B023
            write(run, 20, value=2, keep=1)
            os._exit(0)
        code = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
        found = checkpoint.find(run)
        assert checkpoint.step_of(found) == 20
        outcomes.append(value_of(found))
        for path in checkpoint.list_checkpoints(run):
            value_of(path)
        write(run, 30, value=3, keep=2)
        assert names(run) == ["step_000000020", "step_000000030"], names(run)
        assert value_of(run / "checkpoints" / "step_000000020") == outcomes[-1]
        if code == 0:
            break
        assert code == 9
    assert outcomes == sorted(outcomes), outcomes
    assert outcomes[0] == 1
    assert outcomes[-1] == 2
    assert len(outcomes) > 15


def kill_at_random(run: Path) -> None:
    """Kill a process that saves in a loop (every step twice) at 20 random moments; each time the run goes on."""
    torch.set_num_threads(1)
    moments = random.Random()
    start = time.perf_counter()
    write(run, 0, value=0, size=200_000)
    duration = time.perf_counter() - start
    value = 0
    done = mmap.mmap(-1, 8)  # shared with the children: the last value whose save had returned
    for _ in range(20):
        done[:] = value.to_bytes(8, "little")
        pid = os.fork()
        if pid == 0:
            for i in itertools.count(value + 1):
                write(run, i // 2, value=i, size=200_000, keep=2)
                done[:] = i.to_bytes(8, "little")
        wait_for = value + moments.randint(1, 3)  # saves; the test says the same on a busy machine
        while int.from_bytes(done[:], "little") < wait_for and os.waitpid(pid, os.WNOHANG) == (0, 0):
            time.sleep(0.001)
        time.sleep(moments.uniform(0, duration))
        os.kill(pid, signal.SIGKILL)
        assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == -signal.SIGKILL  # not an error of its own
        value = value_of(checkpoint.find(run))
        assert int.from_bytes(done[:], "little") <= value <= int.from_bytes(done[:], "little") + 1
        for path in checkpoint.list_checkpoints(run):
            value_of(path)
    write(run, value + 1, value=value + 1, keep=2)
    assert len(names(run)) == 2, names(run)


@pytest.mark.parametrize("job", [die_everywhere, kill_at_random])
def test_a_kill_leaves_the_old_checkpoint_or_the_new_one(tmp_path: Path, job: Any) -> None:
    """In a process of its own, which forks the ones to die: forking this one, with its threads, would be risky."""
    command = f"import sys, pathlib, {__name__} as tests; tests.{job.__name__}(pathlib.Path(sys.argv[1]))"
    root = Path(__file__).parents[1]
    result = subprocess.run(
        [sys.executable, "-c", command, str(tmp_path)],
        cwd=root,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert result.returncode == 0, result.stderr


def test_thirty_megabytes_take_well_under_a_second(tmp_path: Path) -> None:
    weights = {str(i): torch.randn(1_000_000) for i in range(3)}
    state = {"moments": [torch.randn(1_000_000) for _ in range(5)]}
    times = []
    for step in range(3):
        start = time.perf_counter()
        checkpoint.save(tmp_path, step, weights=weights, state=state, keep=1)
        times.append(time.perf_counter() - start)
    assert min(times) < 1, times
