"""The computation paths of CUDA devices.

eager: the plain code. captured: the plain code in CUDA graphs. cudnn: captured, with fused kernels for all but the
convolutions. kernels: captured, with fused kernels for everything, the encoder too.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass

import torch

from sgqn.agents.base import Agent, Phase
from sgqn.errors import InvalidValueError
from sgqn.fast import compiler, switch
from sgqn.runner import Backend, Prepare, Runner

BF16 = (8, 0)
"""The first compute capability with bfloat16, which all fused kernels compute in."""
ENCODER = (9, 0)
"""The one compute capability that the fused encoder is written for."""


@dataclass(frozen=True)
class FastBackend(Backend):
    """A CUDA device's path."""

    def describe(self) -> str:
        updates = "eager updates" if self.name == "eager" else "captured updates"
        kernels = {"cudnn": ", fused kernels but for the convolutions", "kernels": ", fused kernels"}.get(self.name, "")
        note = f" ({self.note})" if self.note else ""
        return f"{self.device_name}: {self.precision}, {updates}{kernels}{note}"

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

    def runner(
        self, agent: Agent, prepare: Prepare, generators: Sequence[torch.Generator], cycle: Sequence[Phase]
    ) -> Runner:
        from sgqn.fast.capture import FastRunner

        torch.backends.cudnn.benchmark = True
        return FastRunner(self, agent, prepare, generators, cycle)


def choose_backend(device: torch.device, path: str = "auto", precision: str = "auto") -> FastBackend:
    """The fastest supported path of a CUDA device for the given options; unsupported options are an error."""
    name, capability = torch.cuda.get_device_name(device), torch.cuda.get_device_capability(device)
    has_bf16 = torch.version.hip is not None or capability >= BF16
    if precision == "bf16" and not has_bf16:
        needs = f"needs compute capability {_dotted(BF16)}, {name} has {_dotted(capability)}"
        raise InvalidValueError(f"precision 'bf16' {needs}: use --precision fp32 or auto")
    used = "bf16" if has_bf16 and precision != "fp32" else "fp32"
    if path in ("eager", "captured"):
        return FastBackend(device, name, path, used)
    problem = compiler.problem(device) or ("they compute in bf16, not fp32" if used == "fp32" else None)
    if problem and path != "auto":
        raise InvalidValueError(f"path {path!r} is not supported on {name}: {problem}; use --path captured or auto")
    if problem:
        return FastBackend(device, name, "captured", used, f"no fused kernels: {problem}")
    if path == "cudnn":
        return FastBackend(device, name, "cudnn", used)
    if capability == ENCODER:
        return FastBackend(device, name, "kernels", used)
    needs = f"the fused encoder needs compute capability {_dotted(ENCODER)}, this is {_dotted(capability)}"
    if path == "kernels":
        raise InvalidValueError(f"path 'kernels' is not supported on {name}: {needs}; use --path cudnn or auto")
    return FastBackend(device, name, "cudnn", used, needs)


def _dotted(capability: tuple[int, int]) -> str:
    return ".".join(map(str, capability))
