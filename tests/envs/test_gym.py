"""The family `gym`: any Gymnasium environment with pixels as a task."""

from __future__ import annotations

import json
import logging
import warnings
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import pytest
import torch
from gymnasium.utils.env_checker import check_env

import sgqn
from sgqn.cli import main
from sgqn.envs.families import find_task
from sgqn.envs.families.gym import look_into, resize
from sgqn.envs.filters import RANDOM_CONV
from sgqn.run_folder import folder_of, read_lines
from tests.envs import gym_envs, load
from tests.envs.contract import check_no_shared_memory, check_specs, check_stacks, play
from tests.helpers import MICRO, fails, tiny_config, untrained_run

MODULE = "gym:tests.envs.gym_envs:"
WALK, SLIDE, SHORT, GREY = (f"{MODULE}{name}-v0" for name in ("Walk", "Slide", "Short", "Grey"))
SHIFTS = ("train", "color_jitter", "random_conv")
CASES = [(task, shift) for task in (WALK, SLIDE, GREY) for shift in SHIFTS] + [(WALK, "video_hard")]


@pytest.mark.parametrize(("task", "shift"), CASES)
def test_environments_keep_the_contract(task: str, shift: str) -> None:
    repeat = 125 if task == GREY else 3
    env = sgqn.make(task, shift, seed=3, action_repeat=repeat, render_mode="rgb_array")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # remarks about pixel observations
        check_env(env, skip_render_check=True)
    check_specs(env, "own", shift)
    first, again = play(env, seed=3), play(env, seed=3)
    for (obs, reward), (obs_again, reward_again) in zip(first, again, strict=True):
        assert np.array_equal(obs, obs_again)
        assert reward == reward_again
    check_stacks([obs for obs, _ in first])
    check_no_shared_memory([obs for obs, _ in first])
    assert not np.array_equal(env.reset()[0], first[0][0])
    env.close()


@pytest.mark.parametrize(("task", "shift"), [(SLIDE, "random_conv"), (WALK, "color_jitter"), (WALK, "video_hard")])
@pytest.mark.parametrize("num_workers", [0, 2])
def test_vector_rows_are_single_environments(task: str, shift: str, num_workers: int) -> None:
    """Also after the state of the vector was saved within an episode and restored."""
    masks = task == WALK
    envs = sgqn.make_vec(task, 3, shift, masks=masks, num_workers=num_workers)
    random = np.random.RandomState(0)
    shape = (40, 3) if envs.discrete else (40, 3, 2)
    actions = random.randint(0, 3, shape) if envs.discrete else random.uniform(-1, 1, shape)
    starts = envs.reset(seed=2)[0]
    results = [envs.step(action) for action in actions[:10]]
    state = json_like(envs.state_dict())
    results += [envs.step(action) for action in actions[10:]]
    envs.load_state_dict(state)
    for action, result in zip(actions[10:], results[10:], strict=True):
        for one, other in zip(envs.step(action)[:4], result, strict=False):
            assert np.array_equal(one, other)
    envs.close()
    single = sgqn.make(task, shift, masks=masks)
    for world in range(3):
        assert np.array_equal(starts[world], single.reset(seed=2, options={"episode": world})[0])
        for action, (obs, rewards, terminated, truncated, info) in zip(actions[:, world], results, strict=True):
            own, reward, *over, own_info = single.step(action)
            assert reward == rewards[world]
            assert over == [terminated[world], truncated[world]]
            seen = info["final_obs"] if any(over) else obs
            assert np.array_equal(own, seen[world])
            if any(over):
                break
            if masks:
                assert np.array_equal(own_info["mask"], info["mask"][world])
                assert own_info["success"] == info["success"][world]
    single.close()


def json_like(state: dict[str, Any]) -> dict[str, Any]:
    """As a checkpoint would give it back: simulations without arrays."""
    plain = [
        {key: value.tolist() if isinstance(value, np.ndarray) else value for key, value in one.items()}
        for one in state["simulations"]
    ]
    return {**state, "simulations": json.loads(json.dumps(plain))}


def test_pixels_are_the_environments_own() -> None:
    for task, made in (
        (WALK, gymnasium.make("Walk-v0")),
        (SLIDE, gymnasium.make("Slide-v0", render_mode="rgb_array")),
        (GREY, gymnasium.make("Grey-v0")),
    ):
        simulation = load(task)
        simulation.reset(5, seed=11)
        seed = int(np.random.SeedSequence([11, 5]).generate_state(1)[0]) & 0x7FFFFFFF
        obs, _ = made.reset(seed=seed)
        for _ in range(2):
            expected = np.asarray(made.render() if task == SLIDE else obs)
            expected = np.repeat(expected[..., None], 3, axis=2) if expected.ndim == 2 else expected
            assert np.array_equal(simulation.image(), expected)
            assert np.array_equal(simulation.make_renderer(84).frame(), resize(expected, 84))
            action = 2 if task != SLIDE else np.array([0.5, -1])
            own = 3 if task != SLIDE else np.array([[7.5], [-3.0]], np.float32)  # as the environment counts
            obs, reward, *_ = made.step(own)
            assert simulation.step(action)[0] == reward
        simulation.close()


def test_images_are_resized_by_averages() -> None:
    image = np.random.default_rng(0).integers(0, 256, (32, 48, 3), dtype=np.uint8)
    means = image.reshape(16, 2, 16, 3, 3).mean(axis=(1, 3))
    assert np.abs(resize(image, 16) - means).max() <= 1
    assert resize(image, 64).shape == (64, 64, 3)
    square = image[:, :32]
    same = resize(square, 32)
    assert np.array_equal(same, square)
    assert not np.shares_memory(same, square)


def test_defaults_come_from_the_spec() -> None:
    assert find_task(WALK).defaults.control_steps == 24
    assert find_task(GREY).defaults.control_steps == 1000
    assert find_task(WALK).defaults.action_repeat == 1
    assert find_task(WALK).shifts == (*SHIFTS, "video_hard")
    assert find_task(SLIDE).shifts == find_task(SLIDE).test_shifts == SHIFTS
    assert load(SLIDE).control_seconds == 0.05


def test_the_video_plays_behind_the_foreground() -> None:
    """By the mask that the environment gives, although all of it is green."""
    env, plain = sgqn.make(WALK, "video_hard", masks=True), sgqn.make(WALK, masks=True)
    obs, info = env.reset(seed=1)
    before, _ = plain.reset(seed=1)
    mask = info["mask"][-1]
    assert 0.02 < mask.mean() < 0.2
    assert np.array_equal(obs[-3:, mask], before[-3:, mask])
    assert (obs[-3:, ~mask] != before[-3:, ~mask]).mean() > 0.8
    assert env.metadata["backgrounds"] == "generated"
    env.close()
    plain.close()


def test_the_pixels_of_an_episode_are_changed_in_one_way() -> None:
    env, plain = sgqn.make(SLIDE, "random_conv"), sgqn.make(SLIDE)
    changed, before = env.reset(seed=4)[0], plain.reset(seed=4)[0]
    parameters = find_task(SLIDE).family.shift(SLIDE, "random_conv").pixel_parameters(4, 0)
    assert parameters is not None
    for _ in range(3):
        frame = torch.from_numpy(before[-3:]).permute(1, 2, 0)[None]
        expected = RANDOM_CONV.apply(frame, torch.from_numpy(parameters)[None])[0].permute(2, 0, 1)
        assert np.array_equal(changed[-3:], expected)
        changed, before = env.step(np.ones(2))[0], plain.step(np.ones(2))[0]
    env.close()
    plain.close()


def test_success_and_masks_are_what_info_says() -> None:
    env = sgqn.make(WALK, masks=True)
    _, info = env.reset(seed=0)
    assert info["success"] is False
    terminated = False
    while not terminated:
        _, _, terminated, _, info = env.step(2)
    assert info["success"] is True
    env.close()
    env = sgqn.make(GREY, masks=True)
    with pytest.raises(sgqn.SgqnError, match="masks"):
        env.reset()
    assert find_task(WALK).family.has_masks(WALK)
    assert not find_task(GREY).family.has_masks(GREY)
    env.close()


def test_an_environment_that_does_not_repeat_is_named(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING, "sgqn"):
        look_into.__wrapped__(f"{MODULE}Noisy-v0")
        assert "Noisy-v0 does not reproduce" in caplog.text
        caplog.clear()
        look_into.__wrapped__(GREY)
        simulation = load(SLIDE)
        simulation.reset(0)
        simulation.step(np.ones(2))
        state = simulation.state()
        simulation.restore(state)
        assert not caplog.text
        simulation.restore({**state, "total": -1.0})
        assert "did not reproduce an episode" in caplog.text


@pytest.mark.parametrize(
    ("task", "parts"),
    [
        ("gym:CartPol-v1", ("'CartPol-v1'", "did you mean 'CartPole-v1'")),
        ("gym:CartPole-v9", ("'CartPole-v9'", "'CartPole-v1'")),
        ("gym:Qwxyz-v0", ("'Qwxyz-v0'", "gym:my_module:Qwxyz-v0")),
        ("gym:no_such_module:Walk-v0", ("'gym:no_such_module:Walk-v0'", "No module named", "install it")),
        (f"{MODULE}Blind-v0", ("Blind-v0 has no pixels", "Box(-inf, inf, (2,), float32)", "rgb_array")),
        (f"{MODULE}Many-v0", ("MultiDiscrete([2 3])", "wrapper")),
        (f"{MODULE}Unbounded-v0", ("Box(-inf, inf, (2,), float32)", "wrapper")),
        (f"{MODULE}BadMask-v0", ("background_mask is uint8 (3, 4), not bool (40, 30)",)),
        (f"{MODULE}Broken-v0", ("cannot be created: no licence found",)),
        ("gym:", ("'gym:'",)),
    ],
)
def test_bad_tasks_are_one_line(task: str, parts: tuple[str, ...], capsys: pytest.CaptureFixture[str]) -> None:
    for command in (("train", "--task", task), ("preview", "--task", task)):
        line = fails(capsys, *command)
        assert all(part in line for part in parts), line


def test_a_shift_that_needs_masks_is_refused_without(capsys: pytest.CaptureFixture[str]) -> None:
    assert "'video_hard'" in fails(capsys, "preview", "--task", SLIDE, "--shift", "video_hard")
    assert "'gl'" in fails(capsys, "preview", "--task", SLIDE, "--renderer", "gl")


def test_an_agent_without_discrete_actions_refuses_them(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    options = ["--task", WALK, *MICRO[2:], "--action-repeat", "1", "--out", str(tmp_path / "runs")]
    line = fails(capsys, "train", *options)
    assert "3 discrete" in line
    assert not (tmp_path / "runs").exists()


def test_modules_that_other_processes_import() -> None:
    family = find_task(WALK).family
    assert family.modules(WALK) == ()  # the id says it
    assert family.modules("gym:Walk-v0") == (gym_envs.__name__,)
    assert family.modules("gym:CartPole-v1") == ()
    assert tiny_config("sac", task="gym:Slide-v0", action_repeat=1).plugins == (gym_envs.__name__,)
    envs = sgqn.make_vec("gym:Walk-v0", 2, num_workers=1)
    envs.reset()
    envs.close()
    gymnasium.register("Scripted-v0", type("Scripted", (gym_envs.Walk,), {"__module__": "__main__"}))
    with pytest.raises(sgqn.InvalidValueError, match=r"'gym:Scripted-v0'.*num_workers=0"):
        sgqn.make_vec("gym:Scripted-v0", 2)
    sgqn.make_vec("gym:Scripted-v0", 2, num_workers=0).close()


def test_folders_of_runs_are_plain_names() -> None:
    assert folder_of(tiny_config("sac", task=SLIDE, action_repeat=1), Path("runs")) == Path(
        "runs/gym-tests.envs.gym_envs-Slide-v0/sac/0"
    )


@pytest.mark.parametrize("shift", ["random_conv"])
def test_train_resume_and_evaluate_by_command(tmp_path: Path, capsys: pytest.CaptureFixture[str], shift: str) -> None:
    options = ["--task", SLIDE, *MICRO[2:], "--action-repeat", "1", "--evaluate-shifts", "train", shift]
    assert main(["train", *options, "--out", str(tmp_path / "a")]) == 0
    assert main(["train", *options, "--steps", "40", "--out", str(tmp_path / "b")]) == 0
    whole, parts = (next((tmp_path / name).glob("*/*/0")) for name in "ab")
    assert main(["train", "--resume", str(parts), "--steps", "60", "--quiet"]) == 0
    for name in ("step_000000060", "step_000000040"):
        one, other = ((run / "checkpoints" / name / "weights.safetensors") for run in (whole, parts))
        assert one.read_bytes() == other.read_bytes()
    assert {line["shift"] for line in read_lines(whole / "evaluations.jsonl")} == {"train", shift}
    capsys.readouterr()
    assert main(["evaluate", str(whole), "--episodes", "2", "--json"]) == 0
    lines = json.loads(capsys.readouterr().out)
    assert [line["shift"] for line in lines] == list(SHIFTS)
    assert {line["renderer"] for line in lines} == {"own"}
    assert main(["explain", str(whole), "--out", str(tmp_path / "look.png")]) == 0
    assert (tmp_path / "look.png").is_file()
    assert main(["report", str(tmp_path / "a"), "--out", str(tmp_path / "report")]) == 0
    capsys.readouterr()
    assert "masks" in fails(capsys, "saliency", str(whole), "--episodes", "1")


def test_episodes_of_other_lengths_are_looked_into(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """An environment that ends its episodes, with masks and success, in everything that plays episodes."""
    run = untrained_run(tmp_path / "runs" / "0", tiny_config(task=SHORT, action_repeat=1), action_dim=2)
    assert main(["evaluate", str(run), "--episodes", "3", "--json"]) == 0
    lines = json.loads(capsys.readouterr().out)
    assert [line["shift"] for line in lines] == [*SHIFTS, "video_hard"]
    assert all(line["successes"] == [True] * 3 for line in lines)
    sheet = tmp_path / "look.png"
    assert main(["explain", str(run), "--shift", "train", "video_hard", "--out", str(sheet)]) == 0
    assert main(["explain", str(run), "--shift", "random_conv", "--out", str(tmp_path / "look.mp4")]) == 0
    assert main(["saliency", str(run), "--episodes", "2", "--shift", "color_jitter", "video_hard", "--json"]) == 0
    assert main(["preview", "--task", SHORT, "--shift", "video_hard", "--out", str(sheet), "--steps", "30"]) == 0
    assert main(["report", str(tmp_path / "runs"), "--out", str(tmp_path / "report")]) == 0


@pytest.mark.parametrize(
    ("package", "task", "discrete"),
    [
        ("ale_py", "gym:ALE/Pong-v5", True),
        ("minigrid", "gym:MiniGrid-Dynamic-Obstacles-8x8-v0", True),
        ("Box2D", "gym:CarRacing-v3", False),
        ("pygame", "gym:CartPole-v1", True),
    ],
)
def test_environments_of_other_packages(package: str, task: str, discrete: bool) -> None:
    pytest.importorskip(package)
    envs = sgqn.make_vec(task, 2, "color_jitter", image_size=48, num_workers=0)
    assert envs.discrete == discrete
    envs.reset(seed=1)
    random = np.random.RandomState(0)
    shape = (12, 2) if discrete else (12, 2, envs.action_dim)
    actions = random.randint(0, envs.action_dim, shape) if discrete else random.uniform(-1, 1, shape)
    for action in actions[:6]:
        envs.step(action)
    state = envs.state_dict()
    results = [envs.step(action) for action in actions[6:]]
    envs.reset(seed=3)
    envs.load_state_dict(state)
    for action, result in zip(actions[6:], results, strict=True):
        again = envs.step(action)
        assert np.array_equal(again[0], result[0])
        assert np.array_equal(again[1], result[1])
    assert results[0][0].std() > 3
    envs.close()


def test_atari_repeats_actions_here() -> None:
    pytest.importorskip("ale_py")
    task = find_task("gym:ALE/Pong-v5")
    assert (task.action_repeat, task.episode_steps, task.defaults.frame_stack) == (4, 27_000, 4)
    simulation = task.load("train")
    assert simulation.env.unwrapped._frameskip == 1
    simulation.reset(0)
    simulation.step(0)
    assert simulation.env.unwrapped.ale.getEpisodeFrameNumber() == 4
    simulation.close()
