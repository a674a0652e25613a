"""Which path the computation takes, on devices that this machine need not have."""

from __future__ import annotations

import pytest
import torch

from sgqn.errors import InvalidValueError, UnknownNameError
from sgqn.fast import compiler, switch
from sgqn.fast.backend import FastBackend
from sgqn.runner import Backend, choose_backend

CUDA, CPU = torch.device("cuda"), torch.device("cpu")
H200, H100, A100, T4, B200 = (
    ("NVIDIA H200", (9, 0)),
    ("NVIDIA H100", (9, 0)),
    ("NVIDIA A100", (8, 0)),
    ("Tesla T4", (7, 5)),
    ("NVIDIA B200", (10, 0)),
)


@pytest.fixture
def gpu(monkeypatch: pytest.MonkeyPatch):
    """Pretend that there is this GPU, and that the kernels have this problem."""

    def pretend(model: tuple[str, tuple[int, int]], problem: str | None = None) -> None:
        monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
        monkeypatch.setattr(torch.cuda, "get_device_name", lambda _: model[0])
        monkeypatch.setattr(torch.cuda, "get_device_capability", lambda _: model[1])
        old = f"they need compute capability 8.0, this is {model[1][0]}.{model[1][1]}"
        monkeypatch.setattr(compiler, "problem", lambda _: old if model[1] < (8, 0) else problem)

    return pretend


@pytest.mark.parametrize(
    ("model", "problem", "asked", "expected"),
    [
        (H200, None, {}, "NVIDIA H200: bf16, captured updates, fused kernels"),
        (H200, None, {"precision": "bf16"}, "NVIDIA H200: bf16, captured updates, fused kernels"),
        (H200, None, {"path": "kernels"}, "NVIDIA H200: bf16, captured updates, fused kernels"),
        (H100, None, {"path": "cudnn"}, "NVIDIA H100: bf16, captured updates, fused kernels but for the convolutions"),
        (A100, None, {"path": "cudnn"}, "NVIDIA A100: bf16, captured updates, fused kernels but for the convolutions"),
        (H200, None, {"path": "captured"}, "NVIDIA H200: bf16, captured updates"),
        (H200, None, {"path": "captured", "precision": "fp32"}, "NVIDIA H200: fp32, captured updates"),
        (H200, None, {"path": "eager"}, "NVIDIA H200: bf16, eager updates"),
        (H200, None, {"path": "eager", "precision": "fp32"}, "NVIDIA H200: fp32, eager updates"),
        (
            H200,
            None,
            {"precision": "fp32"},
            "NVIDIA H200: fp32, captured updates (no fused kernels: they compute in bf16, not fp32)",
        ),
        (
            H200,
            "NVRTC was not found",
            {},
            "NVIDIA H200: bf16, captured updates (no fused kernels: NVRTC was not found)",
        ),
        (
            A100,
            None,
            {},
            "NVIDIA A100: bf16, captured updates, fused kernels but for the convolutions "
            "(the fused encoder needs compute capability 9.0, this is 8.0)",
        ),
        (
            B200,
            None,
            {},
            "NVIDIA B200: bf16, captured updates, fused kernels but for the convolutions "
            "(the fused encoder needs compute capability 9.0, this is 10.0)",
        ),
        (
            T4,
            None,
            {},
            "Tesla T4: fp32, captured updates (no fused kernels: they need compute capability 8.0, this is 7.5)",
        ),
        (T4, None, {"path": "captured"}, "Tesla T4: fp32, captured updates"),
    ],
)
def test_the_path_on_a_gpu(gpu, model, problem: str | None, asked: dict[str, str], expected: str) -> None:
    gpu(model, problem)
    assert choose_backend(CUDA, **asked).describe() == expected


def test_the_path_on_a_cpu() -> None:
    for path in ("auto", "eager"):
        for precision in ("auto", "fp32"):
            chosen = choose_backend("cpu", path, precision)
            assert chosen == Backend(CPU, "CPU")
            assert chosen.describe() == "CPU: fp32, eager updates"
            assert chosen.to_dict() == {"device": "CPU", "path": "eager", "precision": "fp32", "note": ""}
    assert choose_backend("cpu", "auto", "bf16").describe() == "CPU: bf16, eager updates"


def test_rocm_is_captured_in_bf16(gpu, monkeypatch: pytest.MonkeyPatch) -> None:
    gpu(("AMD Instinct MI300X", (9, 4)), "they need PyTorch's CUDA build")
    monkeypatch.setattr(torch.version, "hip", "7.0")
    chosen = choose_backend(CUDA)
    assert (chosen.name, chosen.precision) == ("captured", "bf16")


@pytest.mark.parametrize(
    ("model", "path", "precision", "parts"),
    [
        (None, "captured", "auto", ("'captured'", "CPU", "--path eager")),
        (None, "kernels", "auto", ("'kernels'", "CPU", "--path eager")),
        (None, "cudnn", "auto", ("'cudnn'", "CPU", "--path eager")),
        (H200, "kernels", "fp32", ("'kernels'", "bf16, not fp32", "--path captured")),
        (H200, "cudnn", "fp32", ("'cudnn'", "bf16, not fp32", "--path captured")),
        (A100, "kernels", "auto", ("'kernels'", "NVIDIA A100", "9.0, this is 8.0", "--path cudnn")),
        (B200, "kernels", "bf16", ("'kernels'", "NVIDIA B200", "9.0, this is 10.0", "--path cudnn")),
        (T4, "cudnn", "auto", ("'cudnn'", "Tesla T4", "8.0, this is 7.5", "--path captured")),
        (T4, "kernels", "auto", ("'kernels'", "Tesla T4", "8.0, this is 7.5", "--path captured")),
        (T4, "auto", "bf16", ("'bf16'", "Tesla T4", "7.5", "--precision fp32")),
    ],
)
def test_what_cannot_be_is_refused_in_one_line(gpu, model, path: str, precision: str, parts: tuple[str, ...]) -> None:
    if model is not None:
        gpu(model)
    with pytest.raises(InvalidValueError) as error:
        choose_backend("cpu" if model is None else CUDA, path, precision)
    assert "\n" not in str(error.value)
    for part in parts:
        assert part in str(error.value)


def test_kernels_that_cannot_be_had_are_refused_with_the_reason(gpu) -> None:
    gpu(H200, "NVRTC was not found")
    with pytest.raises(InvalidValueError, match="NVIDIA H200: NVRTC was not found; use --path captured"):
        choose_backend(CUDA, "kernels")


def test_unknown_names() -> None:
    with pytest.raises(UnknownNameError, match="did you mean 'captured'"):
        choose_backend("cpu", "capture")
    with pytest.raises(UnknownNameError, match="bf16"):
        choose_backend("cpu", "auto", "fp16")


def test_the_mode_holds_inside_and_only_there() -> None:
    def mode() -> tuple[bool, bool, bool, bool]:
        autocast = torch.is_autocast_enabled("cpu"), torch.is_autocast_cache_enabled()
        return *autocast, switch.enabled(), switch.encoder_enabled()

    outside = mode()
    assert outside == (False, True, False, False)
    expected = {
        "eager": (True, False, False, False),
        "captured": (True, False, False, False),
        "cudnn": (True, False, True, False),
        "kernels": (True, False, True, True),
    }
    for name, inside in expected.items():
        with FastBackend(CPU, "", name, "bf16").active():
            assert mode() == inside
        assert mode() == outside
        with pytest.raises(KeyError), FastBackend(CPU, "", name, "bf16").active():
            raise KeyError
        assert mode() == outside
