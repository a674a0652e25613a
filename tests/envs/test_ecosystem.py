"""Gymnasium's own functions and wrappers, Stable-Baselines3 and torchrl use the environments as they are."""

from __future__ import annotations

import contextlib
import inspect
import os
import signal
import subprocess
import sys
import time
import types
import typing
import uuid
import warnings
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import pytest
from gymnasium.vector import AutoresetMode, SyncVectorEnv
from gymnasium.wrappers.vector import DictInfoToList, RecordEpisodeStatistics, RecordVideo

import sgqn
from sgqn.envs import env as single
from sgqn.envs import vector
from sgqn.envs.opengl import gl_error
from tests.envs import skip_if_missing

ID = "sgqn:sgqn/cartpole-swingup-train-v0"
TASK = "cartpole-swingup"
SMALL: dict[str, Any] = {"renderer": "warp", "image_size": 36, "action_repeat": 250}
"""Cheap environments with episodes of four steps."""
CATCH = "gym:sgqn/Catch-v0"


def run(code: str, timeout: float = 240) -> str:
    """Run a script with a hard time limit. Processes that it leaves behind are killed, and fail the test."""
    mark = f"SGQN_TEST_{uuid.uuid4().hex}"
    process = subprocess.Popen(
        [sys.executable, "-c", code],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, mark: "1", "OMP_NUM_THREADS": "2"},  # with a thread pool that a fork could lose
    )
    try:
        output, errors = process.communicate(timeout=timeout)
        assert process.returncode == 0, errors
        deadline = time.monotonic() + 20  # Python's own helper processes take a moment
        while marked(mark) and time.monotonic() < deadline:
            time.sleep(0.1)
        assert not marked(mark), "a process outlived the script"
        return output
    finally:
        for pid in marked(mark):
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        process.wait()


def marked(mark: str) -> list[int]:
    """The running processes that have inherited an environment variable."""
    found = []
    for file in Path("/proc").glob("[0-9]*/environ"):
        with contextlib.suppress(OSError):
            if mark.encode() in file.read_bytes():
                found.append(int(file.parent.name))
    return found


# Made by name


def test_made_by_name_without_importing_the_package() -> None:
    code = (
        "import gymnasium\n"
        f"env = gymnasium.make({ID!r}, renderer='warp', image_size=36)\n"
        f"envs = gymnasium.make_vec({ID!r}, num_envs=2, renderer='warp', image_size=36, num_workers=0)\n"
        "print(env.reset(seed=0)[0].shape, envs.reset(seed=0)[0].shape, type(envs).__name__, envs.spec.id)\n"
        "envs.close()\n"
    )
    assert run(code).strip() == f"(9, 36, 36) (2, 9, 36, 36) PixelVectorEnv {ID.partition(':')[2]}"


@pytest.mark.parametrize(
    ("name", "error", "part"),
    [
        ("walker-wlak-train-v0", gymnasium.error.NameNotFound, "Did you mean: `walker-walk-train`"),
        ("walker-walk-video_hrad-v0", gymnasium.error.NameNotFound, "Did you mean: `walker-walk-video_hard`"),
        ("walker-walk-v0", gymnasium.error.NameNotFound, "Did you mean: `walker-walk-train`"),
        ("walker-walk-train-v1", gymnasium.error.VersionNotFound, "`v0`"),
    ],
)
def test_unknown_names_are_corrected(name: str, error: type[Exception], part: str) -> None:
    with pytest.raises(error, match=part):
        gymnasium.make(f"sgqn:sgqn/{name}")
    with pytest.raises(error, match=part):
        gymnasium.make_vec(f"sgqn:sgqn/{name}")


def test_every_registered_task_has_a_vector_environment() -> None:
    specs = [spec for name, spec in gymnasium.registry.items() if name.startswith("sgqn/") and "task" in spec.kwargs]
    assert len(specs) > 200
    assert {spec.vector_entry_point for spec in specs} == {"sgqn.envs.vector:make_vec"}


# Worker processes


ASYNC = """
import multiprocessing, sys
import gymnasium, numpy as np, torch

if __name__ == "__main__":
    torch.randn(600, 600) @ torch.randn(600, 600)  # starts torch's threads
    options = {{"renderer": {renderer!r}, "image_size": 36, "action_repeat": 250}}
    envs = gymnasium.make_vec(
        "sgqn:sgqn/cartpole-swingup-{shift}-v0", {count}, vectorization_mode="async",
        vector_kwargs={{"context": {context!r}}}, **options,
    )
    one = gymnasium.make("sgqn:sgqn/cartpole-swingup-{shift}-v0", **options)
    obs, _ = envs.reset(seed=3)
    expected, _ = one.reset(seed=3)
    assert np.array_equal(obs[0], expected)
    for step in range(4):
        obs, rewards, _, truncated, _ = envs.step(np.full(({count}, 1), 0.5, np.float32))
        expected, reward, *_ = one.step(np.full(1, 0.5, np.float32))
        assert np.array_equal(obs[0], expected) and rewards[0] == reward
    assert truncated.all()
    envs.close()
    one.close()
    print("done")
"""


@pytest.mark.parametrize(
    ("context", "count", "renderer", "shift"),
    [
        ("fork", 2, "warp", "video_hard"),
        pytest.param("fork", 2, "gl", "color_hard", marks=pytest.mark.slow),
        ("spawn", 1, "warp", "train"),
    ],
)
def test_gymnasiums_worker_processes(context: str, count: int, renderer: str, shift: str) -> None:
    if renderer == "gl" and gl_error() is not None:
        pytest.skip("no OpenGL context on this machine")
    assert run(ASYNC.format(context=context, count=count, renderer=renderer, shift=shift)).strip() == "done"


def test_a_vector_environment_in_a_forked_process() -> None:
    code = """
import os
import sgqn, torch

def play():
    envs = sgqn.make_vec("cartpole-swingup", 2, renderer="warp", image_size=84, num_workers=1)
    obs = envs.reset(seed=0)[0].sum()
    envs.close()
    return obs

torch.randn(600, 600) @ torch.randn(600, 600)
expected = play()
child = os.fork()
if child == 0:
    os._exit(0 if play() == expected else 1)
assert os.waitpid(child, 0)[1] == 0
"""
    run(code)


# Gymnasium's vector form


@pytest.fixture(params=[TASK, CATCH])
def both(request: pytest.FixtureRequest) -> Any:
    """A vector environment and Gymnasium's own around single environments, which end episodes alike."""
    own = {"masks": True} | (SMALL if request.param == TASK else {"image_size": 36})
    envs = sgqn.make_vec(request.param, 2, num_workers=0, **own)
    theirs = SyncVectorEnv([lambda: sgqn.make(request.param, **own)] * 2, autoreset_mode=AutoresetMode.SAME_STEP)
    yield envs, theirs
    envs.close()
    theirs.close()


def assert_same_form(info: dict[str, Any], other: dict[str, Any], path: str = "info") -> None:
    assert info.keys() == other.keys(), path
    for key, value in info.items():
        if isinstance(value, dict):
            assert_same_form(value, other[key], f"{path}[{key!r}]")
            continue
        assert (value.dtype, value.shape) == (other[key].dtype, other[key].shape), f"{path}[{key!r}]"
        if key.startswith("_"):
            assert np.array_equal(value, other[key]), f"{path}[{key!r}]"


def test_info_has_the_form_of_gymnasiums_vector_environments(both: Any) -> None:
    envs, theirs = both
    assert envs.metadata["autoreset_mode"] is envs.autoreset_mode is theirs.metadata["autoreset_mode"]
    assert_same_form(envs.reset(seed=0)[1], theirs.reset(seed=0)[1])
    ends = 0
    for _ in range(75):
        actions = np.zeros(envs.action_space.shape, envs.action_space.dtype)
        *_, terminated, truncated, info = envs.step(actions)
        *_, their_terminated, their_truncated, their_info = theirs.step(actions)
        assert np.array_equal(terminated | truncated, their_terminated | their_truncated)
        assert_same_form(info, their_info)
        if (terminated | truncated).any():
            ends += 1
            for last, theirs_last in zip(info["final_obs"], their_info["final_obs"], strict=True):
                assert (last is None) == (theirs_last is None)
                assert last is None or (last.shape == theirs_last.shape and last.dtype == theirs_last.dtype)
        if ends == 2:
            break
    assert ends


def test_info_of_single_episodes(monkeypatch: pytest.MonkeyPatch) -> None:
    """One environment ends its episode, the other does not: only its rows are filled."""
    envs = sgqn.make_vec(TASK, 2, masks=True, num_workers=0, **SMALL)
    envs.reset(seed=0)
    step = envs._stage.step_wait
    monkeypatch.setattr(envs._stage, "step_wait", lambda: (step()[0], np.array([False, True]), np.zeros(2, bool)))
    *_, info = envs.step(np.zeros((2, 1)))
    assert info["_final_obs"].tolist() == info["_final_info"].tolist() == [False, True]
    assert info["final_obs"][0] is None
    assert info["final_obs"][1].shape == (9, 36, 36)
    assert info["final_info"]["episode_number"].tolist() == [0, 1]
    assert info["final_info"]["mask"][1].any()
    assert not info["final_info"]["mask"][0].any()
    assert info["episode_number"].tolist() == [0, 3]
    assert info["_episode_number"].all()
    envs.close()


def test_gymnasiums_vector_wrappers() -> None:
    envs = DictInfoToList(RecordEpisodeStatistics(sgqn.make_vec(TASK, 2, num_workers=0, **SMALL)))
    _, infos = envs.reset(seed=0)
    assert infos == [{"episode_number": 0}, {"episode_number": 1}]
    total = np.zeros(2)
    for _ in range(4):
        _, rewards, _, truncated, infos = envs.step(np.zeros((2, 1)))
        total += rewards
    assert truncated.all()
    for world, info in enumerate(infos):
        assert info["episode_number"] == world + 2
        assert info["final_info"] == {"episode_number": world}
        assert info["final_obs"].shape == (9, 36, 36)
        assert info["episode"]["l"] == 4
        assert info["episode"]["r"] == pytest.approx(total[world])
    envs.close()


def test_gymnasium_records_videos(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """MoviePy, which would encode them, is replaced: only the frames matter."""
    shown: list[np.ndarray] = []

    class Clip:
        def __init__(self, frames: list[np.ndarray], fps: int):
            shown.extend(frames)

        def write_videofile(self, path: str, logger: Any) -> None:
            Path(path).touch()

    for name in ("moviepy", "moviepy.video", "moviepy.video.io", "moviepy.video.io.ImageSequenceClip"):
        monkeypatch.setitem(sys.modules, name, types.SimpleNamespace(ImageSequenceClip=Clip))
    made = gymnasium.make_vec(ID, num_envs=2, render_mode="rgb_array", num_workers=0, **SMALL)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # the last frame of an episode is not part of it
        envs = RecordVideo(made, str(tmp_path), (2, 1), episode_trigger=lambda episode: episode == 0)
    observed = [envs.reset(seed=0)[0]]
    observed += [envs.step(np.zeros((2, 1)))[0] for _ in range(3)]
    envs.step(np.zeros((2, 1)))
    envs.close()
    assert [file.name for file in tmp_path.iterdir()] == ["rl-video-episode-0.mp4"]
    for frame, obs in zip(shown, observed, strict=True):
        assert np.array_equal(frame, np.concatenate(obs[:, -3:].transpose(0, 2, 3, 1), axis=1))


def test_rendering_of_vectors() -> None:
    envs = sgqn.make_vec(TASK, 2, num_workers=0, device="cpu", render_mode="rgb_array", **SMALL)
    obs, _ = envs.reset(seed=0)
    frames = envs.render()
    assert isinstance(frames, tuple)
    assert np.array_equal(np.stack(frames), obs[:, -3:].permute(0, 2, 3, 1).numpy())
    envs.close()
    with pytest.raises(sgqn.InvalidValueError, match="not 'human'"):
        sgqn.make_vec(TASK, 2, render_mode="human")


# Rendering of single environments


@pytest.mark.parametrize("shift", ["color_hard", "video_hard"])
def test_rendered_images_show_what_the_agent_sees(renderer: str, shift: str) -> None:
    """At the size of observations they are the newest frame; larger ones show the same, averaged."""
    options: dict[str, Any] = {"renderer": renderer, "image_size": 42, "action_repeat": 20, "render_mode": "rgb_array"}
    for factor in (1, 3):
        env = sgqn.make("walker-walk", shift, width=42 * factor, **options)
        env.reset(seed=1)  # the next episode has other colours and another clip
        env.reset()
        obs = env.step(np.full(6, 0.5))[0]
        image, frame = env.render(), obs[-3:].transpose(1, 2, 0)
        reduced = image.reshape(42, factor, 42, factor, 3).mean(axis=(1, 3))
        assert np.abs(reduced - frame).mean() < (6 if factor > 1 else 1e-9)
        env.close()


def test_cameras(renderer: str) -> None:
    options: dict[str, Any] = {"renderer": renderer, "image_size": 36, "render_mode": "rgb_array", "height": 32}
    images = []
    for camera in ({}, {"camera_id": 1}, {"camera_name": "back"}):
        env = sgqn.make("walker-walk", **options, width=48, **camera)
        obs, _ = env.reset(seed=0)
        images.append((env.render(), obs))
        env.close()
    (own, obs), (second, obs_again), (back, _) = images
    assert own.shape == (32, 48, 3)
    assert np.array_equal(obs, obs_again)
    assert np.array_equal(second, back)
    assert np.abs(own.astype(float) - back).mean() > 5
    with pytest.raises(sgqn.InvalidValueError, match=r"walker-walk has no camera 'top': choose one of 0 \(side\), 1"):
        sgqn.make("walker-walk", **options, camera_name="top")
    with pytest.raises(sgqn.InvalidValueError, match="no camera -1"):
        sgqn.make("walker-walk", **options, camera_id=-1)


@pytest.mark.parametrize("shift", ["train", "video_hard", "color_jitter"])
def test_rendered_images_of_gymnasium_environments(shift: str) -> None:
    options: dict[str, Any] = {"image_size": 42, "render_mode": "rgb_array"}
    env, large = sgqn.make(CATCH, shift, **options), sgqn.make(CATCH, shift, width=84, **options)
    env.reset(seed=0)
    large.reset(seed=0)
    reduced = large.render().reshape(42, 2, 42, 2, 3).mean(axis=(1, 3))
    assert np.abs(reduced - env.render()).mean() < 6
    with pytest.raises(sgqn.InvalidValueError, match="has no camera 0"):
        sgqn.make(CATCH, camera_id=0, **options)


@pytest.mark.parametrize(
    ("options", "part"),
    [
        ({"width": 0}, "not 0"),
        ({"height": 5000}, "between 8 and 4096, not 5000"),
        ({"width": 64.0}, "not 64.0"),
        ({"camera_id": 0, "camera_name": "fixed"}, "choose one of camera_id=0 and camera_name='fixed'"),
        ({"width": 64, "render_mode": None}, "add render_mode='rgb_array'"),
        ({"render_mode": "human"}, "not 'human'"),
    ],
)
def test_bad_options_of_rendering(options: dict[str, Any], part: str) -> None:
    with pytest.raises(sgqn.InvalidValueError, match=part):
        sgqn.make(TASK, **{**SMALL, "render_mode": "rgb_array", **options})


def test_robots_are_rendered(renderer: str) -> None:
    skip_if_missing("robot-reach")
    env = sgqn.make("robot-reach", renderer=renderer, image_size=36, render_mode="rgb_array", width=64, height=48)
    env.reset(seed=0)
    assert env.render().std() > 5
    env.close()


# Types and names


@pytest.mark.parametrize(
    ("options", "made"),
    [(single.EnvOptions, single.PixelEnv), (vector.VectorOptions, vector.PixelVectorEnv)],
)
def test_options_are_typed(options: Any, made: type) -> None:
    parameters = inspect.signature(made.__init__, eval_str=True).parameters.values()
    assert typing.get_type_hints(options) == {p.name: p.annotation for p in parameters if p.kind is p.KEYWORD_ONLY}


def test_the_package_lists_its_names() -> None:
    for module in (sgqn, sgqn.envs):
        assert set(module.__all__) <= set(dir(module))
        for name in module.__all__:
            assert getattr(module, name) is not None


# Other libraries


def test_sb3_learns_on_vectors() -> None:
    sb3 = pytest.importorskip("stable_baselines3")
    from stable_baselines3.common.vec_env import VecMonitor

    from sgqn.sb3 import PixelVecEnv

    small = {"features_extractor_kwargs": {"features_dim": 8}, "net_arch": [8]}
    envs = PixelVecEnv(sgqn.make_vec(TASK, 2, num_workers=0, **SMALL))
    ppo = sb3.PPO("CnnPolicy", VecMonitor(envs), n_steps=8, batch_size=8, n_epochs=1, policy_kwargs=small, device="cpu")
    assert ppo.learn(16).num_timesteps == 16
    assert len(ppo.ep_info_buffer) == 4
    sac = sb3.SAC(
        "CnnPolicy", envs, buffer_size=32, learning_starts=4, batch_size=4, policy_kwargs=small, device="cpu", seed=1
    )
    sac.learn(12)
    assert sac.num_timesteps == 12
    envs.close()


def test_sb3_learns_on_environments_made_by_name() -> None:
    sb3 = pytest.importorskip("stable_baselines3")
    small = {"features_extractor_kwargs": {"features_dim": 8}, "net_arch": [8]}
    env = gymnasium.make(ID, **SMALL)
    assert sb3.PPO("CnnPolicy", env, n_steps=8, batch_size=8, policy_kwargs=small, device="cpu").learn(8)
    sac = sb3.SAC("CnnPolicy", env, buffer_size=16, learning_starts=4, batch_size=4, policy_kwargs=small, device="cpu")
    assert sac.learn(8).num_timesteps == 8


def test_the_adapter_of_sb3_gives_what_its_own_gives() -> None:
    """Compared with SB3's own `DummyVecEnv` around a single environment, over the end of an episode."""
    pytest.importorskip("stable_baselines3")
    from stable_baselines3.common.vec_env import DummyVecEnv

    from sgqn.sb3 import PixelVecEnv

    envs = PixelVecEnv(sgqn.make_vec(CATCH, 1, num_workers=0, image_size=36, render_mode="rgb_array"))
    theirs = DummyVecEnv([lambda: sgqn.make(CATCH, image_size=36, render_mode="rgb_array")])
    assert envs.render_mode == theirs.render_mode == "rgb_array"
    for one in (envs, theirs):
        one.seed(3)
    assert np.array_equal(envs.reset(), theirs.reset())
    assert envs.reset_infos == theirs.reset_infos
    ended = False
    while not ended:
        obs, rewards, dones, infos = envs.step(np.array([2]))
        their_obs, their_rewards, their_dones, their_infos = theirs.step(np.array([2]))
        assert np.array_equal(obs, their_obs)
        assert np.array_equal(envs.render(), theirs.render())
        assert (rewards.tolist(), rewards.dtype) == (their_rewards.tolist(), their_rewards.dtype)
        assert dones.tolist() == their_dones.tolist()
        ended = bool(dones[0])
        if not ended:
            assert infos == their_infos
    (info,), (their_info,) = infos, their_infos
    assert np.array_equal(info.pop("terminal_observation"), their_info.pop("terminal_observation"))
    assert info.pop("is_success") == info["success"]
    assert info == their_info
    assert envs.reset_infos == theirs.reset_infos
    with pytest.raises(sgqn.InvalidValueError, match="leave out the device"):
        PixelVecEnv(sgqn.make_vec(TASK, 2, num_workers=0, device="cpu", **SMALL))
    with pytest.raises(sgqn.InvalidValueError, match="not a DummyVecEnv"):
        PixelVecEnv(theirs)
    envs.close()
    theirs.close()


def test_torchrl_wraps_vectors() -> None:
    """The observations of a rollout are those of the environments, over the ends of episodes too."""
    torchrl = pytest.importorskip("torchrl.envs")
    env = torchrl.GymWrapper(sgqn.make_vec(TASK, 2, num_workers=0, **SMALL))
    env.set_seed(0)
    rollout = env.rollout(6, break_when_any_done=False)
    env.close()
    assert rollout["next", "truncated"].squeeze(-1).tolist() == [[False, False, False, True, False, False]] * 2
    single = sgqn.make(TASK, **SMALL)
    for world in range(2):
        episode = int(rollout["episode_number"][world, 0])
        obs, _ = single.reset(seed=0, options={"episode": episode})
        assert np.array_equal(rollout["observation"][world, 0].numpy(), obs)
        for step in range(4):
            obs, *_ = single.step(rollout["action"][world, step].numpy())
            assert np.array_equal(rollout["next", "observation"][world, step].numpy(), obs)
        obs, _ = single.reset(options={"episode": int(rollout["episode_number"][world, 4])})
        assert np.array_equal(rollout["observation"][world, 4].numpy(), obs)
    single.close()


def test_torchrl_makes_them_by_name() -> None:
    torchrl = pytest.importorskip("torchrl.envs")
    env = torchrl.GymEnv(ID, **SMALL)
    assert env.rollout(3)["observation"].shape == (3, 9, 36, 36)
    env.close()


@pytest.mark.slow
def test_torchrl_makes_them_by_name_in_other_processes() -> None:
    pytest.importorskip("torchrl.envs")
    code = f"""
import multiprocessing
from torchrl.envs import GymEnv

multiprocessing.set_start_method("fork", force=True)  # torchrl chooses spawn, which takes longer and is tested above
env = GymEnv({ID!r}, num_envs=2, **{SMALL!r})
print(tuple(env.rollout(3)["observation"].shape))
env.close()
"""
    assert "(2, 3, 9, 36, 36)" in run(code)
