"""Agents on the Hugging Face Hub: `hf:USER/NAME`, a folder that `sgqn export` wrote and `hf upload` uploaded."""

from __future__ import annotations

from pathlib import Path

from sgqn.deployment import MODEL
from sgqn.errors import DataError, InvalidValueError, SgqnError
from sgqn.pretrained.package import ABOUT, CARD, WEIGHTS

PREFIX = "hf:"
FILES = (ABOUT, WEIGHTS, MODEL, CARD)
"""The files of an exported agent; nothing else of a repository is downloaded."""


def find(path: str | Path) -> Path | None:
    """The folder of `hf:USER/NAME` or `hf:USER/NAME@REVISION`, downloaded if necessary; None for anything else."""
    text = str(path)
    if not text.startswith(PREFIX):
        return None
    name, _, revision = text.removeprefix(PREFIX).partition("@")
    if name.count("/") != 1 or not all(name.split("/")):
        raise InvalidValueError(f"{text!r} is not the name of an agent: write hf:USER/NAME or hf:USER/NAME@REVISION")
    try:
        import huggingface_hub
        from huggingface_hub.errors import HFValidationError
    except ImportError:
        raise SgqnError(f"{text} needs huggingface_hub: pip install 'sgqn[hub]'") from None
    try:
        found = huggingface_hub.snapshot_download(name, revision=revision or None, allow_patterns=list(FILES))
    except HFValidationError as error:
        raise InvalidValueError(f"{text!r} is not the name of an agent: {error}") from error
    except OSError as error:  # the hub's own errors are of this kind
        raise DataError(f"{text} cannot be downloaded: {' '.join(str(error).split())}") from error
    folder = Path(str(found))
    if not any((folder / file).is_file() for file in (ABOUT, MODEL)):
        raise DataError(f"{text} has no agent written by `sgqn export`: it has neither {ABOUT} nor {MODEL}")
    return folder
