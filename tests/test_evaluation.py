"""The protocol held against a plain loop over episodes, and `sgqn evaluate` against everything that can go wrong."""

from __future__ import annotations

import copy
import json
import os
import re
import signal
import subprocess
import sys
import textwrap
import time
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import gymnasium
import numpy as np
import pytest
import torch

import sgqn
from sgqn import checkpoint, evaluation, run_folder
from sgqn.agents import Agent
from sgqn.cli import main
from sgqn.envs import backgrounds
from sgqn.errors import InvalidValueError
from sgqn.evaluation import Moment, evaluate
from tests.helpers import TASK, fails, tiny_config, untrained_run

STEPS = 20
CONFIG = tiny_config(settings={"encoder_filters": 8, "embedding_dim": 50, "decoder_filters": (16, 8)})
PAGE = Path(sgqn.__file__).parent.parent / "docs" / "evaluation.md"
LOCAL: dict[str, Any] = {"num_workers": 0, "action_repeat": 50, "renderer": "warp"}


def make_run(out: Path) -> Path:
    """The folder of a run that never trained: its policy is random, but looks at the picture."""
    return untrained_run(run_folder.folder_of(CONFIG, out), CONFIG, step=100)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return make_run(tmp_path)


@pytest.fixture(scope="module")
def agent(tmp_path_factory: pytest.TempPathFactory) -> Agent:
    return sgqn.load_agent(make_run(tmp_path_factory.mktemp("runs")))


def plain_loop(agent: Agent, shift: str, episodes: int, seed: int, renderer: str) -> list[float]:
    """The protocol as one would write it down: one environment, one observation at a time.

    In float64: a float32 sum that is rounded otherwise can flip a pixel later, and then the episode is another.
    """
    env = sgqn.make(TASK, shift=shift, seed=seed, renderer=renderer, action_repeat=50, image_size=24)
    returns = []
    for _ in range(episodes):
        obs, _ = env.reset()
        total, over = 0.0, False
        while not over:
            obs, reward, terminated, truncated, _ = env.step(agent.act(obs))
            total += reward
            over = terminated or truncated
        returns.append(total)
    env.close()
    return returns


# ---------------------------------------------------------------- the protocol


def test_returns_are_those_of_a_plain_loop(agent: Agent, renderer: str) -> None:
    options = {**LOCAL, "renderer": renderer, "num_workers": 2 if renderer == "gl" else 0}
    agent = copy.deepcopy(agent).double()
    result = evaluate(agent, TASK, "video_hard", 3, seed=7, num_envs=2, **options)
    assert result.returns == pytest.approx(plain_loop(agent, "video_hard", 3, 7, renderer), rel=1e-9)
    assert len(set(result.returns)) == 3
    assert (result.renderer, result.backgrounds, result.seed) == (renderer, "generated", 7)


def test_the_number_of_environments_changes_nothing(agent: Agent) -> None:
    def returns(num_envs: int | None) -> tuple[float, ...]:
        return evaluate(agent, TASK, "train", 3, seed=1, num_envs=num_envs, **LOCAL).returns

    by_default = returns(None)
    for count in (None, 1, 2):
        assert returns(count) == by_default
    assert evaluate(agent, TASK, "train", 1, seed=1, **LOCAL).returns == by_default[:1]


def test_actions_depend_on_nothing_but_the_observation(agent: Agent, monkeypatch: pytest.MonkeyPatch) -> None:
    """Neither on the rest of the batch nor on the cores nor on torch's threads, which are as before afterwards."""
    obs = torch.randint(0, 256, (19, 9, 24, 24), dtype=torch.uint8, generator=torch.Generator().manual_seed(0))
    before = torch.get_num_threads()
    seen = []
    for cores, threads, parts in ((1, 3, [19]), (2, 1, [1, 8, 10]), (4, 2, [7, 7, 5])):
        monkeypatch.setattr(evaluation, "num_cores", lambda cores=cores: cores)
        torch.set_num_threads(threads)
        with evaluation._policy_of(agent) as policy:
            seen.append(torch.cat([policy(part, np.zeros(len(part), dtype=bool)) for part in obs.split(parts)]))
        assert torch.get_num_threads() == threads
    torch.set_num_threads(before)
    assert torch.equal(seen[0], seen[1])
    assert torch.equal(seen[0], seen[2])
    assert torch.allclose(seen[0], agent.act(obs), atol=1e-5)
    assert seen[0].std() > 1e-3


def test_the_policy_is_asked(agent: Agent) -> None:
    """Were actions ignored, late or those of another environment, the tests above would not notice."""
    still = sgqn.make(TASK, seed=1, renderer="warp", action_repeat=50, image_size=24)
    still.reset()
    idle = sum(still.step(np.zeros(1))[1] for _ in range(STEPS))
    still.close()
    (acted,) = evaluate(agent, TASK, "train", 1, seed=1, **LOCAL).returns
    assert acted != pytest.approx(idle, rel=1e-2)


def test_a_loaded_agent_keeps_its_action_repeat(agent: Agent) -> None:
    options = {key: value for key, value in LOCAL.items() if key != "action_repeat"}
    steps: list[int] = []
    evaluate(agent, TASK, episodes=1, on_step=lambda done, total: steps.append(total), **options)
    assert set(steps) == {STEPS}
    assert agent.task == TASK


def test_a_recorded_agent_keeps_its_action_repeat(folder: Path) -> None:
    steps: list[int] = []
    evaluation.record(folder, ["train"], 1, renderer="warp", on_step=lambda shift, done, total: steps.append(total))
    assert set(steps) == {STEPS}


def test_what_cannot_play_is_refused(agent: Agent) -> None:
    with pytest.raises(InvalidValueError, match=r"cartpole-swingup.*1 numbers: walker-walk takes actions of 6 numbers"):
        evaluate(agent, "walker-walk", episodes=1, num_workers=0, renderer="warp")
    with pytest.raises(InvalidValueError, match=r"load_agent gave, .* not a str: 'pretrained:walker-walk'$"):
        evaluate("pretrained:walker-walk", "walker-walk")  # type: ignore[arg-type]
    with pytest.raises(InvalidValueError, match=r"not a type: <class .*Agent'>$"):
        evaluate(Agent, "walker-walk")
    with pytest.raises(InvalidValueError, match=r"not a Model: .* \(wrap it: lambda obs: model.predict"):
        evaluate(type("Model", (), {"predict": None})(), "walker-walk")
    with pytest.raises(InvalidValueError, match="this agent is on cpu: leave out device='cuda'"):
        evaluate(agent, TASK, device="cuda")


@pytest.mark.parametrize(("episodes", "count"), [(1, 1), (5, 5), (16, 16), (17, 9), (30, 15), (100, 15)])
def test_environments_share_the_episodes_evenly(
    agent: Agent, monkeypatch: pytest.MonkeyPatch, episodes: int, count: int
) -> None:
    def make_vec(task: str, num_envs: int, **options: Any) -> Any:
        raise InvalidValueError(f"{num_envs} for {options['num_episodes']}")

    monkeypatch.setattr(evaluation, "make_vec", make_vec)
    with pytest.raises(InvalidValueError, match=f"^{count} for {episodes}$"):
        evaluate(agent, TASK, episodes=episodes)


class Scripted:
    """Two environments of which episode k lasts 1 + k % 3 steps with a reward of 10^k each; observations tell k."""

    num_envs, task = 2, SimpleNamespace(episode_steps=3)
    metadata: dict[str, str] = {"renderer": "none", "backgrounds": "none"}  # noqa: RUF012

    action_dim, discrete, action_space = 2, False, gymnasium.spaces.Box(-1, 1, (2, 2))

    def __init__(self, num_episodes: int):
        self.left, self.closed = num_episodes, False

    def reset(self) -> tuple[torch.Tensor, dict[str, Any]]:
        self.episode, self.step_of = np.arange(2), np.zeros(2, dtype=int)
        return self.see()

    def see(self) -> tuple[torch.Tensor, dict[str, Any]]:
        seen = torch.as_tensor(np.stack([self.episode, self.step_of], 1))
        return seen, {"mask": seen}

    def step(self, action: torch.Tensor) -> tuple[torch.Tensor, np.ndarray, np.ndarray, np.ndarray, dict[str, Any]]:
        assert torch.equal(action.long(), -self.see()[0]), "an action for another observation"
        plays = self.episode < self.left
        reward = np.where(plays, 10.0**self.episode, 0.0)
        self.step_of += 1
        over = plays & (self.step_of == 1 + self.episode % 3)
        self.episode[over] += 2
        self.step_of[over] = 0
        obs, info = self.see()
        return obs, reward, over & (self.episode % 2 == 0), over & (self.episode % 2 == 1), info

    def close(self) -> None:
        self.closed = True


def test_episodes_of_different_lengths(monkeypatch: pytest.MonkeyPatch) -> None:
    envs = Scripted(5)
    monkeypatch.setattr(evaluation, "make_vec", lambda *args, **options: envs)
    moments: list[Moment] = []
    progress: list[tuple[int, int]] = []
    options: dict[str, Any] = {"watch": moments.append, "on_step": lambda *done: progress.append(done)}
    result = evaluate(torch.neg, TASK, episodes=5, action_repeat=334, device="cpu", **options)
    assert result.returns == (1, 20, 300, 1000, 20000)
    assert progress[0] == (0, 15)
    assert progress[-1] == (15, 15)
    assert progress == sorted(progress)
    seen = [(episode, moment.step) for moment in moments for episode in moment.episodes.tolist()]
    assert sorted(seen) == [(k, step) for k in range(5) for step in range(1 + k % 3)]
    for moment in moments:
        expected = [[episode, moment.step] for episode in moment.episodes]
        assert moment.obs.tolist() == (-moment.action).tolist() == moment.mask.tolist() == expected
    assert envs.closed


def test_environments_close_when_the_watcher_fails(monkeypatch: pytest.MonkeyPatch) -> None:
    envs = Scripted(2)
    monkeypatch.setattr(evaluation, "make_vec", lambda *args, **options: envs)

    def interrupt(moment: Moment) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        evaluate(np.negative, TASK, episodes=2, watch=interrupt)
    assert envs.closed


# ---------------------------------------------------------------- policies of one's own


class Own:
    """An agent behind all that a policy must have."""

    def __init__(self, agent: Agent):
        self.agent, self.seen = copy.deepcopy(agent).double(), []

    def act(self, obs: Any) -> Any:
        self.seen.append(obs)
        return self.agent.act(obs)


@pytest.mark.parametrize("device", [None, "cpu"])
def test_own_policies_play_the_same_episodes(agent: Agent, device: str | None) -> None:
    expected = evaluate(copy.deepcopy(agent).double(), TASK, "video_hard", 3, seed=7, num_envs=2, **LOCAL).returns
    policy: sgqn.Policy = Own(agent)
    options = {**LOCAL, "image_size": 24, "device": device}
    assert evaluate(policy, TASK, "video_hard", 3, 7, num_envs=2, **options).returns == pytest.approx(expected)
    for obs in policy.seen:
        assert isinstance(obs, np.ndarray if device is None else torch.Tensor)
        assert (*obs.shape, str(obs.dtype).removeprefix("torch.")) == (2, 9, 24, 24, "uint8")
    answers = {
        "lists": lambda obs: policy.act(obs).tolist(),
        "grad": lambda obs: weight * torch.as_tensor(policy.act(obs)),
    }
    weight = torch.ones(1, requires_grad=True)
    for act in answers.values():
        assert evaluate(act, TASK, "video_hard", 3, 7, **options).returns == pytest.approx(expected)


def test_own_policies_see_what_they_ask_for() -> None:
    shapes, steps = set(), []

    def act(obs: np.ndarray) -> np.ndarray:
        shapes.add(obs.shape)
        return np.zeros((len(obs), 1))

    options: dict[str, Any] = {"num_workers": 0, "renderer": "warp", "on_step": lambda done, total: steps.append(total)}
    evaluate(act, TASK, episodes=1, **options)
    assert (shapes, set(steps)) == ({(1, 9, 84, 84)}, {125})
    evaluate(act, TASK, episodes=1, image_size=20, frame_stack=2, action_repeat=500, **options)
    assert shapes == {(1, 9, 84, 84), (1, 6, 20, 20)}
    assert steps[-1] == 2


@pytest.mark.parametrize("device", [None, "cpu"])
def test_own_policies_may_write_into_what_they_see(device: str | None) -> None:
    brightest = []

    def act(obs: Any) -> Any:
        brightest.append(int(obs[:, :6].max()))
        obs[:] = 0
        return [[0.0]]

    evaluate(act, TASK, episodes=1, image_size=24, device=device, **LOCAL)
    assert min(brightest) > 100


@pytest.mark.parametrize(
    ("given", "said"),
    [
        (np.zeros(2), r"asked for actions \(2, 1\) and gave a ndarray: the action has shape \(2,\)"),
        ((np.zeros((2, 1)), None), "gave a tuple: "),
        (None, "gave a NoneType: "),
        (torch.full((2, 1), torch.nan), "gave a Tensor: the action holds NaN"),
    ],
)
def test_what_is_no_action_is_refused(given: Any, said: str) -> None:
    with pytest.raises(InvalidValueError, match=said):
        evaluate(lambda obs: given, TASK, episodes=2, image_size=24, **LOCAL)


def test_the_examples_of_the_page_run(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    """With a model in place of the other library's, which answers as it does, and in shorter episodes."""

    class Model:
        @classmethod
        def load(cls, path: str) -> Model:
            return cls()

        def predict(self, obs: np.ndarray, deterministic: bool = False) -> tuple[np.ndarray, None]:
            assert deterministic
            return np.zeros((len(obs), 6)), None

    monkeypatch.setitem(sys.modules, "stable_baselines3", SimpleNamespace(PPO=Model))
    monkeypatch.setattr(sgqn, "evaluate", partial(evaluate, num_workers=0, renderer="warp", action_repeat=250))
    blocks = re.findall(r"(?:^ {4}.*\n|^\n(?= {4}))+", PAGE.read_text(), re.MULTILINE)
    examples = [block for block in blocks if re.search(r"(?m)^ {4}(import|from) ", block)]
    assert len(examples) == 2
    names: dict[str, Any] = {}
    for example in examples:
        exec(textwrap.dedent(example), names)
    lines = capsys.readouterr().out.splitlines()
    assert [line.split()[0] for line in lines] == ["train", "color_hard", "video_easy", "video_hard"]
    assert all(re.search(r" \d+ ± \d+ +2 episodes, warp, (none|generated)$", line) for line in lines)
    assert (names["scores"].episodes, names["scores"].shift) == (2, "video_hard")


class Memory:
    """A policy whose actions depend on how many steps of the episode it has seen, not on the observation."""

    def __init__(self) -> None:
        self.seen = np.zeros(0, dtype=int)
        self.starts: list[list[bool]] = []

    def act(self, obs: Any, episode_start: Any) -> Any:
        assert type(episode_start) is type(obs)
        starts = np.asarray(episode_start)
        self.starts.append(starts.tolist())
        self.seen = np.where(starts, 0, self.seen if len(self.seen) else 0) + 1
        return (self.seen / 4 - 0.5)[:, None]


@pytest.mark.parametrize("device", [None, "cpu"])
def test_policies_with_memory_are_told_when_an_episode_starts(device: str | None) -> None:
    options = {**LOCAL, "image_size": 24, "device": device, "action_repeat": 250}
    one, two = Memory(), Memory()
    alone = evaluate(one, TASK, episodes=3, seed=3, num_envs=1, **options)
    assert one.starts == 3 * [[True], [False], [False], [False]]
    together = evaluate(two.act, TASK, episodes=3, seed=3, num_envs=2, **options)  # a bound method is a function too
    assert [starts[0] for starts in two.starts] == 2 * [True, False, False, False]
    assert together.returns == alone.returns
    forgetful = evaluate(lambda obs: np.full((len(obs), 1), -0.25), TASK, episodes=3, seed=3, **options)
    assert forgetful.returns != alone.returns


# ---------------------------------------------------------------- environments that stop


def test_environments_without_an_episode_rest(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of three episodes the first environment plays two, the second one; no clip of a fourth is loaded."""
    loaded: list[int] = []

    def generate(kind: str, clip: int, size: int, max_frames: int | None = None) -> torch.Tensor:
        loaded.append(clip)
        return torch.zeros(1, size, size, 3, dtype=torch.uint8)

    monkeypatch.setattr(backgrounds, "generate_clip", generate)
    options = {"renderer": "warp", "num_workers": 0, "action_repeat": 250, "image_size": 24}
    envs = sgqn.make_vec(TASK, 2, shift="video_hard", num_episodes=3, **options)
    envs.reset(seed=0)
    rewards, ends, episodes = [], [], []
    for step in range(14):
        _, reward, terminated, truncated, info = envs.step(np.full((2, 1), 0.1))
        rewards.append(reward)
        ends.append((terminated | truncated).tolist())
        episodes.append(info["episode_number"].tolist())
        if step == 5:  # a copy of a resting environment rests
            twin = sgqn.make_vec(TASK, 2, shift="video_hard", num_episodes=3, **options)
            twin.load_state_dict(envs.state_dict())
            assert twin.step(np.full((2, 1), 0.1))[1][1] == 0
            twin.close()
    assert [i for i, over in enumerate(ends) if any(over)] == [3, 7]
    assert ends[3] == [True, True]
    assert ends[7] == [True, False]
    assert episodes[-1] == [2, 1]
    awake = np.array(rewards)
    assert (awake[:8, 0] > 0).all()
    assert (awake[:4, 1] > 0).all()
    assert (awake[8:] == 0).all()
    assert (awake[4:, 1] == 0).all()
    assert sorted(set(loaded)) == [1, 2, 3]
    with pytest.raises(InvalidValueError, match="from 2 on"):
        envs.reset(options={"episode": 2})
    envs.close()
    with pytest.raises(InvalidValueError, match="too few"):
        sgqn.make_vec(TASK, 2, num_episodes=1, **options)


def test_a_program_may_end_while_clips_are_loaded() -> None:
    code = "from sgqn.envs.backgrounds import *; open_backgrounds('video_hard', 84).prefetch(range(9))"
    ended = subprocess.run([sys.executable, "-c", code], check=False, capture_output=True, text=True, timeout=120)
    assert (ended.returncode, ended.stderr) == (0, "")


# ---------------------------------------------------------------- the command


def lines_of(folder: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (folder / run_folder.EVALUATIONS).read_text().splitlines()]


def test_evaluate_records_what_it_found(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    args = ["--episodes", "2", "--seed", "5", "--renderer", "warp"]
    assert main(["evaluate", str(folder), "--shift", "train", "color_hard", "train", *args]) == 0
    table = capsys.readouterr().out
    lines = lines_of(folder)
    assert [line["shift"] for line in lines] == ["train", "color_hard"]
    assert [line["backgrounds"] for line in lines] == ["none", "generated"]
    for line in lines:
        assert (line["task"], line["step"], line["seed"], line["renderer"]) == (TASK, 100, 5, "warp")
        assert line["mean"] == pytest.approx(sum(line["returns"]) / 2)
        assert line["std"] == pytest.approx(abs(line["returns"][0] - line["returns"][1]) / 2)
        assert line["versions"].keys() >= {"python", "sgqn", "torch", "mujoco", "dm_control"}
        assert line["seconds"] > 0
        assert f"{line['mean']:.1f} ± {line['std']:.1f}" in table
    assert main(["evaluate", str(checkpoint.find(folder)), "--shift", "color_hard", *args, "--json"]) == 0
    (again,) = json.loads(capsys.readouterr().out)
    assert again == lines_of(folder)[2]
    assert again["returns"] == lines[1]["returns"]
    assert tuple(again["returns"]) == evaluate(sgqn.load_agent(folder), TASK, "color_hard", 2, 5, **LOCAL).returns


@pytest.mark.parametrize(
    ("args", "said"),
    [
        (["--shift", "video_medium"], "'video_medium'"),
        (["--shift", "train", "test1"], "unknown shift 'test1'"),
        (["--shift"], "shift"),
        (["--renderer", "vulkan"], "unknown renderer 'vulkan'"),
        (["--episodes", "0"], "episodes must be at least 1, not 0"),
        (["--episodes", "many"], "many"),
        (["--seed", "-1"], "seed must be a non-negative integer, not -1"),
        (["--device", "gpu"], "'gpu'"),
    ],
)
def test_bad_arguments_are_one_line_and_nothing_is_written(
    folder: Path, capsys: pytest.CaptureFixture[str], args: list[str], said: str
) -> None:
    run_folder.append_line(folder / run_folder.EVALUATIONS, {"shift": "train", "step": 1})
    before = (folder / run_folder.EVALUATIONS).read_bytes()
    assert said in fails(capsys, "evaluate", str(folder), *args)
    assert (folder / run_folder.EVALUATIONS).read_bytes() == before


def test_bad_runs_are_one_line(folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    empty = tmp_path / "empty"
    empty.mkdir()
    assert "no checkpoint here" in fails(capsys, "evaluate", str(empty))
    assert "no such folder" in fails(capsys, "evaluate", str(tmp_path / "nowhere"))
    (folder / run_folder.EVALUATIONS).mkdir()
    assert "could not be kept" in fails(capsys, "evaluate", str(folder))
    (folder / run_folder.EVALUATIONS).rmdir()
    weights = checkpoint.find(folder) / checkpoint.WEIGHTS
    weights.write_bytes(weights.read_bytes()[:-1])
    assert "truncated" in fails(capsys, "evaluate", str(folder))
    (folder / run_folder.CONFIG).unlink()
    for path in sorted(checkpoint.find(folder).iterdir()):
        path.unlink()
    assert "no checkpoint" in fails(capsys, "evaluate", str(folder))
    assert not list(empty.iterdir())


def test_a_half_written_line_stays_alone(folder: Path) -> None:
    """What a killed process left is neither gone on with nor touched."""
    log = folder / run_folder.EVALUATIONS
    left = b'{"step": 50, "shift": "train"}\n{"step": 100, "shi'
    log.write_bytes(left)
    assert main(["evaluate", str(folder), "--shift", "train", "--episodes", "1", "--renderer", "warp"]) == 0
    assert log.read_bytes().startswith(left + b"\n")
    assert [line["step"] for line in run_folder.read_lines(log)] == [50, 100]
    assert log.read_bytes().count(b"\n") == 3


def test_an_interrupted_evaluation_leaves_whole_lines(folder: Path) -> None:
    """Ctrl-C in the second shift: the first is there, the second is not, no process is left."""
    args = ["evaluate", str(folder), "--shift", "train", "video_hard", "--episodes", "6", "--renderer", "warp"]
    # Where the tests run in the background of a shell, Ctrl-C is ignored: not so here.
    code = "import signal, sys; signal.signal(signal.SIGINT, signal.default_int_handler); import sgqn.cli as c; "
    command = [sys.executable, "-c", code + "sys.exit(c.main(sys.argv[1:]))", *args]
    process = subprocess.Popen(command, stderr=subprocess.PIPE, text=True)
    deadline = time.monotonic() + 120
    while not (folder / run_folder.EVALUATIONS).exists() and process.poll() is None:
        assert time.monotonic() < deadline
        time.sleep(0.02)
    time.sleep(0.2)  # the second shift takes seconds
    workers = _children(process.pid)
    process.send_signal(signal.SIGINT)
    _, said = process.communicate(timeout=60)
    assert (process.returncode, said.strip()) == (130, "interrupted")
    assert [line["shift"] for line in lines_of(folder)] == ["train"]
    assert not [pid for pid in workers if os.path.exists(f"/proc/{pid}")]


def _children(pid: int) -> list[int]:
    path = Path(f"/proc/{pid}/task/{pid}/children")
    return [int(child) for child in path.read_text().split()] if path.exists() else []
