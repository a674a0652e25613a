"""Clips behind the robot: decode arithmetic, cache, prefetch, errors; statistics of generated scenes."""

from __future__ import annotations

import threading
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import av
import numpy as np
import pytest
import torch
import torch.nn.functional as F
from PIL import Image

from sgqn import data
from sgqn.envs.backgrounds import (
    Backgrounds,
    decode_clip,
    generate_clip,
    generated_images,
    open_backgrounds,
)
from sgqn.errors import DataError, InvalidValueError, SgqnError, UnknownNameError
from tests.helpers import keep_frames

SIZE = 20
CLIP_FRAMES = 12


def write_clip(path: Path, seed: int = 0, frames: int = CLIP_FRAMES) -> Path:
    """A small real video of blocks of noise that drift."""
    noise = np.random.default_rng(seed).integers(0, 256, (16, 24, 3)).astype(np.uint8)
    picture = noise.repeat(4, axis=0).repeat(4, axis=1)  # 64 x 96
    path.parent.mkdir(parents=True, exist_ok=True)
    with av.open(str(path), "w") as container:
        stream = container.add_stream("mpeg4", rate=25)
        stream.width, stream.height, stream.pix_fmt = 96, 64, "yuv420p"
        for shift in range(frames):
            frame = av.VideoFrame.from_ndarray(np.roll(picture, 3 * shift, axis=1), format="rgb24")
            container.mux(stream.encode(frame))
        container.mux(stream.encode())
    return path


def cached_bytes(opened: Backgrounds) -> int:
    with opened._lock:
        return opened._held()


@pytest.fixture(scope="module")
def clip_path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_clip(tmp_path_factory.mktemp("clips") / "clip.mp4")


def expected_frames(path: Path, size: int) -> torch.Tensor:
    """The benchmark's arithmetic, one frame at a time."""
    frames = []
    with av.open(str(path)) as container:
        for frame in container.decode(video=0):
            x = torch.from_numpy(frame.to_ndarray(format="rgb24")).permute(2, 0, 1)[None].contiguous()
            y = F.interpolate(x.float() / 255.0, size=(size, size), mode="bilinear", align_corners=False)
            frames.append((y * 255).byte()[0].permute(1, 2, 0))
    return torch.stack(frames)


class Counting:
    """Loads clips of constant frames (10 * clip + frame), slowly if told, and counts the loads."""

    def __init__(self, lengths: list[int], seconds: float = 0.0):
        self.lengths, self.seconds, self.calls = lengths, seconds, Counter[int]()

    def __call__(self, clip: int) -> torch.Tensor:
        self.calls[clip] += 1
        time.sleep(self.seconds)
        values = 10 * clip + torch.arange(self.lengths[clip], dtype=torch.uint8)
        return values.view(-1, 1, 1, 1).expand(-1, SIZE, SIZE, 3).contiguous()

    def open(self, cache_clips: float = 100, max_frames: int | None = None) -> Backgrounds:
        room = int(cache_clips * max(self.lengths) * SIZE * SIZE * 3)
        return Backgrounds("test", len(self.lengths), self, SIZE, "cpu", room, max_frames)


def shown(pictures: torch.Tensor) -> list[int]:
    assert pictures.shape[1:] == (SIZE, SIZE, 3)
    assert pictures.dtype == torch.uint8
    return pictures[:, 0, 0, 0].tolist()


def wait_until(condition: Callable[[], bool], seconds: float = 10.0) -> None:
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, "timed out"
        time.sleep(0.005)


# Decoding


@pytest.mark.parametrize("size", [84, 100, 17])
def test_decoding_is_the_benchmarks_arithmetic(clip_path: Path, size: int) -> None:
    clip = decode_clip(clip_path, size)
    assert clip.shape == (CLIP_FRAMES, size, size, 3)
    assert clip.is_contiguous()
    assert torch.equal(clip, expected_frames(clip_path, size))
    assert clip.float().std() > 20


@pytest.mark.parametrize(("limit", "frames"), [(1, 1), (5, 5), (12, 12), (50, 12), (None, 12)])
def test_max_frames_cuts_the_clip(clip_path: Path, limit: int | None, frames: int) -> None:
    assert torch.equal(decode_clip(clip_path, SIZE, limit), expected_frames(clip_path, SIZE)[:frames])


def damage(path: Path, how: str) -> None:
    content = path.read_bytes()
    if how == "missing":
        path.unlink()
    elif how == "empty":
        path.write_bytes(b"")
    elif how == "truncated":
        path.write_bytes(content[: len(content) // 2])
    elif how == "text":
        path.write_text("this is no video\n" * 100)
    else:
        path.write_bytes(b"\0" * len(content))


@pytest.mark.parametrize(
    ("how", "reason"),
    [
        ("missing", "does not exist"),
        ("empty", "empty"),
        ("truncated", "truncated"),
        ("text", "not a video"),
        ("zeros", "not a video"),
    ],
)
def test_broken_files_are_named_in_one_line(tmp_path: Path, how: str, reason: str) -> None:
    path = write_clip(tmp_path / "broken.mp4")
    damage(path, how)
    with pytest.raises(DataError, match=reason) as error:
        decode_clip(path, SIZE)
    assert str(path) in str(error.value)
    assert "\n" not in str(error.value)


def test_sound_without_pictures_is_named(tmp_path: Path) -> None:
    path = tmp_path / "sound.wav"
    with av.open(str(path), "w") as container:
        stream = container.add_stream("pcm_s16le", rate=8000)
        frame = av.AudioFrame.from_ndarray(np.zeros((1, 800), np.int16), format="s16", layout="mono")
        frame.sample_rate = 8000
        container.mux(stream.encode(frame))
    with pytest.raises(DataError, match="no video stream"):
        decode_clip(path, SIZE)


def test_a_damaged_end_leaves_the_frames_before_it(tmp_path: Path) -> None:
    path = write_clip(tmp_path / "damaged.mp4", frames=30)
    whole = decode_clip(path, SIZE)
    with av.open(str(path)) as container:
        positions = [packet.pos or 0 for packet in container.demux(video=0) if packet.size]
    content = bytearray(path.read_bytes())
    content[positions[10] : positions[20]] = b"\xff" * (positions[20] - positions[10])
    path.write_bytes(content)
    clip = decode_clip(path, SIZE)
    assert 1 <= len(clip) <= 30
    assert torch.equal(clip[:8], whole[:8])


def test_a_clip_that_is_mostly_damaged_is_refused(tmp_path: Path) -> None:
    path = write_clip(tmp_path / "damaged.mp4", frames=750)
    keep_frames(path, 18)
    with pytest.raises(DataError, match=r"damaged\.mp4 is damaged: only 1[89] of its 7[45]\d frames can be decoded"):
        decode_clip(path, SIZE)


def test_an_image_is_not_a_clip(tmp_path: Path) -> None:
    path = tmp_path / "image.mp4"
    Image.new("RGB", (32, 32)).save(path, format="JPEG")
    with pytest.raises(DataError, match="is an image, not a video"):
        decode_clip(path, SIZE)


# Which pictures are shown


@pytest.mark.parametrize("convert", [list, np.array, torch.tensor], ids=["list", "array", "tensor"])
def test_each_environment_sees_its_clip_and_frame(convert: Callable[[list[int]], object]) -> None:
    source = Counting([5, 7, 9])
    pictures = source.open().frames(convert([2, 0, 1, 2]), convert([8, 3, 0, 1]))  # type: ignore[arg-type]
    assert shown(pictures) == [28, 3, 10, 21]


def test_frames_wrap_at_each_clips_own_length() -> None:
    source = Counting([5, 7])
    opened = source.open()
    for time_ in range(20):
        assert shown(opened.frames([0, 1], [time_, time_])) == [time_ % 5, 10 + time_ % 7]
    assert source.calls == {0: 1, 1: 1}


def test_result_is_a_tensor_of_its_own() -> None:
    opened = Counting([5]).open()
    opened.frames([0], [2]).fill_(99)
    assert shown(opened.frames([0], [2])) == [2]


def test_no_environments() -> None:
    assert shown(Counting([5]).open().frames([], [])) == []


def test_bad_indices_are_named() -> None:
    opened = Counting([5, 5]).open(max_frames=4)
    with pytest.raises(InvalidValueError, match="clips 0 to 2"):
        opened.frames([0, 2], [0, 0])
    with pytest.raises(InvalidValueError, match="clips -1"):
        opened.prefetch([-1])
    with pytest.raises(InvalidValueError, match="max_frames is 4"):
        opened.frames([0], [4])
    with pytest.raises(InvalidValueError, match="frames -1"):
        opened.frames([0], [-1])
    with pytest.raises(InvalidValueError, match="2 clips but 1"):
        opened.frames([0, 1], [0])


# Cache


def test_clips_are_loaded_once() -> None:
    source = Counting([5] * 4)
    opened = source.open()
    for clips in ([0, 1], [1, 2], [3, 3], [0, 2]):
        opened.frames(clips, [0, 1])
    assert source.calls == {0: 1, 1: 1, 2: 1, 3: 1}


def test_cache_stays_within_its_bytes_and_drops_the_least_recently_used() -> None:
    source = Counting([5] * 6)
    opened = source.open(cache_clips=3.5)
    for clip in (0, 1, 2, 0, 3):  # 3 needs room: 1 was used longest ago
        opened.frames([clip], [0])
        assert cached_bytes(opened) <= 3 * 5 * SIZE * SIZE * 3
    opened.frames([0], [0])
    assert source.calls[0] == 1
    opened.frames([1], [0])
    assert source.calls[1] == 2


def test_playing_clips_stay_even_where_they_exceed_the_cache() -> None:
    source = Counting([5] * 6)
    opened = source.open(cache_clips=1.5)
    for time_ in range(5):
        assert shown(opened.frames([0, 1, 2], [time_] * 3)) == [time_, 10 + time_, 20 + time_]
    assert max(source.calls.values()) == 1
    opened.frames([5], [0])
    assert cached_bytes(opened) <= 1.5 * 5 * SIZE * SIZE * 3


# Prefetch


def test_prefetched_clips_are_not_loaded_again() -> None:
    source = Counting([5] * 4)
    opened = source.open()
    opened.prefetch([1, 2])
    opened.prefetch([2, 3, 1])
    wait_until(lambda: cached_bytes(opened) == 3 * 5 * SIZE * SIZE * 3)
    assert shown(opened.frames([3, 1, 2], [0, 1, 2])) == [30, 11, 22]
    assert source.calls == {1: 1, 2: 1, 3: 1}


def test_playing_a_clip_that_is_being_prefetched_waits_for_it() -> None:
    source = Counting([5] * 4, seconds=0.1)
    opened = source.open()
    opened.prefetch([1, 2, 3])
    wait_until(lambda: source.calls[1] == 1)
    assert shown(opened.frames([1, 3], [0, 0])) == [10, 30]
    assert shown(opened.frames([2], [0])) == [20]
    assert source.calls == {1: 1, 2: 1, 3: 1}


def test_prefetch_and_play_at_once_under_pressure() -> None:
    source = Counting([5] * 10, seconds=0.001)
    opened = source.open(cache_clips=3)
    rng = np.random.default_rng(0)
    for _ in range(60):
        clips = rng.integers(0, 10, 2)
        opened.prefetch(rng.integers(0, 10, 3))
        assert shown(opened.frames(clips, [1, 4])) == [10 * clips[0] + 1, 10 * clips[1] + 4]
    wait_until(lambda: opened._prefetcher is None)
    assert cached_bytes(opened) <= 3 * 5 * SIZE * SIZE * 3


def test_prefetch_runs_on_a_daemon_thread_that_ends() -> None:
    source = Counting([5], seconds=0.05)
    opened = source.open()
    opened.prefetch([0])
    thread = opened._prefetcher
    assert thread is not None
    assert thread.daemon
    thread.join(10)
    assert not thread.is_alive()
    opened.prefetch([0])  # nothing to do
    assert opened._prefetcher is None


def test_an_error_while_prefetching_is_raised_by_whoever_plays_the_clip() -> None:
    entered, leave = threading.Event(), threading.Event()

    def load(clip: int) -> torch.Tensor:
        entered.set()
        leave.wait(10)
        if clip == 1:
            raise DataError("clip.mp4 is broken")
        return torch.zeros(3, SIZE, SIZE, 3, dtype=torch.uint8)

    opened = Backgrounds("test", 3, load, SIZE)
    opened.prefetch([1, 2])
    entered.wait(10)
    threading.Timer(0.05, leave.set).start()
    with pytest.raises(DataError, match="broken"):
        opened.frames([1], [0])
    with pytest.raises(DataError, match="broken"):  # and again
        opened.frames([2, 1], [0, 0])
    assert shown(opened.frames([2], [0])) == [0]  # the others still play


# Opening


@pytest.fixture
def data_directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("SGQN_DATA", str(tmp_path))
    return tmp_path


def test_real_clips_are_played_in_natural_order(data_directory: Path) -> None:
    for number in (10, 2, 0):
        write_clip(data_directory / "dmcgb" / "video_easy" / f"video{number}.mp4", seed=number)
    opened = open_backgrounds("video_easy", SIZE)
    assert opened.source == "dmcgb:video_easy (3 of 10 clips)"
    assert opened.num_clips == 3
    paths = data.video_clips("video_easy")
    assert [path.name for path in paths] == ["video0.mp4", "video2.mp4", "video10.mp4"]
    expected = [expected_frames(path, SIZE)[4] for path in paths]
    assert torch.equal(opened.frames([0, 1, 2], [4, 4, CLIP_FRAMES + 4]), torch.stack(expected))


def test_an_episode_longer_than_the_clip_wraps_at_its_true_length(data_directory: Path) -> None:
    path = write_clip(data_directory / "dmcgb" / "video_hard" / "video0.mp4")
    opened = open_backgrounds("video_hard", SIZE, max_frames=CLIP_FRAMES + 5)
    assert torch.equal(opened.frames([0], [CLIP_FRAMES + 1])[0], expected_frames(path, SIZE)[1])


def test_a_broken_clip_is_an_error_when_it_is_played(data_directory: Path) -> None:
    path = write_clip(data_directory / "dmcgb" / "video_hard" / "video0.mp4")
    damage(path, "truncated")
    opened = open_backgrounds("video_hard", SIZE)
    with pytest.raises(DataError, match=r"video0\.mp4"):
        opened.frames([0], [0])


@pytest.mark.parametrize(("kind", "clips"), [("video_easy", 10), ("video_hard", 100)])
def test_generated_clips_serve_where_there_are_none(data_directory: Path, kind: str, clips: int) -> None:
    opened = open_backgrounds(kind, SIZE, max_frames=30)
    assert (opened.source, opened.num_clips) == ("generated", clips)
    pictures = opened.frames([0, clips - 1], [0, 29])
    assert torch.equal(pictures[0], generate_clip(kind, 0, SIZE)[0])
    assert torch.equal(pictures[1], generate_clip(kind, clips - 1, SIZE)[29])


def test_bad_arguments_are_named(data_directory: Path) -> None:
    with pytest.raises(UnknownNameError, match="video_hrad"):
        open_backgrounds("video_hrad", SIZE)
    with pytest.raises(UnknownNameError, match="train"):
        generate_clip("train", 0, SIZE)
    with pytest.raises(SgqnError, match="max_frames"):
        open_backgrounds("video_hard", SIZE, max_frames=0)


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")
def test_cuda_shows_the_same_without_a_host_sync() -> None:
    source = Counting([5, 7, 9])
    opened = Backgrounds("test", 3, source, SIZE, "cuda")
    opened.frames([0, 1, 2], [0, 0, 0])  # brings the clips there
    torch.cuda.set_sync_debug_mode("error")
    try:
        pictures = [opened.frames([0, 1, 2], [t, t, t]) for t in range(12)]
    finally:
        torch.cuda.set_sync_debug_mode("default")
    assert [shown(p.cpu()) for p in pictures] == [[t % 5, 10 + t % 7, 20 + t % 9] for t in range(12)]
    assert pictures[0].is_cuda


# Generated scenes


@pytest.fixture(scope="module")
def generated() -> torch.Tensor:
    """(clips, frames, 84, 84, 3)"""
    return torch.stack([generate_clip("video_hard", clip, 84) for clip in range(4)])


def amplitude_slope(pictures: np.ndarray) -> float:
    """Slope of the amplitude spectrum against frequency, both logarithmic; photographs have about -1.2."""
    n = pictures.shape[1]
    grey = pictures.astype(np.float64).mean(axis=-1)
    window = np.hanning(n)[:, None] * np.hanning(n)
    power = (abs(np.fft.fft2((grey - grey.mean((1, 2), keepdims=True)) * window)) ** 2).mean(axis=0)
    frequency = np.hypot(np.fft.fftfreq(n)[:, None], np.fft.fftfreq(n)) * n
    ring = np.arange(3, n // 3)
    amplitude = [power[abs(frequency - f) < 0.5].mean() ** 0.5 for f in ring]
    return float(np.polyfit(np.log(ring), np.log(amplitude), 1)[0])


def test_generated_clips_are_deterministic_and_differ() -> None:
    first = generate_clip("video_hard", 3, 32, max_frames=20)
    assert first.shape == (20, 32, 32, 3)
    assert torch.equal(first, generate_clip("video_hard", 3, 32, max_frames=20))
    assert torch.equal(first, generate_clip("video_hard", 3, 32)[:20])
    for other in (generate_clip("video_hard", 4, 32), generate_clip("video_easy", 3, 32)):
        assert (first[0].float() - other[0].float()).abs().mean() > 20


def test_generated_clips_do_not_change_between_versions() -> None:
    """Results made with them stay comparable; tolerant of the last bit, which may differ between machines."""
    clip = generate_clip("video_hard", 0, 32).float()
    assert clip.mean().item() == pytest.approx(126.69, abs=0.1)
    assert clip[7, 9, 11].tolist() == pytest.approx([186, 171, 133], abs=1)


def test_generated_clips_look_like_photographs(generated: torch.Tensor) -> None:
    pictures = torch.cat([generated[:, 0], generated[:, 60], generated[:, 150]]).numpy()
    grey = pictures.mean(axis=-1)
    assert 90 < grey.mean() < 160
    assert 35 < grey.std(axis=(1, 2)).mean() < 75
    assert -1.6 < amplitude_slope(pictures) < -1.0
    red, green, blue = pictures.reshape(-1, 3).T.astype(np.float64)
    for one, other in ((red, green), (green, blue), (red, blue)):
        assert 0.6 < float(np.corrcoef(one, other)[0, 1]) < 0.98
    highest, lowest = pictures.max(axis=-1).astype(float), pictures.min(axis=-1).astype(float)
    assert 0.15 < ((highest - lowest) / highest.clip(1)).mean() < 0.45


def test_generated_clips_move_smoothly_and_loop(generated: torch.Tensor) -> None:
    frames = generated.float()
    steps = (frames - frames.roll(1, dims=1)).abs().mean(dim=(2, 3, 4))  # the first compares the last frame
    assert steps.min() > 0.2
    assert steps.max() < 25
    assert (steps[:, 0] < 3 * steps.median(dim=1).values).all()
    apart = (frames[:, 0] - frames[:, 80]).abs().mean(dim=(1, 2, 3))
    assert (apart > 3 * steps.median(dim=1).values).all()


def test_generating_a_clip_takes_well_under_a_second() -> None:
    seconds = []
    for clip in range(3):
        start = time.process_time()
        generate_clip("video_easy", clip, 84)
        seconds.append(time.process_time() - start)
    assert min(seconds) < 1.5  # 0.2 on an idle core


def test_generated_images() -> None:
    pictures = generated_images(20, 48, seed=0)
    assert pictures.shape == (20, 48, 48, 3)
    assert pictures.dtype == torch.uint8
    assert torch.equal(pictures[:5], generated_images(5, 48, seed=0))
    assert not torch.equal(pictures, generated_images(20, 48, seed=1))
    flat = pictures.float().flatten(1)
    assert torch.cdist(flat, flat).add(torch.eye(20) * 1e9).min() > 500  # no two alike
    assert -1.7 < amplitude_slope(pictures.numpy()) < -0.9
    assert generated_images(0, 48, seed=0).shape == (0, 48, 48, 3)


def test_generating_leaves_global_randomness_alone() -> None:
    before = torch.get_rng_state()
    generate_clip("video_easy", 0, 16, max_frames=2)
    assert torch.equal(torch.get_rng_state(), before)
