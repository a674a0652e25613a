"""Names of devices."""

from __future__ import annotations

import os

import torch

from sgqn.errors import InvalidValueError


def check_device(device: str | torch.device) -> torch.device:
    """The torch device called `device`, if it exists; `auto` is a GPU if there is one."""
    if device == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    try:
        found = torch.device(device)
    except RuntimeError as error:
        raise InvalidValueError(f"unknown device {device!r}: use 'cpu', 'cuda' or 'cuda:0'") from error
    if found.type == "cuda" and not torch.cuda.is_available():
        raise InvalidValueError(f"device {str(device)!r} is not available: torch finds no CUDA device")
    if found.type not in ("cpu", "cuda"):
        raise InvalidValueError(f"device {str(device)!r} is not supported: use 'cpu' or 'cuda'")
    count = torch.cuda.device_count() if found.type == "cuda" else 1
    if found.index is not None and not 0 <= found.index < count:
        there = "cpu" if found.type == "cpu" else ", ".join(f"cuda:{index}" for index in range(count))
        raise InvalidValueError(f"device {str(device)!r} was asked for, but this machine has {there}")
    return found


def total_memory(device: torch.device) -> int:
    """Bytes of memory that a device has, used or not."""
    if device.type == "cuda":
        return int(torch.cuda.get_device_properties(device).total_memory)
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
