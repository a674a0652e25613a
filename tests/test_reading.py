"""Files that are opened safely: regular, inside the folder, of a bounded size, with values of the right kind."""

from __future__ import annotations

import hashlib
import json
import os
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from safetensors.torch import save, save_file

from sgqn import plugins, reading, run_folder
from sgqn.agents import Spec
from sgqn.errors import DataError, InvalidValueError, SgqnError
from sgqn.files import write_atomically
from sgqn.reading import TensorFile, TensorInfo
from sgqn.restore import bounded
from tests.helpers import tiny_config

TENSORS = {
    "weight": torch.arange(6.0).view(2, 3),
    "half": torch.ones(4).half(),
    "count": torch.tensor(3),
    "none": torch.zeros(0, 5),
}


def tensor_file(path: Path, data: bytes) -> TensorFile:
    path.write_bytes(data)
    return TensorFile(path, path.parent, len(data), hashlib.sha256(data).hexdigest())


def test_links_inside_the_folder_are_followed(tmp_path: Path) -> None:
    run = tmp_path / "run"
    run.mkdir()
    (run / "real.json").write_text("{}")
    (run / "link.json").symlink_to("real.json")
    (tmp_path / "short").symlink_to(run)
    assert reading.read_json(run / "link.json", run) == {}
    assert reading.read_json(tmp_path / "short" / "link.json", tmp_path / "short") == {}


def test_links_out_of_the_folder_are_refused(tmp_path: Path) -> None:
    run = tmp_path / "run"
    run.mkdir()
    (tmp_path / "secret.json").write_text("{}")
    (tmp_path / "runs").mkdir()
    (tmp_path / "runs" / "secret.json").write_text("{}")
    for target in ("../secret.json", tmp_path / "secret.json", "../runs/secret.json", "/dev/null"):
        (run / "link.json").symlink_to(target)
        with pytest.raises(DataError, match=r"link.json: a link that leads out of .*; replace it by a copy"):
            reading.read_json(run / "link.json", run)
        (run / "link.json").unlink()


def test_links_of_the_hub_s_cache_are_followed(tmp_path: Path) -> None:
    """huggingface_hub stores files in blobs, and links to them in a folder for each revision."""
    snapshot = tmp_path / "models--user--agent" / "snapshots" / "abc"
    snapshot.mkdir(parents=True)
    blobs = tmp_path / "models--user--agent" / "blobs"
    blobs.mkdir()
    (blobs / "1").write_text("[1]")
    (snapshot / "agent.json").symlink_to("../../blobs/1")
    assert reading.read_json(snapshot / "agent.json", snapshot) == [1]
    (tmp_path / "secret").write_text("[2]")
    (snapshot / "other.json").symlink_to(tmp_path / "secret")
    with pytest.raises(DataError, match="a link that leads out"):
        reading.read_json(snapshot / "other.json", snapshot)


def test_what_is_not_a_regular_file_is_refused_at_once(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "folder").mkdir()
    for name in ("pipe", "folder"):
        for read in (reading.read_bytes, lambda *args: list(reading.read_lines(*args)), reading.open_log):
            with pytest.raises(DataError, match=f"{name}: (not a regular file|cannot be written to)"):
                read(tmp_path / name, tmp_path)  # type: ignore[operator]
    with pytest.raises(reading.MissingFileError, match="gone: missing"):
        reading.read_bytes(tmp_path / "gone", tmp_path)


def test_reading_is_bounded(tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_bytes(b"x" * 10)
    assert reading.read_bytes(path, tmp_path, 10) == b"x" * 10
    with pytest.raises(DataError, match="10 bytes where at most 9 belong"):
        reading.read_bytes(path, tmp_path, 9)
    os.truncate(path, 1 << 40)  # has no blocks on the disk
    with pytest.raises(DataError, match="bytes where at most"):
        reading.read_bytes(path, tmp_path, 1 << 20)
    with pytest.raises(DataError, match="where at most"):
        list(reading.read_lines(path, tmp_path))


@pytest.mark.parametrize(
    "text",
    [
        "[" * 100_000,
        "[" * 40 + "]" * 40,
        '{"a": NaN}',
        "[Infinity]",
        "1e999",
        "1" * 30,
        "1" * 5000,
        "",
        "[1",
        "\x00",
        "'a'",
    ],
)
def test_json_that_is_refused(text: str) -> None:
    with pytest.raises(ValueError):
        reading.parse_json(text)


def test_json_of_unbounded_size_is_refused_before_it_is_parsed() -> None:
    with pytest.raises(ValueError, match="more than 2000000 lists and objects"):
        reading.parse_json(b"[" + b"[]," * 2_000_001)


VALUES = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**63), 2**64 - 1)
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(), inner, max_size=4),
    max_leaves=20,
)


@given(VALUES)
def test_other_json_is_read_as_python_reads_it(value: Any) -> None:
    text = json.dumps(value)
    assert reading.parse_json(text) == json.loads(text)
    assert reading.parse_json(text.encode()) == json.loads(text)


def test_logs_may_hold_nan() -> None:
    (line,) = run_folder.parse_lines([b'{"step": 1, "loss": NaN}', b'{"step": 1', b"[1]", b"\xff"])
    assert line["step"] == 1


def test_a_header_says_what_safetensors_loads(tmp_path: Path) -> None:
    save_file(TENSORS, tmp_path / "own.safetensors", metadata={"format": "pt"})
    file = tensor_file(tmp_path / "own.safetensors", (tmp_path / "own.safetensors").read_bytes())
    assert file.header == reading.described(TENSORS)
    assert all(torch.equal(file.load()[name], value) for name, value in TENSORS.items())
    file.check()


def header_of(data: bytes) -> dict[str, Any]:
    return json.loads(data[8 : 8 + int.from_bytes(data[:8], "little")])


@pytest.mark.parametrize(
    ("change", "match"),
    [
        ({"shape": [10**9, 10**9]}, "bytes"),
        ({"shape": [-2, -3]}, "a size of weight must be an integer"),
        ({"shape": [True, 6]}, "a size of weight must be an integer"),
        ({"shape": 6}, "not described"),
        ({"dtype": "F64"}, "bytes"),
        ({"dtype": 4}, "not described"),
        ({"data_offsets": [0, 2**62]}, "an offset of weight must be an integer"),
        ({"data_offsets": [4, 24]}, "bytes"),
        ({"more": 1}, "not described"),
    ],
)
def test_a_header_that_lies_is_refused_before_anything_is_loaded(
    tmp_path: Path, change: dict[str, Any], match: str
) -> None:
    data = save({"weight": torch.arange(6.0).view(2, 3)})
    header = header_of(data)
    header["weight"] |= change
    text = json.dumps(header).encode()
    forged = len(text).to_bytes(8, "little") + text + data[-24:]
    file = tensor_file(tmp_path / "w.safetensors", forged)
    with pytest.raises(DataError, match=rf"w.safetensors: not a safetensors file .*({match})"):
        file.load()


def test_damage_of_a_tensor_file(tmp_path: Path) -> None:
    data = save(TENSORS)
    path = tmp_path / "w.safetensors"
    file = tensor_file(path, data)
    path.write_bytes(data[:-1] + bytes([data[-1] ^ 1]))
    for read in (file.load, file.check):
        with pytest.raises(DataError, match="its checksum differs"):
            read()
    path.write_bytes(data[:-1])
    with pytest.raises(DataError, match=f"{len(data) - 1} bytes instead of {len(data)}"):
        TensorFile(path, tmp_path, file.size, file.checksum).load()


def test_difference_names_the_first_tensor_that_is_wrong() -> None:
    own = reading.described(TENSORS)
    assert reading.difference(own, dict(reversed(own.items()))) is None
    assert reading.difference({}, own) == "count is missing"
    assert reading.difference({**own, "x": own["half"]}, own) == "x does not belong there"
    other = {**own, "half": TensorInfo(torch.float32, (4,))}
    assert reading.difference(other, own) == "half is torch.float32 (4,), not torch.float16 (4,)"


def test_networks_are_bounded_by_what_is_stored() -> None:
    small = {"weight": TensorInfo(torch.float32, (10, 10))}
    with bounded(small, "here"):
        torch.nn.Linear(100, 100)
    for size in (10**5, 2**40):
        with pytest.raises(DataError, match=r"^here: "), bounded(small, "here"):
            torch.nn.Linear(size, size)
    with pytest.raises(DataError, match="larger networks"), bounded(small, "here"):
        torch.nn.ModuleList(torch.nn.Linear(1, 1) for _ in range(10**9))
    torch.nn.Linear(3000, 3000)  # afterwards, nothing is bounded


@pytest.mark.parametrize(
    "change",
    [{"action_dim": 0}, {"action_dim": True}, {"action_dim": "1"}, {"discrete": 1}, {"more": 1}, {"image_size": 10**9},
     {"channels": 6}, {"render_size": 100}],
)  # fmt: skip
def test_a_specification_that_does_not_fit_is_refused(change: dict[str, Any]) -> None:
    config = tiny_config()
    spec = {"action_dim": 1, "channels": 9, "image_size": 24, "render_size": 24, "discrete": False}
    assert run_folder.read_spec(config, spec) == Spec(1, 9, 24, 24)
    with pytest.raises(ValueError):
        run_folder.read_spec(config, {**spec, **change})


def test_python_s_own_modules_are_no_plugins() -> None:
    """Importing some of them does things: `antigravity` opens a browser."""
    for name in ("antigravity", "idlelib.idle"):
        with pytest.raises(SgqnError, match="it is a module of Python itself"):
            plugins.load([name])
        with pytest.raises(SgqnError, match="it is a module of Python itself"):
            tiny_config(task=f"gym:{name}:Any-v0", action_repeat=None)
    assert "antigravity" not in sys.modules


@pytest.mark.parametrize("modules", ["os", {"a": 1}, [1], ["a b"], ["../x"], ["a"] * 101])
def test_plugins_of_a_file_are_a_list_of_modules(modules: Any) -> None:
    assert plugins.checked(["sgqn_example", "a.b"]) == ["sgqn_example", "a.b"]
    with pytest.raises(InvalidValueError):
        plugins.checked(modules)


def test_nothing_is_written_through_links(tmp_path: Path) -> None:
    """A run's folder from somebody else cannot make training overwrite other files."""
    run, secret = tmp_path / "run", tmp_path / "secret"
    run.mkdir()
    secret.write_text("untouched")
    for name in ("log.jsonl", "config.json.tmp", ".lock"):
        (run / name).symlink_to(secret)
    with pytest.raises(DataError, match="a link that leads out"):
        run_folder.append_line(run / "log.jsonl", {})
    write_atomically(run / "config.json", "new")
    assert (run / "config.json").read_text() == "new"
    with pytest.raises(DataError, match="a link that leads out"), run_folder.hold(run):
        pass
    assert secret.read_text() == "untouched"
    for name in ("log.jsonl", ".lock"):
        (run / name).unlink()
    os.mkfifo(run / ".lock")
    with pytest.raises(DataError, match="not a regular file; remove it"), run_folder.hold(run):
        pass
