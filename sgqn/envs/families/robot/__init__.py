"""The paper's robot tasks: an xArm7 that moves to a red disc, and one that puts a peg into a box.

The arm is MuJoCo Menagerie's (`pip install 'sgqn[robot]'`). `menagerie` finds it, `model` composes the scene, `tasks`
has the simulations, `looks` the textures of the training scene and of the three test scenes.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from sgqn.envs.families import Defaults, Family, Task, register_family

if TYPE_CHECKING:
    from sgqn.envs.families.robot.tasks import RobotSimulation
    from sgqn.envs.shifts import Shift

SCENES = ("train", "test1", "test2", "test3")


class Robot(Family):
    name = "robot"
    tasks = ("robot-reach", "robot-peg_in_box")
    packages = ("mujoco", "mujoco-menagerie", "mujoco-warp", "warp-lang")
    shift_texts = {  # noqa: RUF012
        "train": "the scene as it is",
        "test1": "a dark marble table, a checkered floor and a striped wall",
        "test2": "a speckled table, a floor of boards and a brick wall",
        "test3": "a checkered table, a mottled floor and a mottled wall",
        "video_hard": "a video in place of the wall and the floor",
    }

    def defaults(self, task: str) -> Defaults:
        return Defaults(
            control_steps=50,
            frame_stack=1,
            camera="front",
            rho=0.95,
            augmentation="random_conv",
            steps=250_000,
            evaluate_shifts=SCENES,
            test_shifts=SCENES,
        )

    def missing(self) -> str | None:
        from sgqn.envs.families.robot.menagerie import missing

        return missing()

    def shift(self, task: str, name: str) -> Shift:
        from sgqn.envs.families.robot.looks import find_shift

        return find_shift(name)

    def load(self, task: Task, shift: Shift) -> RobotSimulation:
        from sgqn.envs.families.robot.tasks import SIMULATIONS

        return SIMULATIONS[task.name](task, shift)


register_family(Robot())
