"""Modules from outside the package that register agents, attributions, augmentations or task families.

They are found through the entry point group `sgqn.plugins`, the option `--plugin` or a run's configuration, or imported
by the user.
"""

from __future__ import annotations

import importlib
import importlib.metadata
import os
import re
import sys
from collections.abc import Iterable

from sgqn.errors import InvalidValueError, SgqnError

GROUP = "sgqn.plugins"

_loaded = False


def load_installed() -> None:
    """Import the plugins of installed packages, once."""
    global _loaded
    if _loaded:
        return
    _loaded = True
    for entry in importlib.metadata.entry_points(group=GROUP):
        try:
            entry.load()
        except Exception as error:
            reason = f"{type(error).__name__}: {error}"
            raise SgqnError(f"the plugin {entry.name!r} ({entry.value}) cannot be loaded: {reason}") from error


def checked(modules: object) -> list[str]:
    """The names of plugin modules in a file."""
    if not isinstance(modules, list | tuple) or len(modules) > 100:
        raise InvalidValueError(f"plugins must be a list of modules, not a {type(modules).__name__}")
    for module in modules:
        if not isinstance(module, str) or not re.fullmatch(r"[^\W\d]\w*(\.[^\W\d]\w*)*", module):
            raise InvalidValueError(f"a plugin must be the name of a module, not {module!r:.60}")
    return list(modules)


def load(modules: Iterable[str]) -> None:
    """Import plugin modules by name, also from the working directory."""
    for module in modules:
        import_module(module, f"the plugin {module!r}")


def import_module(module: str, what: str) -> None:
    """Import a module by name, also from the working directory; `what` describes it in errors.

    Names may come from files: those of Python's own modules, some of which do things when imported, are refused.
    """
    if module in sys.modules:
        return
    if module.partition(".")[0] in sys.stdlib_module_names:
        raise SgqnError(f"{what} cannot be imported: it is a module of Python itself")
    added = os.getcwd()
    if added not in sys.path:
        sys.path.append(added)
    try:
        importlib.import_module(module)
    except Exception as error:
        reason = f"{type(error).__name__}: {error}"
        raise SgqnError(
            f"{what} cannot be imported ({reason}): install it, or run where {module} can be found"
        ) from error


def outside(origins: Iterable[str]) -> tuple[str, ...]:
    """The modules outside of the package, without duplicates, in alphabetical order."""
    return tuple(sorted({origin for origin in origins if origin.partition(".")[0] != "sgqn"}))
