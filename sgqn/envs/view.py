"""Renders the current state at another size or from another camera, for `render`."""

from __future__ import annotations

import numpy as np

from sgqn.envs.pixels import Pixels
from sgqn.envs.simulation import MujocoSimulation, Renderer
from sgqn.envs.stage import LocalStage


class View:
    """Draws the first simulation of a stage at any size, with the background and the changed pixels of its shift."""

    def __init__(
        self, stage: LocalStage, pixels: Pixels, renderer: str, size: tuple[int, int], camera: int | str | None
    ):
        simulation = stage.simulations[0]
        self._pixels, self._has_screen = pixels, stage.has_screens
        self._renderer: Renderer
        if renderer == "warp":
            from sgqn.envs.warp import WarpView

            assert isinstance(simulation, MujocoSimulation)
            self._renderer = WarpView(simulation, size, simulation.find_camera(camera))
        else:
            self._renderer = simulation.make_view(size, camera)

    def start(self) -> None:
        """Start a new episode."""
        self._renderer.start()

    def image(self) -> np.ndarray:
        """uint8 (height, width, 3)."""
        return self._pixels.compose(self._renderer.frame(), self._renderer.screen() if self._has_screen else None)

    def close(self) -> None:
        self._renderer.close()
