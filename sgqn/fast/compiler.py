"""Compile the project's CUDA sources at run time, keep the result, load and launch it.

NVRTC, the compiler, and the driver come with PyTorch's CUDA builds; nothing else is needed. A compiled module lies in
the user's cache directory under a name made of the sources, the compiler's version and the GPU's architecture.
"""

from __future__ import annotations

import ctypes
import glob
import hashlib
import importlib.util
import logging
import os
import struct
import time
from functools import cache
from importlib import resources
from pathlib import Path
from typing import Protocol

import platformdirs
import torch
from torch import Tensor

from sgqn.errors import SgqnError
from sgqn.files import write_atomically

logger = logging.getLogger(__name__)

HEADER = "common.cuh"
Argument = Tensor | float | bytes | None
Grid = int | tuple[int, int]


class CompilerError(SgqnError):
    """A kernel could not be compiled, loaded or launched."""


class Module(Protocol):
    """The kernels of one source file."""

    def launch(self, name: str, grid: Grid, block: int, shared_bytes: int, *arguments: Argument) -> None: ...


def problem(device: torch.device) -> str | None:
    """Why the kernels are not available on this device, or None."""
    if device.type != "cuda":
        return "they need a CUDA device"
    if torch.version.cuda is None:
        return "they need PyTorch's CUDA build"
    major, minor = torch.cuda.get_device_capability(device)
    if (major, minor) < (8, 0):
        return f"they need compute capability 8.0, this is {major}.{minor}"
    try:
        _nvrtc()
        _driver()
    except CompilerError as error:
        return str(error)
    return None


@cache
def module(name: str, device: torch.device) -> Module:
    """The kernels of `kernels/<name>.cu`, compiled for this device; seconds the first time, from the cache later."""
    major, minor = torch.cuda.get_device_capability(device)
    architecture = f"sm_{major}{minor}" + ("a" if major == 9 else "")  # "a": with Hopper's own instructions
    return _Loaded(compiled(name, architecture), device)


def compiled(name: str, architecture: str) -> bytes:
    """The machine code of a source file for an architecture, from the cache or fresh."""
    text = source(f"{name}.cu")
    key = "\n".join((_version(), architecture, text, source(HEADER)))
    digest = hashlib.sha256(key.encode()).hexdigest()[:24]
    path = Path(platformdirs.user_cache_dir("sgqn")) / "kernels" / f"{name}-{architecture}-{digest}.cubin"
    if path.is_file():
        return path.read_bytes()
    logger.warning("compiling the %s kernels for %s (only once, takes a few seconds)", name, architecture)
    started = time.monotonic()
    code = _compile(name, text, architecture)
    logger.info("compiled in %.1f s", time.monotonic() - started)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        write_atomically(path, code)
    except OSError as error:
        logger.warning("the compiled kernels could not be cached (%s): they will be compiled again next time", error)
    return code


def source(file: str) -> str:
    return (resources.files("sgqn.fast") / "kernels" / file).read_text()


def parameter(argument: Argument) -> ctypes.Array | ctypes.c_uint64:
    """A kernel's parameter: a table, or eight bytes: an address, an integer, or the bits of a float32."""
    if isinstance(argument, bytes):
        return ctypes.create_string_buffer(argument, len(argument))
    if isinstance(argument, Tensor):
        return ctypes.c_uint64(argument.data_ptr())
    if isinstance(argument, float):
        return ctypes.c_uint64(int.from_bytes(struct.pack("<f", argument), "little"))
    return ctypes.c_uint64(argument or 0)


class _Loaded:
    """A module in a device's memory."""

    def __init__(self, code: bytes, device: torch.device):
        self._driver = _driver()
        self._functions: dict[tuple[str, int], ctypes.c_void_p] = {}
        self._handle = ctypes.c_void_p()
        with torch.cuda.device(device):
            torch.cuda.current_stream().synchronize()  # makes sure that there is a context
            self._check(self._driver.cuModuleLoadData(ctypes.byref(self._handle), code), "load the kernels")

    def launch(self, name: str, grid: Grid, block: int, shared_bytes: int, *arguments: Argument) -> None:
        """Queue a kernel on the current stream. Callers must check the arguments' types."""
        across, down = (grid, 1) if isinstance(grid, int) else grid
        values = [parameter(argument) for argument in arguments]
        pointers = (ctypes.c_void_p * len(values))(*map(ctypes.addressof, values))
        function = self._function(name, shared_bytes)
        stream = ctypes.c_void_p(torch.cuda.current_stream().cuda_stream)
        result = self._driver.cuLaunchKernel(
            function, across, down, 1, block, 1, 1, shared_bytes, stream, pointers, None
        )
        self._check(result, f"launch {name}")

    def _function(self, name: str, shared_bytes: int) -> ctypes.c_void_p:
        if (name, shared_bytes) not in self._functions:
            function = ctypes.c_void_p()
            result = self._driver.cuModuleGetFunction(ctypes.byref(function), self._handle, name.encode())
            self._check(result, f"find the kernel {name}")
            if shared_bytes > 48 << 10:
                max_dynamic_shared_size = 8
                result = self._driver.cuFuncSetAttribute(function, max_dynamic_shared_size, shared_bytes)
                self._check(result, f"give {name} {shared_bytes} bytes of shared memory")
            self._functions[name, shared_bytes] = function
        return self._functions[name, shared_bytes]

    def _check(self, result: int, what: str) -> None:
        if result:
            message = ctypes.c_char_p()
            self._driver.cuGetErrorString(result, ctypes.byref(message))
            raise CompilerError(f"could not {what}: {(message.value or b'error').decode()} ({result})")


def _compile(name: str, text: str, architecture: str) -> bytes:
    nvrtc = _nvrtc()
    program = ctypes.c_void_p()
    headers = (ctypes.c_char_p * 1)(source(HEADER).encode())
    names = (ctypes.c_char_p * 1)(HEADER.encode())
    result = nvrtc.nvrtcCreateProgram(ctypes.byref(program), text.encode(), f"{name}.cu".encode(), 1, headers, names)
    if result:
        raise CompilerError(f"NVRTC could not start with {name}.cu ({result})")
    try:
        options = [f"--gpu-architecture={architecture}".encode(), b"--std=c++17"]
        result = nvrtc.nvrtcCompileProgram(program, len(options), (ctypes.c_char_p * len(options))(*options))
        if result:
            size = ctypes.c_size_t()
            nvrtc.nvrtcGetProgramLogSize(program, ctypes.byref(size))
            log = ctypes.create_string_buffer(size.value)
            nvrtc.nvrtcGetProgramLog(program, log)
            raise CompilerError(f"NVRTC could not compile {name}.cu for {architecture}: {log.value.decode()}")
        size = ctypes.c_size_t()
        nvrtc.nvrtcGetCUBINSize(program, ctypes.byref(size))
        code = ctypes.create_string_buffer(size.value)
        nvrtc.nvrtcGetCUBIN(program, code)
        return code.raw
    finally:
        nvrtc.nvrtcDestroyProgram(ctypes.byref(program))


def _version() -> str:
    major, minor = ctypes.c_int(), ctypes.c_int()
    _nvrtc().nvrtcVersion(ctypes.byref(major), ctypes.byref(minor))
    return f"{major.value}.{minor.value}"


@cache
def _nvrtc() -> ctypes.CDLL:
    """NVRTC as PyTorch's dependencies brought it, or as the system has it."""
    major = (torch.version.cuda or "13").split(".")[0]
    file = f"libnvrtc.so.{major}"
    found = importlib.util.find_spec("nvidia")
    places = list(found.submodule_search_locations or []) if found else []
    candidates = [path for place in places for path in sorted(glob.glob(os.path.join(place, "*", "lib", file)))]
    for candidate in (*candidates, file, "libnvrtc.so"):
        try:
            return ctypes.CDLL(candidate)
        except OSError:
            continue
    raise CompilerError(f"NVRTC ({file}) was not found: it comes with PyTorch's CUDA packages")


@cache
def _driver() -> ctypes.CDLL:
    try:
        return ctypes.CDLL("libcuda.so.1")
    except OSError as error:
        raise CompilerError(f"NVIDIA's driver was not found ({error})") from error
