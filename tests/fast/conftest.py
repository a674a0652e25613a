from __future__ import annotations

import pytest
import torch

from sgqn.fast import compiler, encoder, optimizer, switch
from tests.fast.emulated import Emulator


@pytest.fixture(autouse=True)
def seeded() -> None:
    """New networks draw their weights from the default generator."""
    torch.manual_seed(0)


@pytest.fixture
def emulated(monkeypatch: pytest.MonkeyPatch) -> None:
    """The fused kernels run, switched on by `switch.kernels()`, on this CPU."""
    loaded: dict[str, Emulator] = {}

    def module(name: str, device: torch.device) -> Emulator:
        if name not in loaded:
            loaded[name] = Emulator(name)
        return loaded[name]

    monkeypatch.setattr(compiler, "module", module)
    monkeypatch.setattr(encoder, "supported", lambda device: True)
    monkeypatch.setattr(encoder, "processors", lambda device: 2)
    monkeypatch.setattr(optimizer, "supported", lambda parameter: True)
    monkeypatch.setattr(switch, "takes", lambda x: switch.enabled())


@pytest.fixture
def paper_agent():
    """A batch, and a maker of equal agents of the paper's sizes, by default SGQN."""
    from sgqn.agents import Spec, build_agent, make_settings
    from sgqn.augmentations import random_conv
    from sgqn.replay import Batch

    drawn = torch.Generator().manual_seed(0)
    pictures = torch.randint(0, 256, (2, 2, 9, 84, 84), dtype=torch.uint8, generator=drawn)
    action = torch.rand(2, 6, generator=drawn) * 2 - 1
    batch = Batch(pictures[0], action, torch.rand(2, generator=drawn), torch.full((2,), 0.99), pictures[1])

    def make(name="sgqn", augmentation=random_conv):
        settings = make_settings(name, batch_size=2)
        return build_agent(name, Spec(action_dim=6), settings, augmentation, seed=0, device="cpu")

    return batch, make
