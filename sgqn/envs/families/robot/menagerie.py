"""The xArm7 of MuJoCo Menagerie: from the checkout MENAGERIE_ROOT, or from a cache."""

from __future__ import annotations

from pathlib import Path

from sgqn.errors import DataError

ROBOT = "ufactory_xarm7"
INSTALL = "robot tasks need the package mujoco-menagerie: pip install 'sgqn[robot]'"


def missing() -> str | None:
    """What is missing on this machine, and how to get it; None if the arm is here."""
    try:
        import mujoco_menagerie
    except ImportError:
        return INSTALL
    cache = mujoco_menagerie.Cache()
    if cache.root is not None:
        if (cache.root / ROBOT).is_dir():
            return None
        return f"there is no {ROBOT} in MENAGERIE_ROOT={str(cache.root)!r}: unset it to download the arm"
    if cache.is_cached(mujoco_menagerie.get(ROBOT)):
        return None
    return f"the xArm7 is downloaded on first use (1 MB), or with `mujoco-menagerie prefetch {ROBOT}`"


def find_arm() -> Path:
    """The folder of the arm's model, which is downloaded on first use."""
    try:
        import mujoco_menagerie
    except ImportError as error:
        raise DataError(INSTALL) from error
    try:
        return Path(mujoco_menagerie.get(ROBOT).path())
    except (mujoco_menagerie.MenagerieError, OSError) as error:
        raise DataError(
            f"the xArm7 of MuJoCo Menagerie is not here and cannot be downloaded ({error}): run `mujoco-menagerie "
            f"prefetch {ROBOT}` with network access, or set MENAGERIE_ROOT to a copy of the menagerie"
        ) from error
