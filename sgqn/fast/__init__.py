"""The GPU paths: captured updates, streams and fused kernels.

Importing it registers the fused versions of the plain code's replaceable functions; `sgqn.runner` imports it if there
is a CUDA device. No other module outside imports it.
"""

from __future__ import annotations

from sgqn.fast import decoder, encoder, heads, optimizer, pixels, schedule, values, weights  # noqa: F401 (they register)
from sgqn.fast.backend import choose_backend

__all__ = ["choose_backend"]
