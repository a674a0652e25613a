"""`sgqn preview`, on an environment that counts."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import av
import numpy as np
import pytest
from PIL import Image

from sgqn.cli import main
from sgqn.inspect import preview
from tests.helpers import fails


class FakeEnv:
    """Frames whose red channel counts the steps; episodes of 50 steps."""

    metadata = {"renderer": "fake", "backgrounds": "generated", "render_fps": 10}  # noqa: RUF012

    def __init__(self) -> None:
        from gymnasium.spaces import Box

        self.action_space = Box(-1, 1, (2,), np.float32)
        self.time, self.closed = 0, False
        self.resets: list[int | None] = []

    def observe(self) -> np.ndarray:
        obs = np.zeros((9, 84, 84), np.uint8)
        obs[6], obs[7] = self.time, 200
        return obs

    def reset(self, seed: int | None = None, options: Any = None) -> tuple[np.ndarray, dict[str, Any]]:
        self.resets.append(seed)
        return self.observe(), {}

    def step(self, action: np.ndarray) -> tuple[np.ndarray, float, bool, bool, dict[str, Any]]:
        assert self.action_space.contains(action)
        self.time += 1
        return self.observe(), 0.5, False, self.time % 50 == 0, {}

    def close(self) -> None:
        self.closed = True


@pytest.fixture
def env(monkeypatch: pytest.MonkeyPatch) -> FakeEnv:
    made = FakeEnv()
    monkeypatch.setattr(preview, "make", lambda *_: made)
    return made


def test_preview_sheet(capsys: pytest.CaptureFixture[str], env: FakeEnv, tmp_path: Path) -> None:
    out = tmp_path / "sheet.png"
    assert main(["preview", "--task", "walker-walk", "--shift", "video_hard", "--out", str(out)]) == 0
    sheet = np.asarray(Image.open(out))
    assert sheet.shape == (3 * 252, 4 * 252, 3)
    assert [int(sheet[0, 252 * i, 0]) for i in range(4)] == [0, 5, 11, 16]
    assert tuple(sheet[-1, -1]) == (60, 200, 0)
    assert env.closed
    assert os.listdir(tmp_path) == ["sheet.png"]
    printed = capsys.readouterr().out
    for part in (str(out), "return 30.0", "renderer fake", "backgrounds generated"):
        assert part in printed


def test_preview_video(env: FakeEnv, tmp_path: Path) -> None:
    out = tmp_path / "video.mp4"
    assert main(["preview", "--out", str(out), "--steps", "7"]) == 0
    with av.open(str(out)) as container:
        frames = [frame.to_ndarray(format="rgb24") for frame in container.decode(video=0)]
    assert len(frames) == 8
    assert frames[0].shape == (336, 336, 3)
    assert abs(int(frames[0][100, 100, 1]) - 200) < 12
    assert os.listdir(tmp_path) == ["video.mp4"]


def test_preview_refuses_before_any_work(capsys: pytest.CaptureFixture[str], env: FakeEnv, tmp_path: Path) -> None:
    assert ".png or .mp4" in fails(capsys, "preview", "--out", str(tmp_path / "a.gif"))
    assert "does not exist" in fails(capsys, "preview", "--out", str(tmp_path / "no" / "a.png"))
    assert "steps must be at least 1, not 0" in fails(capsys, "preview", "--steps", "0")
    assert env.time == 0
    assert os.listdir(tmp_path) == []


def test_interrupted_preview_leaves_nothing(env: FakeEnv, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupt(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(preview, "draw_sheet", interrupt)
    assert main(["preview", "--out", str(tmp_path / "a.png"), "--steps", "1"]) == 130
    assert os.listdir(tmp_path) == []


def test_preview_of_an_unknown_task_is_one_line(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    line = fails(capsys, "preview", "--task", "walker-wlak", "--out", str(tmp_path / "a.png"))
    assert "did you mean 'walker-walk'" in line


def test_preview_of_a_real_task(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    out = tmp_path / "real.png"
    assert main(["preview", "--task", "cartpole-swingup", "--steps", "2", "--out", str(out)]) == 0
    assert np.asarray(Image.open(out)).std() > 5


def test_preview_continues_with_the_next_episode(env: FakeEnv) -> None:
    found = list(preview.random_frames(env, steps=120, seed=3))
    assert len(found) == 121
    assert [int(frame[0, 0, 0]) for frame, _ in found] == list(range(121))  # the start of a later episode is not shown
    assert sum(reward for _, reward in found) == 60
    assert env.resets == [3, None, None]
