"""The data directory with clips, colours and overlay images, and how to install them. All data is optional. If a set is
missing, generated data is used instead; see `inventory`.
"""

from __future__ import annotations

import contextlib
import hashlib
import http.client
import io
import json
import lzma
import math
import os
import re
import stat
import tarfile
import time
import urllib.error
import urllib.request
import zipfile
import zlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from email.message import Message
from functools import partial
from pathlib import Path, PurePosixPath
from typing import IO, TYPE_CHECKING, Any

from sgqn.errors import DataError, UnknownNameError
from sgqn.files import written_atomically

if TYPE_CHECKING:
    from rich.progress import Progress, TaskID

EXPECTED = {"video_easy": 10, "video_hard": 100, "color_easy": 100, "color_hard": 100}
"""How many clips or colour settings the benchmark has of each kind."""

VIDEO_KINDS = ("video_easy", "video_hard")
COLOR_KINDS = ("color_easy", "color_hard")
COLOR_KEYS = ("grid_rgb1", "grid_rgb2", "self_rgb", "skybox_rgb")
IMAGE_SUFFIXES = frozenset({".jpg", ".jpeg", ".png", ".bmp", ".webp", ".gif", ".tif", ".tiff", ".ppm"})

BENCHMARK = "https://github.com/nicklashansen/dmcontrol-generalization-benchmark"
SOURCES = {
    "dmcgb": (f"{BENCHMARK}/archive/HEAD.zip", ""),
    "overlay": (
        "http://data.csail.mit.edu/places/places365/val_256.tar",
        "24b4e639ef12a0012af525bc4cb443e4ab4aaea8369a1fb009b70e4a4aad5d48",
    ),
}
"""Where each kind of data is downloaded from unless another source is given, and the archive's SHA-256 if it is fixed.
Images are the validation set of Places365: 36,500 images, 525 MB."""
HOW_TO_GET = {kind: f"sgqn data get {kind}" for kind in SOURCES}

Color = tuple[float, float, float]

_CHUNK = 1 << 18
_ATTEMPTS = 4  # of one download, within one call
_PAUSE = 1.0  # seconds before the second attempt; doubles with each further one
_DAMAGED = (zipfile.BadZipFile, tarfile.TarError, zlib.error, lzma.LZMAError, EOFError, NotImplementedError)


# Locations


def default_data_dir() -> Path:
    """The directory if `SGQN_DATA` is not set; it need not exist."""
    import platformdirs

    return platformdirs.user_cache_path("sgqn") / "data"


def data_dir() -> Path:
    """`SGQN_DATA` if set, else the platform's user cache (which need not exist)."""
    value = os.environ.get("SGQN_DATA")
    if not value:
        return default_data_dir()
    path = Path(value).expanduser().absolute()
    if not path.is_dir():
        raise DataError(
            f"SGQN_DATA={value!r} is not a directory: create it, point SGQN_DATA at the right one, "
            f"or unset it to use {default_data_dir()}"
        )
    return path


def video_clips(kind: str) -> list[Path]:
    """The clips of `video_easy` or `video_hard` in the benchmark's order (video2 before video10)."""
    if kind not in VIDEO_KINDS:
        raise UnknownNameError("video set", kind, VIDEO_KINDS)
    clips = (path for path in (data_dir() / "dmcgb" / kind).glob("*.mp4") if not path.name.startswith("."))
    return sorted(clips, key=_natural)


def color_settings_file(kind: str) -> Path | None:
    """The file with the colour settings of `color_easy` or `color_hard`, or None where it is missing."""
    if kind not in COLOR_KINDS:
        raise UnknownNameError("colour set", kind, COLOR_KINDS)
    path = data_dir() / "dmcgb" / f"{kind}.json"
    return path if path.is_file() else None


def overlay_images() -> list[Path]:
    """All images below `overlay/`, found by suffix, sorted; links to folders are followed."""
    root = data_dir() / "overlay"
    return sorted(root / name for name in _files_below(root) if _is_image(PurePosixPath(name)))


def _natural(path: Path) -> list[tuple[int, str]]:
    """Sort key that compares digits as numbers."""
    parts = re.split(r"(\d+)", path.name)
    return [(int(part), "") if part.isdecimal() else (-1, part) for part in parts]


def _is_image(path: PurePosixPath) -> bool:
    return path.suffix.lower() in IMAGE_SUFFIXES


def _files_below(root: Path) -> Iterator[str]:
    """The files below root that are not hidden, as relative names; each real folder is visited once."""
    visited: set[str] = set()
    for folder, folders, files in os.walk(root, followlinks=True):
        real = os.path.realpath(folder)
        folders[:] = sorted(name for name in folders if not name.startswith(".")) if real not in visited else []
        if real in visited:
            continue
        visited.add(real)
        for name in sorted(files):
            if not name.startswith("."):
                yield os.path.relpath(os.path.join(folder, name), root).replace(os.sep, "/")


# Validation of files


def load_colors(path: Path | str) -> list[dict[str, Color]]:
    """The colour settings of a file, each with the four colours that dm_control's model settings name."""
    path = Path(path)
    if problem := _size_problem(path):
        raise DataError(f"{path} {problem}")
    try:
        return _parse_colors(json.loads(path.read_bytes()))
    except (ValueError, RecursionError) as error:
        raise DataError(f"{path} is not a list of colour settings: {_first_line(error)}") from None


def _size_problem(path: Path) -> str | None:
    if not path.is_file():
        return "does not exist"
    return None if path.stat().st_size else "is empty (0 bytes)"


def clip_problem(path: Path) -> str | None:
    """What is wrong with a video, or None. Only key frames are decoded, but damage of other frames shows too."""
    import av

    if problem := _size_problem(path):
        return problem
    try:
        with av.open(str(path), metadata_errors="ignore") as container:
            if not container.streams.video:
                return "has no video stream"
            if is_image(container.format.name):
                return "is an image, not a video"
            stream = container.streams.video[0]
            stream.codec_context.skip_frame = "NONKEY"
            packets = frames = bad = 0
            for packet in container.demux(stream):
                packets += packet.size > 0
                try:
                    frames += len(packet.decode())
                except av.FFmpegError:
                    bad += 1
            # A file cut in the middle still lists all its frames where the list comes first in the file.
            if packets < stream.frames:
                return f"is truncated: {packets} of its {stream.frames} frames are there"
            if not frames:
                return "has no frame that can be decoded"
            if bad:
                return f"is damaged: {bad} of its {packets} frames cannot be decoded"
    except (av.FFmpegError, ValueError, UnicodeError) as error:
        reason = getattr(error, "strerror", None) or _first_line(error)
        return f"is not a video that can be decoded, or is truncated ({reason})"
    return None


def is_image(container: str) -> bool:
    """Whether FFmpeg's name of a container is one of images, such as jpeg_pipe."""
    return container.endswith("_pipe") or container == "image2"


def _image_problem(path: Path) -> str | None:
    from PIL import Image, UnidentifiedImageError

    if problem := _size_problem(path):
        return problem
    try:
        with Image.open(path) as image:
            image.draft("RGB", (64, 64))  # a JPEG decodes several times faster, and truncation still shows
            image.load()
    except UnidentifiedImageError:
        return "is not an image"
    except (OSError, SyntaxError, ValueError, EOFError, Image.DecompressionBombError) as error:
        return f"is a damaged image ({_first_line(error)})"
    return None


def _colors_problem(path: Path) -> str | None:
    try:
        load_colors(path)
    except DataError as error:
        return str(error).removeprefix(f"{path} ")
    return None


def _parse_colors(value: Any) -> list[dict[str, Color]]:
    """Validate a list of colour settings; colours may be lists, tuples, arrays or tensors of three numbers."""
    if not isinstance(value, list) or not value:
        raise ValueError(f"expected a non-empty list, found {type(value).__name__}")
    settings = []
    for index, setting in enumerate(value):
        if not isinstance(setting, dict) or not set(COLOR_KEYS) <= set(setting):
            raise ValueError(f"setting {index} needs the keys {', '.join(COLOR_KEYS)}")
        settings.append({key: _parse_color(setting[key], f"{key} of setting {index}") for key in COLOR_KEYS})
    return settings


def _parse_color(value: Any, what: str) -> Color:
    if hasattr(value, "tolist"):
        value = value.tolist()
    numbers = value if isinstance(value, list | tuple) else ()
    if len(numbers) != 3 or any(isinstance(x, bool) or not isinstance(x, int | float) for x in numbers):
        raise ValueError(f"{what} is not three numbers")
    red, green, blue = (float(x) for x in numbers)
    if not all(math.isfinite(x) and 0 <= x <= 1 for x in (red, green, blue)):
        raise ValueError(f"{what} is not within 0 and 1")
    return red, green, blue


def _colors_from_torch(content: bytes) -> bytes:
    """The benchmark's own `color_*.pt` as our JSON. Only plain values and arrays are unpickled."""
    import numpy as np
    import torch

    # Arrays from before NumPy 2 name the old home of the same two functions.
    functions: list[Any] = [np._core.multiarray._reconstruct, np._core.multiarray.scalar]  # type: ignore[attr-defined]
    allowed = [(f, f"{home}.multiarray.{f.__name__}") for f in functions for home in ("numpy.core", "numpy._core")]
    with torch.serialization.safe_globals([*allowed, np.ndarray, np.dtype, type(np.dtype(np.float64))]):
        value = torch.load(io.BytesIO(content), map_location="cpu", weights_only=True)
    return json.dumps(_parse_colors(value)).encode()


def _first_line(error: BaseException) -> str:
    return (str(error).strip() or type(error).__name__).splitlines()[0]


# Inventory


@dataclass(frozen=True)
class Entry:
    """One set of files: what was found, what is used instead, and how to get it."""

    name: str
    path: Path
    found: int
    expected: int | None  # None: any number
    state: str  # "complete", "incomplete", "missing" or "damaged"
    instead: str  # what is used if the set is missing
    how: str  # the command that gets it
    problems: tuple[str, ...] = ()


def inventory() -> list[Entry]:
    """Contents of the data directory. Clips and colours are verified, images only counted."""
    return [*map(_video_entry, VIDEO_KINDS), *map(_color_entry, COLOR_KINDS), _overlay_entry()]


def _video_entry(kind: str) -> Entry:
    clips = video_clips(kind)
    problems = [f"{clip.name} {problem}" for clip in clips if (problem := clip_problem(clip))]
    return _entry(kind, data_dir() / "dmcgb" / kind, len(clips) - len(problems), problems, "generated backgrounds")


def _color_entry(kind: str) -> Entry:
    path = color_settings_file(kind)
    problem = path and _colors_problem(path)
    found = len(load_colors(path)) if path and not problem else 0
    problems = [f"{path.name} {problem}"] if path and problem else []
    return _entry(kind, data_dir() / "dmcgb" / f"{kind}.json", found, problems, "generated colours")


def _overlay_entry() -> Entry:
    return _entry("overlay", data_dir() / "overlay", len(overlay_images()), [], "generated images")


def _entry(name: str, path: Path, found: int, problems: list[str], instead: str) -> Entry:
    expected = EXPECTED.get(name)
    if problems:
        state = "damaged"
    elif not found:
        state = "missing"
    else:
        state = "complete" if expected is None or found >= expected else "incomplete"
    how = HOW_TO_GET["overlay" if name == "overlay" else "dmcgb"]
    return Entry(name, path, found, expected, state, instead, how, tuple(problems))


# Installation


@dataclass
class Installed:
    """Result of `get`. `bad` maps a source file to the reason why it was not installed."""

    directory: Path
    installed: list[Path] = field(default_factory=list)
    skipped: list[Path] = field(default_factory=list)
    bad: dict[str, str] = field(default_factory=dict)


def get(kind: str, source: str | None = None, *, progress: bool = True) -> Installed:
    """Install the benchmark's data ("dmcgb") or images ("overlay") from a folder, archive or http(s) URL.

    The default is where they are published, with the checksum of the archive if that is known.
    Each file is verified and then renamed into place, so an interruption leaves nothing half-written; calling
    again copies only what is missing. Damaged files are skipped and listed in the result.
    """
    if kind not in HOW_TO_GET:
        raise UnknownNameError("kind of data", kind, HOW_TO_GET)
    directory = data_dir()
    source, sha256 = (source, "") if source is not None else SOURCES[kind]
    try:
        with _progress_bar(progress) as bar, _open_source(source, directory, bar, sha256) as items:
            return _install(kind, source, items, directory, bar)
    except OSError as error:
        raise DataError(f"cannot read or write {error.filename or directory}: {error.strerror or error}") from None


@dataclass(frozen=True)
class _Item:
    """One file of a source: its name within the source, the name of the folder that holds it, its bytes."""

    name: str
    folder: str
    size: int
    open: Callable[[], IO[bytes]]
    problem: str | None = None


class _BadItemError(Exception):
    """A file of the source that is unreadable or invalid."""


@contextlib.contextmanager
def _open_source(source: str, directory: Path, bar: Progress, sha256: str = "") -> Iterator[list[_Item]]:
    """The files of a source; what was downloaded is kept when interrupted and removed otherwise."""
    if re.match(r"https?://", source, re.IGNORECASE):
        archive = _download(source, directory / ".downloads", bar)
        try:
            _check_sum(archive, source, sha256)
            with _open_archive(archive, source) as items:
                yield items
        except DataError:
            _forget_download(archive)
            raise
        _forget_download(archive)
        return
    path = Path(source).expanduser()
    if path.is_dir():
        yield _folder_items(path.resolve(), directory.resolve())
    elif path.is_file():
        with _open_archive(path, source) as items:
            yield items
    else:
        raise DataError(f"{source!r} is neither a folder, an archive nor an http(s) URL")


def _check_sum(archive: Path, source: str, sha256: str) -> None:
    """Refuse an archive that is not the published one."""
    if sha256:
        with archive.open("rb") as file:
            found = hashlib.file_digest(file, "sha256").hexdigest()
        if found != sha256:
            raise DataError(f"{source!r} is not the expected archive: its SHA-256 is {found}, not {sha256}")


def _folder_items(folder: Path, directory: Path) -> list[_Item]:
    """The files of a folder, without the data directory if it is inside."""
    if folder.is_relative_to(directory):
        raise DataError(f"{str(folder)!r} lies in the data directory {directory}: there is nothing to copy")
    items = []
    for name in _files_below(folder):
        path = folder / name
        if path.is_file() and not path.is_relative_to(directory):
            items.append(_Item(name, path.parent.name, path.stat().st_size, partial(_open_file, path)))
    return items


def _open_file(path: Path) -> IO[bytes]:
    return path.open("rb")


@contextlib.contextmanager
def _open_archive(path: Path, source: str) -> Iterator[list[_Item]]:
    """The files of a zip or tar archive; reading the list of a truncated one fails here."""
    with contextlib.ExitStack() as stack:
        try:
            if zipfile.is_zipfile(path):
                items = _zip_items(stack.enter_context(zipfile.ZipFile(path)))
            else:
                items = _tar_items(stack.enter_context(tarfile.open(path)))
        except (*_DAMAGED, OSError) as error:
            raise DataError(f"{source!r} is not a complete zip or tar archive ({_first_line(error)})") from None
        yield items


def _zip_items(archive: zipfile.ZipFile) -> list[_Item]:
    items = []
    for member in archive.infolist():
        if member.is_dir():
            continue
        problem = _name_problem(member.filename)
        if stat.S_ISLNK(member.external_attr >> 16):
            problem = "is a link, which is never unpacked"
        elif member.flag_bits & 1:
            problem = "is encrypted"
        folder = PurePosixPath(member.filename).parent.name
        items.append(_Item(member.filename, folder, member.file_size, partial(archive.open, member), problem))
    return items


def _tar_items(archive: tarfile.TarFile) -> list[_Item]:
    items = []
    members = archive.getmembers()
    if archive.fileobj is None or archive.fileobj.tell() < archive.offset + tarfile.BLOCKSIZE:
        raise tarfile.ReadError("the end of the archive is missing")  # tarfile itself lets this pass
    for member in members:
        if member.isdir():
            continue
        problem = _name_problem(member.name)
        if not member.isfile():
            problem = "is a link or device, which is never unpacked"
        folder = PurePosixPath(member.name).parent.name
        items.append(_Item(member.name, folder, member.size, partial(_tar_member, archive, member), problem))
    return items


def _tar_member(archive: tarfile.TarFile, member: tarfile.TarInfo) -> IO[bytes]:
    content = archive.extractfile(member)
    if content is None:
        raise tarfile.ReadError("not a regular file")
    return content


def _name_problem(name: str) -> str | None:
    """Why a member's name may not be used as a path below the data directory."""
    if name.startswith("/") or ".." in re.split(r"[/\\]", name):
        return "points outside the archive, and is never unpacked"
    return None


def _target(kind: str, item: _Item) -> PurePosixPath | None:
    """The destination of a source file below the data directory; None if it is not part of the data."""
    path = PurePosixPath(item.name)
    if any(part.startswith(".") and part not in (".", "..") for part in path.parts):
        return None
    if kind == "overlay":
        return "overlay" / path if _is_image(path) else None
    if item.folder in VIDEO_KINDS and path.suffix.lower() == ".mp4":
        return PurePosixPath("dmcgb", item.folder, path.stem + ".mp4")
    if path.stem in COLOR_KINDS and path.suffix in (".json", ".pt"):
        return PurePosixPath("dmcgb", path.stem + ".json")
    return None


def _install(kind: str, source: str, items: list[_Item], directory: Path, bar: Progress) -> Installed:
    """Install every known file; if two have the same destination, the first."""
    # JSON before the benchmark's own .pt, should a source hold both.
    items = sorted(items, key=lambda item: item.name.endswith(".pt"))
    wanted: dict[PurePosixPath, _Item] = {}
    for item in items:
        if target := _target(kind, item):
            wanted.setdefault(target, item)
    if not wanted:
        raise DataError(f"nothing recognised in {source!r}: looked for {_LOOKED_FOR[kind]}")
    result = Installed(directory)
    task = bar.add_task("Installing", total=sum(item.size for item in wanted.values()))
    for relative, item in wanted.items():
        path = directory / relative
        try:
            done = _install_item(item, path)
            (result.installed if done else result.skipped).append(path)
        except _BadItemError as error:
            result.bad[item.name] = str(error)
        bar.advance(task, item.size)
    return result


_LOOKED_FOR = {
    "dmcgb": "video_easy/*.mp4, video_hard/*.mp4, color_easy.json (or .pt), color_hard.json (or .pt)",
    "overlay": f"images ({', '.join(sorted(IMAGE_SUFFIXES))})",
}


def _install_item(item: _Item, path: Path) -> bool:
    """Copy, verify and rename one file; False if one of the same size is there already."""
    if item.problem or not item.size:
        raise _BadItemError(item.problem or "is empty (0 bytes)")
    convert = item.name.endswith(".pt")
    if not convert and path.is_file() and path.stat().st_size == item.size:
        return False
    path.parent.mkdir(parents=True, exist_ok=True)
    with written_atomically(path) as temporary:
        with open(temporary, "wb") as out:
            for chunk in _converted(item) if convert else _chunks(item):
                out.write(chunk)
        if convert and path.is_file() and path.stat().st_size == temporary.stat().st_size:
            return False
        if problem := _problem_of(path)(temporary):
            raise _BadItemError(problem)
    return True


def _problem_of(target: Path) -> Callable[[Path], str | None]:
    if target.suffix == ".mp4":
        return clip_problem
    return _colors_problem if target.suffix == ".json" else _image_problem


def _chunks(item: _Item) -> Iterator[bytes]:
    """The content of a source file; a read error is reported as a damaged file."""
    try:
        with item.open() as content:
            while chunk := content.read(_CHUNK):
                yield chunk
    except (*_DAMAGED, OSError) as error:
        raise _BadItemError(f"cannot be read ({_first_line(error)})") from None


def _converted(item: _Item) -> Iterator[bytes]:
    try:
        yield _colors_from_torch(b"".join(_chunks(item)))
    except _BadItemError:
        raise
    except Exception as error:  # torch raises many kinds on a file that it cannot or will not load
        raise _BadItemError(f"is not a list of colour settings ({_first_line(error)})") from None


def _progress_bar(show: bool) -> Progress:
    from rich.console import Console
    from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TimeRemainingColumn

    columns = (TextColumn("{task.description}"), BarColumn(), DownloadColumn(), TimeRemainingColumn())
    console = Console(stderr=True)
    return Progress(*columns, console=console, disable=not (show and console.is_terminal))


# Downloads that resume


class _BrokenOffError(Exception):
    """The server closed the connection early."""


def _download(url: str, folder: Path, bar: Progress) -> Path:
    """Download a URL to `<folder>/<name>.part`, resuming an earlier attempt or call."""
    name = re.sub(r"[^\w.-]", "_", re.sub(r"[?#].*", "", url).rstrip("/").rsplit("/", 1)[-1])
    part = folder / f"{name}.part"
    task = bar.add_task("Downloading", total=None)
    for attempt in range(_ATTEMPTS):
        try:
            _fetch(url, part, bar, task)
            return part
        except urllib.error.HTTPError as error:
            if error.code < 500:
                raise DataError(f"cannot download {url}: HTTP {error.code} {error.reason}") from None
            reason = f"HTTP {error.code} {error.reason}"
        except (
            urllib.error.URLError,
            http.client.HTTPException,
            ConnectionError,
            TimeoutError,
            _BrokenOffError,
        ) as error:
            reason = str(getattr(error, "reason", "")) or _first_line(error)
        if attempt + 1 < _ATTEMPTS:
            time.sleep(_PAUSE * 2**attempt)
    if not part.exists():
        raise DataError(f"cannot download {url}: {reason}")
    raise DataError(f"the download of {url} was interrupted ({reason}): run the same command again to resume")


def _fetch(url: str, part: Path, bar: Progress, task: TaskID) -> None:
    """One request: resumes `part` if the file on the server is unchanged, else starts over."""
    state = _read_state(part, url)
    offset = part.stat().st_size if state and part.exists() else 0
    headers = {"User-Agent": "sgqn", "Accept-Encoding": "identity"}
    if offset:
        headers["Range"] = f"bytes={offset}-"
        etag = state["ETag"] or ""
        if validator := state["Last-Modified"] if etag.startswith("W/") else etag or state["Last-Modified"]:
            headers["If-Range"] = validator  # a server whose file has changed then sends all of it
    try:
        response = urllib.request.urlopen(urllib.request.Request(url, headers=headers), timeout=30)
    except urllib.error.HTTPError as error:
        if error.code != 416 or not offset:
            raise
        with error:
            total = _total(error.headers)
        if total == offset and state["length"] in (None, total):  # everything had arrived already
            bar.update(task, total=offset, completed=offset)
            return
        response = None
    except (ValueError, http.client.InvalidURL) as error:
        raise DataError(f"cannot download {url!r}: {_first_line(error)}") from None
    if response is None or (offset and response.status == 206 and not _continues(response.headers, offset, state)):
        if response is not None:
            response.close()
        _forget_download(part)
        _fetch(url, part, bar, task)
        return
    with response:
        if not offset or response.status != 206:
            offset = 0
            state = _new_state(part, url, response.headers)
        bar.update(task, total=state["length"], completed=offset)
        with open(part, "ab" if offset else "wb") as out:
            while chunk := response.read(_CHUNK):
                out.write(chunk)
                bar.advance(task, len(chunk))
    length, size = state["length"], part.stat().st_size
    if length is not None and size != length:
        if size > length:
            _forget_download(part)
        raise _BrokenOffError(f"{size:,} of {length:,} bytes arrived")


def _state_file(part: Path) -> Path:
    return part.with_name(part.name + ".json")


def _read_state(part: Path, url: str) -> dict[str, Any]:
    """The record of an unfinished download of this URL; empty if there is none."""
    try:
        state = json.loads(_state_file(part).read_text())
    except (OSError, ValueError):
        return {}
    known = isinstance(state, dict) and state.keys() >= {"ETag", "Last-Modified", "length"}
    return state if known and state.get("url") == url else {}


def _new_state(part: Path, url: str, headers: Message) -> dict[str, Any]:
    """Record what a later request needs to check that the file on the server is unchanged."""
    length = headers.get("Content-Length", "")
    state: dict[str, Any] = {name: headers.get(name) for name in ("ETag", "Last-Modified")}
    state |= {"url": url, "length": int(length) if length.isdigit() else None}
    part.parent.mkdir(parents=True, exist_ok=True)
    part.unlink(missing_ok=True)
    with written_atomically(_state_file(part)) as temporary:
        temporary.write_text(json.dumps(state))
    return state


def _continues(headers: Message, offset: int, state: dict[str, Any]) -> bool:
    """Whether a partial response is the rest of the same file."""
    starts_here = headers.get("Content-Range", "").startswith(f"bytes {offset}-")
    same = all(headers.get(name, state[name]) == state[name] for name in ("ETag", "Last-Modified"))
    return starts_here and same and state["length"] in (None, _total(headers))


def _total(headers: Message) -> int | None:
    match = re.search(r"/(\d+)$", headers.get("Content-Range", ""))
    return int(match[1]) if match else None


def _forget_download(part: Path) -> None:
    """Remove a finished or unusable download, and its folder if it is empty."""
    part.unlink(missing_ok=True)
    _state_file(part).unlink(missing_ok=True)
    with contextlib.suppress(OSError):
        part.parent.rmdir()
