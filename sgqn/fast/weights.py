"""Weights in the layout of the fused kernels: bf16, padded, stacked; converted only when they have changed."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeVar
from weakref import WeakKeyDictionary

import torch
from torch import Tensor, nn

from sgqn.errors import SgqnError
from sgqn.fast import compiler, switch
from sgqn.networks import ema_update
from sgqn.replaceable import replace

Form = TypeVar("Form", bound="Converted")


class Converted:
    """Weights of a module in another form. Subclasses fill their buffers from `sources` in `convert`."""

    def __init__(self, sources: Sequence[Tensor]):
        self.sources = list(sources)
        self._seen: tuple[int, ...] = ()
        self._stream: torch.cuda.Stream | None = None
        self._done: torch.cuda.Event | None = None

    def convert(self) -> None:
        raise NotImplementedError

    def copy_of(self, index: int) -> Tensor | None:
        """The plain copy that `convert` makes of a source, if that is what it does."""
        del index
        return None

    def refresh(self) -> None:
        """Convert, unless the sources are those of the last time and untouched. Another stream then waits for it."""
        seen = (switch.current_block(), *self.addresses(), *self.versions())
        device = self.sources[0].device
        stream = torch.cuda.current_stream(device) if device.type == "cuda" else None
        if seen != self._seen:
            self.convert()
            self.mark_fresh()
        elif stream is not None and stream != self._stream and self._done is not None:
            stream.wait_event(self._done)

    def mark_fresh(self) -> None:
        """The sources have just been converted, on the current stream."""
        device = self.sources[0].device
        self._seen = (switch.current_block(), *self.addresses(), *self.versions())
        self._stream = torch.cuda.current_stream(device) if device.type == "cuda" else None
        self._done = None if self._stream is None else self._stream.record_event()

    def addresses(self) -> tuple[int, ...]:
        return tuple(source.data_ptr() for source in self.sources)

    def versions(self) -> tuple[int, ...]:
        """They change with every change of a weight that Python hears of, an optimiser's step for one."""
        return tuple(source._version for source in self.sources)

    def check(self, versions: tuple[int, ...]) -> None:
        """For backward passes: the weights must still be those of the forward pass."""
        if versions != self.versions():
            raise SgqnError("weights were changed in place between a forward pass and its backward pass")


_of_source: dict[int, weakref.ref[Converted]] = {}


def copies_of(sources: Sequence[Tensor]) -> tuple[list[Tensor | None], list[Converted]]:
    """Where an optimiser may write copies of its new weights to, and the forms that are then up to date."""
    found: list[Tensor | None] = [None] * len(sources)
    place = {id(source): index for index, source in enumerate(sources)}
    forms: dict[int, Converted] = {}
    for source in sources:
        reference = _of_source.get(id(source))
        form = None if reference is None else reference()
        if form is not None:
            forms[id(form)] = form
    complete = []
    for form in forms.values():
        inside = [place.get(id(source)) for source in form.sources]
        copies = [form.copy_of(index) for index in range(len(form.sources))]
        ours = all(at is not None and sources[at] is own for at, own in zip(inside, form.sources, strict=True))
        if ours and all(copy is not None for copy in copies):
            complete.append(form)
            for at, copy in zip(inside, copies, strict=True):
                assert at is not None
                found[at] = copy
    return found, complete


_forms: WeakKeyDictionary[nn.Module, dict[type, Any]] = WeakKeyDictionary()


def form_of(module: nn.Module, kind: type[Form], make: Callable[[], Form]) -> Form:
    """The module's weights in that form, up to date; made at first use and where the module has moved."""
    forms = _forms.setdefault(module, {})
    form = forms.get(kind)
    if form is None or form.sources[0].device != next(module.parameters()).device:
        form = forms[kind] = make()
    form.refresh()
    return form


def moved(module: nn.Module) -> None:
    """Convert the module's weights again after an in-place change, ahead of their next use.

    PyTorch's operations on lists of tensors raise versions on a CPU, but not on a GPU, where they are one kernel.
    """
    torch.autograd.graph.increment_version(list(module.parameters()))
    if switch.enabled():
        for part in module.modules():
            for form in _forms.get(part, {}).values():
                form.refresh()


_plain_ema_update = ema_update.__wrapped__  # type: ignore[attr-defined]


@replace(ema_update, fits=lambda target, source, tau: switch.enabled() or next(target.parameters()).is_cuda)
def _ema_update(target: nn.Module, source: nn.Module, tau: float) -> None:
    _plain_ema_update(target, source, tau)
    moved(target)


class Copies(Converted):
    """Copies of two-dimensional weights (vectors are one row) into buffers, in one kernel launch."""

    def __init__(self, pairs: Sequence[tuple[Tensor, Tensor]], groups: Mapping[int, int] | None = None):
        """(source, destination): float32 to bfloat16 or float32; destinations may have longer rows than sources.

        `groups` has numbers g for some sources (by index), whose row a * g + b becomes row b * (rows / g) + a.
        """
        super().__init__([source for source, _ in pairs])
        self.destinations = [destination for _, destination in pairs]
        self._groups = dict(groups or {})
        for gone in [key for key, reference in _of_source.items() if reference() is None]:
            del _of_source[gone]
        for source in self.sources:
            _of_source[id(source)] = weakref.ref(self)
        self._parts = min(264, -(-max(source.numel() for source in self.sources) // 1024))
        self._table: Tensor | None = None
        self._of: tuple[int, ...] = ()

    def copy_of(self, index: int) -> Tensor | None:
        return None if index in self._groups else self.destinations[index]

    def convert(self) -> None:
        if self._table is None or self._of != self.addresses():
            self._of = self.addresses()
            self._table = torch.tensor(self._rows(), dtype=torch.int64).to(self.sources[0].device)
        kernels = compiler.module("pointwise", self.sources[0].device)
        kernels.launch("convert", (self._parts, len(self.sources)), 256, 0, self._table)

    def _rows(self) -> list[list[int]]:
        rows = []
        for index, (source, destination) in enumerate(zip(self.sources, self.destinations, strict=True)):
            group = self._groups.get(index, 0)
            columns = 1 if group and source.ndim == 1 else source.shape[-1]
            if not source.is_contiguous() or source.dtype != torch.float32 or destination.stride(-1) != 1:
                raise SgqnError(f"a weight of {tuple(source.shape)}, {source.dtype}, cannot be converted")
            pitch = destination.stride(0) if destination.ndim == 2 else columns
            half = int(destination.dtype == torch.bfloat16)
            shape = [source.numel() // columns, columns, pitch]
            rows.append([source.data_ptr(), destination.data_ptr(), *shape, half, group])
        return rows


def padded(number: int, to: int = 8) -> int:
    return -(-number // to) * to
