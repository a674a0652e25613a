"""Which OpenGL MuJoCo uses, and whether it works here."""

from __future__ import annotations

import ctypes
import functools
import logging
import os
import sys
import warnings

logger = logging.getLogger(__name__)

_LIBRARY = {"egl": "libEGL.so.1", "osmesa": "libOSMesa.so.8"}


def choose_backend() -> None:
    """Settle MUJOCO_GL before MuJoCo reads it at import.

    Without a screen MuJoCo would take GLFW and fail late; with a backend whose library is missing it would fail at
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
def gl_error() -> str | None:
    """Why no OpenGL context can be created, or None if it works. Tries to create one."""
    import mujoco

    if not hasattr(mujoco, "GLContext"):
        return "OpenGL is off (MUJOCO_GL)"
    model = mujoco.MjModel.from_xml_string("<mujoco/>")
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # GLFW complains where there is no display
            context = mujoco.GLContext(8, 8)
            context.make_current()
        mujoco.MjrContext(model, mujoco.mjtFontScale.mjFONTSCALE_150).free()
        context.free()
    except Exception as error:  # every backend has its own
        return str(error).splitlines()[0] if str(error) else type(error).__name__
    return None
