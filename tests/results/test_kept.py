"""Numbers in tables of the documentation equal the files they come from."""

from __future__ import annotations

import json
import re
import runpy
import statistics
from pathlib import Path
from typing import Any

import pytest

import sgqn
from sgqn import pretrained
from sgqn.agents import AGENTS
from sgqn.envs.families import find_task
from sgqn.export import candidates
from sgqn.pretrained import listing, package
from sgqn.results import paper
from sgqn.results.runs import find_runs
from sgqn.results.tables import headline

ROOT = Path(sgqn.__file__).parent.parent
pytestmark = pytest.mark.skipif(not (ROOT / "results").is_dir(), reason="installed without the repository")


@pytest.fixture
def in_repository(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(ROOT)


@pytest.mark.usefixtures("in_repository")
def test_tables_of_results_match_the_runs() -> None:
    script = runpy.run_path("docs/make_results.py")
    found = find_runs("results")
    assert not found.warnings
    for name in script["PAGES"]:
        assert script["page"](name, found.runs) == Path("docs", name).read_text(), "run `python docs/make_results.py`"


def test_every_pretrained_agent_has_a_run() -> None:
    """With its returns with OpenGL in all shifts that agents are tested in."""
    runs = [run for run in find_runs(ROOT / "results").runs if run.weights is not None]
    assert {run.weights for run in runs} == set(pretrained.available().values())
    for entry in listing.entries():
        shifts = {line["shift"] for line in entry["returns"] if line["renderer"] == "gl" and line["episodes"] >= 30}
        assert shifts >= {*find_task(entry["task"]).test_shifts}, entry["name"]


def test_every_pretrained_agent_is_the_best_kept_seed_by_training_return() -> None:
    runs = find_runs(ROOT / "results").runs
    for name, folder in pretrained.available().items():
        packed = package.read(folder)
        kept = candidates(runs, packed.config.task, packed.config.agent)
        assert packed.about["chosen_from"] == kept, f"run `sgqn export pretrained:{name} --runs results --out {folder}`"
        if AGENTS[packed.config.agent].copies:  # it has no returns of its own in training
            same = [run.seed for run in runs if (run.task, run.agent) == (packed.config.task, packed.config.agent)]
            assert same == [packed.config.seed], name
            continue
        assert max(kept, key=lambda run: run["training_return"])["seed"] == packed.config.seed, name


@pytest.mark.usefixtures("in_repository")
def test_tables_of_other_pages_match_the_runs() -> None:
    readme = Path("README.md").read_text()
    table = headline(find_runs("results").runs)
    assert table is not None
    for row in table.rows:
        cells = {cell.shift: cell for cell in row.cells if cell.ours and cell.paper}
        if row.cells[0].agent == "sgqn" and row.cells[0].task in paper.TASKS:
            both = (
                f"{cells[s].value_text()} ({cells[s].paper.mean:.0f})" for s in ("train", "video_easy", "video_hard")
            )
            assert f"| {row.cells[0].task} | {' | '.join(both)} |" in readme
    shifts = ("train", "color_hard", "video_easy", "video_hard")
    for agent in ("SGQN", "sgqn_restored"):
        rows = [row for row in table.rows if row.labels[1] == agent and row.cells[0].task in paper.TASKS]
        assert len(rows) == len(paper.TASKS)
        found = [[cell.ours.mean for row in rows for cell in row.cells if cell.shift == shift] for shift in shifts]
        assert f"| {agent} | {' | '.join(f'{statistics.mean(values):.0f}' for values in found)} |" in readme
    hard = {row.labels: next(cell for cell in row.cells if cell.shift == "video_hard") for row in table.rows}
    for agent in ("SVEA", "SAC"):
        cell = hard["walker-walk", agent]
        assert f"{cell.value_text()} ({cell.paper.mean:.0f})" in readme, agent


# ---------------------------------------------------------------- performance


@pytest.fixture
def performance(in_repository: None) -> dict[str, Any]:
    return runpy.run_path("docs/make_performance.py")


def test_tables_of_performance_match_the_benchmark_outputs(performance: dict[str, Any]) -> None:
    for name in performance["PAGES"]:
        assert performance["page"](name) == Path("docs", name).read_text(), "run `python docs/make_performance.py`"


def test_kernels_match_the_printed_ones(performance: dict[str, Any]) -> None:
    *largest, whole = performance["printed"]("gpu", "Kernels of one SGQN update")
    kernels = performance["kernels"]()
    assert len(largest) == 40
    for row, kernel in zip(largest, kernels[:40], strict=True):
        assert row["kernel"] == kernel.name[:100].strip()
        assert float(row["us"]) == pytest.approx(kernel.us, abs=0.051)
        assert row["launches"] == f"{kernel.launches:.1f}"
    assert whole["kernel"] == f"all {len(kernels)}"
    assert float(whole["us"]) == pytest.approx(sum(kernel.us for kernel in kernels), abs=0.1)
    assert whole["launches"] == f"{sum(kernel.launches for kernel in kernels):.1f}"


def test_every_kernel_has_a_group(performance: dict[str, Any]) -> None:
    group_of, groups = performance["group_of"], performance["KERNELS"]
    assert {group_of(kernel.name) for kernel in performance["kernels"]()} == set(groups)
    assert group_of("encoder_forwards") == "others"


@pytest.mark.usefixtures("in_repository")
def test_shares_of_masks_on_the_body_match_the_runs() -> None:
    page, readme = Path("docs/saliency.md").read_text(), Path("README.md").read_text()
    rows = re.findall(r"(?m)^\| ([\w-]+) \| (\w+) \| (\d+) % \((\d+) %\) \| (\d+) % \|$", page)
    for task, agent, *shown in rows:
        lines = Path("results", task, agent, "0", "saliency.jsonl").read_text().splitlines()
        (found,) = [line["means"] for line in map(json.loads, lines) if line["shift"] == "video_hard"]
        share, base = found["mask_share"], found["base_rate"]
        assert [round(100 * x) for x in (share, base, 1 - share)] == list(map(int, shown)), (task, agent)
        if task == "walker-walk":
            assert f"{found['change_least']:.2f}" in page
            assert agent != "sgqn" or f"{shown[0]} % in `video_hard`, where the body is {shown[1]} %" in readme
    measured = [path for path in Path("results").glob("*/*/0/saliency.jsonl") if '"video_hard"' in path.read_text()]
    assert {tuple(row[:2]) for row in rows} == {path.parts[1:3] for path in measured}
