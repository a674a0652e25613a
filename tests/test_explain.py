from __future__ import annotations

from pathlib import Path

import av
import numpy as np
import pytest
from PIL import Image

from sgqn import attribution, explain
from sgqn.cli import main
from sgqn.errors import InvalidValueError
from sgqn.explain import BAR, CELL, GAP, HEADER, LABELS, MARGIN, TITLE
from sgqn.inspect import Subject, drawing, play
from tests.helpers import fails, tiny_config, untrained_run

STEPS = 20  # in an episode of the runs below


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """Untrained agents with a decoder, without one, and one with a soft mask."""
    out = tmp_path_factory.mktemp("runs")
    configs = {
        "sgqn": tiny_config("sgqn"),
        "sac": tiny_config("sac", seed=1),
        "soft": tiny_config(settings={"mask": "soft"}),
        "restored": tiny_config("sgqn_restored", start_from="another agent"),
    }
    return {name: str(untrained_run(out / name, config)) for name, config in configs.items()}


def cell(sheet: np.ndarray, row: int, column: int, block: int = 0, rows: int = 3, columns: int = 5) -> np.ndarray:
    """One cell of a sheet, at the networks' resolution of 24 pixels."""
    x = MARGIN + block % 2 * (LABELS + columns * (CELL + GAP) + MARGIN) + LABELS + column * (CELL + GAP)
    y = TITLE + block // 2 * (BAR + HEADER + rows * (CELL + GAP)) + HEADER + row * (CELL + GAP)
    return sheet[y : y + CELL, x : x + CELL][3::7, 3::7]


def read(path: Path) -> np.ndarray:
    return np.asarray(Image.open(path))


# Sheets


def test_sheet_shows_what_the_library_computes(folders: dict[str, str], tmp_path: Path) -> None:
    out = tmp_path / "a.png"
    args = ["explain", folders["sgqn"], "--shift", "color_hard", "--frames", "3", "--rho", "0.9", "--out", str(out)]
    assert main(args) == 0
    sheet = read(out)
    assert sheet.shape[1::-1] == explain.sheet_size(1, 3)

    subject = Subject.load(folders["sgqn"])
    episode = play(subject, "color_hard")
    moments = [0, 10, 19]
    obs, actions = episode.seen[moments], episode.actions[moments]
    agent = subject.agent
    heat = attribution.guided_backprop(agent.value, obs, actions)
    mask = attribution.quantile_mask(heat, 0.9)
    magnitude = heat[:, -3:].abs().amax(dim=1).numpy()
    guess = agent.predict_mask(obs, actions)[:, -3:].mean(dim=1).numpy()
    for row in range(3):
        newest = obs[row, -3:].permute(1, 2, 0).numpy()
        salient = mask[row, -3:].permute(1, 2, 0).numpy()
        assert np.array_equal(cell(sheet, row, 0), newest)
        assert np.array_equal(cell(sheet, row, 1), drawing.inferno(magnitude[row] / np.percentile(magnitude, 99.5)))
        assert np.array_equal(cell(sheet, row, 2), 255 * salient)
        assert np.array_equal(cell(sheet, row, 3), newest * salient)
        assert np.array_equal(cell(sheet, row, 4), drawing.grey(guess[row]))
    assert len({cell(sheet, 0, column).tobytes() for column in range(5)}) == 5


def test_one_block_for_each_run_method_and_rho(folders: dict[str, str], tmp_path: Path) -> None:
    out = tmp_path / "a.png"
    options = (
        "--method",
        "gradient",
        "occlusion:window=12,stride=6",
        "--rho",
        "0.5",
        "0.9",
        "--frames",
        "2",
        "--out",
        str(out),
    )
    assert main(["explain", folders["sgqn"], folders["sac"], *options]) == 0
    sheet = read(out)
    assert sheet.shape[1::-1] == explain.sheet_size(8, 2)
    blocks = [[cell(sheet, 1, column, block, rows=2) for column in range(5)] for block in range(8)]
    for block in blocks:
        assert np.array_equal(block[0], blocks[0][0])  # all agents are shown the same moment
    for low, high in zip(blocks[::2], blocks[1::2], strict=True):
        assert np.array_equal(low[1], high[1])  # rho changes the mask, not the attribution
        assert 0.09 < (high[2] > 0).mean() < (low[2] > 0).mean()
    assert len({block[1].tobytes() for block in blocks}) == 4
    pale = [(block[4] == drawing.PALE).all(axis=-1).mean() for block in blocks]
    assert max(pale[:4]) < 0.5 < 0.9 < min(pale[4:])  # those of SAC say "no decoder"


def test_one_block_for_each_shift_with_the_same_moments(folders: dict[str, str], tmp_path: Path) -> None:
    """The actions of the first shift are played in all: the same states, drawn differently."""
    out = tmp_path / "a.png"
    shifts = ("--shift", "train", "color_hard", "train", "video_hard")
    assert main(["explain", folders["sgqn"], *shifts, "--out", str(out)]) == 0
    sheet = read(out)
    assert sheet.shape[1::-1] == explain.sheet_size(3, 2)
    subject = Subject.load(folders["sgqn"], "cpu")
    actions = play(subject, "train", 0, "auto").actions
    for block, shift in enumerate(("train", "color_hard", "video_hard")):
        seen = play(subject, shift, 0, "auto", actions=actions).seen
        for row, step in ((0, 0), (1, 19)):
            shown = seen[step, -3:].permute(1, 2, 0).numpy()
            assert np.array_equal(cell(sheet, row, 0, block, rows=2), shown)


def test_the_same_seed_gives_the_same_bytes(folders: dict[str, str], tmp_path: Path) -> None:
    def bytes_of(seed: str) -> bytes:
        args = ["explain", folders["sac"], "--seed", seed, "--shift", "color_hard", "--out", str(tmp_path / "a.png")]
        assert main(args) == 0
        return (tmp_path / "a.png").read_bytes()

    one = bytes_of("3")
    assert bytes_of("3") == one
    assert bytes_of("4") != one


def test_an_agent_with_a_soft_mask_is_shown_with_it(folders: dict[str, str], tmp_path: Path) -> None:
    out = tmp_path / "a.png"
    assert main(["explain", folders["soft"], "--shift", "train", "--frames", "1", "--out", str(out)]) == 0
    subject = Subject.load(folders["soft"])
    episode = play(subject, "train", count=1)
    heat = attribution.guided_backprop(subject.agent.value, episode.seen, episode.actions)
    mask = attribution.soft_mask(heat)[0, -1].numpy()
    sheet = read(out)
    assert len(np.unique(mask)) > 2
    assert np.array_equal(cell(sheet, 0, 2, rows=1), drawing.grey(mask))
    newest = episode.seen[0, -3:].permute(1, 2, 0).numpy()
    assert np.array_equal(cell(sheet, 0, 3, rows=1), (newest * mask[..., None]).round())


def test_what_a_restorer_returns_is_a_further_column(folders: dict[str, str], tmp_path: Path) -> None:
    """Other agents of the same sheet show their observation there."""
    out = tmp_path / "a.png"
    assert main(["explain", folders["restored"], folders["sgqn"], "--frames", "2", "--out", str(out)]) == 0
    sheet = read(out)
    assert sheet.shape[1::-1] == explain.sheet_size(2, 2, range(6))
    subject = Subject.load(folders["restored"])
    restored = subject.agent.restored(play(subject, "video_hard").seen[:1])
    assert restored is not None
    seen, shown = (cell(sheet, 0, column, 0, 2, 6) for column in (0, 1))
    assert np.array_equal(shown, restored[0, -3:].round().byte().permute(1, 2, 0).numpy())
    assert not np.array_equal(shown, seen)
    assert all(np.array_equal(cell(sheet, 0, column, 1, 2, 6), seen) for column in (0, 1))

    video = tmp_path / "a.mp4"
    assert main(["explain", folders["restored"], "--frames", "1", "--out", str(video)]) == 0
    with av.open(str(video)) as opened:
        frame = next(opened.decode(video=0)).to_ndarray(format="rgb24")
    assert frame.shape[1::-1] == explain.video_size(1, range(5))


# Videos


def test_video_has_a_frame_for_each_step(folders: dict[str, str], tmp_path: Path) -> None:
    out = tmp_path / "a.mp4"
    assert main(["explain", folders["sgqn"], folders["sac"], "--shift", "train", "--out", str(out)]) == 0
    with av.open(str(out)) as video:
        rate = video.streams.video[0].average_rate
        frames = [frame.to_ndarray(format="rgb24") for frame in video.decode(video=0)]
    assert rate == 2  # an action lasts 50 control steps of 0.01 s
    assert len(frames) == STEPS
    assert frames[0].shape[1::-1] == explain.video_size(2)
    subject = Subject.load(folders["sgqn"])
    episode = play(subject, "train")
    top = TITLE + HEADER
    for step in (0, 7, STEPS - 1):
        shown = frames[step][top : top + explain.PANEL, MARGIN : MARGIN + explain.PANEL]
        true = np.asarray(Image.fromarray(episode.seen[step, -3:].permute(1, 2, 0).numpy()).resize(shown.shape[:2], 0))
        assert np.abs(shown.astype(float) - true).mean() < 12  # H.264, with colours at half the resolution


def test_video_of_the_first_steps(folders: dict[str, str], tmp_path: Path) -> None:
    out = tmp_path / "a.mp4"
    assert main(["explain", folders["sac"], "--frames", "5", "--rho", "0.5", "0.9", "0.98", "--out", str(out)]) == 0
    with av.open(str(out)) as video:
        assert len([*video.decode(video=0)]) == 5


# Bad input


def test_bad_input_is_one_line_and_leaves_everything(
    folders: dict[str, str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "a.png"
    out.write_text("kept")

    def says(*args: str, where: Path = out) -> str:
        message = fails(capsys, "explain", *args, "--out", str(where))
        assert out.read_text() == "kept"
        assert [path for path in tmp_path.iterdir() if path.suffix != ""] == [out]
        return message

    good = folders["sac"]
    assert "at least one run" in says()
    assert "no such folder" in says(str(tmp_path / "none"))
    (tmp_path / "empty").mkdir()
    assert "no checkpoint" in says(str(tmp_path / "empty"))
    assert "no checkpoint" in says(good, str(tmp_path / "empty"))
    assert "did you mean 'rise'" in says(good, "--method", "guided_backprop", "rice")
    assert "did you mean 'video_hard'" in says(good, "--shift", "video_hart")
    assert "unknown renderer 'vulkan'" in says(good, "--renderer", "vulkan")
    for rho in ("1", "-0.1", "nan"):
        assert "rho must lie in [0, 1)" in says(good, "--rho", "0.9", rho)
    assert "frames must be at least 1" in says(good, "--frames", "0")
    assert f"frames must be at most {STEPS}" in says(good, "--frames", str(STEPS + 1))
    assert "seed" in says(good, "--seed", "-1")
    assert "unknown device" in says(good, "--device", "tpu")
    for name in ("a.gif", "a"):
        assert "must end in .png or .mp4" in says(good, where=tmp_path / name)
    for name in ("a.png", "a.mp4"):
        assert "there is no folder" in says(good, where=tmp_path / "nowhere" / name)


def test_runs_of_different_tasks_are_not_compared(
    folders: dict[str, str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    def other(**changes: object) -> str:
        run = untrained_run(tmp_path / "-".join(changes), tiny_config("sac", **changes))
        return fails(capsys, "explain", folders["sgqn"], str(run), "--out", str(tmp_path / "a.png"))

    assert "cartpole-swingup and cartpole-balance" in other(task="cartpole-balance")
    assert "action repeats" in other(action_repeat=25)
    assert not (tmp_path / "a.png").exists()


@pytest.mark.parametrize("suffix", ["png", "mp4"])
def test_a_failure_while_drawing_leaves_nothing(
    folders: dict[str, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, suffix: str
) -> None:
    def fail(*_: object) -> None:
        raise InvalidValueError("no ink")

    monkeypatch.setattr(explain, "_draw_header", fail)
    (tmp_path / f"a.{suffix}").write_text("kept")
    assert main(["explain", folders["sac"], "--frames", "2", "--out", str(tmp_path / f"a.{suffix}")]) == 2
    assert [path.read_text() for path in tmp_path.iterdir()] == ["kept"]
