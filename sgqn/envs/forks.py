"""Environments in processes that were forked, such as those of Gymnasium's `AsyncVectorEnv` on Linux.

Two things do not survive a fork: torch's thread pool, which a later operation would wait for forever, and OpenGL.
"""

from __future__ import annotations

import os

_IMPORTED_BY = os.getpid()  # `import sgqn` imports this module


def is_forked() -> bool:
    """Whether this process is a fork of the one that imported `sgqn`."""
    return os.getpid() != _IMPORTED_BY


def prepare() -> None:
    """Call this before an environment uses torch: in a forked process, operations then run in one thread."""
    if is_forked():
        import torch

        torch.set_num_threads(1)
