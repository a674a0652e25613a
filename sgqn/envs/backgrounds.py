"""Backgrounds of the video shifts: the benchmark's clips, or generated scenes if they are missing.

Generated scenes are not the benchmark, but similarly distracting: images with the statistics of photographs (surfaces
of all sizes that occlude each other, 1/f texture, correlated colours) and a moving camera.
"""

from __future__ import annotations

import atexit
import threading
import weakref
from collections import OrderedDict, deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future
from pathlib import Path

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import Tensor

from sgqn import data
from sgqn.errors import DataError, InvalidValueError, UnknownNameError

CACHE_BYTES = 512 * 2**20
PREFETCHER = "sgqn-clips"  # the thread that loads ahead
GENERATED_FRAMES = 250  # an episode at action repeat 4; the camera's path is closed, so wrapping shows no jump

Ints = Sequence[int] | NDArray[np.integer] | Tensor
Size = int | tuple[int, int]  # of a square, or height and width
Load = Callable[[int], Tensor]  # clip -> uint8 (frames, height, width, 3) in main memory
Floats = NDArray[np.float32]


class Backgrounds:
    """Clips that are loaded once and cached, least recently used ones evicted first.

    Clips that are playing, those of the latest `frames` call, are held even where they exceed `cache_bytes`.
    A frame index past a clip's end wraps; `max_frames` promises that no index reaches it.
    """

    def __init__(
        self,
        source: str,
        num_clips: int,
        load: Load,
        size: Size,
        device: torch.device | str = "cpu",
        cache_bytes: int = CACHE_BYTES,
        max_frames: int | None = None,
    ):
        self.source, self.num_clips, self.max_frames = source, num_clips, max_frames
        self._shape = (size, size) if isinstance(size, int) else size
        self._load, self._device, self._cache_bytes = load, torch.device(device), cache_bytes
        self._playing: dict[int, tuple[Tensor, ...]] = {}  # clip -> its frames; the caller's thread alone
        self._lock = threading.Lock()  # guards all below
        self._cache: OrderedDict[int, Tensor] = OrderedDict()  # least recently used first
        self._kept: set[int] = set()  # the clips that are playing
        self._loading: dict[int, Future[Tensor]] = {}
        self._wanted: deque[int] = deque()
        self._prefetcher: threading.Thread | None = None
        _open.add(self)

    def frames(self, clip: Ints, frame: Ints) -> Tensor:
        """One image per environment: uint8 (N, height, width, 3) on the device. Indices are host values."""
        clips, times = _as_list(clip), _as_list(frame)
        if len(clips) != len(times):
            raise InvalidValueError(f"{len(clips)} clips but {len(times)} frame indices")
        self._check_clips(clips)
        self._check_times(times)
        if self._playing.keys() != set(clips):
            self._play(set(clips))
        if not clips:
            return torch.empty(0, *self._shape, 3, dtype=torch.uint8, device=self._device)
        playing = [self._playing[c] for c in clips]
        return torch.stack([views[t % len(views)] for views, t in zip(playing, times, strict=True)])

    def prefetch(self, clips: Ints) -> None:
        """Load clips in a background thread. Errors are raised when the clip is played."""
        wanted = _as_list(clips)
        self._check_clips(wanted)
        with self._lock:
            self._wanted.extend(c for c in wanted if c not in self._cache and c not in self._wanted)
            if self._wanted and self._prefetcher is None:
                self._prefetcher = threading.Thread(target=self._prefetch_wanted, name=PREFETCHER, daemon=True)
                self._prefetcher.start()

    def settle(self) -> None:
        """Wait until the background thread has loaded the requested clips."""
        with self._lock:
            thread = self._prefetcher
        if thread is not None:
            thread.join()

    def close(self) -> None:
        """Stop prefetching, and wait for the clip that is being loaded."""
        with self._lock:
            self._wanted.clear()
        self.settle()

    def _check_clips(self, clips: list[int]) -> None:
        if clips and not 0 <= min(clips) <= max(clips) < self.num_clips:
            asked = f"clips {min(clips)} to {max(clips)} asked for"
            raise InvalidValueError(f"{asked}, but there are {self.num_clips} (from 0)")

    def _check_times(self, times: list[int]) -> None:
        beyond = self.max_frames is not None and max(times, default=0) >= self.max_frames
        if beyond or min(times, default=0) < 0:
            asked = f"frames {min(times)} to {max(times)} asked for"
            raise InvalidValueError(f"{asked}, but they start at 0 and max_frames is {self.max_frames}")

    def _play(self, clips: set[int]) -> None:
        """Bring these clips to the device. Prefetching does not: it could disturb the capture of a CUDA graph."""
        with self._lock:
            for clip in self._playing:
                self._cache.move_to_end(clip)  # used until now
            self._kept = clips
        self._playing = {c: views for c, views in self._playing.items() if c in clips}
        # From the last on: clips that are being prefetched come from the first on.
        for clip in sorted(clips - self._playing.keys(), reverse=True):
            frames = self._get(clip).to(self._device)
            with self._lock:
                self._cache[clip] = frames
                self._cache.move_to_end(clip)
            self._playing[clip] = frames.unbind()
        with self._lock:
            self._evict()

    def _get(self, clip: int) -> Tensor:
        """The clip: cached, being loaded by another thread, or loaded here."""
        with self._lock:
            if clip in self._cache:
                return self._cache[clip]
            mine = clip not in self._loading
            future = self._loading.setdefault(clip, Future())
        if mine:
            self._load_into(future, clip)
        return future.result()

    def _load_into(self, future: Future[Tensor], clip: int) -> None:
        try:
            frames = self._load(clip)
        except BaseException as error:
            with self._lock:
                del self._loading[clip]
            future.set_exception(error)
            return
        with self._lock:
            del self._loading[clip]
            self._cache[clip] = frames
            self._evict()
        future.set_result(frames)

    def _prefetch_wanted(self) -> None:
        while True:
            with self._lock:
                if not self._wanted:
                    self._prefetcher = None
                    return
                clip = self._wanted.popleft()
            try:
                self._get(clip)
            except Exception:
                continue  # playing the clip loads it again and raises the error

    def _held(self) -> int:
        """Bytes of the clips in the cache."""
        return sum(frames.nbytes for frames in self._cache.values())

    def _evict(self) -> None:
        for clip in [clip for clip in self._cache if clip not in self._kept]:
            if self._held() <= self._cache_bytes:
                return
            del self._cache[clip]


_open: weakref.WeakSet[Backgrounds] = weakref.WeakSet()


@atexit.register
def _close_all() -> None:
    """A thread inside a C++ library at interpreter exit would abort the process."""
    for backgrounds in list(_open):
        backgrounds.close()


def open_backgrounds(
    kind: str,
    size: Size,
    device: torch.device | str = "cpu",
    cache_bytes: int = CACHE_BYTES,
    max_frames: int | None = None,
    generated_size: int | None = None,
) -> Backgrounds:
    """The clips of `video_easy` or `video_hard` in the data directory; generated ones if it has none.

    Generated ones look different at every size: with `generated_size`, those of that size are resized.
    """
    if max_frames is not None and max_frames < 1:
        raise InvalidValueError(f"max_frames must be at least 1, not {max_frames}")
    paths = data.video_clips(kind)
    count = data.EXPECTED[kind]
    if not paths:

        def generate(clip: int) -> Tensor:
            square = generated_size or size
            assert isinstance(square, int)
            frames = generate_clip(kind, clip, square, max_frames)
            return frames if square == size else torch.stack([_resize(frame.numpy(), size) for frame in frames])

        return Backgrounds("generated", count, generate, size, device, cache_bytes, max_frames)
    source = f"dmcgb:{kind} ({len(paths)} of {count} clips)"

    def load(clip: int) -> Tensor:
        return decode_clip(paths[clip], size, max_frames)

    return Backgrounds(source, len(paths), load, size, device, cache_bytes, max_frames)


def _as_list(indices: Ints) -> list[int]:
    return indices.tolist() if isinstance(indices, Tensor | np.ndarray) else list(indices)


# The benchmark's clips


def decode_clip(path: Path | str, size: Size, max_frames: int | None = None) -> Tensor:
    """A video, at most its first `max_frames`: uint8 (frames, height, width, 3).

    Damaged parts are left out. A video that is mostly damaged is refused.
    """
    import av

    if problem := _file_problem(Path(path)):
        raise DataError(f"{path} {problem}")
    frames: list[Tensor] = []
    bad = 0
    problem = "has no frame that can be decoded"
    try:
        for image in _images(path):
            if image is None:
                bad += 1
                continue
            frames.append(_resize(image, size))
            if len(frames) == max_frames:
                break
    except av.FFmpegError as error:
        problem = f"is not a video that can be decoded, or is truncated ({error.strerror})"
    if not frames:
        raise DataError(f"{path} {problem}")
    if bad > len(frames):
        raise DataError(f"{path} is damaged: only {len(frames)} of its {len(frames) + bad} frames can be decoded")
    return torch.stack(frames)


def _file_problem(path: Path) -> str | None:
    if not path.is_file():
        return "does not exist"
    return None if path.stat().st_size else "is empty (0 bytes)"


def _images(path: Path | str) -> Iterator[NDArray[np.uint8] | None]:
    """The frames of a video as RGB arrays (H, W, 3); None for a part that cannot be decoded."""
    import av
    from av.video.reformatter import VideoReformatter

    # One for all frames: a frame's own `to_ndarray(format="rgb24")` would set up a converter every time.
    reformatter = VideoReformatter()
    with av.open(str(path), metadata_errors="ignore") as container:
        if not container.streams.video:
            raise DataError(f"{path} has no video stream")
        if data.is_image(container.format.name):
            raise DataError(f"{path} is an image, not a video")
        stream = container.streams.video[0]
        stream.thread_type = "AUTO"
        for packet in container.demux(stream):
            try:
                decoded = packet.decode()
            except av.FFmpegError:
                yield None
                continue
            for frame in decoded:
                yield np.asarray(reformatter.reformat(frame, format="rgb24").to_ndarray(), np.uint8)


def _resize(image: NDArray[np.uint8], size: Size) -> Tensor:
    """The benchmark's arithmetic: bilinear without antialiasing on 0..1, then truncated.

    One frame at a time, since batches leave the processor's cache, and divided by NumPy, since torch would
    split so small a job among threads, which on busy cores wait for each other much longer than it takes.
    """
    x = torch.from_numpy(np.divide(image, np.float32(255))).permute(2, 0, 1).unsqueeze(0)
    y = F.interpolate(x, size, mode="bilinear", align_corners=False)
    return (y[0] * 255).byte().permute(1, 2, 0)


# Generated scenes

_KIND_SEEDS = {"video_easy": 1, "video_hard": 2}
_IMAGE_SEED = 3
_WORLD = 3  # a scene is three views wide and high
_CHUNK = 50  # frames rendered at once: more leave the processor's cache
_PER_SCENE = 8  # images per scene


def generate_clip(kind: str, clip: int, size: int, max_frames: int | None = None) -> Tensor:
    """A camera drifting past a scene: uint8 (frames, size, size, 3), determined by kind and clip."""
    if kind not in _KIND_SEEDS:
        raise UnknownNameError("video set", kind, _KIND_SEEDS)
    rng = np.random.default_rng([_KIND_SEEDS[kind], clip])
    scene = _Scene(rng, size)
    return scene.render(_camera_path(rng, GENERATED_FRAMES)[:max_frames])


def generated_images(count: int, size: int, seed: int) -> Tensor:
    """Still images of such scenes, uint8 (count, size, size, 3): for augmentation without overlay images."""
    parts = [torch.empty(0, size, size, 3, dtype=torch.uint8)]
    for index in range(-(-count // _PER_SCENE)):
        rng = np.random.default_rng([_IMAGE_SEED, seed, index])
        scene = _Scene(rng, size)
        centres = rng.uniform(-0.85, 0.85, (2, _PER_SCENE))
        zoom = np.exp(rng.uniform(-0.5, 0.3, _PER_SCENE))
        angle = rng.normal(0, 0.1, _PER_SCENE)
        parts.append(scene.render(np.stack([*centres, zoom, angle], axis=1)))
    return torch.cat(parts)[:count]


class _Scene:
    """Two layers, three views wide: a background of surfaces, and a few surfaces in front of it."""

    def __init__(self, rng: np.random.Generator, size: int):
        self._size = size
        textures = _one_over_f(rng, 4, _WORLD * size)
        palette = _palette(rng)
        far = _dead_leaves(rng, size, _radii(rng, 800))
        near = _dead_leaves(rng, size, rng.uniform(0.08, 0.35, 20))
        self._far = torch.from_numpy(_colour(rng, far, palette, textures))
        opaque = (near > 0).astype(np.float32)
        self._near = torch.from_numpy(np.stack([*(_colour(rng, near, palette, textures) * opaque), opaque]))

    def render(self, poses: NDArray[np.float64]) -> Tensor:
        """Images from camera poses (N, 4): centre x and y in views, zoom, angle."""
        parts = [self._render(poses[i : i + _CHUNK]) for i in range(0, len(poses), _CHUNK)]
        return torch.cat(parts)

    def _render(self, poses: NDArray[np.float64]) -> Tensor:
        view = _sample(self._far, poses, self._size)
        front = _sample(self._near, poses * (1.6, 1.6, 0.8, 1.0), self._size)  # nearer: faster and larger
        view.mul_(1 - front[:, 3:]).add_(front[:, :3])
        return view.clamp_(0, 255).byte().permute(0, 2, 3, 1).contiguous()


def _sample(layer: Tensor, poses: NDArray[np.float64], size: int) -> Tensor:
    """Views of a layer (C, n, n) from poses (N, 4): float (N, C, size, size)."""
    x, y, zoom, angle = poses.T
    cos, sin = zoom / _WORLD * np.cos(angle), zoom / _WORLD * np.sin(angle)
    theta = np.stack([cos, -sin, x * 2 / _WORLD, sin, cos, y * 2 / _WORLD], axis=1).reshape(-1, 2, 3)
    grid = F.affine_grid(torch.from_numpy(theta).float(), [len(poses), 1, size, size], align_corners=False)
    layers = layer.expand(len(poses), *layer.shape)
    return F.grid_sample(layers, grid, mode="bilinear", padding_mode="reflection", align_corners=False)


def _camera_path(rng: np.random.Generator, frames: int) -> NDArray[np.float64]:
    """A smooth closed path of poses (frames, 4)."""
    time = np.arange(frames) * (2 * np.pi / frames)

    def wave(reach: float) -> NDArray[np.float64]:
        (a, b), (p, q) = rng.uniform(0.5, 1, 2) * reach, rng.uniform(0, 2 * np.pi, 2)
        return a * np.sin(time + p) + 0.3 * b * np.sin(2 * time + q)

    return np.stack([wave(0.32), wave(0.16), np.exp(wave(0.1)), wave(0.05)], axis=1)


def _one_over_f(rng: np.random.Generator, count: int, n: int) -> Floats:
    """Noise fields (count, n, n) of unit variance whose amplitude falls as 1/f, like that of photographs."""
    frequency = np.hypot(np.fft.fftfreq(n)[:, None], np.fft.rfftfreq(n))
    frequency[0, 0] = np.inf
    fields = np.fft.irfft2(np.fft.rfft2(rng.standard_normal((count, n, n))) / frequency, s=(n, n))
    return (fields / fields.std(axis=(1, 2), keepdims=True)).astype(np.float32)


def _radii(rng: np.random.Generator, count: int) -> NDArray[np.float64]:
    """Sizes of surfaces, in views: some walls, then r^-3, which makes occlusion look alike at every scale."""
    smallest, largest = 0.035, 0.9
    u = rng.random(count)
    radii = (smallest**-2 + u * (largest**-2 - smallest**-2)) ** -0.5
    walls = count // 16
    radii[:walls] = largest * (0.2 + 0.8 * u[:walls])
    return radii


def _dead_leaves(rng: np.random.Generator, size: int, radii: NDArray[np.float64]) -> NDArray[np.int16]:
    """Overlapping random boxes and ellipses as a map of ids, starting at 1; 0 is empty."""
    n, count, radius = _WORLD * size, len(radii), radii * size
    centre_x, centre_y = rng.random((2, count)) * n
    narrow = np.exp(rng.uniform(np.log(0.12), 0, count))
    upright = rng.random(count) < 0.5
    width, height = np.where(upright, radius * narrow, radius), np.where(upright, radius, radius * narrow)
    level = rng.random(count) < 0.6
    angle = np.where(level, rng.normal(0, 0.06, count), rng.uniform(0, np.pi, count))
    cos, sin, box = np.cos(angle), np.sin(angle), rng.random(count) < 0.5
    ids = np.zeros((n, n), np.int16)
    for i in range(count):
        reach = radius[i] * 1.42
        left, top = max(int(centre_x[i] - reach), 0), max(int(centre_y[i] - reach), 0)
        part = ids[top : int(centre_y[i] + reach) + 2, left : int(centre_x[i] + reach) + 2]
        x = np.arange(left, left + part.shape[1]) - centre_x[i]
        y = np.arange(top, top + part.shape[0])[:, None] - centre_y[i]
        p, q = (x * cos[i] + y * sin[i]) / width[i], (y * cos[i] - x * sin[i]) / height[i]
        part[(np.maximum(abs(p), abs(q)) if box[i] else p * p + q * q) < 1] = i + 1
    return ids


def _palette(rng: np.random.Generator, colours: int = 8) -> NDArray[np.float64]:
    """A scene's colours (colours, 3): light, yellow against blue, red against green; mostly muted, warm."""
    light = rng.permutation(np.linspace(-1.4, 1.4, colours)) + rng.normal(0, 0.3, colours)
    yellow = rng.normal(0.2, 0.36, colours)
    red = rng.normal(0, 0.18, colours) + 0.35 * yellow.clip(0)
    tint = rng.normal(0, (0.25, 0.1, 0.05))
    return np.stack([light, yellow, red], axis=1) + tint


def _colour(rng: np.random.Generator, ids: NDArray[np.int16], palette: NDArray[np.float64], textures: Floats) -> Floats:
    """Each surface gets a colour and some texture, and all a common uneven light: (3, n, n) in 0..255."""
    count = int(ids.max()) + 1
    colour = palette[rng.integers(0, len(palette), count)] + rng.normal(0, (0.4, 0.08, 0.05), (count, 3))
    light, yellow, red = colour.T.astype(np.float32)[:, ids]
    amount = (0.3 * np.exp(rng.normal(-0.6, 0.9, count))).clip(0, 1.2).astype(np.float32)
    texture = np.take_along_axis(textures[:3], (ids % 3)[None], axis=0)[0]
    light += amount[ids] * texture + 0.35 * textures[3]
    logits = np.stack([light + 0.6 * yellow + red, light + 0.3 * yellow - 0.6 * red, light - 1.1 * yellow])
    return 255 / (1 + np.exp(-logits))
