"""Exploration that changes while an agent learns."""

from __future__ import annotations

import torch
from torch import Tensor, nn


class LinearSchedule(nn.Module):
    """A number that goes from `first` to `last` in `steps` updates and stays there.

    It counts the updates on its device: a checkpoint has the count, and a captured CUDA graph moves it.
    """

    count: Tensor

    def __init__(self, first: float, last: float, steps: int):
        super().__init__()
        self.first, self.last, self.steps = first, last, steps
        self.register_buffer("count", torch.zeros((), dtype=torch.int64))

    def forward(self) -> Tensor:
        """The current number, a scalar."""
        return self.first + (self.last - self.first) * (self.count / self.steps).clamp(max=1)

    def advance(self) -> None:
        """An update has been made."""
        self.count.add_(1)
