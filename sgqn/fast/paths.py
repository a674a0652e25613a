"""Which way the computation goes on a device.

eager: as it is written. captured: in CUDA graphs. cudnn: captured, with fused kernels for all but the convolutions.
kernels: captured, with fused kernels for all, the encoder too.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import Literal

import torch

from sgqn.errors import InvalidValueError, UnknownNameError
from sgqn.fast import switch

PATHS = ("auto", "eager", "captured", "cudnn", "kernels")
PRECISIONS = ("auto", "bf16", "fp32")

BF16 = (8, 0)
"""The first compute capability with bfloat16, which all fused kernels compute in."""
ENCODER = (9, 0)
"""The one compute capability that the fused encoder is written for."""


@dataclass(frozen=True)
class Path:
    """The way that was chosen, and why not a faster one."""

    name: Literal["eager", "captured", "cudnn", "kernels"]
    precision: Literal["fp32", "bf16"]
    device: torch.device
    device_name: str
    note: str = ""

    def describe(self) -> str:
        """One line, such as "NVIDIA H200: bf16, captured updates, fused kernels"."""
        updates = "eager updates" if self.name == "eager" else "captured updates"
        kernels = {"cudnn": ", fused kernels but for the convolutions", "kernels": ", fused kernels"}.get(self.name, "")
        note = f" ({self.note})" if self.note else ""
        return f"{self.device_name}: {self.precision}, {updates}{kernels}{note}"

    def to_dict(self) -> dict[str, str]:
        """What a run's configuration keeps about the machine."""
        return {"device": self.device_name, "path": self.name, "precision": self.precision, "note": self.note}

    @contextmanager
    def active(self) -> Iterator[None]:
        """The mode in which an agent's update and policy run."""
        with ExitStack() as stack:
            if self.precision == "bf16":
                # Weights change inside an update: a cast of one must not be kept.
                stack.enter_context(torch.autocast(self.device.type, torch.bfloat16, cache_enabled=False))
            if self.name in ("cudnn", "kernels"):
                stack.enter_context(switch.kernels(encoder=self.name == "kernels"))
            yield


def choose(device: str | torch.device, path: str = "auto", precision: str = "auto") -> Path:
    """The fastest way that `device` can go within what is asked for; asking for what cannot be is refused."""
    if path not in PATHS:
        raise UnknownNameError("path", path, PATHS)
    if precision not in PRECISIONS:
        raise UnknownNameError("precision", precision, PRECISIONS)
    device = torch.device(device)
    if device.type != "cuda":
        return _on_cpu(device, path, precision)
    name, capability = torch.cuda.get_device_name(device), torch.cuda.get_device_capability(device)
    has_bf16 = torch.version.hip is not None or capability >= BF16
    if precision == "bf16" and not has_bf16:
        needs = f"needs compute capability {_dotted(BF16)}, {name} has {_dotted(capability)}"
        raise InvalidValueError(f"precision 'bf16' {needs}: use --precision fp32 or auto")
    used: Literal["fp32", "bf16"] = "bf16" if has_bf16 and precision != "fp32" else "fp32"
    if path == "eager":
        return Path("eager", used, device, name)
    if path == "captured":
        return Path("captured", used, device, name)
    problem = _problem(device, used)
    if problem and path != "auto":
        raise InvalidValueError(f"path {path!r} cannot be had on {name}: {problem}; use --path captured or auto")
    if problem:
        return Path("captured", used, device, name, f"no fused kernels: {problem}")
    if path == "cudnn":
        return Path("cudnn", used, device, name)
    if capability == ENCODER:
        return Path("kernels", used, device, name)
    needs = f"the fused encoder needs compute capability {_dotted(ENCODER)}, this is {_dotted(capability)}"
    if path == "kernels":
        raise InvalidValueError(f"path 'kernels' cannot be had on {name}: {needs}; use --path cudnn or auto")
    return Path("cudnn", used, device, name, needs)


def _on_cpu(device: torch.device, path: str, precision: str) -> Path:
    name = device.type.upper()
    if path not in ("auto", "eager"):
        raise InvalidValueError(f"path {path!r} needs a CUDA device, this is the {name}: use --path eager or auto")
    if precision == "bf16":
        raise InvalidValueError(f"precision 'bf16' needs a CUDA device, this is the {name}: use fp32 or auto")
    return Path("eager", "fp32", device, name)


def _problem(device: torch.device, precision: str) -> str | None:
    """Why the fused kernels cannot be had, or None."""
    from sgqn.fast import compiler

    return compiler.problem(device) or ("they compute in bf16, not fp32" if precision == "fp32" else None)


def _dotted(capability: tuple[int, int]) -> str:
    return ".".join(map(str, capability))
