"""Two things at once need a GPU; elsewhere one simply follows the other."""

from __future__ import annotations

from contextlib import nullcontext

import pytest
import torch

from sgqn.fast import switch
from sgqn.fast.streams import FIRST, aside, done, mark

CPU = torch.device("cpu")


@pytest.mark.parametrize("kernels", [False, True])
def test_on_the_cpu_what_is_put_aside_runs_at_once(kernels: bool) -> None:
    order = []
    with switch.kernels() if kernels else nullcontext():
        with aside(CPU) as join:
            order.append("aside")
            with aside(CPU, stream=FIRST, since=mark(CPU)) as join_inner:
                order.append("inside")
            order.append("still aside")
        order.append("after")
        for waits in (join_inner, join, join):
            assert waits is done
            waits()
    assert order == ["aside", "inside", "still aside", "after"]


def test_gradients_are_those_of_one_thing_after_another() -> None:
    weight = torch.tensor([2.0, 3.0], requires_grad=True)
    with aside(CPU) as join:
        square = weight.square().sum()
    join()
    (square + weight.sum()).backward()
    assert weight.grad is not None
    assert weight.grad.tolist() == [5.0, 7.0]


def test_errors_come_through() -> None:
    with pytest.raises(KeyError), aside(CPU):
        raise KeyError
