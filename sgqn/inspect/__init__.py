"""Inspection of a trained agent: play, attribute, mask, predict, measure, draw, write video.

`explain`, `saliency`, `demo`, `watch`, `preview`, TensorBoard images, export checks and reports are built on it.
"""

from __future__ import annotations

from collections.abc import Callable

from sgqn.inspect.episode import Episode, Step, environment, play, steps
from sgqn.inspect.look import Images, Look, attribute, look_at, looks, predict
from sgqn.inspect.subject import Subject, check_comparable

__all__ = [
    "Episode",
    "Images",
    "Look",
    "Report",
    "Step",
    "Subject",
    "attribute",
    "check_comparable",
    "environment",
    "look_at",
    "looks",
    "play",
    "predict",
    "steps",
]

Report = Callable[[str, int, int], None]
"""report(what, done, total), called as the work progresses."""
