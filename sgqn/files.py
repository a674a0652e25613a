"""Atomic writes of files and folders."""

from __future__ import annotations

import os
import shutil
from collections.abc import Container, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path


def write_atomically(path: Path, content: bytes | str) -> None:
    """Write a temporary file, flush, rename: after a kill at any time, the old or the new file is there, complete."""
    temporary = path.with_name(path.name + ".tmp")
    temporary.unlink(missing_ok=True)  # what a kill left, or a link to somewhere else
    with open(temporary, "xb") as file:
        file.write(content.encode() if isinstance(content, str) else content)
        file.flush()
        os.fsync(file.fileno())
    os.replace(temporary, path)


@contextmanager
def written_atomically(target: Path) -> Iterator[Path]:
    """A temporary path that is renamed to `target` when the block succeeds, and removed when it fails."""
    temporary = target.with_name(f".{os.getpid()}.{target.name}.tmp{target.suffix}")
    try:
        yield temporary
        temporary.replace(target)
    finally:
        temporary.unlink(missing_ok=True)


def other_files(folder: Path, own: Container[str]) -> list[str]:
    """The names in a folder, which need not exist, that are not `own`: what replacing the folder would delete."""
    return sorted(path.name for path in folder.iterdir() if path.name not in own) if folder.is_dir() else []


def write_folder(target: Path, files: Mapping[str, bytes | str]) -> None:
    """A folder of these files, all or nothing, in place of what was there."""
    target = Path(os.path.realpath(target))  # a loop of links is then an OSError below
    target.parent.mkdir(parents=True, exist_ok=True)
    temporary, old = (target.with_name(f".{target.name}.{os.getpid()}.{kind}") for kind in ("tmp", "old"))
    try:
        temporary.mkdir()
        for name, content in files.items():
            write_atomically(temporary / name, content)
        if target.exists():
            target.rename(old)
        temporary.rename(target)
    finally:
        shutil.rmtree(temporary, ignore_errors=True)
        if old.exists() and not target.exists():
            old.rename(target)
    shutil.rmtree(old, ignore_errors=True)
