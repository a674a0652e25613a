"""The CUDA kernels of `sgqn/fast/kernels` on a CPU: slow, and strict about what a GPU leaves undefined."""

from __future__ import annotations

import ctypes
import fcntl
import hashlib
import os
import re
import shutil
import struct
import subprocess
import tempfile
from pathlib import Path

import pytest
from torch import Tensor

import sgqn

KERNELS = Path(sgqn.__file__).parent / "fast" / "kernels"
EMULATOR = Path(__file__).parent / "emulator"
COMPILE = (
    *("g++", "-O2", "-std=c++17", "-fPIC", "-fvisibility=hidden", "-Wno-unknown-pragmas", "-DSGQN_EMULATED"),
    *(f"-I{EMULATOR}", f"-I{KERNELS}"),
    "-U_FORTIFY_SOURCE",  # it forbids jumps from one stack to another
    *("-fsanitize=alignment", "-fsanitize-undefined-trap-on-error"),
)
MOST_ARGUMENTS = 32
DECLARATION = re.compile(
    r"^KERNEL\s+(?:__launch_bounds__\([^)]*\)\s*)?(\w+)\s*\(\s*((?:TABLE\([^)]*\)|[^)])*)\)", re.MULTILINE
)

requires_compiler = pytest.mark.skipif(shutil.which("g++") is None, reason="no g++ on this machine")


class KernelError(RuntimeError):
    """A kernel did what a GPU would fault on, or was launched in a way that cannot work."""


class Emulator:
    """The kernels of one source: `Emulator("pointwise")` is `sgqn/fast/kernels/pointwise.cu`; a path is any file.

    Threads run in turns, each until it has to wait for others. `backwards`, the last thread comes first: a kernel that
    gives another result then forgets a barrier.
    """

    def __init__(self, source: str | Path, *, backwards: bool = False):
        path = source if isinstance(source, Path) else KERNELS / f"{source}.cu"
        self.backwards = backwards
        kernels = DECLARATION.findall(path.read_text())
        self._kernels = {name: len(parameters.split(",")) if parameters else 0 for name, parameters in kernels}
        self._library = ctypes.PyDLL(str(_compiled(path)))  # one launch at a time
        self._library.emulator_launch.restype = ctypes.c_char_p

    def launch(
        self,
        name: str,
        grid: int | tuple[int, int],
        block: int,
        shared_bytes: int,
        *arguments: Tensor | int | float | bytes | None,
    ) -> None:
        """Run a kernel to its end. A tensor is passed as its address, None as a null pointer, a float as its bits,
        bytes as a table."""
        if name not in self._kernels:
            raise KernelError(f"no kernel {name!r}; there are {', '.join(sorted(self._kernels))}")
        if len(arguments) != self._kernels[name]:
            raise KernelError(f"{name} has {self._kernels[name]} parameters and got {len(arguments)} arguments")
        tables = [ctypes.create_string_buffer(a, len(a)) if isinstance(a, bytes) else None for a in arguments]
        numbers = [
            _eight_bytes(argument) if table is None else ctypes.addressof(table)
            for argument, table in zip(arguments, tables, strict=True)
        ]
        grid_x, grid_y = (grid, 1) if isinstance(grid, int) else grid
        error = self._library.emulator_launch(
            ctypes.cast(self._library[name], ctypes.c_void_p),
            (ctypes.c_long * MOST_ARGUMENTS)(*numbers),
            *(grid_x, grid_y, block, shared_bytes, self.backwards),
        )
        if error is not None:
            raise KernelError(f"{name}: {error.decode()}")


def _eight_bytes(argument: Tensor | int | float | None) -> int:
    if isinstance(argument, Tensor):
        if not argument.is_cpu:
            raise KernelError(f"the emulator takes tensors of the CPU, not of {argument.device}")
        return argument.data_ptr()
    if isinstance(argument, float):
        return struct.unpack("I", struct.pack("f", argument))[0]
    return argument or 0


def _compiled(source: Path) -> Path:
    core = EMULATOR / "emulator.cpp"
    return _made(".so", source, core, options=["-shared", str(_made(".o", core, options=["-c"]))])


def _made(suffix: str, source: Path, *others: Path, options: list[str]) -> Path:
    """What g++ makes of a source (and of others), from a cache: one process makes it while the rest wait."""
    sources = [source, *others, *sorted(KERNELS.glob("*.cuh")), EMULATOR / "emulator.h"]
    content = "\0".join([*COMPILE, *(path.read_text() for path in sources)])
    folder = Path(tempfile.gettempdir()) / f"sgqn-emulator-{os.getuid()}"
    folder.mkdir(mode=0o700, exist_ok=True)
    made = folder / f"{source.stem}-{hashlib.sha256(content.encode()).hexdigest()}{suffix}"
    with open(made.with_suffix(".lock"), "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not made.exists():
            with tempfile.TemporaryDirectory(dir=folder) as unfinished:
                output = Path(unfinished) / made.name
                command = [*COMPILE, *options, "-x", "c++", str(source), "-o", str(output)]
                done = subprocess.run(command, capture_output=True, text=True, check=False)
                if done.returncode:
                    raise KernelError(f"{source.name} does not compile:\n{done.stderr}")
                os.replace(output, made)
    return made
