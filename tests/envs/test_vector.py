"""The vector environment: the same episodes as single environments, and workers that die are noticed."""

from __future__ import annotations

import gc
import os
import signal
import subprocess
import sys
import time

import numpy as np
import pytest
import torch
from gymnasium.vector import AutoresetMode

import sgqn
from sgqn.envs.vector import PixelVectorEnv
from tests.envs import load


def processes(envs: PixelVectorEnv) -> list[subprocess.Popen]:
    return [worker.process for worker in envs._stage._workers]


@pytest.mark.parametrize(
    ("shift", "num_workers"),
    [
        ("train", 0),
        ("color_hard", 2),
        ("video_hard", 2),
        *(pytest.param(*case, marks=pytest.mark.slow) for case in (("train", 2), ("color_hard", 0), ("video_hard", 0))),
    ],
)
def test_rows_are_the_episodes_of_single_environments(shift: str, num_workers: int, renderer: str) -> None:
    """Episode by episode, across automatic resets: observations, rewards, masks, true final observations."""
    options = {"shift": shift, "renderer": renderer, "masks": True, "action_repeat": 250}
    envs = sgqn.make_vec("cartpole-swingup", 3, **options, num_workers=num_workers)
    actions = np.random.RandomState(0).uniform(-1, 1, (8, 3, 1))
    obs, info = envs.reset(seed=5)
    observed, rewards, masks = [obs], [], [info["mask"]]
    finals = []
    for action in actions:
        obs, reward, terminated, truncated, info = envs.step(action)
        observed.append(obs)
        rewards.append(reward)
        masks.append(info["mask"])
        assert not terminated.any()
        if truncated.any():
            finals.append(info["final_obs"])
            assert info["_final_obs"].all()
    assert len(finals) == 2
    assert envs.observation_space.contains(obs)
    envs.close()

    single = sgqn.make("cartpole-swingup", **options)
    for world in range(3):
        for run in range(2):
            obs, info = single.reset(seed=5, options={"episode": world + 3 * run})
            assert np.array_equal(observed[4 * run][world], obs)
            assert np.array_equal(masks[4 * run][world], info["mask"])
            for step in range(4):
                obs, reward, _, truncated, info = single.step(actions[4 * run + step, world])
                assert rewards[4 * run + step][world] == reward
                shown = finals[run] if truncated else observed[4 * run + step + 1]
                assert np.array_equal(shown[world], obs)
    single.close()


def test_specs_and_autoreset_mode() -> None:
    with_torch = sgqn.make_vec("cartpole-swingup", 2, renderer="warp", device="cpu")
    assert with_torch.metadata["autoreset_mode"] == AutoresetMode.SAME_STEP
    assert with_torch.single_observation_space.shape == (9, 84, 84)
    assert with_torch.action_space.shape == (2, 1)
    obs, info = with_torch.reset(seed=0)
    assert isinstance(obs, torch.Tensor)
    assert obs.dtype == torch.uint8
    assert info["episode_number"].tolist() == [0, 1]
    again = with_torch.step(torch.zeros(2, 1))[0]
    assert again.data_ptr() != obs.data_ptr()
    with_torch.close()


def test_reset_without_a_seed_goes_on() -> None:
    envs = sgqn.make_vec("cartpole-swingup", 2, renderer="warp", num_workers=0)
    assert envs.reset(seed=0)[1]["episode_number"].tolist() == [0, 1]
    assert envs.reset()[1]["episode_number"].tolist() == [2, 3]
    assert envs.reset(options={"episode": 10})[1]["episode_number"].tolist() == [10, 11]
    with pytest.raises(sgqn.InvalidValueError, match="one number"):
        envs.reset(seed=[0, 1])
    envs.close()


@pytest.mark.parametrize("num_workers", [0, 1])
def test_state_continues_bit_for_bit(num_workers: int) -> None:
    options = {"shift": "video_hard", "renderer": "warp", "masks": True, "num_workers": num_workers}
    envs = sgqn.make_vec("walker-walk", 2, **options)
    actions = np.random.RandomState(0).uniform(-1, 1, (12, 2, 6))
    envs.reset(seed=1)
    for action in actions[:5]:
        envs.step(action)
    state = envs.state_dict()
    expected = [envs.step(action)[:2] for action in actions[5:]]
    envs.close()
    other = sgqn.make_vec("walker-walk", 2, **options)
    other.load_state_dict(state)
    for action, (obs, reward) in zip(actions[5:], expected, strict=True):
        obs_again, reward_again, *_ = other.step(action)
        assert np.array_equal(obs, obs_again)
        assert np.array_equal(reward, reward_again)
    other.close()


@pytest.mark.parametrize(
    "task", ["ball_in_cup-catch", "finger-spin", "cartpole-swingup", "reacher-hard", "humanoid-walk"]
)
def test_simulation_state_continues_bit_for_bit(task: str) -> None:
    one, two = (load(task) for _ in range(2))
    one.reset(3, seed=8)
    actions = np.random.RandomState(0).uniform(-1, 1, (40, one.action_dim))
    for action in actions[:20]:
        one.step(action)
    two.restore(one.state())
    for action in actions[20:]:
        assert one.step(action) == two.step(action)
        assert np.array_equal(one.data.qpos, two.data.qpos)


def test_a_killed_worker_is_reported_and_leaves_nothing_behind() -> None:
    envs = sgqn.make_vec("cartpole-swingup", 4, renderer="warp", num_workers=2)
    envs.reset(seed=0)
    children = processes(envs)
    os.kill(children[1].pid, signal.SIGKILL)
    start = time.monotonic()
    children[1].wait()
    with pytest.raises(sgqn.WorkerError, match=r"environments 2-3 was killed by signal 9"):
        envs.step(np.zeros((4, 1)))
    assert time.monotonic() - start < 20
    assert all(child.poll() is not None for child in children)
    with pytest.raises(sgqn.WorkerError, match="closed"):
        envs.step(np.zeros((4, 1)))
    envs.close()


def test_a_worker_that_raises_says_what() -> None:
    envs = sgqn.make_vec("cartpole-swingup", 2, renderer="warp", num_workers=1)
    envs.reset(seed=0)
    with pytest.raises(sgqn.WorkerError, match="KeyError") as error:
        envs._stage.restore([{"episode": 0, "seed": 0}] * 2)
    assert "Traceback" in "".join(error.value.__notes__)
    envs.close()


def test_close_leaves_no_process() -> None:
    envs = sgqn.make_vec("cartpole-swingup", 2, renderer="warp", num_workers=2)
    children = processes(envs)
    envs.close()
    envs.close()
    assert all(child.returncode == 0 for child in children)


@pytest.mark.skipif(not os.path.isdir("/proc/self/fd"), reason="no /proc")
def test_closed_environments_leave_no_descriptor_open() -> None:
    def opened_and_closed() -> int:
        sgqn.make_vec("cartpole-swingup", 1, renderer="warp", num_workers=1).close()
        gc.collect()  # of cycles, which may hold the shared memory
        return len(os.listdir("/proc/self/fd"))

    opened_and_closed()  # what is opened once and kept
    assert len({opened_and_closed() for _ in range(2)}) == 1


def test_workers_leave_when_the_parent_is_killed() -> None:
    code = (
        "import sgqn, sys, time\n"
        "envs = sgqn.make_vec('cartpole-swingup', 2, renderer='warp', num_workers=2)\n"
        "print(*[w.process.pid for w in envs._stage._workers], flush=True)\n"
        "time.sleep(60)\n"
    )
    parent = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True)
    assert parent.stdout is not None
    workers = [int(pid) for pid in parent.stdout.readline().split()]
    assert len(workers) == 2
    parent.kill()
    parent.wait()
    parent.stdout.close()
    deadline = time.monotonic() + 20
    while any(_alive(pid) for pid in workers):
        assert time.monotonic() < deadline
        time.sleep(0.1)


def _alive(pid: int) -> bool:
    try:
        with open(f"/proc/{pid}/stat") as file:
            return file.read().rsplit(")", 1)[1].split()[0] != "Z"
    except FileNotFoundError:
        return False


def test_workers_do_not_load_torch() -> None:
    code = "import sys, sgqn.envs.worker, sgqn.envs.gl, sgqn.envs.families.suite; print('torch' in sys.modules)"
    result = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True)
    assert result.stdout.strip() == "False"


@pytest.mark.parametrize("action", [np.zeros((2, 2)), np.full((2, 1), np.nan), np.zeros(2)])
def test_bad_actions_are_refused(action: np.ndarray) -> None:
    envs = sgqn.make_vec("cartpole-swingup", 2, renderer="warp", num_workers=0)
    with pytest.raises(sgqn.SgqnError, match="reset"):
        envs.step(np.zeros((2, 1)))
    envs.reset(seed=0)
    with pytest.raises(sgqn.InvalidValueError, match="action"):
        envs.step(action)
    envs.close()


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")
def test_gpu_draws_like_the_cpu() -> None:
    import warp

    if not warp.is_cpu_available():
        pytest.skip("this installation of Warp has no compiler for the CPU")
    frames = {}
    for device in ("cpu", "cuda"):
        envs = sgqn.make_vec("walker-walk", 4, shift="video_hard", renderer="warp", device=device)
        envs.reset(seed=0)
        for action in np.random.RandomState(0).uniform(-1, 1, (5, 4, 6)):
            obs, *_ = envs.step(action)
        assert obs.device.type == device
        frames[device] = obs.cpu().float()
        envs.close()
    assert (frames["cpu"] - frames["cuda"]).abs().mean() < 0.5
