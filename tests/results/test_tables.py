from __future__ import annotations

import csv
import io
import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from sgqn.config import preset
from sgqn.envs import families
from sgqn.envs.families import Family
from sgqn.results import paper
from sgqn.results.paper import AVERAGE, Score
from sgqn.results.runs import Run, RunEvaluation, find_runs
from sgqn.results.tables import (
    CSV_COLUMNS,
    INCOMPLETE,
    MARGIN,
    NO_ANSWER,
    NO_RUN,
    OTHERS,
    TITLES,
    UNDEFINED,
    Cell,
    ResultTable,
    Value,
    headline,
    headlines,
    left_out,
    orders,
    tables,
    to_csv,
    to_markdown,
)
from tests.results.samples import config_of, line, write_run


def run_with(
    task: str,
    agent: str,
    seed: int,
    returns: dict[str, float],
    *,
    step: int = 500_000,
    renderer: str = "gl",
    backgrounds: str = "dmcgb:video_hard (100 of 100 clips)",
    seconds: float = 0.0,
    **options: Any,
) -> Run:
    """A run with one episode in each shift."""
    evaluations = tuple(
        RunEvaluation(task, shift, 0, renderer, "none" if shift == "train" else backgrounds, (value,), step)
        for shift, value in returns.items()
    )
    name = "-".join([task, agent, str(seed), *map(str, options.items())])
    steps = step if seconds else 0
    return Run(Path(name), config_of(task, agent, seed, **options), evaluations, steps=steps, seconds=seconds)


def table_of(runs: list[Run], name: str) -> ResultTable:
    return next(table for table in tables(runs) if table.name == name)


def cell_of(table: ResultTable, task: str, shift: str, column: str) -> Cell:
    (cell,) = [c for c in table.cells if (c.task, c.shift, c.column) == (task, shift, column)]
    return cell


def footnotes_of(table: ResultTable, cell: Cell) -> list[str]:
    return [table.footnotes[number - 1] for number in cell.notes]


# ---------------------------------------------------------------- cells by hand


def test_a_cell_by_hand(tmp_path: Path):
    """From folders on the disk to the printed cell."""
    for seed, mean in enumerate([900.0, 920.0, 940.0, 960.0, 980.0]):
        lines = [line("walker-walk", "video_easy", [mean - 10, mean + 10])]
        lines[0]["backgrounds"] = "dmcgb:video_easy (10 of 10 clips)"
        write_run(tmp_path, config_of("walker-walk", "sgqn", seed), lines)
    table = table_of(find_runs(tmp_path).runs, "video")
    cell = cell_of(table, "walker-walk", "video_easy", "sgqn")
    assert cell.ours is not None
    assert cell.ours.mean == 940
    assert cell.ours.std == pytest.approx(math.sqrt(800))  # of -40, -20, 0, 20, 40
    assert cell.seeds == 5
    assert cell.paper == Score(910, 24)
    assert cell.difference == 30
    assert cell.notes == ()
    assert (cell.ours_text(), cell.paper_text(), cell.difference_text()) == ("940 ± 28 (n = 5)", "910 ± 24", "+30")
    assert "| 940 ± 28 (n = 5)<br>paper 910 ± 24<br>difference +30 |" in to_markdown(table)


def test_missing_cells_say_so():
    table = table_of([run_with("walker-walk", "sgqn", 0, {"video_easy": 900})], "video")
    assert len(table.cells) == 12 * 7  # six agents and the margin; ten rows and two averages
    assert sum(cell.ours is not None for cell in table.cells) == 1
    cell = cell_of(table, "walker-walk", "video_hard", "sgqn")
    assert (cell.ours_text(), cell.difference_text(), cell.paper) == (NO_RUN, "", Score(739, 21))
    assert "| no run<br>paper 739 ± 21 |" in to_markdown(table)
    one = cell_of(table, "walker-walk", "video_easy", "sgqn")
    assert one.ours == Value(900.0)  # one run has no deviation
    assert one.ours_text() == "900 (n = 1)"


def test_tables_without_runs_are_left_out_but_named():
    assert tables([]) == []
    assert left_out([]) == list(TITLES.values())
    found = tables([run_with("walker-walk", "drq", 0, {"video_easy": 1.0})])
    assert [table.name for table in found] == ["video", "action_repeat", "interquartile_mean"]
    assert set(left_out(found)) == {TITLES[name] for name in TITLES if name not in {table.name for table in found}}
    assert set(TITLES) >= {table.name for table in paper.tables()}


def test_rows_stand_as_in_the_paper():
    runs = [
        run_with("walker-walk", "sgqn", 0, {"video_easy": 1.0}),
        run_with("walker-walk", "sac", 0, {"train": 1.0}),
    ]
    video = [row.labels for row in table_of(runs, "video").rows]
    assert video[5] == (AVERAGE, "video_easy")
    assert video[11] == (AVERAGE, "video_hard")
    assert video[:5] == [(task, "video_easy") for task in paper.TASKS]
    ablation = [row.labels for row in table_of(runs, "ablation").rows]
    assert ablation[15:] == [(AVERAGE, shift) for shift in paper.SHIFTS]
    assert ablation[:2] == [("walker-walk", "train"), ("walker-walk", "video_easy")]


def test_averages_only_where_all_tasks_are_there():
    means = dict(zip(paper.TASKS, [100.0, 200.0, 300.0, 400.0, 500.0], strict=True))
    runs = [
        run_with(task, "svea", seed, {"video_hard": mean + offset})
        for task, mean in means.items()
        for seed, offset in enumerate((-10, 10))
    ]
    average = cell_of(table_of(runs, "video"), AVERAGE, "video_hard", "svea")
    assert average.ours == Value(300.0)  # the paper prints no deviation here
    assert (average.seeds, len(average.runs)) == (2, 10)
    assert average.paper == Score(468)
    assert average.difference == -168
    fewer = cell_of(table_of(runs[1:], "video"), AVERAGE, "video_hard", "svea")
    assert fewer.seeds == 1
    missing = cell_of(table_of(runs[2:], "video"), AVERAGE, "video_hard", "svea")
    assert missing.ours_text() == INCOMPLETE
    assert cell_of(table_of(runs, "video"), AVERAGE, "video_easy", "svea").ours_text() == NO_RUN


def test_margin_and_percentages_by_hand():
    scores = {"sac": 100.0, "drq": 200.0, "rad": 300.0, "soda": 400.0, "svea": 500.0, "sgqn": 600.0}
    runs = [run_with("walker-walk", agent, 0, {"video_hard": mean}) for agent, mean in scores.items()]
    margin = cell_of(table_of(runs, "video"), "walker-walk", "video_hard", MARGIN)
    assert margin.ours == Value(100.0)
    assert margin.percent == pytest.approx(20)
    assert (margin.paper, margin.paper_percent) == (Score(354), 92)
    assert (margin.ours_text(), margin.paper_text()) == ("+100, 20 % (n = 1)", "+354, 92 %")
    assert cell_of(table_of(runs[1:], "video"), "walker-walk", "video_hard", MARGIN).ours_text() == INCOMPLETE
    ablation = table_of(runs, "ablation")
    sgqn = cell_of(ablation, "walker-walk", "video_hard", "sgqn")
    assert sgqn.percent == pytest.approx(500)
    assert sgqn.paper_text() == "739 ± 21, +505 %"
    assert cell_of(ablation, "walker-walk", "video_hard", "sac").percent is None


def test_our_scores_equal_to_the_papers_give_its_own_margins():
    """The paper's cells as runs: differences vanish, margins are those its print should have."""
    table = paper.table("video")
    runs = [
        run_with(
            task, column.agent, 0, {row.shift: row.scores[column.name].mean for row in table.rows if row.task == task}
        )
        for task in table.tasks
        for column in table.columns
    ]
    ours = table_of(runs, "video")
    assert all(cell.difference == 0 for cell in ours.cells if cell.quantity == "score" and cell.task != AVERAGE)
    for cell in ours.cells:
        if cell.quantity == "margin" and cell.task != AVERAGE:
            assert cell.difference == 0
            assert cell.percent is not None
            assert round(cell.percent) == cell.paper_percent
    soda = cell_of(ours, AVERAGE, "video_easy", "soda")
    assert (soda.ours, soda.paper) == (Value(840.0), Score(836))
    assert "The paper prints 836, its cells give 840." in footnotes_of(ours, soda)


# ---------------------------------------------------------------- which runs go where


def test_action_repeat_and_rho_send_runs_to_their_tables():
    shift = "video_hard"
    own = run_with("cartpole-swingup", "sgqn", 0, {shift: 500})
    four = run_with("cartpole-swingup", "sgqn", 0, {shift: 400}, action_repeat=4)
    loose = run_with("cartpole-swingup", "sgqn", 0, {shift: 300}, rho=0.95)
    walker = run_with("walker-walk", "sgqn", 0, {shift: 700})
    odd = run_with("cartpole-swingup", "sgqn", 0, {shift: 200}, rho=0.5)
    runs = [own, four, loose, walker, odd]

    def ours(table: str, task: str, column: str = "sgqn") -> float | None:
        value = cell_of(table_of(runs, table), task, shift, column).ours
        return value and value.mean

    assert ours("video", "cartpole-swingup") == 500
    assert ours("svea_soda", "cartpole-swingup") == 500
    assert ours("action_repeat", "cartpole-swingup") == 400
    assert ours("rho", "cartpole-swingup", "rho_0.98") == 500
    assert ours("rho", "cartpole-swingup", "rho_0.95") == 300
    assert ours("video", "walker-walk") == ours("action_repeat", "walker-walk") == 700  # its own repeat is 4
    assert ours("rho", "ball_in_cup-catch", "rho_0.95") is None
    other = table_of(runs, "other")
    assert other.columns == ("SGQN, ρ = 0.5",)
    assert [cell.ours for cell in other.cells] == [Value(200.0)]


@pytest.mark.usefixtures("_agents_of_others")
def test_what_the_paper_has_no_place_for_is_shown_all_the_same():
    runs = [
        run_with("cheetah-run", "sgqn", 0, {"video_hard": 10.0}),
        run_with("walker-walk", "svea", 0, {"color_hard": 20.0, "video_hard": 30.0}),
        run_with("walker-walk", "my_agent", 0, {"video_hard": 40.0}),
    ]
    other = table_of(runs, "other")
    found = {(cell.task, cell.shift, cell.agent): cell.ours.mean for cell in other.cells if cell.ours}
    assert found == {
        ("cheetah-run", "video_hard", "sgqn"): 10.0,
        ("walker-walk", "color_hard", "svea"): 20.0,
        ("walker-walk", "video_hard", "my_agent"): 40.0,
        ("walker-walk", "video_hard", "svea"): 30.0,  # the paper's tables have it too: here it fills up the row
    }
    assert all(len(row.cells) == len(other.columns) for row in other.rows)


def test_robots_average_over_their_test_scenes(monkeypatch: pytest.MonkeyPatch):
    class Robots(Family):
        name = "robot"
        tasks = paper.ROBOT_TASKS

    families.families()  # the package's own first, which the stand-in replaces
    monkeypatch.setitem(families._families, "robot", Robots())
    runs = [
        run_with(
            "robot-reach", "sgqn", seed, {"train": 30, "test1": 9 + d, "test2": 20 + d, "test3": 31 + d}, step=250_000
        )
        for seed, d in enumerate((-1, 1))
    ]
    robots = table_of(runs, "robots")
    average = cell_of(robots, "robot-reach", AVERAGE, "sgqn")
    assert average.ours == Value(20.0, 1.0)  # of the runs' own averages, 19 and 21
    assert average.paper == Score(24.9, 6)
    assert average.ours_text() == "20.0 ± 1.0 (n = 2)"
    assert average.difference_text() == "-4.9"
    assert not any("steps" in note for note in robots.footnotes)  # the robots train for 250,000
    assert {table.name for table in tables(runs)} == {"robots"}  # their rewards belong into no mean over tasks


def test_success_rates_by_hand():
    def with_successes(seed: int, solved: tuple[bool, ...]) -> Run:
        run = run_with("robot-reach", "sgqn", seed, {"train": 30.0, "test1": 10.0}, step=250_000)
        found = tuple(replace(one, successes=solved) for one in run.evaluations)
        return replace(run, evaluations=found)

    others = [run_with("walker-walk", "sgqn", 0, {"train": 900.0})]
    runs = [with_successes(0, (True, True, True, False)), with_successes(1, (True, False, False, False)), *others]
    table = table_of(runs, "success")
    assert [row.labels for row in table.rows] == [("robot-reach", "train"), ("robot-reach", "test1")]
    cell = cell_of(table, "robot-reach", "train", "SGQN")
    assert cell.ours == Value(50.0, 25.0)
    assert cell.ours_text() == "50 ± 25 (n = 2)"
    assert "success" not in {table.name for table in tables(others)}


def test_hours_are_measured_and_say_how_many_steps():
    runs = [
        run_with("walker-walk", "sgqn", 0, {}, step=100_000, seconds=1800),
        run_with("finger-spin", "sgqn", 0, {}, step=100_000, seconds=5400),
        run_with("walker-walk", "sgqn", 1, {}, step=40_000, seconds=9000),  # not as far: says nothing
        run_with("walker-walk", "drq", 0, {}, step=500_000, seconds=7200),
    ]
    table = table_of(runs, "hours")
    hours, steps = table.rows[-1].cells
    assert table.rows[-1].labels == ("SGQN", "not recorded")
    assert (hours.ours, hours.paper, hours.difference) == (Value(1.0, 0.5), Score(15), -14)
    assert hours.ours_text() == "1.00 ± 0.50 (2 tasks, 2 runs)"
    assert hours.paper_text() == "about 15"
    assert (steps.ours, steps.paper) == (Value(100_000), Score(500_000))
    assert footnotes_of(table, hours) == ["Fewer steps than the paper's 500,000: 100,000."]
    drq = next(row for row in table.rows if row.labels[0] == "DrQ").cells[0]
    assert (drq.ours, drq.paper, drq.notes) == (Value(2.0), None, ())
    named = [replace(run, machine={"device": name}) for run, name in zip(runs, ("H200", "CPU", "TPU", ""), strict=True)]
    labels = dict(row.labels for row in table_of(named, "hours").rows)
    assert (labels["SGQN"], labels["DrQ"], labels["SAC"]) == ("CPU, H200", "not recorded", "")
    assert {row.labels[0] for row in table.rows} == {paper.TITLES[agent] for agent in (*paper.HOURS, "drq")}


# ---------------------------------------------------------------- footnotes


def test_footnotes_say_what_is_not_the_papers():
    plain = [run_with("walker-walk", "sac", seed, {"video_hard": 1}) for seed in range(5)]
    short = run_with("walker-walk", "sgqn", 0, {"video_hard": 1}, step=600, renderer="warp", backgrounds="generated")
    few = run_with("walker-walk", "svea", 0, {"video_hard": 1}, backgrounds="dmcgb:video_hard (3 of 100 clips)")
    small = run_with("walker-walk", "soda", 0, {"video_hard": 1}, image_size=48)
    table = table_of([*plain, short, few, small], "video")

    def notes(agent: str) -> set[str]:
        return set(footnotes_of(table, cell_of(table, "walker-walk", "video_hard", agent)))

    seeds = "Fewer seeds than the paper's 5."
    assert notes("sac") == set()
    assert notes("sgqn") == {
        "Fewer steps than the paper's 500,000: 600.",
        "Generated backgrounds or colours: not the benchmark.",
        "Images by another renderer than gl, the benchmark's own: warp.",
        seeds,
    }
    assert notes("svea") == {seeds, "Not all of the benchmark's clips: 3 of 100 clips."}
    assert notes("soda") == {seeds, "Other settings than the paper's: image_size."}
    markdown = to_markdown(table)
    for number, text in enumerate(table.footnotes, 1):
        assert f"\n{number}. {text}" in markdown


def test_notes_of_all_numbers_are_said_once():
    few = [run_with("walker-walk", "sac", 0, {"video_easy": 1, "video_hard": 2}, renderer="warp")]
    short = run_with("walker-walk", "sgqn", 0, {"video_hard": 1}, renderer="warp", step=600)
    table = table_of([*few, short], "video")
    common = [table.footnotes[number - 1] for number in table.common_notes]
    assert common == [
        "Fewer seeds than the paper's 5.",
        "Images by another renderer than gl, the benchmark's own: warp.",
    ]
    markdown = to_markdown(table)
    assert markdown.count("(All numbers of ours.)") == 2
    assert "| 2 (n = 1)<br>" in markdown
    steps = 1 + table.footnotes.index("Fewer steps than the paper's 500,000: 600.")
    assert f"| 1 (n = 1) <sup>{steps}</sup><br>" in markdown
    assert table_of([short], "video").common_notes == ()  # one number has its marks beside it


def test_runs_that_repeat_four_times_anyway_are_noted():
    runs = [
        run_with("walker-walk", "sgqn", 0, {"video_hard": 700}),
        run_with("finger-spin", "sgqn", 0, {"video_hard": 500}, action_repeat=4),
    ]
    table = table_of(runs, "action_repeat")

    def noted(task: str) -> bool:
        return any(
            "the same runs as" in note for note in footnotes_of(table, cell_of(table, task, "video_hard", "sgqn"))
        )

    assert noted("walker-walk")
    assert not noted("finger-spin")
    assert not any("the same runs as" in note for note in table_of(runs, "video").footnotes)


def test_headline_by_hand():
    runs = [
        run_with("walker-walk", "sgqn", 0, {"train": 900, "video_hard": 700}),
        run_with("walker-walk", "sgqn", 1, {"train": 940}),
        run_with("walker-walk", "sac", 0, {"color_hard": 100}),
        run_with("cartpole-swingup", "sgqn", 0, {"train": 1}, action_repeat=4),  # not the paper's settings
    ]
    table = headline(runs)
    assert table is not None
    assert table.columns == ("train", "color_hard", "video_hard")
    assert [row.labels for row in table.rows] == [("walker-walk", "SAC"), ("walker-walk", "SGQN")]
    train, color, hard = table.rows[1].cells
    assert (train.ours, train.paper, train.difference) == (Value(920.0, 20.0), Score(937, 12), -17)
    assert (color.ours_text(), color.paper) == (NO_RUN, None)
    assert (hard.ours, hard.seeds, hard.paper) == (Value(700.0), 1, Score(739, 21))
    assert headline(runs[3:]) is None


def test_each_task_family_has_a_headline_with_its_own_shifts():
    suite = [run_with("walker-walk", name, 0, {"train": 900, "video_hard": 700}) for name in ("sgqn", "sac")]
    robot = [run_with("robot-reach", "sgqn", 0, {"train": 28, "test1": -3}, step=250_000)]
    found = headlines([*robot, *suite])
    assert [table.name for table in found] == ["headline", "headline-robot"]
    assert [table.title for table in found] == ["At a glance", "At a glance: robot"]
    assert [table.columns for table in found] == [("train", "video_hard"), ("train", "test1")]
    assert [row for table in found for row in table.rows] == [row for of in (suite, robot) for row in headline(of).rows]
    assert [table.name for table in headlines(robot)] == ["headline"]
    assert headlines([]) == []


# ---------------------------------------------------------------- beyond the paper


def test_interquartile_mean_and_gap_by_hand():
    runs = [
        run_with("walker-walk", "sgqn", 0, {"train": 100, "video_hard": 80}),
        run_with("walker-walk", "sgqn", 1, {"train": 200, "video_hard": 120}),
        run_with("finger-spin", "sgqn", 0, {"train": 300, "video_hard": 280}),
        run_with("finger-spin", "sgqn", 1, {"train": 1000, "video_hard": 600}),
        run_with("finger-spin", "sgqn", 2, {"video_hard": 77}),  # no training score: not in the gap
        run_with("walker-walk", "svea", 0, {"video_hard": 50}),
    ]
    means = table_of(runs, "interquartile_mean")
    train = next(c for c in means.cells if (c.agent, c.shift) == ("sgqn", "train"))
    assert train.ours is not None
    assert train.ours.mean == 250  # of 200 and 300
    assert train.ours.low is not None
    assert train.ours.high is not None
    assert train.ours.low <= 250 <= train.ours.high
    assert train.ours_text().endswith("(2 tasks, 4 runs)")
    assert "no run" in to_markdown(means)  # SVEA in training
    svea = next(c for c in means.cells if (c.agent, c.shift) == ("svea", "video_hard"))
    assert any(note.startswith("Over fewer tasks") for note in footnotes_of(means, svea))
    gaps = table_of(runs, "gap")
    assert gaps.columns == ("video_hard", "video_hard, % of train")
    absolute, relative = next(row for row in gaps.rows if row.labels == ("SGQN",)).cells
    assert absolute.ours is not None
    assert relative.ours is not None
    assert absolute.ours.mean == 130  # the mean of (20 + 80) / 2 and (20 + 400) / 2
    assert relative.ours.mean == pytest.approx(100 * 130 / 400)  # of the mean of 150 and 650
    assert all(cell.ours is None for row in gaps.rows if row.labels == ("SVEA",) for cell in row.cells)


def test_best_numbers_are_found_among_what_can_be_compared():
    def best_of(name: str, runs: list[Run]) -> list[tuple[str, str, str]]:
        table = headline(runs) if name == "headline" else table_of(runs, name)
        assert table is not None
        cells = [table.rows[i].cells[j] for i, j in sorted(table.best)]
        return [(cell.task, cell.shift, cell.agent) for cell in cells]

    runs = [
        run_with("walker-walk", "sgqn", 0, {"train": 900, "video_hard": 700.4}),
        run_with("walker-walk", "svea", 0, {"train": 950, "video_hard": 699.6}),
        run_with("walker-walk", "sac", 0, {"train": 100, "video_hard": 50}),
        run_with("finger-spin", "sgqn", 0, {"train": 300}),  # alone
    ]
    hard = [("walker-walk", "video_hard", agent) for agent in ("svea", "sgqn")]  # both print 700
    assert sorted(best_of("headline", runs)) == sorted([("walker-walk", "train", "svea"), *hard])
    assert sorted(best_of("video", runs)) == sorted(hard)
    assert ("all", "train", "svea") in best_of("improvement", runs)
    assert best_of("interquartile_mean", runs) == [("all", "video_hard", agent) for agent in ("svea", "sgqn")]
    assert best_of("gap", runs) == [("all", "video_hard", "sac"), ("all", "video_hard", "sgqn")]  # 50 less, 22 % less
    assert best_of("headline", runs[:1]) == []


def improvement_of(table: ResultTable, shift: str, agent: str, column: str) -> Cell:
    (cell,) = [c for c in table.cells if (c.shift, c.agent, c.column) == (shift, agent, column)]
    return cell


def test_ranking_and_probability_of_improvement_by_hand():
    runs = [
        run_with("walker-walk", "sgqn", 0, {"video_hard": 700}),
        run_with("walker-walk", "sgqn", 1, {"video_hard": 650}),
        run_with("walker-walk", "sgqn", 2, {"video_hard": 400}),
        run_with("finger-spin", "sgqn", 0, {"video_hard": 300}),
        run_with("walker-walk", "svea", 0, {"video_hard": 500}),
        run_with("finger-spin", "svea", 0, {"video_hard": 300}),
        run_with("walker-walk", "sac", 0, {"video_hard": 100, "train": 200}),
        run_with("ball_in_cup-catch", "drq", 0, {"video_hard": 100}),  # no task in common with the others
    ]
    table = table_of(runs, "improvement")
    assert [row.labels for row in table.rows] == [
        ("video_hard", "1", "SGQN"),
        ("video_hard", "2", "SVEA"),
        ("video_hard", "3", "SAC"),
    ]
    pair = improvement_of(table, "video_hard", "sgqn", "svea")
    assert pair.ours is not None
    assert pair.ours.mean == pytest.approx((2 / 3 + 1 / 2) / 2)  # two of three on walker-walk, a tie on finger-spin
    assert (pair.ours.low, pair.ours.high) == (0.25, 0.75)  # none or all of walker-walk's
    assert pair.ours_text() == "0.58 [0.25, 0.75]"
    over_all = improvement_of(table, "video_hard", "sgqn", OTHERS)
    assert over_all.ours is not None
    assert over_all.ours_text() == "0.79 (2 tasks, 4 runs)"
    assert over_all.ours.mean == pytest.approx((1 + pair.ours.mean) / 2)  # 1 against SAC
    alone = improvement_of(table, "video_hard", "svea", "sac")
    assert alone.ours == Value(1.0)  # one run each has no interval
    assert any("which run scored higher" in note for note in footnotes_of(table, alone))
    fewer = improvement_of(table, "video_hard", "sac", "svea")
    assert any(note.startswith("Over fewer tasks") for note in footnotes_of(table, fewer))
    for agent in ("sgqn", "drq"):
        assert improvement_of(table, "video_hard", "sgqn", agent).ours_text() == NO_ANSWER


def test_agents_of_the_same_rank_share_it():
    runs = [run_with("walker-walk", agent, 0, {"train": 7}) for agent in ("sac", "svea")]
    assert [row.labels[1] for row in table_of(runs, "improvement").rows] == ["1", "1"]


def test_order_of_the_agents_beside_the_papers():
    runs = [
        run_with("walker-walk", "sgqn", 0, {"train": 1, "video_hard": 700, "color_hard": 1}),
        run_with("walker-walk", "svea", 0, {"train": 2, "video_hard": 50, "color_hard": 2}),  # not in the paper: train
        run_with("walker-walk", "sac", 0, {"train": 0, "video_hard": 100}),
        run_with("finger-spin", "sgqn", 0, {"train": 1}),
        run_with("finger-spin", "sac_selfsup", 0, {"train": 2}),
        run_with("walker-stand", "svea", 0, {"video_hard": 1}),  # the paper: 747 ± 43
        run_with("walker-stand", "soda", 0, {"video_hard": 2}),  # 736 ± 132
    ]
    of_train, tie, hard, close = orders(runs)
    assert (of_train.task, of_train.shift, of_train.agents) == ("walker-walk", "train", ("sgqn", "sac"))
    assert of_train.verdict() == "yes"
    assert hard.ours_text() == "SGQN 700 > SAC 100 > SVEA 50"
    assert hard.paper_text() == "SGQN 739 > SVEA 385 > SAC 122"
    assert hard.verdict() == "no"
    assert tie.verdict() == "yes"  # the paper has 985 for both
    assert " = " in tie.paper_text()
    assert close.verdict() == "within the paper's deviation"


def test_a_share_of_nothing_is_undefined():
    gaps = table_of([run_with("walker-walk", "sac", 0, {"train": 0, "video_hard": 0})], "gap")
    absolute, relative = gaps.cells
    assert absolute.ours_text() == "0 (1 task, 1 run)"  # a single run has no interval
    assert relative.ours_text() == UNDEFINED


# ---------------------------------------------------------------- Markdown and CSV


AGENTS = st.sampled_from([*paper.TITLES, "my|<agent>"])
RUNS = st.lists(
    st.builds(
        run_with,
        st.sampled_from([*paper.TASKS, "cheetah-run"]),
        AGENTS,
        st.integers(0, 3),
        st.dictionaries(
            st.sampled_from(["train", "color_hard", "video_easy", "video_hard"]), st.integers(-10, 1000).map(float)
        ),
        step=st.sampled_from([600, 500_000]),
        renderer=st.sampled_from(["gl", "warp"]),
        backgrounds=st.sampled_from(["generated", "dmcgb:video_hard (3 of 100 clips)", 'a, "b"|\nc']),
        seconds=st.floats(0, 1e5),
        action_repeat=st.sampled_from([None, 4]),
        rho=st.sampled_from([None, 0.95, 0.98]),
    ),
    max_size=12,
    unique_by=lambda run: run.path,
)


@pytest.mark.usefixtures("_agents_of_others")
@settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(RUNS)
def test_markdown_is_rectangular_and_csv_parses_back(runs: list[Run]):
    found = tables(runs)
    shown: set[tuple[Path, str]] = set()
    for table in found:
        assert any(cell.ours for cell in table.cells)
        lines = [text for text in to_markdown(table).splitlines() if text.startswith("|")]
        assert len(lines) == len(table.rows) + 2
        for text in lines:
            assert text.replace("\\|", "").count("|") == len(table.headers) + len(table.columns) + 1
            assert "<agent>" not in text
        assert {n for cell in table.cells for n in cell.notes} == set(range(1, len(table.footnotes) + 1))
        rows = list(csv.DictReader(io.StringIO(to_csv(table))))
        assert len(rows) == len(table.cells)
        for row, cell in zip(rows, table.cells, strict=True):
            assert tuple(row) == CSV_COLUMNS
            assert (row["table"], row["task"], row["shift"], row["agent"]) == (
                table.name,
                cell.task,
                cell.shift,
                cell.agent,
            )
            assert (row["ours_mean"] == "") == (cell.ours is None)
            if cell.ours:
                assert float(row["ours_mean"]) == cell.ours.mean
                assert int(row["seeds"]) == cell.seeds > 0
            if cell.difference is not None:
                assert float(row["difference"]) == float(row["ours_mean"]) - float(row["paper_mean"])
            if cell.evaluations and cell.ours:
                assert row["renderer"]
                assert row["steps"]
        if table.name not in ("interquartile_mean", "improvement", "gap", "hours"):
            shown |= {(s.run.path, s.evaluation.shift) for c in table.cells for s in c.samples if s.evaluation}
    # Every evaluation is in a table, unless another run of the same settings and seed stands for it.
    same = {(r.task, r.agent, r.seed, r.action_repeat, r.rho, e.shift) for r in runs for e in r.evaluations}
    of_path = {run.path: run for run in runs}
    told = [(of_path[path], shift) for path, shift in shown]
    assert same == {(r.task, r.agent, r.seed, r.action_repeat, r.rho, shift) for r, shift in told}


def test_no_negative_zero():
    cell = Cell("walker-walk", "train", "sac", "sac", ours=Value(99.6), paper=Score(100))
    assert cell.difference_text() == "+0"
    assert Cell("t", "train", "sac", "sac", ours=Value(-0.2)).ours_text() == "0 (n = 0)"


def test_tiny_runs_are_told_apart(tmp_path: Path):
    write_run(tmp_path, preset("tiny", "walker-walk"), [line("walker-walk", "video_hard", [3.0], 600)])
    table = table_of(find_runs(tmp_path).runs, "video")
    notes = footnotes_of(table, cell_of(table, "walker-walk", "video_hard", "sgqn"))
    assert any("encoder_filters" in note and "image_size" in note for note in notes)
