"""Things by name: agents, attribution methods, augmentations, task families.

A name is written once, where the thing is registered. The package's own modules register on the first lookup, then
plugins (`sgqn.plugins`), so that importing `sgqn` stays light and a new thing is one new file.
"""

from __future__ import annotations

import importlib
import pkgutil
import re
from collections.abc import Callable, Iterator, Mapping
from typing import Generic, TypeVar

from sgqn import plugins
from sgqn.errors import InvalidValueError, UnknownNameError

T = TypeVar("T")


class Registry(Mapping[str, T], Generic[T]):
    """The registered things of one kind, in the order of registration. An unknown name is an `UnknownNameError`."""

    def __init__(self, kind: str, load_own: Callable[[], None]):
        """`load_own` imports the package's own modules that register such things."""
        self.kind = kind
        self._stages = [load_own, plugins.load_installed]
        self._things: dict[str, T] = {}
        self._origins: dict[str, str] = {}

    def register(self, name: str, thing: T, origin: str) -> None:
        """Add an entry of the module `origin`, which may replace its own entries when it is imported again."""
        if not re.fullmatch(r"[A-Za-z0-9]([A-Za-z0-9_-]*)", name):
            raise InvalidValueError(f"{self.kind} {name!r}: a name has letters, digits, '_' and '-'")
        if self._origins.get(name, origin) != origin:
            other = self._origins[name]
            raise InvalidValueError(f"{self.kind} {name!r} is registered already, by {other}: choose another name")
        self._things[name], self._origins[name] = thing, origin

    def registered(self) -> dict[str, T]:
        """The names that are registered so far, without loading anything."""
        return dict(self._things)

    def origin(self, name: str) -> str:
        """The module that registered the name."""
        self[name]
        return self._origins[name]

    def __getitem__(self, name: str) -> T:
        if name not in self:
            raise UnknownNameError(self.kind, name, self._things)
        return self._things[name]

    def __contains__(self, name: object) -> bool:
        while name not in self._things and self._stages:  # plugins are loaded for unknown names only
            self._stages.pop(0)()
        return name in self._things

    def __iter__(self) -> Iterator[str]:
        self._load()
        return iter(self._things)

    def __len__(self) -> int:
        self._load()
        return len(self._things)

    def _load(self) -> None:
        while self._stages:
            self._stages.pop(0)()  # removed first: what is loaded may look names up


def import_submodules(package: str) -> None:
    """Import every module of a package, in alphabetical order."""
    path = importlib.import_module(package).__path__
    for module in sorted(found.name for found in pkgutil.iter_modules(path)):
        importlib.import_module(f"{package}.{module}")
