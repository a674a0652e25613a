from __future__ import annotations

import numpy as np
import pytest

from sgqn.envs.gl import GLRenderer
from tests.envs import load


def test_only_long_floors_need_a_factor() -> None:
    for task, needs in (("walker-walk", True), ("cheetah-run", True), ("cartpole-swingup", False)):
        simulation = load(task)
        simulation.reset(0)
        assert (simulation.scene.floor.material >= 0) == needs, task
        if not needs:
            assert simulation.scene.floor.factor(simulation.model, simulation.data) == 1.0


@pytest.mark.usefixtures("gl")
def test_factor_follows_opengl_along_the_floor() -> None:
    """OpenGL's floor brightens and darkens as walker passes the corners of the grid; so does the factor's numerator."""
    simulation = load("walker-walk")
    simulation.reset(0)
    simulation.model.mat_reflectance[:] = 0
    renderer = GLRenderer(simulation, 84)
    measured, predicted = [], []
    for x in np.linspace(4, 9, 11):
        with simulation.env.physics.reset_context():
            simulation.data.qpos[1] = x
        frame = renderer.frame().astype(float)
        floor = ~renderer.mask()
        floor[:55] = False  # below the horizon and the legs
        floor[80:] = False
        measured.append(frame[floor].mean())
        predicted.append(simulation.scene.floor.factor(simulation.model, simulation.data))
    assert max(predicted) - min(predicted) > 0.1
    assert np.corrcoef(measured, predicted)[0, 1] > 0.8
