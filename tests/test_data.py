from __future__ import annotations

import hashlib
import http.server
import io
import json
import os
import tarfile
import threading
import zipfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image

from sgqn import data
from sgqn.cli import main
from sgqn.errors import DataError, UnknownNameError
from tests.helpers import SETTING, keep_frames, write_clip, write_colors, write_image


@pytest.fixture
def clone(tmp_path: Path) -> Path:
    """A source shaped like the benchmark's repository."""
    root = tmp_path / "clone"
    for kind, count in (("video_easy", 3), ("video_hard", 2)):
        for i in range(count):
            write_clip(root / "src" / "env" / "data" / kind / f"video{i}.mp4", frames=3 + i)
    write_colors(root / "src" / "env" / "data" / "color_easy.json")
    write_colors(root / "src" / "env" / "data" / "color_hard.json", count=3)
    write_image(root / "figures" / "video_easy.png")
    write_clip(root / ".git" / "video_easy" / "video9.mp4")
    return root


def files(folder: Path) -> set[str]:
    """All files below a folder, hidden ones too."""
    return {path.relative_to(folder).as_posix() for path in folder.rglob("*") if path.is_file()}


CLONE_FILES = {
    *(f"dmcgb/video_easy/video{i}.mp4" for i in range(3)),
    *(f"dmcgb/video_hard/video{i}.mp4" for i in range(2)),
    "dmcgb/color_easy.json",
    "dmcgb/color_hard.json",
}


# Where things lie


def test_data_dir_is_the_variable_or_the_user_cache(store: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert data.data_dir() == store
    for unset in (lambda: monkeypatch.setenv("SGQN_DATA", ""), lambda: monkeypatch.delenv("SGQN_DATA")):
        unset()
        assert data.data_dir() == data.default_data_dir()
        assert data.data_dir().name == "data"


@pytest.mark.parametrize("make_file", [False, True])
def test_data_dir_that_is_no_directory_is_quoted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, make_file: bool
) -> None:
    path = tmp_path / "typo"
    if make_file:
        path.write_text("a file")
    monkeypatch.setenv("SGQN_DATA", str(path))
    with pytest.raises(DataError, match="is not a directory") as caught:
        data.video_clips("video_easy")
    assert repr(str(path)) in str(caught.value)
    assert "unset" in str(caught.value)


def test_nothing_is_found_in_an_empty_or_missing_directory(
    store: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(data, "default_data_dir", lambda: tmp_path / "missing")
    for unset in (False, True):
        if unset:
            monkeypatch.delenv("SGQN_DATA")
        assert data.video_clips("video_hard") == []
        assert data.color_settings_file("color_easy") is None
        assert data.overlay_images() == []
        assert {entry.state for entry in data.inventory()} == {"missing"}


def test_clips_come_in_natural_order(store: Path) -> None:
    folder = store / "dmcgb" / "video_hard"
    folder.mkdir(parents=True)
    for name in ["video10.mp4", "video2.mp4", "video0.mp4", "video1.mp4", ".video3.mp4", "notes.txt"]:
        (folder / name).touch()
    names = [path.name for path in data.video_clips("video_hard")]
    assert names == ["video0.mp4", "video1.mp4", "video2.mp4", "video10.mp4"]


@given(st.lists(st.integers(0, 10**6), unique=True))
def test_natural_order_is_numeric(numbers: list[int]) -> None:
    paths = [Path(f"video{i}.mp4") for i in numbers]
    assert sorted(paths, key=data._natural) == [Path(f"video{i}.mp4") for i in sorted(numbers)]


def test_overlay_images_are_a_tree_with_links(store: Path, tmp_path: Path) -> None:
    write_image(store / "overlay" / "b.JPG")
    write_image(store / "overlay" / "a" / "deep" / "x.png")
    write_image(tmp_path / "elsewhere" / "linked.png")
    (store / "overlay" / "link").symlink_to(tmp_path / "elsewhere")
    (store / "overlay" / "a" / "loop").symlink_to(store / "overlay")
    (store / "overlay" / "readme.txt").write_text("no")
    (store / "overlay" / ".hidden.png").touch()
    names = [path.relative_to(store).as_posix() for path in data.overlay_images()]
    assert names == ["overlay/a/deep/x.png", "overlay/b.JPG", "overlay/link/linked.png"]


def test_unknown_kinds_are_named(store: Path) -> None:
    with pytest.raises(UnknownNameError, match=r"'video_heard'.*did you mean"):
        data.video_clips("video_heard")
    with pytest.raises(UnknownNameError, match="'video_easy'"):
        data.color_settings_file("video_easy")
    with pytest.raises(UnknownNameError, match="'places'"):
        data.get("places", ".")


# Checks


def test_good_files_pass(tmp_path: Path) -> None:
    assert data.clip_problem(write_clip(tmp_path / "a.mp4")) is None
    assert data.clip_problem(write_clip(tmp_path / "b.mp4", faststart=True)) is None
    assert data._image_problem(write_image(tmp_path / "a.png")) is None
    assert data._image_problem(write_image(tmp_path / "a.jpg")) is None
    assert data._colors_problem(write_colors(tmp_path / "a.json")) is None
    assert data.load_colors(tmp_path / "a.json")[1]["self_rgb"] == (0.1, 0.2, 0.3)


@pytest.mark.parametrize("faststart", [False, True])
def test_truncated_clips_are_refused(tmp_path: Path, faststart: bool) -> None:
    path = write_clip(tmp_path / "a.mp4", frames=20, faststart=faststart)
    path.write_bytes(path.read_bytes()[: path.stat().st_size * 2 // 3])
    problem = data.clip_problem(path)
    assert problem is not None
    assert "truncated" in problem
    assert "\n" not in problem


def test_clips_with_digits_that_are_no_numbers(store: Path) -> None:
    for name in ("1²3.mp4", "12.mp4", "٣.mp4"):
        write_clip(store / "dmcgb" / "video_easy" / name)
    assert len(data.video_clips("video_easy")) == 3
    assert main(["data"]) == 0


def test_a_clip_of_damaged_frames_is_refused(tmp_path: Path) -> None:
    """All 750 frames are there, 18 of them whole."""
    path = write_clip(tmp_path / "a.mp4", frames=750)
    keep_frames(path, 18)
    assert data.clip_problem(path) == "is damaged: 731 of its 750 frames cannot be decoded"  # the last is incomplete


def test_an_image_is_not_a_clip(tmp_path: Path) -> None:
    for name, kind in (("a.mp4", "JPEG"), ("b.mp4", "PNG"), ("c.mp4", "WEBP")):
        Image.new("RGB", (32, 32)).save(tmp_path / name, format=kind)
        assert data.clip_problem(tmp_path / name) == "is an image, not a video"


@pytest.mark.parametrize("check", [data.clip_problem, data._image_problem, data._colors_problem])
def test_empty_missing_and_alien_files_are_refused(tmp_path: Path, check: Callable[[Path], str | None]) -> None:
    assert check(tmp_path / "missing") == "does not exist"
    path = tmp_path / "file"
    path.touch()
    assert check(path) == "is empty (0 bytes)"
    path.write_bytes(b"<!DOCTYPE html><html>404: not found</html>" * 40)
    problem = check(path)
    assert problem is not None
    assert problem.startswith("is not a")
    assert "\n" not in problem


@pytest.mark.parametrize("suffix", ["png", "jpg"])
def test_truncated_pictures_are_refused(tmp_path: Path, suffix: str) -> None:
    path = write_image(tmp_path / f"a.{suffix}", size=64)
    path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])
    assert "damaged image" in (data._image_problem(path) or "")


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("[{", "is not a list of colour settings"),
        ("[]", "non-empty list"),
        ("{}", "found dict"),
        ("[1]", "setting 0 needs the keys"),
        (json.dumps([SETTING, {"grid_rgb1": [0, 0, 0]}]), "setting 1 needs the keys"),
        (json.dumps([SETTING | {"self_rgb": [0.1, 0.2]}]), "self_rgb of setting 0 is not three numbers"),
        (json.dumps([SETTING | {"self_rgb": [0.1, 0.2, "x"]}]), "not three numbers"),
        (json.dumps([SETTING | {"self_rgb": [0.1, 0.2, True]}]), "not three numbers"),
        (json.dumps([SETTING | {"self_rgb": [0.1, 0.2, float("nan")]}]), "not within 0 and 1"),
        (json.dumps([SETTING | {"self_rgb": [0.1, 0.2, 255]}]), "not within 0 and 1"),
        ("\xff\xfe", "is not a list of colour settings"),
        ("[" * 100_000, "is not a list of colour settings"),
    ],
)
def test_malformed_colours_are_refused(tmp_path: Path, text: str, reason: str) -> None:
    path = tmp_path / "color_easy.json"
    path.write_bytes(text.encode("latin-1"))
    with pytest.raises(DataError, match=reason):
        data.load_colors(path)


# Inventory


def test_inventory_counts_and_names_what_is_damaged(store: Path) -> None:
    for i in range(10):
        write_clip(store / "dmcgb" / "video_easy" / f"video{i}.mp4", frames=2)
    write_clip(store / "dmcgb" / "video_hard" / "video0.mp4", frames=2)
    (store / "dmcgb" / "video_hard" / "video1.mp4").touch()
    write_colors(store / "dmcgb" / "color_easy.json", count=7)
    (store / "dmcgb" / "color_hard.json").write_text("[")
    write_image(store / "overlay" / "a.png")
    rows = {entry.name: entry for entry in data.inventory()}
    assert {name: (row.found, row.state) for name, row in rows.items()} == {
        "video_easy": (10, "complete"),
        "video_hard": (1, "damaged"),
        "color_easy": (7, "incomplete"),
        "color_hard": (0, "damaged"),
        "overlay": (1, "complete"),
    }
    assert rows["video_hard"].problems == ("video1.mp4 is empty (0 bytes)",)
    assert rows["color_hard"].problems[0].startswith("color_hard.json is not a list of colour settings")
    assert rows["video_easy"].path == store / "dmcgb" / "video_easy"
    assert {name: rows[name].expected for name in data.EXPECTED} == data.EXPECTED
    assert all(row.how.startswith("sgqn data get") for row in rows.values())


# Getting data from folders and archives


def test_get_recognises_a_clone_and_skips_the_second_time(store: Path, clone: Path) -> None:
    result = data.get("dmcgb", str(clone), progress=False)
    assert files(store) == CLONE_FILES
    assert (len(result.installed), result.skipped, result.bad) == (7, [], {})
    (store / "dmcgb" / "video_easy" / "video1.mp4").unlink()
    (store / "dmcgb" / "color_hard.json").write_text("[]")
    result = data.get("dmcgb", str(clone), progress=False)
    assert [path.name for path in result.installed] == ["color_hard.json", "video1.mp4"]
    assert len(result.skipped) == 5
    assert files(store) == CLONE_FILES


def test_get_takes_one_folder_of_clips(store: Path, clone: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(clone / "src" / "env" / "data" / "video_hard")
    data.get("dmcgb", ".", progress=False)
    assert files(store) == {name for name in CLONE_FILES if "video_hard" in name}


def test_get_creates_the_default_directory(tmp_path: Path, clone: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("SGQN_DATA", raising=False)
    monkeypatch.setattr(data, "default_data_dir", lambda: tmp_path / "cache" / "sgqn" / "data")
    data.get("dmcgb", str(clone), progress=False)
    assert files(tmp_path / "cache" / "sgqn" / "data") == CLONE_FILES


def test_get_overlay_keeps_the_tree(store: Path, tmp_path: Path) -> None:
    write_image(tmp_path / ".images" / "train" / "airfield" / "1.jpg")
    write_image(tmp_path / ".images" / "2.png")
    (tmp_path / ".images" / "list.txt").write_text("1.jpg")
    data.get("overlay", str(tmp_path / ".images"), progress=False)
    assert files(store) == {"overlay/train/airfield/1.jpg", "overlay/2.png"}


def test_get_leaves_out_bad_files_and_goes_on(store: Path, clone: Path) -> None:
    easy = clone / "src" / "env" / "data" / "video_easy"
    (easy / "video0.mp4").write_bytes(b"")
    (easy / "video1.mp4").write_bytes((easy / "video1.mp4").read_bytes()[:200])
    (clone / "src" / "env" / "data" / "color_easy.json").write_text("not json")
    result = data.get("dmcgb", str(clone), progress=False)
    assert {Path(name).name for name in result.bad} == {"video0.mp4", "video1.mp4", "color_easy.json"}
    assert files(store) == CLONE_FILES - {
        "dmcgb/video_easy/video0.mp4",
        "dmcgb/video_easy/video1.mp4",
        "dmcgb/color_easy.json",
    }


def test_get_leaves_out_a_picture_that_is_none(store: Path, tmp_path: Path) -> None:
    write_image(tmp_path / "images" / "good.png")
    (tmp_path / "images" / "bad.png").write_text("no picture")
    result = data.get("overlay", str(tmp_path / "images"), progress=False)
    assert result.bad == {"bad.png": "is not an image"}
    assert files(store) == {"overlay/good.png"}


def test_get_keeps_the_good_file_that_a_bad_one_would_replace(store: Path, tmp_path: Path) -> None:
    good = write_image(store / "overlay" / "a.png").read_bytes()
    (tmp_path / "images").mkdir()
    (tmp_path / "images" / "a.png").write_text("no picture")
    data.get("overlay", str(tmp_path / "images"), progress=False)
    assert (store / "overlay" / "a.png").read_bytes() == good


def test_interrupted_get_leaves_nothing_half_written(store: Path, clone: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupt(path: Path) -> None:
        assert path.exists()
        raise KeyboardInterrupt

    monkeypatch.setattr(data, "clip_problem", interrupt)
    with pytest.raises(KeyboardInterrupt):
        data.get("dmcgb", str(clone), progress=False)
    assert not [name for name in files(store) if name.endswith(".mp4") or "tmp" in name]


def test_get_says_what_it_looked_for(store: Path, tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    with pytest.raises(DataError, match=r"nothing recognised in .*empty.*video_easy/\*\.mp4"):
        data.get("dmcgb", str(tmp_path / "empty"), progress=False)
    with pytest.raises(DataError, match=r"looked for images \(.*\.png"):
        data.get("overlay", str(tmp_path / "empty"), progress=False)
    with pytest.raises(DataError, match="'nowhere' is neither"):
        data.get("overlay", "nowhere", progress=False)
    with pytest.raises(DataError, match="lies in the data directory"):
        data.get("overlay", str(store), progress=False)
    assert files(store) == set()


def test_get_passes_over_its_own_directory_below_the_source(store: Path, tmp_path: Path) -> None:
    write_image(tmp_path / "a.png")
    write_image(store / "overlay" / "b.png")
    data.get("overlay", str(tmp_path), progress=False)
    assert files(store) == {"overlay/a.png", "overlay/b.png"}


@pytest.mark.skipif(os.name == "nt" or getattr(os, "geteuid", lambda: 1)() == 0, reason="root may write anywhere")
def test_get_into_a_read_only_directory_is_one_line(store: Path, clone: Path) -> None:
    store.chmod(0o555)
    with pytest.raises(DataError, match="Permission denied"):
        data.get("dmcgb", str(clone), progress=False)


def test_get_where_a_file_blocks_the_way_is_one_line(store: Path, clone: Path) -> None:
    (store / "dmcgb").write_text("in the way")
    with pytest.raises(DataError, match=r"cannot read or write .*dmcgb"):
        data.get("dmcgb", str(clone), progress=False)


@pytest.mark.parametrize("as_array", [list, np.array, torch.tensor])
def test_get_converts_the_colours_of_the_benchmark(
    store: Path, tmp_path: Path, as_array: data.Callable[[list[float]], object]
) -> None:
    setting = {key: as_array(value) for key, value in SETTING.items()}
    (tmp_path / "clone").mkdir()
    torch.save([setting] * 100, tmp_path / "clone" / "color_hard.pt")
    result = data.get("dmcgb", str(tmp_path / "clone"), progress=False)
    assert result.bad == {}
    loaded = data.load_colors(store / "dmcgb" / "color_hard.json")
    assert len(loaded) == 100
    assert loaded[0]["skybox_rgb"] == pytest.approx((0.1, 0.2, 0.3))
    assert data.get("dmcgb", str(tmp_path / "clone"), progress=False).installed == []


def test_colours_pickled_before_numpy_2_are_read() -> None:
    new, old = io.BytesIO(), io.BytesIO()
    torch.save([{key: np.array(value) for key, value in SETTING.items()}], new)
    with zipfile.ZipFile(new) as source, zipfile.ZipFile(old, "w") as target:
        for name in source.namelist():
            target.writestr(name, source.read(name).replace(b"numpy._core", b"numpy.core"))
    assert json.loads(data._colors_from_torch(old.getvalue())) == [SETTING]


def test_colours_that_would_run_code_are_refused(store: Path, tmp_path: Path) -> None:
    class Evil:
        def __reduce__(self) -> tuple[object, tuple[str]]:
            return os.mkdir, (str(tmp_path / "ran"),)

    (tmp_path / "clone").mkdir()
    torch.save([Evil()], tmp_path / "clone" / "color_hard.pt")
    result = data.get("dmcgb", str(tmp_path / "clone"), progress=False)
    assert result.bad["color_hard.pt"].startswith("is not a list of colour settings")
    assert not (tmp_path / "ran").exists()
    assert files(store) == set()


def make_zip(clone: Path, path: Path) -> Path:
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        for name in sorted(files(clone)):
            archive.write(clone / name, f"clone-main/{name}")
    return path


def make_tar(clone: Path, path: Path, mode: str) -> Path:
    with tarfile.open(path, mode) as archive:
        archive.add(clone, "clone-main")
    return path


@pytest.mark.parametrize("suffix", ["zip", "tar", "tar.gz", "tar.xz"])
def test_get_reads_archives(store: Path, clone: Path, tmp_path: Path, suffix: str) -> None:
    path = tmp_path / f"clone.{suffix}"
    mode = suffix.replace("tar", "w").replace(".", ":")
    make_zip(clone, path) if suffix == "zip" else make_tar(clone, path, mode)
    assert len(data.get("dmcgb", str(path), progress=False).installed) == 7
    assert files(store) == CLONE_FILES
    assert len(data.get("dmcgb", str(path), progress=False).skipped) == 7


@pytest.mark.parametrize("suffix", ["zip", "tar", "tar.gz", "tar.xz", "txt"])
def test_get_refuses_truncated_archives(store: Path, clone: Path, tmp_path: Path, suffix: str) -> None:
    path = tmp_path / f"clone.{suffix}"
    if suffix == "txt":
        path.write_text("just text")
    else:
        mode = suffix.replace("tar", "w").replace(".", ":")
        make_zip(clone, path) if suffix == "zip" else make_tar(clone, path, mode)
        path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])
    with pytest.raises(DataError, match="is not a complete zip or tar archive"):
        data.get("dmcgb", str(path), progress=False)
    assert files(store) == set()


def test_a_damaged_member_of_a_zip_is_left_out(store: Path, tmp_path: Path) -> None:
    path, picture = tmp_path / "a.zip", write_image(tmp_path / "x.png").read_bytes()
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("bad.png", picture)
        archive.writestr("good.png", picture)
    content = bytearray(path.read_bytes())
    content[content.index(picture) + 50] ^= 0xFF
    path.write_bytes(content)
    result = data.get("overlay", str(path), progress=False)
    assert "CRC" in result.bad["bad.png"]
    assert files(store) == {"overlay/good.png"}


@pytest.mark.parametrize("name", ["../evil.png", "a/../../../evil.png", "/evil.png", "a\\..\\..\\evil.png"])
@pytest.mark.parametrize("kind", ["zip", "tar"])
def test_members_that_escape_are_never_unpacked(store: Path, tmp_path: Path, name: str, kind: str) -> None:
    picture = write_image(tmp_path / "source" / "x.png").read_bytes()
    path = tmp_path / "source" / f"a.{kind}"
    if kind == "zip":
        with zipfile.ZipFile(path, "w") as archive:
            archive.writestr(name, picture)
            archive.writestr("good.png", picture)
    else:
        with tarfile.open(path, "w") as tar:
            for member in (name, "good.png"):
                info = tarfile.TarInfo(member)
                info.size = len(picture)
                tar.addfile(info, io.BytesIO(picture))
    before = files(tmp_path)
    result = data.get("overlay", str(path), progress=False)
    assert list(result.bad.values()) == ["points outside the archive, and is never unpacked"]
    assert files(tmp_path) - before == {"store/overlay/good.png"}


@pytest.mark.parametrize("kind", ["zip", "tar symlink", "tar hard link"])
def test_links_in_archives_are_never_unpacked(store: Path, tmp_path: Path, kind: str) -> None:
    secret = write_image(tmp_path / "secret.png")
    path = tmp_path / "links"
    if kind == "zip":
        info = zipfile.ZipInfo("link.png")
        info.external_attr = 0o120777 << 16
        with zipfile.ZipFile(path, "w") as archive:
            archive.writestr(info, str(secret))
    else:
        member = tarfile.TarInfo("link.png")
        member.type = tarfile.SYMTYPE if "sym" in kind else tarfile.LNKTYPE
        member.linkname = str(secret)
        with tarfile.open(path, "w") as tar:
            tar.addfile(member)
    result = data.get("overlay", str(path), progress=False)
    assert "link" in result.bad["link.png"]
    assert files(store) == set()


# Downloads


@dataclass
class Server:
    """A web server on loopback that serves one file and can be made to misbehave."""

    content: bytes
    ranges: bool = True
    etag: str | None = '"one"'
    send_length: bool = True
    cuts: list[int] = field(default_factory=list)  # bytes after which the next answers break off
    status: int = 200
    requests: list[str | None] = field(default_factory=list)  # the Range headers that came in
    url: str = ""

    def answer(self, handler: http.server.BaseHTTPRequestHandler) -> None:
        wanted = handler.headers.get("Range")
        self.requests.append(wanted)
        if self.status != 200:
            return handler.send_error(self.status)
        unchanged = handler.headers.get("If-Range") in (None, self.etag)
        start = int(wanted[len("bytes=") : -1]) if wanted and self.ranges and unchanged else 0
        if start >= len(self.content):
            handler.send_response(416)
            handler.send_header("Content-Range", f"bytes */{len(self.content)}")
            return handler.end_headers()
        handler.send_response(206 if start else 200)
        if start:
            handler.send_header("Content-Range", f"bytes {start}-{len(self.content) - 1}/{len(self.content)}")
        if self.etag:
            handler.send_header("ETag", self.etag)
        if self.send_length:
            handler.send_header("Content-Length", str(len(self.content) - start))
        handler.end_headers()
        end = start + self.cuts.pop(0) if self.cuts else None
        handler.wfile.write(self.content[start:end])
        return None


@pytest.fixture
def server(clone: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Server]:
    """Serves the clone as an archive."""
    monkeypatch.setattr(data, "_PAUSE", 0.0)
    for name in ("http_proxy", "HTTP_PROXY", "all_proxy", "ALL_PROXY"):
        monkeypatch.delenv(name, raising=False)
    site = Server(make_zip(clone, tmp_path / "made.zip").read_bytes())

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            site.answer(self)

        def log_message(self, *args: object) -> None:
            pass

    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler) as httpd:
        site.url = f"http://127.0.0.1:{httpd.server_port}/archive/HEAD.zip"
        thread = threading.Thread(target=httpd.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        yield site
        httpd.shutdown()
        thread.join()


def test_download_installs_and_tidies_up(store: Path, server: Server) -> None:
    assert len(data.get("dmcgb", server.url, progress=False).installed) == 7
    assert files(store) == CLONE_FILES
    assert not (store / ".downloads").exists()
    assert server.requests == [None]


def test_broken_download_resumes_within_a_call(store: Path, server: Server) -> None:
    server.cuts = [1000]
    data.get("dmcgb", server.url, progress=False)
    assert server.requests == [None, "bytes=1000-"]
    assert files(store) == CLONE_FILES


def test_broken_download_resumes_in_the_next_call(store: Path, server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(data, "_ATTEMPTS", 1)
    server.cuts = [1000]
    with pytest.raises(DataError, match=r"was interrupted .*run the same command again"):
        data.get("dmcgb", server.url, progress=False)
    assert files(store) == {".downloads/HEAD.zip.part", ".downloads/HEAD.zip.part.json"}
    data.get("dmcgb", server.url, progress=False)
    assert server.requests == [None, "bytes=1000-"]
    assert files(store) == CLONE_FILES


def test_server_without_ranges_starts_over(store: Path, server: Server) -> None:
    server.ranges, server.cuts = False, [1000]
    data.get("dmcgb", server.url, progress=False)
    assert server.requests == [None, "bytes=1000-"]
    assert files(store) == CLONE_FILES


@pytest.mark.parametrize("etags", [('"one"', '"two"'), (None, None)])
def test_changed_file_starts_over(
    store: Path, server: Server, monkeypatch: pytest.MonkeyPatch, etags: tuple[str | None, str | None]
) -> None:
    monkeypatch.setattr(data, "_ATTEMPTS", 1)
    good = server.content
    server.etag, server.content, server.cuts = etags[0], bytes(len(good) + 9), [1000]
    with pytest.raises(DataError, match="was interrupted"):
        data.get("dmcgb", server.url, progress=False)
    server.etag, server.content = etags[1], good
    data.get("dmcgb", server.url, progress=False)
    assert files(store) == CLONE_FILES


def test_part_of_another_url_is_not_continued(store: Path, server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(data, "_ATTEMPTS", 1)
    server.cuts = [1000]
    with pytest.raises(DataError):
        data.get("dmcgb", server.url.replace("archive", "other"), progress=False)
    data.get("dmcgb", server.url, progress=False)
    assert server.requests == [None, None]
    assert files(store) == CLONE_FILES


def test_interrupted_unpacking_does_not_download_again(
    store: Path, server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupt(*_: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(data, "_install", interrupt)
        with pytest.raises(KeyboardInterrupt):
            data.get("dmcgb", server.url, progress=False)
    data.get("dmcgb", server.url, progress=False)
    assert server.requests == [None, f"bytes={len(server.content)}-"]
    assert files(store) == CLONE_FILES


def test_download_of_unknown_length(store: Path, server: Server) -> None:
    server.send_length = False
    data.get("dmcgb", server.url, progress=False)
    assert files(store) == CLONE_FILES


def test_download_that_is_no_archive_is_removed(store: Path, server: Server) -> None:
    server.content = b"<html>sign in</html>"
    with pytest.raises(DataError, match="is not a complete zip or tar archive"):
        data.get("dmcgb", server.url, progress=False)
    assert files(store) == set()


def test_refused_and_failing_downloads_are_one_line(store: Path, server: Server) -> None:
    server.status = 404
    with pytest.raises(DataError, match="HTTP 404"):
        data.get("dmcgb", server.url, progress=False)
    assert len(server.requests) == 1
    server.status = 503
    with pytest.raises(DataError, match="HTTP 503"):
        data.get("dmcgb", server.url, progress=False)
    assert len(server.requests) == 1 + data._ATTEMPTS
    with pytest.raises(DataError, match="cannot download"):
        data.get("dmcgb", "http://127.0.0.1:1/a.zip", progress=False)
    with pytest.raises(DataError, match="cannot download"):
        data.get("dmcgb", "http://[bad/a.zip", progress=False)
    assert files(store) == set()


def test_without_a_source_the_published_one_is_used(
    store: Path, server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    digest = hashlib.sha256(server.content).hexdigest()
    monkeypatch.setitem(data.SOURCES, "dmcgb", (server.url, digest))
    assert data.get("dmcgb", progress=False).installed


def test_another_archive_than_the_published_one_is_refused(
    store: Path, server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(data.SOURCES, "dmcgb", (server.url, "0" * 64))
    with pytest.raises(DataError, match="is not the expected archive"):
        data.get("dmcgb", progress=False)
    assert not [path for path in store.rglob("*") if path.is_file()]
