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
from urllib.parse import unquote

import numpy as np
import pytest

import sgqn
from sgqn import run_folder
from sgqn.agents import AGENTS
from sgqn.cli import main
from sgqn.envs import families
from sgqn.envs.families import Defaults, Family
from sgqn.results import gallery, looking, paper
from sgqn.results import report as reports
from sgqn.results.document import Fold, Sheet, distinct_slugs
from sgqn.results.runs import find_runs
from sgqn.results.tables import CSV_COLUMNS, headline, tables
from tests.helpers import TASK, fails, tiny_config
from tests.pages import Element, parse
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

    def __init__(self, browser: Any, path: Path, width: int = 1280, **options: Any):
        self.troubles: list[str] = []
        self.page = browser.new_page(viewport={"width": width, "height": 900}, **options)
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


# ---------------------------------------------------------------- the page


def check_page(out: Path) -> Element:
    """What holds for every report: valid nesting, links that lead somewhere, no absolute path, nothing external."""
    page, troubles = parse(out / "index.html")
    assert troubles == []
    ids = {element.attributes.get("id") for element in page}
    for link in page.all("a"):
        target = link.attributes["href"]
        assert target.startswith("data:text/csv") or (target[0] == "#" and target[1:] in ids), target[:80]
    assert all(image.attributes["src"].startswith("data:image/png;base64,") for image in page.all("img"))
    assert all(image.attributes["alt"] for image in page.all("img"))
    assert not [element for element in page if element.tag in ("script", "iframe", "object", "form")]
    text = "".join((out / name).read_text() for name in ("index.html", "report.md", "report.json"))
    assert str(out.parent) not in text
    assert not re.search(r"(?:file:|src=.?/|href=.?/|(?<![\w<.:])/(?:tmp|home|root|work|usr|var|opt)/)", text)
    for table in page.all("table"):
        assert table.parent
        assert "scroll" in table.parent.classes
    return page


def rows_of(page: Element, name: str) -> list[dict[str, Any]]:
    """The rows of a table of results: `labels`, and for each column ours, the paper's and the difference."""
    table = next(element for element in page if element.attributes.get("id") == f"table-{name}")
    found = []
    for row in table.all("tbody")[0].all("tr"):
        cells: list[dict[str, str]] = []
        for cell in row.all("td"):
            if "column" in cell.classes or "ours" in cell.classes:
                cells.append({})
            parts = {kind: cell.first("span", kind) for kind in ("ours", "none", "paper", "difference", "count")}
            cells[-1] |= {kind: part.text for kind, part in parts.items() if part}
            cells[-1] |= {kind: cell.text for kind in ("paper", "difference") if kind in cell.classes and cell.text}
            if best := cell.first("span", "best"):
                cells[-1]["best"] = best.text
        found.append({"labels": [label.text for label in row.all("th")], "cells": cells})
    return found


def test_the_page_has_every_table_and_they_are_text_too(report: Path, nine: Path) -> None:
    page = check_page(report)
    runs = find_runs(nine).runs
    markdown = (report / "report.md").read_text()
    made = [*filter(None, [headline(runs)]), *tables(runs), *filter(None, [looking.saliency_table(runs)])]
    assert len(page.all(of_class="result")) == len(made)
    for table in made:
        rows = rows_of(page, table.name)
        texts = [[cell.value_text() for cell in row.cells] for row in table.rows]
        assert [row["labels"][: len(table.headers)] for row in rows] == [list(row.labels) for row in table.rows]
        for row, cells in zip(rows, texts, strict=True):
            shown = [cell.get("ours", cell.get("none")) for cell in row["cells"]]
            assert shown == ["–" if text in ("no run", "incomplete") else text for text in cells]
        assert f"### {table.title}\n" in markdown
        assert (report / "tables" / f"{table.name}.csv").exists()
    for grid in page.all("table", "grid"):  # plain tables
        for row in grid.all("tr"):
            cells = [cell.text for cell in row.all() if cell.tag in ("td", "th")]
            assert f"| {' | '.join(cells)} |".replace(">", "&gt;") in markdown


def test_summary_comes_first_and_the_rest_is_folded(report: Path) -> None:
    page = check_page(report)
    sections = page.all("section")
    assert [section.attributes["id"] for section in sections] == [
        "summary",
        "paper",
        "statistics",
        "curves",
        "saliency",
    ]
    results = [e.attributes["id"] for e in sections[0].all(of_class="result")]
    assert results == ["table-headline", "table-improvement", "table-interquartile_mean"]
    open_tables = [e for e in sections[1].all(of_class="result") if not e.inside("details")]
    assert [e.attributes["id"] for e in open_tables] == ["table-video"]
    missing = [line.text for line in sections[1].all("p", "missing")]
    assert missing == ["Action repeat 4 no evaluated run", "Robots no evaluated run"]
    charts = page.all(of_class="chart")
    deletion = [chart for chart in charts if chart.inside("details")]
    # the paper's scores in three shifts, three profiles, training and three shifts; four curves in each of two shifts
    assert (len(charts) - len(deletion), len(deletion)) == (3 + 3 + 4, 8)
    assert not [element for element in page.all("details") if "open" in element.attributes]


def test_gallery_images_are_in_the_page(report: Path, nine: Path) -> None:
    page = check_page(report)
    looks = page.all("figure", "looks")
    assert [look.attributes["id"] for look in looks] == [
        "figure-look-cartpole-swingup-train",
        "figure-look-cartpole-swingup-video-hard",
    ]
    for look in looks:
        assert [who.text.split(" seed")[0] for who in look.all("p", "who")] == list(reversed(paper.TITLES.values()))
        assert len(look.all("img")) + len(look.all("span", "empty")) == 9 * len(gallery.MOMENTS) * len(gallery.COLUMNS)
        assert len(look.all("img")) >= 9 * 2 * 3


def test_best_numbers_stand_out(report: Path, nine: Path) -> None:
    page = check_page(report)
    rows = rows_of(page, "headline")
    for j, shift in enumerate(SHIFTS):
        ours = {title: np.mean(means(nine, agent, shift)) for agent, title in paper.TITLES.items()}
        best = [row["labels"][1] for row in rows if "best" in row["cells"][j]]
        top = max(round(value) for value in ours.values())
        assert best == [title for title, value in ours.items() if round(value) == top]
    for row in rows_of(page, "video"):
        ours = [float(cell["ours"].split()[0]) for cell in row["cells"][:-1] if "ours" in cell]
        best = [float(cell["best"].split()[0]) for cell in row["cells"] if "best" in cell]
        assert set(best) == ({max(ours)} if ours else set())


def test_numbers_on_the_page_are_those_of_the_logs(report: Path, nine: Path) -> None:
    page = check_page(report)
    shown = {row["labels"][1]: row for row in rows_of(page, "headline")}
    assert list(shown) == list(paper.TITLES.values())
    for agent, title in paper.TITLES.items():
        for cell, shift in zip(shown[title]["cells"], SHIFTS, strict=True):
            ours = means(nine, agent, shift)
            assert cell["ours"] == f"{np.mean(ours):.0f}" + (f" ± {np.std(ours):.0f}" if len(ours) > 1 else "")
            assert shown[title]["labels"][-1] == f"n = {len(ours)}"
            printed = paper.score(TASK, agent, shift)
            if printed:
                assert cell["paper"] == f"{printed.mean:.0f} ± {printed.std:.0f}"
                assert cell["difference"] == f"{np.mean(ours) - printed.mean:+.0f}"
            else:
                assert "paper" not in cell
    sgqn = next(row for row in rows_of(page, "interquartile_mean") if row["labels"][0] == "SGQN")
    two = means(nine, "sgqn", "video_hard")
    low, high = sorted(two)
    assert sgqn["cells"][SHIFTS.index("video_hard")]["ours"] == f"{np.mean(two):.0f} [{low:.0f}, {high:.0f}]"


def test_saliency_on_the_page_is_that_of_the_record(report: Path, nine: Path) -> None:
    page = check_page(report)
    rows = rows_of(page, "saliency")
    heads = list(looking.MEASURES)
    assert [tuple(row["labels"][1:3]) for row in rows] == [
        ("train", "SAC"),
        ("train", "SGQN"),
        ("video_hard", "SAC"),
        ("video_hard", "SGQN"),
    ]
    lines = [json.loads(text) for text in (nine / TASK / "sgqn" / "0" / run_folder.SALIENCY).read_text().splitlines()]
    assert [entry["shift"] for entry in lines] == ["train", "video_hard"]
    for entry, row in zip(lines, rows[1::2], strict=True):
        for name in ("base_rate", "mass_share", "iou"):
            cell = row["cells"][heads.index(name)]
            assert cell["ours"] == f"{entry['means'][name]:.3f} ± {entry['errors'][name]:.3f}"
    assert "ours" not in rows[0]["cells"][heads.index("predicted_share")]  # SAC has no decoder


# ---------------------------------------------------------------- in the browser


def test_the_browser_complains_of_nothing(report: Path, browser: Any) -> None:
    opened = Opened(browser, report / "index.html")
    assert opened.troubles == []
    assert [url for url in opened.requests if not url.startswith("data:")] == [(report / "index.html").as_uri()]
    assert opened.ask("[...document.images].every(i => i.complete && i.naturalWidth == 24)")
    shown = "[...document.querySelectorAll('.chart svg')].filter(s => s.checkVisibility())"
    heights = opened.ask(f"{shown}.map(s => s.getBoundingClientRect().height)")
    assert len(heights) == 10
    assert min(heights) > 100


@pytest.mark.parametrize("width", [390, 1280])
def test_nothing_is_wider_than_the_window_but_what_scrolls_by_itself(report: Path, browser: Any, width: int) -> None:
    opened = Opened(browser, report / "index.html", width)
    opened.ask("document.querySelectorAll('details').forEach(d => d.open = true)")
    assert opened.ask("document.documentElement.scrollWidth") <= width
    outside = """[...document.querySelectorAll('main *')].filter(e => !e.closest('.scroll') &&
        e.getBoundingClientRect().right > innerWidth + 1).map(e => e.outerHTML.slice(0, 80))"""
    assert opened.ask(outside) == []


def test_a_dark_page_has_legible_charts(report: Path, browser: Any) -> None:
    """Colours of text and lines are as far from the ground as on a light page."""
    for scheme in ("light", "dark"):
        opened = Opened(browser, report / "index.html", color_scheme=scheme)
        ground = luminance(opened.ask("getComputedStyle(document.body).backgroundColor"))
        assert (ground > 0.9) == (scheme == "light")
        texts = opened.ask(
            "[...new Set([...document.querySelectorAll('.chart text')].map(e => getComputedStyle(e).fill))]"
        )
        lines = "[...document.querySelectorAll('.chart path[stroke]')].map(e => getComputedStyle(e).stroke)"
        for color, least in [*((c, 4.4) for c in texts), *((c, 2.4) for c in opened.ask(f"[...new Set({lines})]"))]:
            low, high = sorted((ground, luminance(color)))
            assert (high + 0.05) / (low + 0.05) > least, (scheme, color)


def luminance(color: str) -> float:
    """Of a CSS color, as WCAG defines it."""
    parts = [int(part) / 255 for part in re.findall(r"\d+", color)[:3]]
    linear = [part / 12.92 if part <= 0.03928 else ((part + 0.055) / 1.055) ** 2.4 for part in parts]
    return float(np.dot(linear, [0.2126, 0.7152, 0.0722]))


def test_paper_shows_folded_tables_but_not_all_charts(report: Path, browser: Any) -> None:
    opened = Opened(browser, report / "index.html")
    opened.page.emulate_media(media="print")
    assert opened.ask("document.querySelector('#table-ablation').getBoundingClientRect().height") > 100
    assert not opened.ask(
        "document.querySelector('[id^=figure-deletion]').checkVisibility({contentVisibilityAuto: true})"
    )
    assert opened.ask("getComputedStyle(document.querySelector('nav')).display") == "none"


def test_the_page_about_the_kept_runs_is_short(tmp_path: Path, browser: Any) -> None:
    """With the gallery of five tasks, which takes 2,300 pixels, it has less than 8,000."""
    kept = Path(sgqn.__file__).parent.parent / "results"
    if not kept.is_dir():
        pytest.skip("installed without the repository")
    assert main(["report", str(kept), "--out", str(tmp_path / "out"), "--no-images"]) == 0
    check_page(tmp_path / "out")
    opened = Opened(browser, tmp_path / "out" / "index.html")
    assert opened.ask("document.documentElement.scrollHeight") < 5700


# ---------------------------------------------------------------- Markdown, CSV, files


def test_markdown_links_to_every_file_and_every_file_is_linked(report: Path) -> None:
    text = (report / "report.md").read_text()
    linked = set(re.findall(r"\]\(([^)]+)\)", text))
    there = {str(path.relative_to(report)) for path in report.rglob("*") if path.is_file()}
    assert linked == there - {"index.html", "report.md", "report.json"}
    assert json.loads((report / "report.json").read_text())["files"] == sorted(there - {"report.json"})
    for path in (report / "images").glob("*.svg"):
        assert ET.parse(path).getroot().tag == "{http://www.w3.org/2000/svg}svg"


def test_markdown_has_the_sections_and_numbers_of_the_page(report: Path, nine: Path) -> None:
    text, page = (report / "report.md").read_text(), check_page(report)
    heads = [element.text for element in page if element.tag in ("h1", "h2", "h3", "h4")]
    assert re.findall(r"(?m)^#+ (.*)$", text) == heads
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
    for link in (link for link in check_page(report).all("a") if "download" in link.attributes):
        content = unquote(link.attributes["href"].removeprefix("data:text/csv;charset=utf-8,"))
        assert content == (report / "tables" / link.attributes["download"]).read_text()
        names.remove(link.attributes["download"].removesuffix(".csv"))
    assert not names


def test_summary_names_what_differs(report: Path) -> None:
    text = (report / "report.md").read_text()
    assert "11 runs · 1 task · 9 agents · up to 600 agent steps" in text
    assert "| cartpole-swingup | SGQN | 0, 1 | 600 | train, video_easy, video_hard | CPU |" in text
    assert "| agent steps | 500,000 (robots 250,000) | 600 |" in text
    assert "image_size 24 (paper 84)" in text
    assert "| backgrounds and colours | the benchmark's | generated |" in text
    assert "| SGQN | CPU |" in text  # hours per run
    assert "Action repeat 4: no evaluated run.\n\nRobots: no evaluated run.\n" in text


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
    assert main(["report", str(tmp_path / "runs"), "--out", str(tmp_path / "report"), "--no-images"]) == 0
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
    matrix, listed = [part for part in document.parts if isinstance(part, reports.Grid)][:2]
    assert matrix.headers == ("agent", "finger-spin", "walker-walk")
    assert matrix.rows[-1] == ("SGQN", "2 × 1,000 to 2,000", "2 × 1,000 to 2,000")
    assert len(listed.rows) == 18
    assert listed.rows[-1][-1] == f"{tmp_path.name}/walker-walk/sgqn"


def test_the_same_runs_make_the_same_bytes(report: Path, nine: Path, tmp_path: Path) -> None:
    assert main(["report", str(nine), "--out", str(tmp_path / "again"), "--no-images"]) == 0
    assert main(["report", str(nine), "--out", str(tmp_path / "more"), "--no-images"]) == 0
    for path in (tmp_path / "again").rglob("*.*"):
        assert path.read_bytes() == (tmp_path / "more" / path.relative_to(tmp_path / "again")).read_bytes()
    for path in (tmp_path / "again" / "tables").iterdir():
        assert path.read_bytes() == (report / "tables" / path.name).read_bytes()


# ---------------------------------------------------------------- names from outside


HOSTILE = "<script>alert(1)</script>"


@pytest.fixture
def hostile(tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Path:
    """A report about a run that is called what would be markup."""
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
    return out


def test_no_name_becomes_markup(hostile: Path) -> None:
    out, page = hostile, check_page(hostile)
    assert not page.all("img")
    assert any(HOSTILE in cell.text for cell in page.all("td"))
    text = (out / "report.md").read_text()
    assert "<script" not in text
    assert "<img" not in text
    assert "](javascript" not in text.replace("\\]", "")
    for row in re.findall(r"(?m)^\|.*$", text):
        assert row.count("|") - row.count("\\|") >= 3
    for path in (out / "images").glob("*.svg"):
        ET.parse(path)
        assert "<script" not in path.read_text()


def test_no_script_of_a_name_runs(hostile: Path, browser: Any) -> None:
    opened = Opened(browser, hostile / "index.html")
    assert opened.troubles == []
    assert opened.ask("document.scripts.length + document.images.length") == 0


def test_an_undecodable_folder_name_is_shown_as_well_as_it_can(tmp_path: Path) -> None:
    home = Path(os.fsdecode(os.fsencode(tmp_path) + b"/runs-\xff"))
    write_run(home, config_of("walker-walk", "sac", 0), [line("walker-walk", "train", [5.0])])
    assert main(["report", str(home), "--out", str(tmp_path / "out")]) == 0
    assert "runs-\N{REPLACEMENT CHARACTER}" in (tmp_path / "out" / "report.md").read_text()


# ---------------------------------------------------------------- the folder


@pytest.fixture
def one(tmp_path: Path) -> Path:
    """A run without a checkpoint."""
    lines = [line("walker-walk", "train", [5.0], step) for step in (1000, 2000)]
    return write_run(tmp_path / "runs", config_of("walker-walk", "sac", 0), lines)


def listing(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def test_an_earlier_report_is_replaced_and_nothing_else(one: Path, tmp_path: Path) -> None:
    out = tmp_path / "deep" / "report"
    assert main(["report", str(one), "--out", str(out)]) == 0
    first = listing(out)
    (out / "mine.txt").write_text("mine")
    (out / "images" / "mine.svg").write_text("mine")
    lines = [line("walker-walk", "video_hard", [9.0], 600_000)]
    other = write_run(tmp_path / "other", config_of("walker-walk", "sgqn", 0), lines)
    assert main(["report", str(other), "--out", str(out)]) == 0
    second = listing(out)
    assert second.pop("mine.txt") == second.pop("images/mine.svg") == b"mine"
    assert "images/curves-walker-walk-train.svg" in first.keys() - second.keys()
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
    for missing in ("has been evaluated yet", "No saliency has been measured", "No run has logged two points"):
        assert missing in text
    assert "evaluations.jsonl: 1 line passed over" in text
    assert not (folder / run_folder.SALIENCY).exists()
    assert any("runs/walker-walk/sac/0" in line.text for line in check_page(tmp_path / "out").all("li"))


def test_runs_of_several_folders_are_named_relative_to_them(one: Path, tmp_path: Path) -> None:
    lines = [line("walker-walk", "train", [6.0])]
    write_run(tmp_path / "other" / "runs", config_of("walker-walk", "sgqn", 0), lines)
    paths = [str(one), str(tmp_path / "other"), str(tmp_path / "gone")]
    assert main(["report", *paths, "--out", str(tmp_path / "out")]) == 0
    page = check_page(tmp_path / "out")
    cells = {cell.text for cell in page.all("td")}
    assert {f"{tmp_path.name}/{name}/walker-walk" for name in ("runs", "other/runs")} == {
        cell.rsplit("/", 2)[0] for cell in cells if "/walker-walk/" in cell
    }
    assert any("gone does not exist" in line.text for line in page.all("li"))


def test_a_damaged_checkpoint_is_left_out_of_the_gallery(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = write_tiny(tmp_path / "runs" / "a", tiny_config("sac"))
    (next(folder.glob("checkpoints/*")) / "weights.safetensors").write_bytes(b"short")
    assert main(["report", str(folder), "--out", str(tmp_path / "out")]) == 0
    assert "not in the gallery" in capsys.readouterr().err
    assert not list((tmp_path / "out" / "images").glob("*.png"))


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
    assert {what for what, _, _ in said} == {"images"}
    done = [step for _, step, _ in said]
    assert done == sorted(done)
    assert said[-1][1:] == (100, 100)
    assert len(said) > 10


def test_files_of_one_name_are_told_apart() -> None:
    assert distinct_slugs(["a b", "A-b", "a-b-2", "c", "a_b"]) == ["a-b", "a-b-2", "a-b-2-2", "c", "a-b-3"]
    long = "x" * 200
    assert len(set(distinct_slugs([long, f"{long}y"]))) == 2


def test_long_tables_and_galleries_of_the_training_scene_are_folded() -> None:
    kept = Path(sgqn.__file__).parent.parent / "results"
    if not kept.is_dir():
        pytest.skip("installed without the repository")
    found = find_runs(kept)
    shown = [Sheet(f"look-{n}", f"task {n}", "", b"", (), (), (), training=n % 2 == 0) for n in range(8)]
    folds = [part for part in reports.build(found, shown).parts if isinstance(part, Fold)]
    titles = {fold.title: fold for fold in folds}
    assert titles["In the training scene"].parts == tuple(shown[::2])
    assert "Ranking and probability of improvement" in titles
    assert "Saliency compared with the simulator's ground truth" in titles
    few = [part for part in reports.build(found, shown[:6]).parts if isinstance(part, Fold)]
    assert "In the training scene" not in {fold.title for fold in few}
