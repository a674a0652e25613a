"""Exploration schedules."""

from __future__ import annotations

import torch
from torch import Tensor, nn


class LinearSchedule(nn.Module):
    """A value that changes linearly from `first` to `last` in `steps` updates. It counts updates in a buffer on its
    device, which checkpoints save and captured CUDA graphs advance.
    """

    count: Tensor

    def __init__(self, first: float, last: float, steps: int):
        super().__init__()
        self.first, self.last, self.steps = first, last, steps
        self.register_buffer("count", torch.zeros((), dtype=torch.int64))

    def forward(self) -> Tensor:
        """The current value, a scalar."""
        return self.first + (self.last - self.first) * (self.count / self.steps).clamp(max=1)

    def advance(self) -> None:
        """Count one update."""
        self.count.add_(1)
