from __future__ import annotations

import base64
import io
import os
import re
from pathlib import Path
from typing import Any

import av
import numpy as np
import pytest
import torch
from PIL import Image
from scipy.ndimage import binary_dilation

from sgqn import demo as showing
from sgqn import pretrained, run_folder
from sgqn.agents import build_agent
from sgqn.cli import main
from sgqn.demo import Demo, demo
from sgqn.demo import frames as drawn
from sgqn.demo.frames import GAP, HEADER, PANEL, TITLE
from sgqn.files import write_folder
from sgqn.inspect import drawing
from sgqn.pretrained.package import Package, pack
from sgqn.saliency import measure
from tests.helpers import TASK, fails, tiny_config, untrained_run
from tests.pages import parse

STEPS = 10


def packed(agent: str) -> Package:
    """An untrained agent with episodes of ten steps."""
    config = tiny_config(agent, {"rho": 0.9, "embedding_dim": 50, "decoder_filters": (16, 8)}, action_repeat=100)
    spec = run_folder.spec_of(config, 1)
    weights = build_agent(agent, spec, config.settings, seed=1 + (agent == "sac")).state_dict()
    return Package(config, spec, 1000, pack(weights, config), {"returns": []})


@pytest.fixture(scope="module")
def registry(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("registry")
    for agent in ("sgqn", "sac"):
        write_folder(folder / TASK / agent, packed(agent).files("a card"))
    return folder


@pytest.fixture(autouse=True)
def _packaged(registry: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pretrained, "FOLDER", registry)


@pytest.fixture(scope="module")
def shown(registry: Path, tmp_path_factory: pytest.TempPathFactory) -> Demo:
    return demo(registry / TASK / "sgqn", tmp_path_factory.mktemp("shown") / "demo", "color_hard")


def embedded(page: Path, kind: str) -> list[bytes]:
    found = re.findall(rf'src="data:{kind};base64,([^"]*)"', page.read_text())
    return [base64.b64decode(data) for data in found]


def test_the_command(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "new" / "demo"
    threads = torch.get_num_threads()
    assert main(["demo", "--task", TASK, "--agent", "sgqn", "--steps", "3", "--out", str(out)]) == 0
    said = capsys.readouterr().out
    assert torch.get_num_threads() == threads
    assert sorted(os.listdir(out)) == ["demo.webp", "index.html"]
    assert f"page: {out / 'index.html'}" in said
    assert f"animation: {out / 'demo.webp'}" in said
    assert re.search(r"return, first 3 of 10 steps +\d+ +\d+\s", said)
    assert re.search(r"share of the mask on the body +\d+ % +\d+ %\s", said)
    assert re.search(r"predicted mask against mask, IoU +\d\.\d\d +\d\.\d\d\s", said)
    assert "generated, not the benchmark's" in said
    text = (out / "index.html").read_text()
    assert "first 3 of 10 steps" in text
    assert f"sgqn evaluate pretrained:{TASK} --shift" in text
    (out / "index.html").write_text(text[:500])
    assert main(["demo", "--task", TASK, "--agent", "sac", "--steps", "1", "--out", str(out)]) == 0  # replaces it
    assert "first 1 of 10 steps" in (out / "index.html").read_text()


def test_the_numbers_are_those_of_evaluate_and_saliency(shown: Demo) -> None:
    for scene in shown.scenes:
        subject = shown.subject
        found = measure(
            subject.agent,
            TASK,
            scene.shift,
            episodes=1,
            every=1,
            curves=False,
            num_workers=0,
            action_repeat=subject.config.action_repeat,
        )
        numbers = scene.numbers
        assert numbers.score == pytest.approx(found.returns[0])
        assert scene.episode.truth is not None
        near = [binary_dilation(body.numpy(), np.ones((7, 7))) for body in scene.episode.truth.flatten(0, 1)]
        assert numbers.near_rate == pytest.approx(np.mean(near), rel=1e-4)
        for name in ("base_rate", "mask_share"):
            assert getattr(numbers, name) == pytest.approx(found.means[name], rel=1e-4)
        assert numbers.agreement == pytest.approx(found.means["agreement_iou"], rel=1e-4)
        assert 0 < numbers.base_rate < numbers.near_rate < 0.8
        masks = scene.images.mask  # of the newest frames
        shares = [(mask & body).sum() / mask.sum() for mask, body in zip(masks, near[2::3], strict=True)]
        assert numbers.near_share == pytest.approx(np.mean(shares), abs=0.1)


def test_the_parts_of_the_mask_off_the_body_add_up(shown: Demo) -> None:
    found = showing.web.off_body(shown.agents[0], "sgqn")
    parts = {name: int(found[name].removesuffix(" %")) for name in ("off", "near", "far")}
    assert parts["near"] + parts["far"] == parts["off"]
    assert parts["off"] == round(100 * (1 - shown.scenes[1].numbers.mask_share))
    assert f"{found['off']} of the mask" in shown.page.read_text()


def test_links_lead_to_the_paper_and_the_documentation(shown: Demo) -> None:
    page, _ = parse(shown.page)
    addresses = {link.text: link.attributes["href"] for link in page.all("a")}
    assert addresses["Paper"] == "https://arxiv.org/abs/2209.09203"
    docs = addresses["Documentation"]
    assert docs.startswith("https:") or (shown.page.parent / docs).resolve().name == "demo.md"
    assert docs.startswith("https:") or (shown.page.parent / docs).is_file()


# ---------------------------------------------------------------- two agents


@pytest.fixture(scope="module")
def pair(registry: Path, tmp_path_factory: pytest.TempPathFactory) -> Demo:
    both = [registry / TASK / agent for agent in ("sgqn", "sac")]
    return demo(both, tmp_path_factory.mktemp("pair") / "demo", "video_hard", steps=6, seed=3)


def test_two_agents_start_the_same_episodes(pair: Demo) -> None:
    one, other = pair.agents
    assert pair.names == ("sgqn", "sac")
    for mine, theirs in zip(one.scenes, other.scenes, strict=True):
        assert mine.shift == theirs.shift
        assert torch.equal(mine.episode.seen[0], theirs.episode.seen[0])  # start and background
        assert not torch.equal(mine.episode.actions[0], theirs.episode.actions[0])
    # The background plays on in the same way, whatever the agents do: away from the body, the last frames are equal.
    last, theirs = (agent.scenes[1].episode for agent in pair.agents)
    assert last.truth is not None
    assert theirs.truth is not None
    away = ~(last.truth[-1, -1] | theirs.truth[-1, -1])
    same = (last.seen[-1, -3:] == theirs.seen[-1, -3:]).all(dim=0)
    assert float(same[away].float().mean()) > 0.8
    assert not torch.equal(last.seen[-1], last.seen[0])


def test_two_agents_are_next_to_each_other(pair: Demo) -> None:
    frames = showing.Frames(pair)
    frame = np.asarray(frames.draw(4))
    assert frames.size == (2 * (2 * PANEL + GAP) + drawn.APART, TITLE + HEADER + 2 * (HEADER + PANEL))
    for agent, left in zip(pair.agents, (0, 2 * PANEL + GAP + drawn.APART), strict=True):
        for row, scene in enumerate(agent.scenes):
            top = TITLE + HEADER + row * (HEADER + PANEL) + HEADER
            seen = scene.images.observation[4]
            for column, image in enumerate((seen, drawing.overlaid(seen, scene.images.mask[4]))):
                x = left + column * (PANEL + GAP)
                true = np.asarray(Image.fromarray(image).resize((PANEL, PANEL), Image.Resampling.NEAREST))
                assert np.array_equal(frame[top : top + PANEL, x : x + PANEL], true)


def test_the_page_of_two_agents(pair: Demo) -> None:
    page, troubles = parse(pair.page)
    assert troubles == []
    body = [
        tuple(cell.text for cell in row.all() if cell.tag in ("th", "td")) for row in page.all("tbody")[0].all("tr")
    ]
    assert body == showing.table(pair)
    scores = [f"{scene.numbers.score:.0f}" for agent in pair.agents for scene in agent.scenes]
    assert body[0] == ("return, first 6 of 10 steps", *scores)
    assert body[-1][3:] == ("none", "none")  # SAC has no decoder
    commands = page.all("pre")[0].text
    assert f"sgqn watch {pair.agents[0].source} {pair.agents[1].source}" in commands
    assert len(page.all("img")) == 2 * 5 + 2 * 4


def test_the_packaged_agents_of_a_task_are_compared(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert showing.packaged(TASK) == [f"pretrained:{TASK}/sgqn", f"pretrained:{TASK}/sac"]
    assert main(["demo", "--task", TASK, "--steps", "1", "--out", str(tmp_path)]) == 0
    assert re.search(r"sgqn +sgqn +sac +sac", capsys.readouterr().out)
    commands = parse(tmp_path / "index.html")[0].all("pre")[0].text
    assert f"sgqn watch pretrained:{TASK} pretrained:{TASK}/sac" in commands
    assert showing.packaged("walker-walk") == ["pretrained:walker-walk"]


def test_agents_of_one_name_are_told_apart(registry: Path, tmp_path: Path) -> None:
    path = registry / TASK / "sac"
    assert demo([path, path], tmp_path, "video_easy", steps=1).names == (str(path), str(path))


def test_agents_that_cannot_be_compared(
    registry: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    path = str(registry / TASK / "sac")
    other = str(untrained_run(tmp_path / "other", tiny_config(task="walker-walk", action_repeat=100), action_dim=6))
    slower = str(untrained_run(tmp_path / "slower", tiny_config(action_repeat=50)))
    assert "different tasks, cartpole-swingup and walker-walk" in fails(capsys, "demo", "--run", path, other)
    assert "different action repeats" in fails(capsys, "demo", "--run", path, slower)
    assert "not 3" in fails(capsys, "demo", "--run", path, path, path)
    assert "--task" in fails(capsys, "demo", "--run", path, "--task", TASK)
    assert "--agent" in fails(capsys, "demo", "--run", path, "--agent", "sac")
    assert sorted(os.listdir(tmp_path)) == ["other", "slower"]


def test_the_table_has_the_numbers(shown: Demo) -> None:
    clean, other = (scene.numbers for scene in shown.scenes)
    rows = showing.table(shown)
    assert rows[0] == ("return", f"{clean.score:.0f}", f"{other.score:.0f}")
    assert rows[1][1:] == (f"{100 * clean.mask_share:.0f} %", f"{100 * other.mask_share:.0f} %")
    page, troubles = parse(shown.page)
    assert troubles == []
    body = page.all("tbody")[0].all("tr")
    assert [tuple(cell.text for cell in row.all() if cell.tag in ("th", "td")) for row in body] == rows


def test_the_page_needs_nothing_else(shown: Demo) -> None:
    text = shown.page.read_text()
    assert not re.search(r"<script|<link|@import|url\(", text)
    assert not re.search(r"https?:", re.sub(r'<a href="[^"]*">', "", text))  # links are followed by readers only
    sources = re.findall(r'src="([^"]*)"', text)
    assert len(sources) == 11  # a video, and five strips for each scene
    assert all(source.startswith("data:") for source in sources)
    assert "1,000 training steps, seed 0" in text
    assert "10 % of the pixels" in text
    assert "{" not in re.sub(r'"data:[^"]*"|(?s:<style>.*</style>)', "", text)


def test_the_video_shows_both_episodes(shown: Demo) -> None:
    (data,) = embedded(shown.page, "video/mp4")
    with av.open(io.BytesIO(data)) as video:
        stream = video.streams.video[0]
        assert stream.codec_context.name == "h264"
        assert stream.average_rate == shown.scenes[0].episode.fps
        pictures = [frame.to_ndarray(format="rgb24") for frame in video.decode(video=0)]
    assert len(pictures) == STEPS
    assert pictures[0].shape[1::-1] == (3 * (PANEL + GAP) - GAP, TITLE + 2 * (HEADER + PANEL))
    for row, scene in enumerate(shown.scenes):
        top = TITLE + row * (HEADER + PANEL) + HEADER
        for step in (0, 6, STEPS - 1):
            seen = scene.episode.seen[step, -3:].permute(1, 2, 0).numpy()
            assert scene.images.predicted is not None
            wanted = (seen, drawing.overlaid(seen, scene.images.mask[step]), drawing.grey(scene.images.predicted[step]))
            for column, picture in enumerate(wanted):
                left = column * (PANEL + GAP)
                true = np.asarray(Image.fromarray(picture).resize((PANEL, PANEL), Image.Resampling.NEAREST))
                drawn = pictures[step][top : top + PANEL, left : left + PANEL]
                assert np.abs(drawn.astype(float) - true).mean() < 14  # H.264, with colours at half the resolution


def test_strips_have_the_pictures_pixel_by_pixel(shown: Demo) -> None:
    strips = [np.asarray(Image.open(io.BytesIO(data))) for data in embedded(shown.page, "image/png")]
    moments = [0, 2, 4, 7, 9]
    for first, scene in zip((5, 0), shown.scenes, strict=True):  # the distracting scene comes first
        assert scene.episode.truth is not None
        kinds = {0: scene.images.observation, 2: 255 * scene.images.mask, 4: 255 * scene.episode.truth[:, -1].numpy()}
        for kind, pictures in kinds.items():
            for column, moment in enumerate(moments):
                cell = strips[first + kind][:, column * 27 : column * 27 + 24]
                wanted = pictures[moment]
                assert np.array_equal(cell, wanted if wanted.ndim == 3 else wanted[..., None].repeat(3, axis=2))


def test_the_animation(shown: Demo, monkeypatch: pytest.MonkeyPatch) -> None:
    with Image.open(shown.animation) as picture:
        assert picture.format == "WEBP"
        assert picture.n_frames == STEPS
        assert picture.info["loop"] == 0
        size = picture.size
    assert size == showing.Frames(shown).size
    monkeypatch.setattr(drawn, "MOST_BYTES", shown.animation.stat().st_size - 1)
    smaller = showing.Frames(shown).animation(lambda *_: None)
    assert len(smaller) < shown.animation.stat().st_size


def test_progress_is_reported_to_the_end(registry: Path, tmp_path: Path) -> None:
    last: dict[str, tuple[int, int]] = {}
    demo(registry / TASK / "sac", tmp_path, "video_easy", 2, report=lambda *r: last.__setitem__(r[0], r[1:]))
    assert list(last) == [
        *("clean scene: episode", "clean scene: where it looks"),
        *("video_easy: episode", "video_easy: where it looks", "video", "animation"),
    ]
    assert all(done == total for done, total in last.values())
    text = (tmp_path / "index.html").read_text()
    assert "predict" not in re.sub(r'"data:[^"]*"', "", text)  # SAC has no decoder


def test_without_an_encoder_the_page_has_the_animation(shown: Demo, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(av, "codecs_available", set())
    assert showing.Frames(shown).video(lambda *_: None) is None
    text = showing.page(shown, None, b"picture")
    assert f'src="data:image/webp;base64,{base64.b64encode(b"picture").decode()}"' in text
    assert "<video" not in text


def test_bad_input_is_one_line_and_leaves_nothing(
    registry: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    good = ("demo", "--task", TASK)
    there = f"there are {TASK}/sac, {TASK}"
    assert there in fails(capsys, "demo")
    assert there in fails(capsys, "demo", "--task", "walker-wlk")
    assert there in fails(capsys, *good, "--agent", "svea")
    assert "no such folder" in fails(capsys, "demo", "--run", "runs/none")
    assert "did you mean 'video_hard'" in fails(capsys, *good, "--shift", "video_hart")
    assert "choose a distracting one" in fails(capsys, *good, "--shift", "train")
    assert "at least 1" in fails(capsys, *good, "--steps", "0")
    assert "at most 10" in fails(capsys, *good, "--steps", "11")
    assert "seed" in fails(capsys, *good, "--seed", "-1")
    assert os.listdir(tmp_path) == []
    (tmp_path / "file").write_text("kept")
    assert "not a folder" in fails(capsys, *good, "--out", "file")
    assert (tmp_path / "file").read_text() == "kept"
    for name in ("index.html", "demo.webp"):
        (tmp_path / name).write_text("my own")
        assert "that is no demo" in fails(capsys, *good, "--out", ".")
        assert (tmp_path / name).read_text() == "my own"
        (tmp_path / name).unlink()


def test_a_browser_plays_it(shown: Demo, browser: Any) -> None:
    page = browser.new_page(viewport={"width": 420, "height": 800})
    said: list[str] = []
    page.on("console", lambda message: said.append(message.text))
    page.on("pageerror", lambda error: said.append(str(error)))
    page.goto(shown.page.resolve().as_uri())
    page.wait_for_function("document.querySelector('video').readyState >= 2")
    film = page.evaluate(
        "(({duration, videoWidth, videoHeight}) => [duration, videoWidth, videoHeight])"
        "(document.querySelector('video'))"
    )
    widths = page.evaluate("[...document.images].map(image => image.naturalWidth)")
    across = page.evaluate("document.documentElement.scrollWidth")
    page.close()
    assert film[0] == pytest.approx(STEPS / shown.scenes[0].episode.fps, abs=0.1)
    assert tuple(film[1:]) == showing.Frames(shown).size
    assert widths == [5 * 24 + 4 * 3] * 10
    assert across <= 420
    assert said == []
