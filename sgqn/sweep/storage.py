"""Where the runs of a sweep lie: a folder that all machines see, or any URL that fsspec knows.

Runs are trained in a local folder. With a URL, that folder is a copy: it is downloaded when a run starts or resumes and
uploaded after each checkpoint, in an order that leaves a resumable run at any moment.
"""

from __future__ import annotations

import contextlib
import json
import os
import tempfile
import threading
import time
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple, Protocol

from sgqn import checkpoint, run_folder, training
from sgqn.callbacks import Callback
from sgqn.config import TrainConfig
from sgqn.errors import BusyError, DataError, SgqnError
from sgqn.sweep.plan import Planned

LEASE = "lease.json"
LEASE_SECONDS = 30.0
"""A lease that has not been renewed for so long belongs to a process that died."""
RECORDS = (run_folder.CONFIG, run_folder.METRICS, run_folder.EVALUATIONS, run_folder.SALIENCY)
"""What a report reads."""


class Progress(NamedTuple):
    """How far a run has come, by what is stored."""

    config: TrainConfig | None
    """None if it has not been started."""
    step: int
    """Of its newest checkpoint."""
    complete: bool = False


class Workspace(NamedTuple):
    """A local place to train a run in."""

    out: Path
    """The folder that `sgqn train` calls OUT."""
    callbacks: tuple[Callback, ...] = ()
    """For the training of the run."""


class Storage(Protocol):
    """What a sweep asks of the place where its runs lie."""

    where: str
    """As given on the command line, absolute if it is a folder."""

    def check(self) -> None:
        """Refuse a place that cannot be written to."""

    def progress(self, run: Planned) -> Progress:
        """How far a run has come."""

    def open(self, run: Planned) -> contextlib.AbstractContextManager[Workspace]:
        """Prepare to train a run, as the only process that does."""


def open_storage(where: str | Path) -> Storage:
    """The storage that a path or URL names."""
    return Remote(str(where)) if "://" in str(where) else Folder(Path(where))


class Folder:
    """A folder, of this machine or shared by all."""

    def __init__(self, path: Path):
        self.path = path.absolute()
        self.where = str(self.path)

    def check(self) -> None:
        try:
            self.path.mkdir(parents=True, exist_ok=True)
            with tempfile.TemporaryFile(dir=self.path):
                pass
        except OSError as error:
            raise DataError(f"{self.path} cannot be written to: {error.strerror}") from error

    def progress(self, run: Planned) -> Progress:
        folder = self.path / run.name
        if not (folder / run_folder.CONFIG).exists():
            return Progress(None, 0)
        step = training.newest_step(folder)
        evaluations = run_folder.read_lines(folder / run_folder.EVALUATIONS)
        return Progress(run_folder.read_config(folder), step, training.complete(run.config, step, evaluations))

    @contextlib.contextmanager
    def open(self, run: Planned) -> Iterator[Workspace]:
        if not self.path.is_dir():
            raise DataError(
                f"{self.path} does not exist here: a sweep over several machines needs a shared folder or a URL"
            )
        yield Workspace(self.path / run.variant)  # training locks the run's folder itself


class Remote:
    """A URL, such as `s3://bucket/runs`. The package for its protocol must be installed on every machine."""

    def __init__(self, url: str):
        import fsspec

        try:
            self.files, root = fsspec.core.url_to_fs(url)
        except (ImportError, ValueError) as error:
            raise DataError(f"{url} cannot be used as storage: {error}") from error
        self.where, self.root = url, root.rstrip("/")

    def check(self) -> None:
        probe = f"{self.root}/.{uuid.uuid4().hex}"
        with self._explained():
            self.files.makedirs(self.root, exist_ok=True)
            self.files.pipe_file(probe, b"")
            self.files.rm_file(probe)

    def progress(self, run: Planned) -> Progress:
        base = f"{self.root}/{run.name}"
        with self._explained():
            self.files.invalidate_cache()
            if not self.files.exists(f"{base}/{run_folder.CONFIG}"):
                return Progress(None, 0)
            text = self.files.cat_file(f"{base}/{run_folder.CONFIG}").decode()
            found = self.files.glob(f"{base}/{checkpoint.FOLDER}/step_*/{checkpoint.MANIFEST}")
            log = f"{base}/{run_folder.EVALUATIONS}"
            lines = self.files.cat_file(log).splitlines() if self.files.exists(log) else []
        step = max((checkpoint.step_of(path.split("/")[-2]) for path in found), default=0)
        config = run_folder.parse_config(text, f"{base}/{run_folder.CONFIG}")
        return Progress(config, step, training.complete(run.config, step, run_folder.parse_lines(lines)))

    @contextlib.contextmanager
    def open(self, run: Planned) -> Iterator[Workspace]:
        base = f"{self.root}/{run.name}"
        with Lease(self.files, base) as lease, tempfile.TemporaryDirectory(prefix="sgqn-") as scratch:
            out = Path(scratch)
            copy = _Copy(self.files, base, out / run_folder.folder_of(run.config, Path()))
            with self._explained():
                copy.download()

            def save() -> None:
                lease.check()
                with self._explained():
                    copy.upload()

            try:
                yield Workspace(out, (_Saving(save),))
            finally:
                if copy.folder.is_dir():
                    save()

    def download_records(self, target: Path) -> None:
        """Copy what a report needs of every run below into a folder."""
        with self._explained():
            self.files.invalidate_cache()
            for path in self.files.find(self.root):
                relative = Path(path).relative_to(self.root)
                if relative.name in RECORDS:
                    (target / relative).parent.mkdir(parents=True, exist_ok=True)
                    self.files.get_file(path, str(target / relative))

    @contextlib.contextmanager
    def _explained(self) -> Iterator[None]:
        """Turn what goes wrong with the storage into one line: each file system raises errors of its own."""
        try:
            yield
        except SgqnError:
            raise
        except Exception as error:
            raise DataError(f"{self.where}: {' '.join(str(error).split()) or type(error).__name__}") from error


class _Saving(Callback):
    """Calls a function after each checkpoint."""

    def __init__(self, save: Callable[[], None]):
        self.save = save

    def on_checkpoint(self, step: int, path: Path) -> None:
        self.save()


class _Copy:
    """The local copy of a run's folder."""

    def __init__(self, files: Any, base: str, folder: Path):
        self.files, self.base, self.folder = files, base, folder
        self.uploaded: dict[str, tuple[int, int]] = {}  # size and time of change, by name

    def download(self) -> None:
        self.files.invalidate_cache()
        for path in self.files.find(self.base):
            name = path.removeprefix(self.base).lstrip("/")
            if name != LEASE and not name.endswith(".part"):
                (self.folder / name).parent.mkdir(parents=True, exist_ok=True)
                self.files.get_file(path, str(self.folder / name))
        self.uploaded = self._local()

    def upload(self) -> None:
        """Files first, then the manifests that make checkpoints of them, then removals: each moment can be resumed."""
        local = self._local()
        changed = [name for name, state in local.items() if self.uploaded.get(name) != state]
        for name in sorted(changed, key=lambda name: (name.endswith(checkpoint.MANIFEST), name)):
            target = f"{self.base}/{name}"
            self.files.makedirs(target.rpartition("/")[0], exist_ok=True)
            self.files.put_file(str(self.folder / name), target + ".part")
            self.files.mv(target + ".part", target)
        for name in sorted(
            self.uploaded.keys() - local.keys(), key=lambda name: not name.endswith(checkpoint.MANIFEST)
        ):
            with contextlib.suppress(FileNotFoundError):
                self.files.rm_file(f"{self.base}/{name}")
        self.uploaded = local

    def _local(self) -> dict[str, tuple[int, int]]:
        found = {}
        for folder, _, names in os.walk(self.folder):
            for name in names:
                path = Path(folder, name)
                if name != run_folder.LOCK:
                    state = path.stat()
                    found[path.relative_to(self.folder).as_posix()] = (state.st_size, state.st_mtime_ns)
        return found


class Lease:
    """The right to write a run to a storage without locks: a file that its owner renews while it lives.

    It is taken over when it has not changed for `LEASE_SECONDS`, by the clock of the process that waits.
    """

    def __init__(self, files: Any, base: str):
        self.files, self.path, self.owner = files, f"{base}/{LEASE}", uuid.uuid4().hex
        self.count = 0
        self._ended = threading.Event()

    def __enter__(self) -> Lease:
        found = self._read()
        if found is not None:
            patience = time.monotonic() + LEASE_SECONDS
            while time.monotonic() < patience:
                time.sleep(min(1.0, LEASE_SECONDS / 10))
                if self._read() is None:
                    break
                if self._read() != found:
                    raise BusyError(f"{self.path}: another process is training this run")
        self._renew()
        time.sleep(min(1.0, LEASE_SECONDS / 10))  # of two that come at once, the later writer wins
        self.check()
        threading.Thread(target=self._keep, daemon=True).start()
        return self

    def __exit__(self, *_: Any) -> None:
        self._ended.set()
        with contextlib.suppress(Exception):
            self.check()
            self.files.rm_file(self.path)

    def check(self) -> None:
        """Refuse to write once another process has taken over."""
        if (self._read() or {}).get("owner") != self.owner:
            raise BusyError(f"{self.path}: another process is training this run")

    def _keep(self) -> None:
        while not self._ended.wait(LEASE_SECONDS / 5):
            with contextlib.suppress(Exception):  # the next try may succeed; before writing, `check` decides
                self.check()
                if not self._ended.is_set():
                    self._renew()

    def _renew(self) -> None:
        self.count += 1
        self.files.makedirs(self.path.rpartition("/")[0], exist_ok=True)
        self.files.pipe_file(self.path, json.dumps({"owner": self.owner, "count": self.count}).encode())

    def _read(self) -> dict[str, Any] | None:
        try:
            self.files.invalidate_cache()
            found = json.loads(self.files.cat_file(self.path))
            return found if isinstance(found, dict) else {}
        except FileNotFoundError:
            return None
        except ValueError:  # being written
            return {}
