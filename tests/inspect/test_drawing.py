from __future__ import annotations

import base64
import io

import av
import numpy as np
import pytest
from PIL import Image

from sgqn.inspect import drawing, video


def test_mask_over_an_image() -> None:
    image, mask = np.full((2, 2, 3), 100, dtype=np.uint8), np.array([[True, False], [False, False]])
    shown = drawing.overlaid(image, mask)
    assert np.array_equal(shown[0, 0], np.round(0.4 * 100 + 0.6 * drawing.TINT))
    assert (shown[mask == 0] == 40).all()
    soft = drawing.overlaid(image, mask * 0.5)
    assert np.array_equal(soft[0, 0], np.round(0.4 * 100 + 0.3 * drawing.TINT))


def test_colours() -> None:
    shown = drawing.inferno(np.array([-1, 0, 0.5, 1, 2]))
    assert shown.tolist() == [[0, 0, 4], [0, 0, 4], [188, 55, 84], [252, 255, 164], [252, 255, 164]]
    assert drawing.grey(np.array([0, 0.5, 1]))[:, 0].tolist() == [0, 128, 255]


def test_cells() -> None:
    sheet = Image.new("RGB", (60, 20), "white")
    image = np.arange(12, dtype=np.uint8).reshape(2, 2, 3)
    drawing.paste(sheet, image, (0, 0), 20)
    drawing.paste(sheet, None, (40, 0), 20, text_size=4)
    pixels = np.asarray(sheet)
    assert np.array_equal(pixels[5::10, 5:20:10], image)
    assert tuple(pixels[0, 40]) == drawing.PALE


def test_png_and_its_url() -> None:
    image = np.random.default_rng(0).integers(0, 256, (4, 5, 3), dtype=np.uint8)
    for given in (image, Image.fromarray(image)):
        content = drawing.png(given)
        assert np.array_equal(np.asarray(Image.open(io.BytesIO(content))), image)
    kind, _, data = drawing.data_url(content).partition(",")
    assert kind == "data:image/png;base64"
    assert base64.b64decode(data) == content


def frames(count: int = 5, height: int = 33, width: int = 48) -> list[np.ndarray]:
    return [np.full((height, width, 3), 40 * i, dtype=np.uint8) for i in range(count)]


@pytest.mark.parametrize("h264", [True, False])
def test_video(h264: bool, monkeypatch: pytest.MonkeyPatch, tmp_path: object) -> None:
    if not h264:
        monkeypatch.setattr(av, "codecs_available", {"mpeg4"})
    elif not video.has_h264():
        pytest.skip("no H.264 encoder")
    file = io.BytesIO()
    video.write(file, iter(frames()), fps=7)
    with av.open(io.BytesIO(file.getvalue())) as read:
        stream = read.streams.video[0]
        assert stream.codec_context.name == ("h264" if h264 else "mpeg4")
        assert stream.average_rate == 7
        shown = [frame.to_ndarray(format="rgb24") for frame in read.decode(video=0)]
    assert len(shown) == 5
    assert shown[0].shape == (34, 48, 3)  # odd sizes are rounded up
    assert [abs(int(frame[10, 10, 1]) - 40 * i) < 12 for i, frame in enumerate(shown)] == [True] * 5


def test_animation_fits() -> None:
    noise = np.random.default_rng(0)
    images = [Image.fromarray(noise.integers(0, 256, (64, 64, 3), dtype=np.uint8)) for _ in range(4)]
    large = video.animated(images, 10, 10**6)
    small = video.animated(images, 10, len(large) - 1)
    assert len(small) < len(large)
    with Image.open(io.BytesIO(large)) as animation:
        assert (animation.format, animation.n_frames, animation.info["loop"]) == ("WEBP", 4, 0)
