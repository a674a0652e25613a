"""dm_control's suite, imported so that a missing OpenGL never stops a program that does not need it."""

from __future__ import annotations

import ctypes
import functools
import logging
import os
import sys
import warnings
from typing import Any

logger = logging.getLogger(__name__)

_LIBRARY = {"egl": "libEGL.so.1", "osmesa": "libOSMesa.so.8"}


def choose_backend() -> None:
    """Settle MUJOCO_GL before mujoco and dm_control read it at import.

    Without a screen they would take GLFW and fail late; with a backend whose library is missing they would fail at
    import, though only rendering needs it.
    """
    if sys.platform != "linux":
        return
    wanted = os.environ.get("MUJOCO_GL", "").lower()
    screen = os.environ.get("DISPLAY") or os.environ.get("WAYLAND_DISPLAY")
    if wanted in _LIBRARY and not _loads(_LIBRARY[wanted]):
        logger.warning("MUJOCO_GL=%s, but %s is not on this machine: OpenGL is off", wanted, _LIBRARY[wanted])
        os.environ["MUJOCO_GL"] = "disabled"
    elif not wanted and not screen:
        there = [name for name, library in _LIBRARY.items() if _loads(library)]
        os.environ["MUJOCO_GL"] = there[0] if there else "disabled"


def _loads(library: str) -> bool:
    try:
        ctypes.CDLL(library)
    except OSError:
        return False
    return True


@functools.cache
def suite() -> Any:
    """The module `dm_control.suite`."""
    choose_backend()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # GLFW complains where there is no display
        from dm_control import suite as module
    logging.getLogger("absl").setLevel(logging.ERROR)  # deprecations inside dm_control's own models
    return module


@functools.cache
def gl_error() -> str | None:
    """Why no OpenGL context can be made here, or None where one can: found out by making one."""
    suite()
    from dm_control import mujoco

    try:
        physics = mujoco.Physics.from_xml_string("<mujoco><worldbody><light/></worldbody></mujoco>")
        physics.render(8, 8)
        physics.free()
    except Exception as error:  # every backend has its own
        return str(error).splitlines()[0] if str(error) else type(error).__name__
    return None
