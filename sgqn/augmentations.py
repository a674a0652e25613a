"""Image augmentations, batched on the device: `(obs, generator) -> obs`.

Observations are uint8 or float (B, C, H, W) in [0, 255], C being stacked RGB frames. Every draw comes from the
explicit generator (on the device of the observations), one per image and the same for all its stacked frames; only
the image of `moving_overlay` moves from frame to frame.
Shapes are static and nothing waits for the device, so all of them can be captured in a CUDA graph.
"""

from __future__ import annotations

import hashlib
import logging
import math
import os
import threading
from collections import OrderedDict
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import torch
from PIL import Image
from torch import Tensor
from torch.nn import functional as F

from sgqn.errors import DataError, InvalidValueError
from sgqn.reading import integer
from sgqn.registry import ParametricRegistry, check_arguments, parse_arguments
from sgqn.replaceable import replaceable

log = logging.getLogger(__name__)

Augmentation = Callable[[Tensor, torch.Generator], Tensor]
Function = TypeVar("Function", bound=Callable[..., Tensor])


@dataclass(frozen=True)
class AugmentationEntry:
    """A registered augmentation; with `needs_images` it takes images, uint8 (num, 3, H, W), as a third argument."""

    name: str
    function: Callable[..., Tensor]
    needs_images: bool = False
    check: Callable[..., None] | None = None

    def with_arguments(self, text: str) -> AugmentationEntry:
        """The augmentation with the arguments of a name, after its colon: `alpha=0.7,speed=4`."""
        arguments = parse_arguments(self.name, text, self.function, skipped=2)
        if self.check is not None:
            check_arguments(self.name, self.check, self.function, arguments)
        return replace(self, function=partial(self.function, **arguments))


AUGMENTATIONS: ParametricRegistry[AugmentationEntry] = ParametricRegistry("augmentation", lambda: None)


def register_augmentation(
    name: str, *, needs_images: bool = False, check: Callable[..., None] | None = None
) -> Callable[[Function], Function]:
    """Register `augmentation(obs, generator) -> obs` under a name. Shapes stay, values lie in [0, 255].

    `needs_images`: it is called with a third argument, random crops of the data directory's overlay images. Further
    parameters that are numbers or booleans can be set in the name: `name:alpha=0.7`. `check` takes any of them by name
    and raises an error for invalid values.
    """

    def register(function: Function) -> Function:
        AUGMENTATIONS.register(name, AugmentationEntry(name, function, needs_images, check), function.__module__)
        return function

    return register


def random_shift(obs: Tensor, generator: torch.Generator, pad: int = 4) -> Tensor:
    """DrQ's random shift: pad by `pad` replicated pixels, then crop the original size at random. Keeps the dtype.

    Two calls draw two shifts: obs and next obs are shifted independently.
    """
    if pad < 0:
        raise InvalidValueError(f"random_shift: pad must be at least 0, got {pad}")
    top, left = _randint(2 * pad + 1, (2, len(obs)), obs, generator) - pad
    return window(obs, top, left, obs.shape[-2], obs.shape[-1])


def random_crop(obs: Tensor, generator: torch.Generator, size: int = 84) -> Tensor:
    """A random square crop of `size` from a larger image (RAD, SODA). Keeps the dtype."""
    height, width = _larger(obs, size)
    top = _randint(height - size + 1, (len(obs),), obs, generator)
    left = _randint(width - size + 1, (len(obs),), obs, generator)
    return window(obs, top, left, size, size)


def center_crop(obs: Tensor, size: int = 84) -> Tensor:
    """The centre crop (..., size, size), which agents trained on random crops act on. A view."""
    height, width = _larger(obs, size)
    top, left = (height - size) // 2, (width - size) // 2
    return obs[..., top : top + size, left : left + size]


def _check_alpha(alpha: float, spread: float = 0.0, speed: int = 0) -> None:
    if not 0 <= alpha - spread <= alpha + spread <= 1:
        raise InvalidValueError(f"alpha must lie in [0, 1], not {alpha}" + f" +- {spread}" * (spread != 0))
    if speed < 0:
        raise InvalidValueError(f"speed must be at least 0, not {speed}")


@register_augmentation("overlay", needs_images=True, check=_check_alpha)
def overlay(obs: Tensor, generator: torch.Generator, images: Tensor, alpha: float = 0.5) -> Tensor:
    """(1 - alpha) obs + alpha image, the image drawn from uint8 (num, 3, H, W), the same for all stacked frames."""
    _check_overlay(obs, images, alpha)
    return blend(obs, images, _randint(len(images), (len(obs),), obs, generator), alpha)


@register_augmentation("moving_overlay", needs_images=True, check=_check_alpha)
def moving_overlay(
    obs: Tensor, generator: torch.Generator, images: Tensor, alpha: float = 0.5, spread: float = 0.0, speed: int = 8
) -> Tensor:
    """`overlay` with an image that moves from frame to frame, as a video does: by up to `speed` pixels along each axis,
    always in the same direction. Outside the image, its edge pixels continue. With `spread`, each image has an alpha
    drawn uniformly from alpha - spread to alpha + spread."""
    _check_overlay(obs, images, alpha, spread, speed)
    batch = len(obs)
    index = _randint(len(images), (batch,), obs, generator)
    down, right = _randint(2 * speed + 1, (2, batch), obs, generator) - speed
    weight = torch.full((batch,), alpha, device=obs.device)
    if spread:
        weight += spread * (2 * torch.rand(batch, device=obs.device, generator=generator) - 1)
    return moving_blend(obs, images, index, weight, down, right)


def _check_overlay(obs: Tensor, images: Tensor, alpha: float, spread: float = 0.0, speed: int = 0) -> None:
    _check_alpha(alpha, spread, speed)
    frame = _rgb_frames(obs).shape[2:]
    if images.shape[1:] != frame:
        raise InvalidValueError(f"overlay: images of {tuple(images.shape[1:])} on frames of {tuple(frame)}")


@replaceable
def moving_blend(obs: Tensor, images: Tensor, index: Tensor, alpha: Tensor, down: Tensor, right: Tensor) -> Tensor:
    """(1 - alpha) obs + alpha images[index], frame k showing the image k (down, right) pixels further; all but the
    first two are (B,). float32 in [0, 255]; a fused version may round to uint8."""
    height, width = obs.shape[-2:]
    chosen = images.index_select(0, index)
    moved = [window(chosen, step * down, step * right, height, width) for step in range(obs.shape[1] // 3)]
    weight = alpha[:, None, None, None]
    return (1 - weight) * obs.float() + weight * torch.cat(moved, dim=1).float()


@replaceable
def blend(obs: Tensor, images: Tensor, index: Tensor, alpha: float) -> Tensor:
    """(1 - alpha) obs + alpha images[index], float32 in [0, 255]; a fused version may round to uint8."""
    chosen = images.index_select(0, index).unsqueeze(1)  # (B, 1, 3, H, W)
    return ((1 - alpha) * _rgb_frames(obs).float() + alpha * chosen.float()).view(obs.shape)


@register_augmentation("random_conv")
def random_conv(obs: Tensor, generator: torch.Generator) -> Tensor:
    """A random 3x3 colour convolution per image: 255 sigmoid(w * obs / 255), w ~ N(0, 1). Returns float32."""
    frames = _rgb_frames(obs)  # (B, k, 3, H, W)
    batch, stack, _, height, width = frames.shape
    weight = torch.randn(batch * 3, 3, 3, 3, device=obs.device, generator=generator)
    # One group per image; its stacked frames take the place of the batch, so that they share the kernel.
    inputs = frames.float().div(255).transpose(0, 1).reshape(stack, batch * 3, height, width)
    outputs = F.conv2d(F.pad(inputs, (1, 1, 1, 1), mode="replicate"), weight, groups=batch)
    outputs = outputs.view(stack, batch, 3, height, width).transpose(0, 1)
    return torch.sigmoid(outputs).mul(255).reshape(obs.shape)


def _check_strength(strength: float) -> None:
    if not 0 <= strength < math.inf:
        raise InvalidValueError(f"strength must be a non-negative number, not {strength}")


@register_augmentation("color_jitter", check=_check_strength)
def color_jitter(obs: Tensor, generator: torch.Generator, strength: float = 0.3) -> Tensor:
    """Other colours for each image: x -> A (x - 128) + 128 + b for every pixel x, clamped to [0, 255].

    A is the identity plus normal noise of scale `strength`, which mixes the three colours; b is uniform noise of up to
    128 times `strength`. All stacked frames of an image have the same A and b.
    """
    _check_strength(strength)
    return recolored(obs, random_colors(torch.full((len(obs),), strength, device=obs.device), generator))


def random_colors(strength: Tensor, generator: torch.Generator) -> Tensor:
    """The matrices of `color_jitter` for `recolored`, (B, 3, 4), each of another strength (B,)."""
    scale, draws, device = strength[:, None, None], (len(strength), 3), strength.device
    mixing = torch.eye(3, device=device) + scale * torch.randn(*draws, 3, device=device, generator=generator)
    offset = 128 * scale * (2 * torch.rand(*draws, 1, device=device, generator=generator) - 1)
    return torch.cat([mixing, offset + 128 - 128 * mixing.sum(dim=2, keepdim=True)], dim=2)


@replaceable
def recolored(obs: Tensor, matrix: Tensor) -> Tensor:
    """Every pixel's colours (r, g, b, 1) multiplied by a matrix (B, 3, 4), clamped; float32 in [0, 255]; a fused
    version may round to uint8."""
    colours = torch.einsum("bij,bkjhw->bkihw", matrix[:, :, :3], _rgb_frames(obs).float())
    return (colours + matrix[:, None, :, 3, None, None]).clamp(0, 255).reshape(obs.shape)


@replaceable
def window(obs: Tensor, top: Tensor, left: Tensor, height: int, width: int) -> Tensor:
    """Cut (height, width) out of each image at `top`, `left` (B,); outside, the edge pixels continue."""
    batch, channels, rows, columns = obs.shape
    row = (top[:, None] + torch.arange(height, device=obs.device)).clamp(0, rows - 1)  # (B, height)
    column = (left[:, None] + torch.arange(width, device=obs.device)).clamp(0, columns - 1)  # (B, width)
    pixel = (row[:, :, None] * columns + column[:, None, :]).view(batch, 1, height * width)
    cut = obs.reshape(batch, channels, rows * columns).gather(2, pixel.expand(-1, channels, -1))
    return cut.view(batch, channels, height, width)


def _randint(high: int, shape: tuple[int, ...], obs: Tensor, generator: torch.Generator) -> Tensor:
    return torch.randint(high, shape, device=obs.device, generator=generator)


def _rgb_frames(obs: Tensor) -> Tensor:
    """(B, 3 k, H, W) -> (B, k, 3, H, W)."""
    batch, channels, height, width = obs.shape
    if channels % 3:
        raise InvalidValueError(f"observations must be stacked RGB frames, got {channels} channels")
    return obs.reshape(batch, channels // 3, 3, height, width)


def _larger(obs: Tensor, size: int) -> tuple[int, int]:
    height, width = obs.shape[-2:]
    if not 1 <= size <= min(height, width):
        raise InvalidValueError(f"cannot crop {size}x{size} out of {height}x{width}")
    return height, width


class ImageBank:
    """`num` random resized crops of the data directory's images, uint8 (num, 3, size, size) on the device. If there are
    none, generated images are used; `source` is "pictures" or "generated". Crop number k depends only on `seed` and k
    and is in slot k modulo `num`, so two integers are the whole state of the bank.
    """

    def __init__(
        self,
        num: int = 2048,
        size: int = 84,
        seed: int = 0,
        device: str | torch.device = "cpu",
        paths: Iterable[Path] | None = None,
        cache_bytes: int = 256 << 20,
    ):
        if num < 1 or size < 1:
            raise InvalidValueError(f"overlay images: num and size must be at least 1, got {num} and {size}")
        if paths is None:
            from sgqn.data import overlay_images

            paths = overlay_images()
        files = list(paths)
        self.num = num
        self.size = size
        self.seed = seed
        self.source = "pictures" if files else "generated"
        self._sources: Sequence[Image.Image] | _ImageFiles
        if files:
            self._sources = _ImageFiles(files, cache_bytes)
            log.info("overlay images: random crops of %d files", len(files))
        else:
            self._sources = _generated(num, size)
            log.warning("overlay images: none found, using generated ones (not the benchmark's)")
        self._fingerprint = hashlib.sha256("\n".join(path.name for path in files).encode()).hexdigest()
        self._worker: ThreadPoolExecutor | None = None
        self._next: tuple[int, Future[Tensor]] | None = None  # how many, and the crops
        self.images = torch.zeros(num, 3, size, size, dtype=torch.uint8, device=device)
        self._drawn = 0
        self._append(self._crops(0, num))

    def describe(self) -> str:
        """The source of the crops, for people."""
        return f"{len(self._sources):,} files" if self.source == "pictures" else self.source

    def refresh(self, n: int) -> None:
        """Replace the `n` oldest entries by fresh crops, in place.

        A thread has prepared them since the last call with the same `n`; the result does not depend on timing.
        """
        n = min(n, self.num)
        if n < 1:
            return
        if self._next and self._next[0] == n:
            crops = self._next[1].result()
        else:
            crops = self._crops(self._drawn, n)
        self._append(crops)
        if self._worker is None:
            self._worker = ThreadPoolExecutor(1, thread_name_prefix="images")
        self._next = (n, self._worker.submit(self._crops, self._drawn, n))

    def state_dict(self) -> dict[str, Any]:
        """Plain values that reproduce the same images, given the same files."""
        return {
            "num": self.num,
            "size": self.size,
            "seed": self.seed,
            "drawn": self._drawn,
            "source": self.source,
            "fingerprint": self._fingerprint,
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore the images of the saved bank; refreshing continues with the same crops."""
        integer(state["seed"], "seed", 0, (1 << 63) - 1)
        integer(state["drawn"], "drawn", self.num)
        if (state["num"], state["size"]) != (self.num, self.size):
            raise InvalidValueError(
                f"the saved state has {state['num']} overlay images of size {state['size']}, "
                f"not {self.num} of size {self.size}"
            )
        if (state["source"], state["fingerprint"]) != (self.source, self._fingerprint):
            log.warning("overlay images: the files have changed since this state was saved")
        if (state["seed"], state["drawn"]) != (self.seed, self._drawn):
            self.seed = int(state["seed"])
            self._next = None
            self._drawn = int(state["drawn"]) - self.num
            self._append(self._crops(self._drawn, self.num))

    def _append(self, crops: Tensor) -> None:
        """Write crops to the slots that follow: one slice, or two around the end."""
        slot = self._drawn % self.num
        fit = min(len(crops), self.num - slot)
        self.images[slot : slot + fit].copy_(crops[:fit], non_blocking=True)
        self.images[: len(crops) - fit].copy_(crops[fit:], non_blocking=True)
        self._drawn += len(crops)

    def _crops(self, first: int, count: int) -> Tensor:
        """Crops number `first`, `first + 1`, ...: uint8 (count, 3, size, size) on the host."""
        crops = np.empty((count, self.size, self.size, 3), dtype=np.uint8)

        def crop(index: int) -> None:
            rng = np.random.default_rng((self.seed, first + index))
            image = self._sources[int(rng.integers(len(self._sources)))]
            crops[index] = _random_resized_crop(image, self.size, rng)

        if count < 64:
            for index in range(count):
                crop(index)
        else:  # decoding and resizing release the interpreter's lock
            with ThreadPoolExecutor(min(8, os.cpu_count() or 1)) as pool:
                list(pool.map(crop, range(count)))
        return torch.from_numpy(crops).permute(0, 3, 1, 2).contiguous()


def make_augmentation(name: str, bank: ImageBank | None = None) -> Augmentation:
    """The augmentation called `name`; if it needs images, it uses the bank's current ones."""
    entry = AUGMENTATIONS[name]
    if not entry.needs_images:
        return entry.function
    if bank is None:
        raise InvalidValueError(f"the augmentation {name!r} needs images: an ImageBank")
    return lambda obs, generator: entry.function(obs, generator, bank.images)


# Images


class _ImageFiles:
    """Decoded images by index, with a cache. Unreadable files are skipped: the next readable file is used."""

    def __init__(self, paths: list[Path], cache_bytes: int):
        self._paths = paths
        self._limit = cache_bytes
        self._held = 0
        self._cache: OrderedDict[int, Image.Image] = OrderedDict()
        self._bad: set[int] = set()
        self._lock = threading.Lock()

    def __len__(self) -> int:
        return len(self._paths)

    def __getitem__(self, index: int) -> Image.Image:
        for step in range(len(self._paths)):
            image = self._load((index + step) % len(self._paths))
            if image is not None:
                return image
        raise DataError(f"none of {len(self._paths)} overlay images can be read, such as {self._paths[0]}")

    def _load(self, index: int) -> Image.Image | None:
        with self._lock:
            if index in self._bad:
                return None
            if index in self._cache:
                self._cache.move_to_end(index)
                return self._cache[index]
        try:
            image = _decode(self._paths[index])
        except Exception as error:  # Pillow's decoders raise many kinds of errors on unreadable files
            with self._lock:
                if index not in self._bad:
                    self._bad.add(index)
                    log.warning("overlay image skipped: %s (%s)", self._paths[index], error)
            return None
        with self._lock:
            if index not in self._cache:
                self._cache[index] = image
                self._held += _held(image)
            while self._held > self._limit and len(self._cache) > 1:
                self._held -= _held(self._cache.popitem(last=False)[1])
        return image


_SHORT_SIDE = 256  # larger images are reduced to it, the size of Places365


def _decode(path: Path) -> Image.Image:
    with Image.open(path) as file:
        scale = _SHORT_SIDE / min(file.size)
        reduced = (math.ceil(file.width * scale), math.ceil(file.height * scale))
        if scale < 1:
            file.draft("RGB", reduced)  # JPEGs decode several times faster at a lower resolution
        image = file.convert("RGB")
    return image.resize(reduced, Image.Resampling.BILINEAR) if scale < 1 else image


def _held(image: Image.Image) -> int:
    return image.width * image.height * 4  # Pillow holds RGB in four bytes


def _generated(num: int, size: int) -> list[Image.Image]:
    from sgqn.envs.backgrounds import generated_images

    images = generated_images(min(max(num // 8, 32), 256), size + size // 4, 0)
    return [Image.fromarray(image) for image in np.asarray(images)]


def _random_resized_crop(image: Image.Image, size: int, rng: np.random.Generator) -> np.ndarray:
    """A crop of 0.08 to 1 of the area, aspect ratio 3:4 to 4:3, randomly flipped: uint8 (size, size, 3)."""
    x, y, width, height = _random_box(image.width, image.height, rng)
    box = (x, y, x + width, y + height)
    crop = np.asarray(image.resize((size, size), Image.Resampling.BILINEAR, box))
    return crop[:, ::-1] if rng.random() < 0.5 else crop


def _random_box(width: int, height: int, rng: np.random.Generator) -> tuple[int, int, int, int]:
    """x, y, width, height; if ten attempts do not fit, the largest centre crop with a permitted aspect ratio."""
    for _ in range(10):
        area = width * height * rng.uniform(0.08, 1)
        ratio = math.exp(rng.uniform(math.log(3 / 4), math.log(4 / 3)))
        w, h = round(math.sqrt(area * ratio)), round(math.sqrt(area / ratio))
        if 0 < w <= width and 0 < h <= height:
            return int(rng.integers(width - w + 1)), int(rng.integers(height - h + 1)), w, h
    w = max(1, min(width, round(height * 4 / 3)))
    h = max(1, min(height, round(width * 4 / 3)))
    return (width - w) // 2, (height - h) // 2, w, h
