"""The robot tasks: rewards, kinematics and contacts against independent computations; scripted and random policies."""

from __future__ import annotations

import dataclasses
import functools
import json
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import mujoco
import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import sgqn
from sgqn.cli import main
from sgqn.config import preset
from sgqn.envs.families import find_task
from sgqn.envs.families.robot import Robot
from sgqn.envs.opengl import gl_error
from tests.envs import load, skip_if_missing
from tests.helpers import MICRO, fails

TASKS = Robot.tasks
SCENES = ("train", "test1", "test2", "test3")
MILLIMETRE = 1e-3


def play(simulation: Any, episode: int, policy: Any) -> float:
    """The return of an episode with seed 0."""
    simulation.reset(episode, 0)
    total, over = 0.0, False
    while not over:
        reward, _, over = simulation.step(policy())
        total += reward
    return total


def deepest(simulation: Any) -> float:
    """How far bodies are inside each other, in metres, by MuJoCo's contacts."""
    return -min([0.0, *simulation.data.contact.dist.tolist()])


def goal_place(simulation: Any) -> np.ndarray:
    """Where the goal is drawn."""
    return simulation.data.body("goal").xpos[:2]


def peg_tip(simulation: Any) -> np.ndarray:
    """The centre of the lower cap of the cylinder that is drawn."""
    model, data = simulation.model, simulation.data
    geom = mujoco.mj_name2id(model, mujoco.mjtObj.mjOBJ_GEOM, "arm/peg")
    axis = data.geom_xmat[geom].reshape(3, 3)[:, 2] * model.geom_size[geom, 1]
    return min(data.geom_xpos[geom] - axis, data.geom_xpos[geom] + axis, key=lambda end: end[2])


# Solvable, and not by chance


@pytest.mark.parametrize("task", TASKS)
def test_the_expert_solves_the_task_and_chance_does_not(task: str) -> None:
    simulation = load(task)
    random = np.random.default_rng(0)
    solved = {"expert": 0, "random": 0}
    returns: dict[str, list[float]] = {"expert": [], "random": []}
    policies = {"expert": simulation.expert, "random": lambda: random.uniform(-1, 1, simulation.action_dim)}
    for episode in range(100):
        for name, policy in policies.items():
            returns[name].append(play(simulation, episode, policy))
            solved[name] += simulation.success
    assert solved["expert"] >= 95
    assert solved["random"] <= 10
    assert np.mean(returns["expert"]) > np.mean(returns["random"]) + 50


# Rewards and success against the formulas, from what is drawn


def test_reach_has_the_papers_reward() -> None:
    simulation = load("robot-reach")
    random = np.random.default_rng(1)
    seen = set()
    for episode in range(8):
        simulation.reset(episode, 3)
        for step in range(50):
            action = random.uniform(-1, 1, 2) if step < 10 else simulation.expert()
            reward, terminated, truncated = simulation.step(action)
            tcp = simulation.data.site("arm/link_tcp").xpos
            distance = np.hypot(*(tcp[:2] - goal_place(simulation)))
            close = distance <= 0.05
            expected = 1.0 if close else -3 * distance - 0.5 * np.sum(action**2)
            assert reward == pytest.approx(expected, abs=1e-9)
            assert simulation.success == close
            assert (terminated, truncated) == (False, step == 49)
            assert tcp[2] == pytest.approx(0.06, abs=0.02)  # moves in the plane of the table
            seen.add(bool(close))
    assert seen == {True, False}


def test_peg_in_box_has_the_papers_reward() -> None:
    simulation = load("robot-peg_in_box")
    random = np.random.default_rng(1)
    seen = set()
    for episode in range(4):
        simulation.reset(episode, 3)
        for step in range(50):
            action = random.uniform(-1, 1, 3) if step < 8 else simulation.expert()
            reward = simulation.step(action)[0]
            tip, goal = peg_tip(simulation), goal_place(simulation)
            distance = np.hypot(*(tip[:2] - goal))
            expected = -np.sum(action**2) - 4 * distance
            if distance <= 0.05:
                expected += 10 - 20 * np.linalg.norm(tip - [*goal, 0.03])
            assert reward == pytest.approx(expected, abs=1e-6)
            seen.add((bool(distance <= 0.05), simulation.success))
    assert seen == {(False, False), (True, False), (True, True)}


@pytest.mark.parametrize("task", TASKS)
def test_goals_and_starts_vary_as_documented(task: str) -> None:
    simulation = load(task)
    goals, starts = [], []
    for episode in range(200):
        simulation.reset(episode, 0)
        goals.append(goal_place(simulation).copy())
        starts.append(simulation.fingertips[:2])
    spread = np.ptp(goals, axis=0)
    assert (spread <= [0.1, 0.2]).all()
    assert (spread >= [0.095, 0.19]).all()
    assert np.allclose(np.mean(goals, axis=0), [0.46, 0.0], atol=0.01)
    assert np.ptp(starts, axis=0).max() <= 0.1 + MILLIMETRE
    assert np.linalg.norm(np.subtract(goals, starts), axis=1).min() > 0.05


# Kinematics


@pytest.mark.parametrize("task", TASKS)
def test_the_arm_reaches_its_whole_workspace_pointing_down(task: str) -> None:
    simulation = load(task)
    simulation.reset(0, 0)
    low, _, high = simulation.heights
    for x in (0.20, 0.39, 0.58):
        for y in (-0.2, 0.0, 0.2):
            for z in {low, high}:
                angles = simulation._solve(simulation.data.qpos, np.array([x, y, z]), iterations=60)
                oracle = mujoco.MjData(simulation.model)
                oracle.qpos[:] = angles
                mujoco.mj_forward(simulation.model, oracle)
                site = oracle.site("arm/link_tcp")
                assert np.linalg.norm(site.xpos - [x, y, z]) < MILLIMETRE
                assert site.xmat.reshape(3, 3)[2, 2] < -0.999


def test_an_action_of_zero_holds_still() -> None:
    """Gravity is compensated: set-points that start from where the arm is do not sink."""
    for task in TASKS:
        simulation = load(task)
        simulation.reset(0, 0)
        first = simulation.fingertips
        for _ in range(50):
            simulation.step(np.zeros(simulation.action_dim))
        assert np.linalg.norm(simulation.fingertips - first) < 2 * MILLIMETRE


# Contacts


@functools.cache
def _peg_in_box() -> Any:
    return load("robot-peg_in_box")


@pytest.mark.parametrize("task", TASKS)
def test_ten_thousand_random_steps_are_stable(task: str) -> None:
    """Uniform actions, and pushes in one direction for a while: no warning, no NaN, no deep contact."""
    simulation = load(task)
    random = np.random.default_rng(7)
    worst, held = 0.0, np.zeros(simulation.action_dim)
    for step in range(10_000):
        if step % 50 == 0:
            simulation.reset(step // 50, 5)
        if step % 10 == 0:
            held = np.sign(random.uniform(-1, 1, simulation.action_dim))
        action = held if (step // 50) % 2 else random.uniform(-1, 1, simulation.action_dim)
        reward = simulation.step(action)[0]
        assert np.isfinite(reward)
        worst = max(worst, deepest(simulation))
    assert np.isfinite(simulation.data.qpos).all()
    assert sum(int(warning.number) for warning in simulation.data.warning) == 0
    assert worst < 0.01


@settings(max_examples=25, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    episode=st.integers(0, 10_000),
    angle=st.floats(0, 2 * np.pi),
    height=st.floats(-1, 1),
    inside=st.booleans(),
    wander=st.integers(0, 2**31),
)
def test_the_peg_never_passes_through_a_wall(
    episode: int, angle: float, height: float, inside: bool, wander: int
) -> None:
    """Pushed from outside it stays outside, from inside it stays inside, as long as its tip is below the rim."""
    simulation = _peg_in_box()
    simulation.reset(episode, 1)
    goal = simulation.goal
    if inside:
        for _ in range(40):
            simulation.step(simulation.expert())
        assert simulation.success
    else:
        # Down beside the box, on the side of the robot, then towards it.
        for _ in range(12):
            simulation.step(np.array([-1.0, 0.0, -1.0]))
    random = np.random.default_rng(wander)
    towards = np.array([np.cos(angle), np.sin(angle)])
    touched = False
    for step in range(40):
        if not inside:
            away = goal - peg_tip(simulation)[:2]
            towards = away / max(np.linalg.norm(away), 1e-6)
        noise = random.uniform(-0.5, 0.5, 2)
        simulation.steps = 0  # longer than an episode
        simulation.step(np.array([*(towards + noise), min(0.0, height) if step % 3 else -0.5]))
        tip = peg_tip(simulation)
        assert deepest(simulation) < 0.01
        touched |= simulation.data.ncon > 0
        if tip[2] > 0.095:
            return  # over the rim
        offset = np.abs(tip[:2] - goal).max()
        if inside:
            assert offset < 0.045 - 0.018 + 0.01  # the wall less the radius, one centimetre of contact
        else:
            assert offset > 0.045 + 0.012 + 0.018 - 0.01
    assert touched


@pytest.mark.parametrize("task", TASKS)
def test_no_visible_part_of_the_arm_goes_below_the_table(task: str) -> None:
    simulation = load(task)
    model, data = simulation.model, simulation.data
    links = [
        geom
        for geom in range(model.ngeom)
        if model.geom_type[geom] == mujoco.mjtGeom.mjGEOM_MESH and model.geom(geom).name != "arm/link_base"
    ]
    vertices = {}
    for geom in links:
        mesh = model.geom_dataid[geom]
        start = model.mesh_vertadr[mesh]
        vertices[geom] = model.mesh_vert[start : start + model.mesh_vertnum[mesh]]
    random = np.random.default_rng(2)
    for step in range(300):
        if step % 50 == 0:
            simulation.reset(step, 5)
            held = np.sign(random.uniform(-1, 1, simulation.action_dim))
            held[2:] = -1
        simulation.step(held if step % 5 else random.uniform(-1, 1, simulation.action_dim))
        lowest = min(
            (data.geom_xpos[geom] + vertices[geom] @ data.geom_xmat[geom].reshape(3, 3).T)[:, 2].min() for geom in links
        )
        assert lowest > -0.005  # the base stands on the table


# Pixels


def test_scenes_differ_clearly_in_table_floor_and_wall() -> None:
    skip_if_missing("robot-reach")
    looks = {}
    for shift in SCENES:
        env = sgqn.make("robot-reach", shift=shift, renderer="warp", masks=True)
        obs, info = env.reset(seed=0)
        env.close()
        image = np.where(info["mask"][0], 0, obs.astype(float))
        looks[shift] = {"wall": image[:, :18], "floor": image[:, 24:36], "table": image[:, 46:]}
    for one in SCENES:
        for other in SCENES[: SCENES.index(one)]:
            for part in ("wall", "floor", "table"):
                assert np.abs(looks[one][part] - looks[other][part]).mean() > 15, (one, other, part)


@pytest.mark.parametrize("task", TASKS)
def test_the_mask_shows_arm_held_peg_and_goal(task: str, renderer: str) -> None:
    """Against MuJoCo's own segmentation of the bodies, drawn apart."""
    skip_if_missing(task)
    env = sgqn.make(task, renderer=renderer, masks=True)
    _, info = env.reset(seed=0)
    env.close()
    if gl_error() is not None:
        pytest.skip("the oracle needs OpenGL")
    simulation = load(task)
    simulation.reset(0, 0)
    with mujoco.Renderer(simulation.model, 84, 84) as oracle:
        oracle.enable_segmentation_rendering()
        oracle.update_scene(simulation.data, "front")
        found = oracle.render()[..., 0]
    geoms = np.where(found >= 0, simulation.model.geom_bodyid[found] > 0, False)
    assert (info["mask"][0] != geoms).mean() < 0.01
    bodies = {simulation.model.body(simulation.model.geom_bodyid[geom]).name for geom in np.unique(found[found >= 0])}
    assert {"world", "goal", "arm/xarm_gripper_base_link", "arm/link4"} <= bodies
    assert ("arm/peg" in bodies) == (task == "robot-peg_in_box")


def test_video_replaces_wall_and_floor_only() -> None:
    skip_if_missing("robot-reach")
    images = {}
    for shift in ("train", "video_hard"):
        env = sgqn.make("robot-reach", shift=shift, renderer="warp")
        images[shift] = env.reset(seed=0)[0].astype(float)
        env.close()
    changed = np.abs(images["train"] - images["video_hard"]).max(axis=0) > 8
    assert changed[:36, :24].mean() > 0.95  # wall and floor beside the arm
    assert changed[50:].mean() < 0.05  # the table
    red, green, blue = images["video_hard"]
    assert ((green > 100) & (green > 1.6 * red) & (green > 1.6 * blue)).mean() < 0.02  # no screen is left


# As an environment


@pytest.mark.parametrize("task", TASKS)
def test_states_continue_bit_for_bit(task: str) -> None:
    simulation, other = load(task), load(task)
    simulation.reset(3, 9)
    for _ in range(17):
        simulation.step(simulation.expert())
    other.restore(simulation.state())
    assert np.array_equal(other.goal, simulation.goal)
    for _ in range(20):
        action = simulation.expert()
        assert np.array_equal(action, other.expert())
        assert simulation.step(action) == other.step(action)
        assert np.array_equal(simulation.data.qpos, other.data.qpos)


@pytest.mark.parametrize("num_workers", [0, 2])
def test_success_is_shown_and_kept_when_an_episode_ends(num_workers: int) -> None:
    skip_if_missing("robot-reach")
    twins = [load("robot-reach") for _ in range(2)]
    envs = sgqn.make_vec("robot-reach", 2, renderer="warp", num_workers=num_workers, image_size=16)
    _, info = envs.reset(seed=4)
    assert info["success"].tolist() == [False, False]
    for world, twin in enumerate(twins):
        twin.reset(world, 4)
    for step in range(50):
        actions = np.stack([twins[0].expert(), np.zeros(2)])  # the second one stays where it is
        _, _, _, truncated, info = envs.step(actions)
        for twin, action in zip(twins, actions, strict=True):
            twin.step(action)
        solved = [twin.success for twin in twins]
        if step < 49:
            assert info["success"].tolist() == solved
            assert "final_info" not in info
    assert truncated.all()
    assert info["final_info"]["success"].tolist() == solved == [True, False]
    assert info["final_info"]["_success"].all()
    assert info["success"].tolist() == [False, False]  # of the next episodes
    envs.close()


def test_evaluation_counts_successes() -> None:
    skip_if_missing("robot-reach")
    simulation = load("robot-reach")
    simulation.reset(0, 0)
    steps = iter(range(1000))

    def first_episode_expert(obs: np.ndarray) -> np.ndarray:
        """Knows where the disc of episode 0 is; in episode 1 it stays."""
        assert obs.shape == (1, 3, 84, 84)
        if next(steps) >= 50:
            return np.zeros((1, 2))
        action = simulation.expert()
        simulation.step(action)
        return action[None]

    result = sgqn.evaluate(first_episode_expert, "robot-reach", episodes=2, num_envs=1, renderer="warp", num_workers=0)
    assert result.successes == (True, False)
    assert result.success_rate == 0.5
    assert result.to_dict()["success_rate"] == 0.5
    assert "successes" not in dataclasses.replace(result, successes=None).to_dict()


def test_the_papers_settings_are_the_tasks_defaults() -> None:
    for task in TASKS:
        config = preset("paper", task, "sgqn")
        assert (config.steps, config.frame_stack, find_task(task).action_repeat) == (250_000, 1, 1)
        assert (config.settings.rho, config.settings.augmentation) == (0.95, "random_conv")  # type: ignore[attr-defined]
        assert tuple(config.evaluate_shifts) == SCENES
        assert find_task(task).test_shifts == SCENES
        assert find_task(task).episode_steps == 50


def test_a_small_agent_trains_and_goes_through_every_command(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    skip_if_missing("robot-reach")
    options = [option for option in MICRO if option != "cartpole-swingup"]
    options.insert(options.index("--task") + 1, "robot-reach")
    at = options.index("--action-repeat")
    del options[at : at + 2]
    options[options.index("--steps") + 1] = "120"
    out = str(tmp_path / "runs")
    assert main(["train", "--agent", "sgqn", *options, "--out", out, "--renderer", "warp"]) == 0
    run = tmp_path / "runs" / "robot-reach" / "sgqn" / "0"
    metrics = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    assert any("episode/success" in line for line in metrics)
    assert main(["evaluate", str(run), "--episodes", "2", "--renderer", "warp"]) == 0
    table = capsys.readouterr().out
    lines = [json.loads(line) for line in (run / "evaluations.jsonl").read_text().splitlines()]
    assert [line["shift"] for line in lines[-4:]] == list(SCENES)
    assert all(len(line["successes"]) == 2 for line in lines[-4:])
    for shift in SCENES:
        assert re.search(rf"{shift} .* \d+%", table)
    image = tmp_path / "look.png"
    assert main(["explain", str(run), "--shift", "test1", "--out", str(image), "--renderer", "warp"]) == 0
    assert image.stat().st_size > 1000
    report = tmp_path / "report"
    assert main(["report", out, "--out", str(report), "--no-images"]) == 0
    page = (report / "index.html").read_text()
    assert "robot-reach" in page
    assert "31.8" in page  # the paper's


@pytest.mark.parametrize("how", ["wrong root", "no package"])
def test_without_the_model_one_line_says_how_to_get_it(
    how: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    if how == "wrong root":
        pytest.importorskip("mujoco_menagerie")
        monkeypatch.setenv("MENAGERIE_ROOT", str(tmp_path))
        expected = ["MENAGERIE_ROOT", str(tmp_path)]
    else:
        monkeypatch.setitem(sys.modules, "mujoco_menagerie", None)
        expected = ["pip install 'sgqn[robot]'"]
    line = fails(
        capsys, "train", "--task", "robot-reach", "--agent", "sgqn", "--preset", "tiny", "--out", str(tmp_path / "runs")
    )
    for part in expected:
        assert part in line
        assert part in str(find_task("robot-reach").family.missing())
    assert not (tmp_path / "runs").exists()


def test_without_network_the_download_fails_in_one_line(tmp_path: Path) -> None:
    pytest.importorskip("mujoco_menagerie")
    code = "import sgqn; sgqn.make('robot-reach', renderer='warp')"
    environment = {**os.environ, "MENAGERIE_BASE_URL": (tmp_path / "nowhere").as_uri()}
    environment |= {"MENAGERIE_CACHE_DIR": str(tmp_path / "cache"), "MENAGERIE_ROOT": ""}
    result = subprocess.run([sys.executable, "-c", code], check=False, capture_output=True, text=True, env=environment)
    last = result.stderr.strip().splitlines()[-1]
    assert "DataError" in last
    assert "mujoco-menagerie prefetch ufactory_xarm7" in last
    assert "MENAGERIE_ROOT" in last
