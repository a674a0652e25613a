"""Errors that a user can act on. The command prints them as one line; the library raises them."""

from __future__ import annotations

import difflib
from collections.abc import Iterable


class SgqnError(Exception):
    """Base of all errors that this package raises on purpose; the message is one line."""


class UnknownNameError(SgqnError, ValueError):
    """A task, shift, agent, renderer ... that does not exist."""

    def __init__(self, kind: str, name: object, valid: Iterable[str]):
        names = sorted(valid)
        near = difflib.get_close_matches(str(name), names, n=3, cutoff=0.5)
        hint = f"did you mean {' or '.join(map(repr, near))}?" if near else f"choose one of {', '.join(names)}"
        super().__init__(f"unknown {kind} {name!r}: {hint}")


class InvalidValueError(SgqnError, ValueError):
    """An argument of the right kind with a value that cannot work."""


class DataError(SgqnError):
    """A data directory, clip or image that is missing, truncated or invalid."""


class WorkerError(SgqnError, RuntimeError):
    """An environment worker raised an error, died or stopped responding."""


class BusyError(SgqnError):
    """Another process is writing into the same folder."""


class Interrupted(SgqnError):
    """A signal asked for a stop; the work was saved. `code` is the exit code."""

    def __init__(self, message: str, code: int):
        super().__init__(message)
        self.code = code
