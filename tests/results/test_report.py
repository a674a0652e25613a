"""The whole report: what `sgqn report` writes, opened in a real browser, its numbers computed again from the logs."""

from __future__ import annotations

import csv
import io
import json
import os
import re
import time
import xml.etree.ElementTree as ET
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from sgqn import run_folder
from sgqn.agents import AGENTS
from sgqn.cli import main
from sgqn.envs import families
from sgqn.envs.families import Defaults, Family
from sgqn.results import gallery, paper
from sgqn.results import report as reports
from sgqn.results.document import distinct_slugs
from sgqn.results.runs import find_runs
from sgqn.results.tables import CSV_COLUMNS, headline, tables
from tests.helpers import TASK, fails, tiny_config
from tests.results.samples import SHIFTS, STEPS, config_of, line, write_run, write_tiny


@pytest.fixture(scope="module")
def report(nine: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The report about the tiny runs of the paper's nine agents, made by the command, in less than a minute."""
    out = tmp_path_factory.mktemp("made") / "report"
    started = time.monotonic()
    assert main(["report", str(nine), "--out", str(out)]) == 0
    assert time.monotonic() - started < 60
    return out


class Opened:
    """A page in the browser, and all that went wrong with it."""

    def __init__(self, browser: Any, path: Path, width: int = 1280):
        self.troubles: list[str] = []
        self.page = browser.new_page(viewport={"width": width, "height": 900})
        self.page.on("console", lambda message: self.troubles.append(message.text))
        self.page.on("pageerror", lambda error: self.troubles.append(str(error)))
        self.page.on("dialog", lambda dialog: self.troubles.append(f"dialog {dialog.message}"))
        self.page.on("requestfailed", lambda request: self.troubles.append(f"failed {request.url[:100]}"))
        self.requests: list[str] = []
        self.page.on("request", lambda request: self.requests.append(request.url))
        self.page.goto(path.absolute().as_uri())
        self.page.wait_for_load_state("networkidle")

    def ask(self, script: str) -> Any:
        return self.page.evaluate(script)

    def text(self, selector: str) -> list[str]:
        return [text.strip() for text in self.page.locator(selector).all_inner_texts()]


def means(nine: Path, agent: str, shift: str) -> list[float]:
    """From the raw lines: each seed's mean return after the last step."""
    found = []
    for path in sorted((nine / TASK / agent).glob("*/evaluations.jsonl")):
        lines = [json.loads(text) for text in path.read_text().splitlines()]
        (last,) = [entry for entry in lines if entry["shift"] == shift and entry["step"] == STEPS[-1]]
        found.append(sum(last["returns"]) / len(last["returns"]))
    return found


# ---------------------------------------------------------------- in the browser


def test_the_page_shows_everything_and_complains_of_nothing(report: Path, nine: Path, browser: Any) -> None:
    opened = Opened(browser, report / "index.html")
    assert opened.troubles == []
    assert [url for url in opened.requests if not url.startswith("data:")] == [(report / "index.html").as_uri()]
    sizes = opened.ask("[...document.images].map(i => i.complete ? [i.naturalWidth, i.naturalHeight] : [0, 0])")
    assert len(sizes) == 2  # train and video_hard
    assert all(min(size) > 100 for size in sizes)
    broken = "[...document.querySelectorAll('a[href^=\"#\"]')].filter(a => !document.getElementById(a.hash.slice(1)))"
    assert opened.ask(f"{broken}.length") == 0
    assert opened.ask("document.querySelectorAll('a[href^=\"#\"]').length") > 15
    ids = opened.ask("[...document.querySelectorAll('[id]')].map(e => e.id)")
    assert len(ids) == len(set(ids))

    runs = find_runs(nine).runs
    expected = [headline(runs), *tables(runs)]
    for table in filter(None, expected):
        rows = opened.ask(f"document.querySelectorAll('#table-{table.name} tbody tr').length")
        assert rows == len(table.rows), table.name
        cells = opened.ask(f"document.querySelectorAll('#table-{table.name} tbody td').length")
        assert cells == len(table.rows) * len(table.columns), table.name
    assert opened.ask("document.querySelectorAll('#table-saliency tbody tr').length") == 4
    charts = opened.ask("[...document.querySelectorAll('.chart svg')].map(s => s.getBoundingClientRect().height)")
    # paper's scores in three shifts, three profiles, training and three shifts, four curves in each of two shifts
    assert len(charts) == 3 + 3 + 4 + 8
    assert min(charts) > 100


@pytest.mark.parametrize("width", [400, 1280])
def test_nothing_is_wider_than_the_window_but_what_scrolls_by_itself(report: Path, browser: Any, width: int) -> None:
    opened = Opened(browser, report / "index.html", width)
    assert opened.ask("document.documentElement.scrollWidth") <= width
    outside = """[...document.querySelectorAll('main *')].filter(e => !e.closest('.scroll') &&
        e.getBoundingClientRect().right > innerWidth + 1).map(e => e.outerHTML.slice(0, 80))"""
    assert opened.ask(outside) == []


def test_numbers_on_the_page_are_those_of_the_logs(report: Path, nine: Path, browser: Any) -> None:
    opened = Opened(browser, report / "index.html")
    heads = opened.text("#table-headline thead th")
    assert heads == ["task", "agent", *SHIFTS]
    shown = {row[1]: row[2:] for row in opened.ask(ROWS.format("headline"))}
    assert list(shown) == list(paper.TITLES.values())
    for agent, title in paper.TITLES.items():
        for cell, shift in zip(shown[title], SHIFTS, strict=True):
            ours = means(nine, agent, shift)
            expected = f"{np.mean(ours):.0f}" + (f" ± {np.std(ours):.0f}" if len(ours) > 1 else "")
            assert cell["ours"] == expected
            assert cell["count"] == f"n = {len(ours)}"
            printed = paper.score(TASK, agent, shift)
            if printed:
                assert cell["paper"] == f"{printed.mean:.0f} ± {printed.std:.0f}"
                assert cell["difference"].replace("−", "-") == f"{np.mean(ours) - printed.mean:+.0f}"
            else:
                assert cell["paper"] is None
    sgqn = next(row for row in opened.ask(ROWS.format("interquartile_mean")) if row[0] == "SGQN")
    two = means(nine, "sgqn", "video_hard")
    low, high = sorted(two)
    assert sgqn[1 + SHIFTS.index("video_hard")]["ours"] == f"{np.mean(two):.0f} [{low:.0f}, {high:.0f}]"


ROWS = """[...document.querySelectorAll('#table-{} tbody tr')].map(r => [...r.cells].map(c => c.tagName == 'TH' ?
    c.innerText : Object.fromEntries(['ours', 'count', 'paper', 'difference'].map(
        n => [n, c.querySelector('.' + n)?.innerText ?? null]))))"""


def test_saliency_on_the_page_is_that_of_the_record(report: Path, nine: Path, browser: Any) -> None:
    opened = Opened(browser, report / "index.html")
    heads = opened.text("#table-saliency thead th")
    rows = opened.ask(ROWS.format("saliency"))
    assert [(row[1], row[2]) for row in rows] == [
        ("train", "SAC"),
        ("train", "SGQN"),
        ("video_hard", "SAC"),
        ("video_hard", "SGQN"),
    ]
    lines = [json.loads(text) for text in (nine / TASK / "sgqn" / "0" / run_folder.SALIENCY).read_text().splitlines()]
    assert [entry["shift"] for entry in lines] == ["train", "video_hard"]
    for entry, row in zip(lines, rows[1::2], strict=True):
        for name, title in {"base_rate": "base rate", "mass_share": "mass on body", "iou": "IoU"}.items():
            cell = row[heads.index(title)]["ours"].replace("−", "-")
            assert cell == f"{entry['means'][name]:.3f} ± {entry['errors'][name]:.3f}"
    sac = rows[0][heads.index("IoU ceiling") + 1]
    assert sac["ours"] is None  # it has no decoder


# ---------------------------------------------------------------- Markdown, CSV, files


def test_markdown_links_to_every_file_and_every_file_is_linked(report: Path) -> None:
    text = (report / "report.md").read_text()
    linked = set(re.findall(r"\]\(([^)]+)\)", text))
    there = {str(path.relative_to(report)) for path in report.rglob("*") if path.is_file()}
    assert linked == there - {"index.html", "report.md", "report.json"}
    assert json.loads((report / "report.json").read_text())["files"] == sorted(there - {"report.json"})
    for path in (report / "pictures").glob("*.svg"):
        assert ET.parse(path).getroot().tag == "{http://www.w3.org/2000/svg}svg"


def test_markdown_has_the_sections_and_numbers_of_the_page(report: Path, nine: Path) -> None:
    text, page = (report / "report.md").read_text(), (report / "index.html").read_text()
    heads = re.findall(r"<h[1234]>(.*?)</h[1234]>", page)
    assert re.findall(r"(?m)^#+ (.*)$", text) == [head.replace("&#x27;", "'") for head in heads]
    two = means(nine, "sgqn", "video_hard")
    assert f"{np.mean(two):.0f} ± {np.std(two):.0f} (n = 2)" in text


def test_every_table_is_a_csv_that_the_page_has_too(report: Path, nine: Path) -> None:
    runs = find_runs(nine).runs
    names = {"headline", "saliency", *(table.name for table in tables(runs))}
    assert {path.stem for path in (report / "tables").iterdir()} == names
    assert {"video", "ablation", "svea_soda", "hours", "interquartile_mean", "improvement", "gap"} <= names
    for path in (report / "tables").iterdir():
        rows = list(csv.DictReader(io.StringIO(path.read_text())))
        assert rows
        assert tuple(rows[0]) == CSV_COLUMNS
        assert {row["table"] for row in rows} == {path.stem}
    rows = list(csv.DictReader(io.StringIO((report / "tables" / "headline.csv").read_text())))
    (sgqn,) = [row for row in rows if (row["agent"], row["shift"]) == ("sgqn", "video_hard")]
    assert float(sgqn["ours_mean"]) == pytest.approx(np.mean(means(nine, "sgqn", "video_hard")))
    page = (report / "index.html").read_text()
    assert page.count("data:text/csv") == len(names)


def test_summary_names_what_differs(report: Path) -> None:
    text = (report / "report.md").read_text()
    assert "11 runs · 1 task · 9 agents · up to 600 agent steps" in text
    assert "| cartpole-swingup | SGQN | 0, 1 | 600 | train, video_easy, video_hard | CPU |" in text
    assert "| agent steps | 500,000 (robots 250,000) | 600 |" in text
    assert "image_size 24 (paper 84)" in text
    assert "| backgrounds and colours | the benchmark's | generated |" in text
    assert "| SGQN | CPU |" in text  # hours per run
    assert "No evaluated run has a number for: Action repeat 4, Robots." in text


def test_kept_runs_of_robots_are_shown_beside_the_papers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """With a stand-in for the family, from folders to the page, next to a run of another family."""

    class Robots(Family):
        name = "robot"
        tasks = paper.ROBOT_TASKS
        shift_texts = dict.fromkeys(paper.ROBOT_SHIFTS, "")

        def defaults(self, task: str) -> Defaults:
            return Defaults(evaluate_shifts=("train", "test1"))

    families.families()  # the package's own first, which the stand-in replaces
    monkeypatch.setitem(families._families, "robot", Robots())
    scores = {
        ("robot-reach", "sgqn"): (31.8, 20.0, 31.0, 29.0),
        ("robot-reach", "svea"): (32.0, -17.6, -2.1, 1.4),
        ("robot-peg_in_box", "sgqn"): (183.9, -72.04, 110.7, 154.6),
    }
    for (task, agent), returns in scores.items():
        lines = [line(task, s, [r], 250_000) for s, r in zip(paper.ROBOT_SHIFTS, returns, strict=True)]
        write_run(tmp_path / "runs", config_of(task, agent, 0), lines)
    write_run(tmp_path / "runs", config_of("walker-walk", "sgqn", 0), [line("walker-walk", "video_hard", [700.0])])
    assert main(["report", str(tmp_path / "runs"), "--out", str(tmp_path / "report"), "--no-pictures"]) == 0
    rows = list(csv.DictReader(io.StringIO((tmp_path / "report" / "tables" / "robots.csv").read_text())))
    found = {(row["task"], row["shift"], row["column"]): row for row in rows}
    cell = found["robot-reach", "test1", "sgqn"]
    assert (float(cell["ours_mean"]), float(cell["paper_mean"]), float(cell["paper_std"])) == (20.0, 14.4, 14)
    assert float(cell["difference"]) == pytest.approx(5.6)
    assert float(found["robot-reach", "average", "sgqn"]["ours_mean"]) == pytest.approx(80 / 3)
    assert found["robot-peg_in_box", "test1", "svea"]["ours_mean"] == ""
    text = (tmp_path / "report" / "report.md").read_text()
    assert "| -72.0 (n = 1)<br>paper -72.0 ± 14.0<br>difference 0.0 |" in text.replace("+0.0", "0.0")
    assert "| test1 | robot-reach | SGQN 20.0 &gt; SVEA -17.6 | SGQN 14.4 &gt; SVEA -17.6 | yes |" in text
    assert "| train | robot-reach | SVEA 32.0 &gt; SGQN 31.8 | SVEA 32.2 &gt; SGQN 31.8 | yes |" in text
    means = (tmp_path / "report" / "tables" / "interquartile_mean.csv").read_text()
    assert "test1" not in means  # returns of another range


def test_of_many_runs_the_summary_has_an_overview(tmp_path: Path) -> None:
    for task in ("walker-walk", "finger-spin"):
        for agent in paper.TITLES:
            for seed in range(2 if agent == "sgqn" else 1):
                write_run(tmp_path, config_of(task, agent, seed), [line(task, "train", [1.0], 1000 * (1 + seed))])
    document = reports.build(find_runs(tmp_path))
    assert document.sections[-1].name == "runs"
    grids = [part for part in document.parts if isinstance(part, reports.Grid)]
    matrix, listed = grids[0], grids[-1]
    assert matrix.headers == ("agent", "finger-spin", "walker-walk")
    assert matrix.rows[-1] == ("SGQN", "2 × 1,000 to 2,000", "2 × 1,000 to 2,000")
    assert len(listed.rows) == 18
    assert listed.rows[-1][-1] == str(tmp_path / "walker-walk" / "sgqn")


def test_the_same_runs_make_the_same_bytes(report: Path, nine: Path, tmp_path: Path) -> None:
    assert main(["report", str(nine), "--out", str(tmp_path / "again"), "--no-pictures"]) == 0
    assert main(["report", str(nine), "--out", str(tmp_path / "more"), "--no-pictures"]) == 0
    for path in (tmp_path / "again").rglob("*.*"):
        assert path.read_bytes() == (tmp_path / "more" / path.relative_to(tmp_path / "again")).read_bytes()
    for path in (tmp_path / "again" / "tables").iterdir():
        assert path.read_bytes() == (report / "tables" / path.name).read_bytes()


# ---------------------------------------------------------------- names from outside


HOSTILE = "<script>alert(1)</script>"


def test_no_name_becomes_markup(
    tmp_path: Path, browser: Any, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    agent = HOSTILE.replace("/", "")
    monkeypatch.setitem(AGENTS._things, agent, AGENTS["sgqn"])
    monkeypatch.setitem(AGENTS._origins, agent, "sgqn.agents")
    home = tmp_path / f'"><img src=x onerror=alert(2)> {HOSTILE[:8]}|`[a](b)'
    shift = f"{HOSTILE}|*x* [y](javascript:alert(3))"
    lines = [line("walker-walk", name, [5.0]) for name in ("train", shift, "video_hard")]
    lines[2]["backgrounds"] = lines[2]["renderer"] = HOSTILE
    folder = write_run(home, config_of("walker-walk", agent, 0), lines)
    config = json.loads((folder / "config.json").read_text())
    config["versions"]["torch"] = config["machine"]["device"] = f"{HOSTILE}\x00\ud800"
    (folder / "config.json").write_text(json.dumps(config))
    with open(folder / "evaluations.jsonl", "a") as file:
        file.write("{")  # a warning with the path in it
    out = tmp_path / "out"
    assert main(["report", str(home), "--out", str(out)]) == 0
    capsys.readouterr()
    page = (out / "index.html").read_text()
    assert "<script" not in page
    assert "<img" not in page
    assert "&lt;script&gt;alert(1)&lt;/script&gt;" in page
    text = (out / "report.md").read_text()
    assert "<script" not in text
    assert "<img" not in text
    assert "](javascript" not in text.replace("\\]", "")
    for row in re.findall(r"(?m)^\|.*$", text):
        assert row.count("|") - row.count("\\|") >= 3
    for path in (out / "pictures").glob("*.svg"):
        ET.parse(path)
        assert "<script" not in path.read_text()
    opened = Opened(browser, out / "index.html")
    assert opened.troubles == []
    assert opened.ask("document.scripts.length + document.images.length") == 0
    assert any(HOSTILE in text for text in opened.text("#summary td"))


def test_an_undecodable_folder_name_is_shown_as_well_as_it_can(tmp_path: Path) -> None:
    home = Path(os.fsdecode(os.fsencode(tmp_path) + b"/runs-\xff"))
    write_run(home, config_of("walker-walk", "sac", 0), [line("walker-walk", "train", [5.0])])
    assert main(["report", str(home), "--out", str(tmp_path / "out")]) == 0
    assert "runs-\N{REPLACEMENT CHARACTER}" in (tmp_path / "out" / "report.md").read_text()


# ---------------------------------------------------------------- the folder


@pytest.fixture
def one(tmp_path: Path) -> Path:
    """A run without a checkpoint."""
    return write_run(tmp_path / "runs", config_of("walker-walk", "sac", 0), [line("walker-walk", "train", [5.0])])


def listing(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def test_an_earlier_report_is_replaced_and_nothing_else(one: Path, tmp_path: Path) -> None:
    out = tmp_path / "deep" / "report"
    assert main(["report", str(one), "--out", str(out)]) == 0
    first = listing(out)
    (out / "mine.txt").write_text("mine")
    (out / "pictures" / "mine.svg").write_text("mine")
    lines = [line("walker-walk", "video_hard", [9.0], 600_000)]
    other = write_run(tmp_path / "other", config_of("walker-walk", "sgqn", 0), lines)
    assert main(["report", str(other), "--out", str(out)]) == 0
    second = listing(out)
    assert second.pop("mine.txt") == second.pop("pictures/mine.svg") == b"mine"
    assert "pictures/curves-walker-walk-train.svg" in first.keys() - second.keys()
    assert "SGQN" in second["report.md"].decode()
    assert main(["report", str(other), "--out", str(tmp_path / "fresh")]) == 0
    assert second == listing(tmp_path / "fresh")


def test_a_marker_cannot_make_the_report_remove_other_files(one: Path, tmp_path: Path) -> None:
    out = tmp_path / "report"
    out.mkdir()
    (tmp_path / "precious.csv").write_text("kept")
    wanted = ["../precious.csv", "tables/../../precious.csv", str(tmp_path / "precious.csv"), 3]
    (out / "report.json").write_text(json.dumps({"made_by": "sgqn report", "files": wanted}))
    assert main(["report", str(one), "--out", str(out)]) == 0
    assert (tmp_path / "precious.csv").read_text() == "kept"


@pytest.mark.parametrize("marker", [None, "{", "[]", '{"made_by": "another"}', '{"made_by": "sgqn report"}'])
def test_a_folder_with_other_things_is_refused(
    one: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], marker: str | None
) -> None:
    out = tmp_path / "report"
    out.mkdir()
    (out / "index.html").write_text("mine")
    if marker is not None:
        (out / "report.json").write_text(marker)
    before = listing(out)
    assert "holds no earlier report" in fails(capsys, "report", str(one), "--out", str(out))
    assert listing(out) == before
    assert "it is a file" in fails(capsys, "report", str(one), "--out", str(out / "index.html"))
    assert "no earlier report" in fails(capsys, "report", str(one), "--out", str(one))  # the run itself


def test_a_failure_leaves_the_earlier_report(one: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    out = tmp_path / "report"
    assert main(["report", str(one), "--out", str(out)]) == 0
    before = listing(out)

    def fail(*_: object) -> None:
        raise OSError("no ink")

    monkeypatch.setattr(reports.html_page, "to_page", fail)
    assert main(["report", str(one), "--out", str(out)]) == 2
    assert listing(out) == before


def test_bad_input_is_one_line_and_writes_nothing(
    one: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    def says(*args: str) -> str:
        message = fails(capsys, "report", *args, "--out", str(tmp_path / "out"))
        assert not (tmp_path / "out").exists()
        return message

    (tmp_path / "empty").mkdir()
    assert "no run in" in says(str(tmp_path / "empty"))
    assert "does not exist" in says(str(tmp_path / "gone"))
    assert "no folder of runs" in says()
    assert "did you mean 'video_hard'" in says(str(one), "--shift", "video_hart")
    (one / "config.json").write_text('{"task": ')
    assert "config.json is damaged" in says(str(one))


# ---------------------------------------------------------------- what is missing is said


def test_a_run_without_checkpoint_or_evaluation_is_reported_all_the_same(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = write_run(tmp_path / "runs", config_of("walker-walk", "sac", 0))
    (folder / "evaluations.jsonl").write_text('{"step": 10, "ret')
    assert main(["report", str(folder), "--out", str(tmp_path / "out"), "--saliency"]) == 0
    warnings = capsys.readouterr().err.splitlines()
    assert len(warnings) == 2
    assert "evaluations.jsonl: 1 line passed over: half-written, or not JSON" in warnings[0]
    assert "has no checkpoint" in warnings[1]
    text = (tmp_path / "out" / "report.md").read_text()
    for missing in ("has been evaluated yet", "No saliency has been measured", "No run has finished an episode"):
        assert missing in text
    assert "evaluations.jsonl: 1 line passed over" in text
    assert not (folder / run_folder.SALIENCY).exists()


def test_a_damaged_checkpoint_is_left_out_of_the_gallery(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = write_tiny(tmp_path / "runs" / "a", tiny_config("sac"))
    (next(folder.glob("checkpoints/*")) / "weights.safetensors").write_bytes(b"short")
    assert main(["report", str(folder), "--out", str(tmp_path / "out")]) == 0
    assert "not in the gallery" in capsys.readouterr().err
    assert not list((tmp_path / "out" / "pictures").glob("*.png"))


# ---------------------------------------------------------------- the gallery


def test_one_run_of_each_agent_is_looked_into(nine: Path) -> None:
    runs = find_runs(nine).runs
    chosen = gallery.choose(runs)
    assert chosen[0].agent == "sgqn"
    assert {run.agent for run in chosen} == set(paper.TITLES)
    assert all(run.seed == 0 for run in chosen)
    assert gallery.choose([]) == []


def test_a_sheet_shows_what_explain_computes(nine: Path) -> None:
    """Both an agent that sees the played episode itself and one that crops get their own observations."""
    from sgqn import inspect

    runs = {run.agent: run for run in gallery.choose(find_runs(nine).runs)}
    moments = np.array([3, 7])
    played = inspect.play(inspect.Subject.load(runs["sgqn"].path), "train", renderer="warp", count=8)
    for agent in ("sac", "rad"):
        subject = inspect.Subject.load(runs[agent].path)
        own = inspect.play(subject, "train", renderer="warp", count=8, actions=played.actions)
        look = inspect.look_at(subject.agent, own.seen[moments], own.actions[moments], "guided_backprop")
        wanted = look.images(0.98)
        seen = own if agent == "rad" else played
        row = gallery._look(subject, seen, moments)
        assert np.array_equal(row.images.observation, wanted.observation)
        assert np.array_equal(row.images.mask, wanted.mask)
        assert np.allclose(row.images.attribution, wanted.attribution, rtol=1e-3, atol=1e-9)
        sheet = np.asarray(gallery.draw([row], moments))
        left = gallery.NAMES + 4 * (gallery.CELL + gallery.GAP) - gallery.GAP + gallery.BETWEEN
        picture = sheet[gallery.HEAD :, left:][: gallery.CELL, : gallery.CELL]
        assert np.array_equal(picture[3::7, 3::7], row.images.observation[1])


def test_progress_is_one_bar_for_each_kind_of_work(nine: Path, tmp_path: Path) -> None:
    said: list[tuple[str, int, int]] = []
    path = nine / TASK / "sac" / "0"
    reports.report([path], tmp_path / "out", ["train"], renderer="warp", on_part=lambda *part: said.append(part))
    assert {what for what, _, _ in said} == {"pictures"}
    done = [step for _, step, _ in said]
    assert done == sorted(done)
    assert said[-1][1:] == (100, 100)
    assert len(said) > 10


def test_files_of_one_name_are_told_apart() -> None:
    assert distinct_slugs(["a b", "A-b", "a-b-2", "c", "a_b"]) == ["a-b", "a-b-2", "a-b-2-2", "c", "a-b-3"]
    long = "x" * 200
    assert len(set(distinct_slugs([long, f"{long}y"]))) == 2
