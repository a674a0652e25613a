"""Names of devices."""

from __future__ import annotations

import torch

from sgqn.errors import InvalidValueError


def check_device(device: str | torch.device) -> torch.device:
    """The torch device called `device`, if it exists here; `auto` is a GPU where there is one."""
    if device == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    try:
        found = torch.device(device)
    except RuntimeError as error:
        raise InvalidValueError(f"unknown device {device!r}: use 'cpu', 'cuda' or 'cuda:0'") from error
    if found.type == "cuda" and not torch.cuda.is_available():
        raise InvalidValueError(f"device {str(device)!r} was asked for, but torch finds no CUDA device here")
    if found.type not in ("cpu", "cuda"):
        raise InvalidValueError(f"device {str(device)!r} is not supported: use 'cpu' or 'cuda'")
    return found
