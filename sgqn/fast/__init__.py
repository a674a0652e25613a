"""What makes a GPU fast: captured updates, streams and fused kernels.

Importing it registers the fused versions of the plain code's replaceable functions; `sgqn.runner` does so where there
is a CUDA device. Nothing else outside imports it.
"""

from __future__ import annotations

from sgqn.fast import decoder, encoder, heads, optimizer, pixels, schedule, values, weights  # noqa: F401 (they register)
from sgqn.fast.backend import choose_backend

__all__ = ["choose_backend"]
