"""Changes of pixels, by hand: pure functions of (seed, episode), the same in every batch."""

from __future__ import annotations

import numpy as np
import pytest
import torch

import sgqn
from sgqn.envs import Shift, families
from sgqn.envs.filters import COLOR_JITTER, GREY, RANDOM_CONV, LinearChange

CHANGES = [COLOR_JITTER, RANDOM_CONV]


def frames(count: int = 5, size: int = 12) -> torch.Tensor:
    return torch.randint(0, 256, (count, size, size, 3), dtype=torch.uint8, generator=torch.Generator().manual_seed(0))


def parameters(change: LinearChange, count: int = 5) -> torch.Tensor:
    shift = Shift("x", pixels=change)
    drawn = [shift.pixel_parameters(7, episode) for episode in range(count)]
    assert all(one is not None for one in drawn)
    return torch.from_numpy(np.stack(drawn))  # type: ignore[arg-type]


@pytest.mark.parametrize("change", CHANGES)
def test_an_image_is_the_same_in_every_batch(change: LinearChange) -> None:
    images, drawn = frames(), parameters(change)
    together = change.apply(images, drawn)
    assert together.shape == images.shape
    assert together.dtype == torch.uint8
    for row in range(len(images)):
        assert torch.equal(change.apply(images[row : row + 1], drawn[row : row + 1])[0], together[row])
    assert not torch.equal(drawn[0], drawn[1])
    assert torch.equal(drawn, parameters(change))


def test_a_convolution_by_hand() -> None:
    images, drawn = frames(1, 6), parameters(RANDOM_CONV, 1)
    padded = np.pad(images[0].numpy().astype(int), ((1, 1), (1, 1), (0, 0)), mode="edge")
    weights, offset = drawn[0, :, :-1].reshape(3, 3, 3, 3).numpy().astype(int), drawn[0, :, -1].numpy().astype(int)
    expected = np.zeros((6, 6, 3), int)
    for y in range(6):
        for x in range(6):
            for color in range(3):
                patch = padded[y : y + 3, x : x + 3].transpose(2, 0, 1)
                expected[y, x, color] = ((weights[color] * patch).sum() + offset[color] + 128) // 256
    assert np.array_equal(RANDOM_CONV.apply(images, drawn)[0].numpy(), expected.clip(0, 255))


def test_the_identity_and_grey() -> None:
    same = LinearChange(lambda random: (np.eye(3)[..., None, None], 0.0))
    assert torch.equal(same.apply(frames(), parameters(same)), frames())
    grey = torch.full((200, 4, 4, 3), 127, dtype=torch.uint8)
    assert (RANDOM_CONV.apply(grey, parameters(RANDOM_CONV, 200)).float() - GREY).abs().max() < 4
    jittered = COLOR_JITTER.apply(grey, parameters(COLOR_JITTER, 200)).float()
    assert (jittered - GREY).abs().max() < 33
    assert jittered.std() > 10


@pytest.mark.parametrize("change", CHANGES)
def test_content_stays_visible(change: LinearChange) -> None:
    """A bright square on a dark ground can be told from it in every episode."""
    image = torch.full((300, 12, 12, 3), 40, dtype=torch.uint8)
    image[:, 4:8, 4:8] = torch.tensor([200, 120, 60], dtype=torch.uint8)
    changed = change.apply(image, parameters(change, 300)).int()
    assert (changed[:, 5, 5] - changed[:, 1, 1]).abs().amax(dim=1).min() > 10


def test_any_family_can_use_them(monkeypatch: pytest.MonkeyPatch) -> None:
    from tests.envs import example_families

    monkeypatch.setattr(families, "_families", dict(families._families))
    sgqn.register_family(example_families.Dots())
    plain = sgqn.make_vec("dots:5", 2, num_workers=0)
    monkeypatch.setattr(example_families.Dots, "shift", lambda self, task, name: Shift(name, pixels=RANDOM_CONV))
    envs = sgqn.make_vec("dots:5", 2, num_workers=0)
    before, _ = plain.reset(seed=1)
    first, _ = envs.reset(seed=1)
    for world in range(2):
        (drawn,) = [torch.from_numpy(Shift("x", pixels=RANDOM_CONV).pixel_parameters(1, world))]
        frame = torch.from_numpy(before[world, -3:]).permute(1, 2, 0)[None]
        assert np.array_equal(RANDOM_CONV.apply(frame, drawn[None])[0].permute(2, 0, 1), first[world, -3:])
    state = envs.state_dict()
    after = [envs.step(np.ones((2, 1)))[0] for _ in range(3)]
    envs.reset(seed=5)
    envs.load_state_dict(state)
    assert all(np.array_equal(envs.step(np.ones((2, 1)))[0], one) for one in after)
    plain.close()
    envs.close()
