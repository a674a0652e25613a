"""Runs on storage without locks and renames: resumable whatever is interrupted."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Any

import fsspec
import pytest
import torch

from sgqn import checkpoint, run_folder
from sgqn.errors import BusyError, DataError
from sgqn.sweep import storage as storage_module
from sgqn.sweep.storage import Lease, Remote, open_storage
from tests.helpers import tiny_config
from tests.sweep.sweeps import quick

WEIGHTS = {"w": torch.zeros(3)}


class Flaky:
    """A file system that fails at its nth change, and at all after it, as if the process were killed there."""

    def __init__(self, files: Any, left: int):
        self.files, self.left = files, left

    def __getattr__(self, name: str) -> Any:
        found = getattr(self.files, name)
        if name not in ("put_file", "mv", "rm_file", "pipe_file"):
            return found

        def call(*args: Any, **named: Any) -> Any:
            self.left -= 1
            if self.left < 0:
                raise OSError("gone")
            return found(*args, **named)

        return call


@pytest.fixture
def url(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    monkeypatch.setattr(storage_module, "LEASE_SECONDS", 0.2)
    return f"memory://{request.node.name}"


def _save(folder: Path, step: int, keep: int = 2) -> None:
    """What a run writes at a checkpoint: its logs, its replay, the checkpoint; older ones are removed."""
    folder.mkdir(parents=True, exist_ok=True)
    run_folder.write_config(folder, tiny_config())
    run_folder.append_line(folder / run_folder.METRICS, {"step": step})
    (folder / "replay").mkdir(exist_ok=True)
    (folder / "replay" / f"{checkpoint.name(step)}.replay.json").write_text(str(step))
    checkpoint.save(folder, step, weights=WEIGHTS, state={"step": step}, metadata={}, keep=keep)
    kept = {path.name for path in checkpoint.list_checkpoints(folder)}
    for path in (folder / "replay").iterdir():
        if path.name.removesuffix(".replay.json") not in kept:
            path.unlink()


def test_a_run_can_be_resumed_from_every_interrupted_upload(url: str, tmp_path: Path) -> None:
    (run,) = quick()
    interrupted = 0
    for at in range(1, 60, 3):
        remote = Remote(f"{url}/{at}")
        good = remote.files
        try:
            with remote.open(run) as space:
                folder = run_folder.folder_of(run.config, space.out)
                for step in (10, 20):
                    _save(folder, step)
                    space.callbacks[0].on_checkpoint(step, folder)
                remote.files = Flaky(good, at)
                copy = storage_module._Copy(remote.files, f"{remote.root}/{run.name}", folder)
                copy.uploaded = copy._local()
                for step in (30, 40):
                    _save(folder, step)
                    copy.upload()
        except (OSError, DataError):
            interrupted += 1
        remote.files = good
        with remote.open(run) as space:
            folder = run_folder.folder_of(run.config, space.out)
            newest = checkpoint.find(folder)
            step = checkpoint.load(newest).state["step"]
            assert step >= 20
            assert (folder / "replay" / f"{checkpoint.name(step)}.replay.json").read_text() == str(step)
            assert any(line["step"] == step for line in run_folder.read_lines(folder / run_folder.METRICS))
            assert remote.progress(run).step == step
    assert interrupted > 6


def test_what_is_removed_here_is_removed_there(url: str) -> None:
    (run,) = quick()
    remote = Remote(url)
    with remote.open(run) as space:
        folder = run_folder.folder_of(run.config, space.out)
        for step in (10, 20, 30, 40):
            _save(folder, step)
            space.callbacks[0].on_checkpoint(step, folder)
    stored = {path.split("/")[-2] for path in remote.files.glob(f"{remote.root}/**/{checkpoint.MANIFEST}")}
    assert stored == {checkpoint.name(30), checkpoint.name(40)}
    assert not [path for path in remote.files.find(remote.root) if path.endswith((".part", storage_module.LEASE))]
    with remote.open(run) as space:  # and comes back whole
        assert checkpoint.load(checkpoint.find(run_folder.folder_of(run.config, space.out))).state == {"step": 40}


def test_a_lease_has_one_owner(url: str) -> None:
    files, base = fsspec.filesystem("memory"), f"/{url.partition('://')[2]}"
    with Lease(files, base) as lease:
        with pytest.raises(BusyError, match="another process"), Lease(files, base):
            pass
        lease.check()
    with Lease(files, base):  # given back
        pass


def test_of_simultaneous_leases_one_wins(url: str) -> None:
    files, base, held = fsspec.filesystem("memory"), f"/{url.partition('://')[2]}", []
    ready, tried = threading.Barrier(4), threading.Barrier(4)

    def contend() -> None:
        ready.wait()
        try:
            with Lease(files, base):
                held.append(1)
                tried.wait()
        except BusyError:
            tried.wait()

    threads = [threading.Thread(target=contend) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(held) == 1


def test_a_lease_that_is_not_renewed_is_taken_over(url: str) -> None:
    files, base = fsspec.filesystem("memory"), f"/{url.partition('://')[2]}"
    dead = Lease(files, base)
    dead._renew()  # and never again
    with Lease(files, base), pytest.raises(BusyError):
        dead.check()


def test_what_cannot_be_stored_to_is_one_line(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="Protocol not known"):
        open_storage("nowhere://runs")
    (tmp_path / "file").touch()
    for where in (tmp_path / "file", f"file://{tmp_path}/file/below"):
        with pytest.raises(DataError, match="file"):
            open_storage(where).check()


def test_records_are_what_a_report_needs(url: str, tmp_path: Path) -> None:
    (run,) = quick()
    remote = Remote(url)
    with remote.open(run) as space:
        _save(run_folder.folder_of(run.config, space.out), 10)
    remote.download_records(tmp_path)
    assert sorted(path.name for path in tmp_path.rglob("*") if path.is_file()) == ["config.json", "metrics.jsonl"]
