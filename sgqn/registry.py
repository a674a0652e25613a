"""Things by name: agents, attribution methods, augmentations, task families.

A name is written once, where the thing is registered. The package's own modules register on the first lookup, then
plugins (`sgqn.plugins`), so that importing `sgqn` stays light and a new thing is one new file.
"""

from __future__ import annotations

import importlib
import pkgutil
from collections.abc import Callable, Iterator, Mapping
from typing import Generic, TypeVar

from sgqn import plugins
from sgqn.errors import InvalidValueError, UnknownNameError

T = TypeVar("T")


class Registry(Mapping[str, T], Generic[T]):
    """The registered things of one kind, in the order of registration. An unknown name is an `UnknownNameError`."""

    def __init__(self, kind: str, modules: Callable[[], None]):
        """`modules` imports the package's own modules that register such things."""
        self.kind = kind
        self._modules = modules
        self._things: dict[str, T] = {}
        self._origins: dict[str, str] = {}
        self._loaded = False

    def register(self, name: str, thing: T, origin: str) -> None:
        """Add a thing that module `origin` registers, which may replace its own when it is imported again."""
        if not name or not all(part.replace("_", "a").isalnum() for part in name.split("-")):
            raise InvalidValueError(f"{self.kind} {name!r}: use letters, digits, '_' and '-'")
        if self._origins.get(name, origin) != origin:
            other = self._origins[name]
            raise InvalidValueError(f"{self.kind} {name!r} is registered already, by {other}: choose another name")
        self._things[name], self._origins[name] = thing, origin

    def registered(self) -> dict[str, T]:
        """What is registered so far, without loading anything."""
        return dict(self._things)

    def origin(self, name: str) -> str:
        """The module that registered the name."""
        self[name]
        return self._origins[name]

    def __getitem__(self, name: str) -> T:
        self._load()
        if name not in self._things:
            raise UnknownNameError(self.kind, name, self._things)
        return self._things[name]

    def __contains__(self, name: object) -> bool:
        self._load()
        return name in self._things

    def __iter__(self) -> Iterator[str]:
        self._load()
        return iter(self._things)

    def __len__(self) -> int:
        self._load()
        return len(self._things)

    def _load(self) -> None:
        if not self._loaded:
            self._loaded = True  # first: what is loaded may look names up
            self._modules()
            plugins.load_installed()


def import_submodules(package: str) -> None:
    """Import every module of a package, in alphabetical order."""
    path = importlib.import_module(package).__path__
    for module in sorted(found.name for found in pkgutil.iter_modules(path)):
        importlib.import_module(f"{package}.{module}")
