"""Charts: every point where it belongs, and the curves that are drawn computed by hand."""

from __future__ import annotations

import math
import re
import xml.etree.ElementTree as ET
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from sgqn.agents import AGENTS
from sgqn.results import curves, paper
from sgqn.results.figures import (
    COLORS,
    LEFT,
    ON_DARK,
    OTHERS,
    PLOT,
    RIGHT,
    TOP,
    WIDTH,
    Chart,
    Dot,
    DotChart,
    DotRow,
    Line,
    Mark,
    color_of,
    draw,
    scale,
    tick_text,
)
from sgqn.results.runs import Curve, Run, RunEvaluation
from sgqn.results.tables import headline
from tests.results.samples import config_of

SVG = "{http://www.w3.org/2000/svg}"


def drawn(chart: Chart | DotChart, legend: bool = False) -> ET.Element:
    return ET.fromstring(draw(chart, legend))


def points(path: ET.Element) -> np.ndarray:
    return np.array(re.findall(r"(-?[\d.]+),(-?[\d.]+)", path.get("d", "")), dtype=float)


# ---------------------------------------------------------------- scales


@given(st.lists(st.floats(-1e7, 1e7), min_size=1, max_size=5))
def test_every_value_lies_between_the_outer_ticks(values: list[float]) -> None:
    made = scale(values, 0, 100)
    near = 1e-6 * (made.high - made.low)
    assert made.low <= min(values) + near
    assert made.high >= max(values) - near
    assert 2 <= len(made.ticks) <= 8
    steps = np.diff(made.ticks)
    assert np.allclose(steps, steps[0])
    assert (made(made.low), made(made.high)) == (0, 100)


def test_ticks_are_round() -> None:
    assert scale([0, 937], 0, 1).ticks == (0, 200, 400, 600, 800, 1000)
    assert scale([3, 3], 0, 1).ticks[0] == 0
    assert scale([0], 0, 1).ticks[-1] == 1
    assert scale([math.nan], 0, 1).high == 1
    assert scale([5], 0, 1, given=(0, 600), most=5).ticks == (0, 200, 400, 600)
    texts = [tick_text(value) for value in (0.0, -0.0, 0.25, -0.5, 1000, 50_000, 500_000, 1_500_000)]
    assert texts == ["0", "0", "0.25", "-0.5", "1,000", "50k", "500k", "1.5M"]


# ---------------------------------------------------------------- drawing


def test_a_line_goes_through_its_points() -> None:
    line = Line("SGQN", "#123456", [0, 50, 100], [0, 400, 1000], [0, 300, 900], [0, 500, 1000])
    root = drawn(Chart("title", "steps", "return", (line,), x_range=(0, 100), y_range=(0, 1000)))
    (path,) = [p for p in root.iter(f"{SVG}path") if p.get("stroke") == "#123456"]
    x = LEFT + np.array([0, 0.5, 1]) * (WIDTH - RIGHT - LEFT)
    y = TOP + PLOT * (1 - np.array([0, 0.4, 1]))
    assert np.abs(points(path) - np.stack([x, y], axis=1)).max() < 0.06
    (band,) = root.iter(f"{SVG}polygon")
    corners = np.array([pair.split(",") for pair in band.get("points", "").split()], dtype=float)
    heights = TOP + PLOT * (1 - np.array([0, 0.3, 0.9, 1, 0.5, 0]))
    assert np.abs(corners - np.stack([np.append(x, x[::-1]), heights], axis=1)).max() < 0.06
    titles = [title.text for title in root.iter(f"{SVG}title")]
    assert titles == ["SGQN", "SGQN: 0.000 at 0", "SGQN: 400 at 50", "SGQN: 1,000 at 100"]


def test_nan_interrupts_a_line_and_marks_lie_at_the_edge() -> None:
    line = Line("a", "#111111", [0, 1, 2, 3, 4], [1, 1, math.nan, 1, 1])
    root = drawn(
        Chart("t", "x", "y", (line,), (Mark("paper", "#222222", 2.0), Mark("far", "#333333", 9.0)), None, (0, 4))
    )
    assert len([p for p in root.iter(f"{SVG}path") if p.get("stroke") == "#111111"]) == 2
    (mark,) = [p for p in root.iter(f"{SVG}path") if p.get("fill") == "#222222"]
    assert abs(points(mark)[0][1] - (TOP + PLOT / 2)) < 0.06
    assert not [p for p in root.iter(f"{SVG}path") if p.get("fill") == "#333333"]  # outside of the axes
    assert "nan" not in draw(Chart("t", "x", "y", (line,)))


def test_a_legend_only_where_it_is_asked_for() -> None:
    lines = tuple(
        Line(title, color_of(agent), [0, 1], [0, 1], dashed=agent == "sac") for agent, title in paper.TITLES.items()
    )
    chart = Chart("t", "x", "y", lines)
    without, with_legend = drawn(chart), drawn(chart, legend=True)
    names = [text.text for text in with_legend.iter(f"{SVG}text")]
    assert set(paper.TITLES.values()) <= set(names)
    assert not set(paper.TITLES.values()) & {text.text for text in without.iter(f"{SVG}text")}
    assert float(with_legend.get("height", 0)) > float(without.get("height", 0))


def test_dots_and_diamonds_stand_at_their_scores() -> None:
    rows = (
        DotRow("SGQN", "#111111", Dot(500, 100), Dot(250, 50)),
        DotRow("SAC", "#222222", None, Dot(750)),
        DotRow("SVEA", "#333333", Dot(990, 100), None),
    )
    root = drawn(DotChart("walker", "return", rows, (0, 1000)), legend=True)
    discs = {c.get("fill"): float(c.get("cx", 0)) for c in root.iter(f"{SVG}circle")}
    lines = [line for line in root.iter(f"{SVG}line") if line.get("stroke-opacity")]
    ends = {line.get("stroke"): (float(line.get("x1", 0)), float(line.get("x2", 0))) for line in lines}
    left, right = (float(line.get("x1", 0)) for line in (root.findall(f"{SVG}line")[0], root.findall(f"{SVG}line")[4]))
    span = right - left
    assert discs["#111111"] == pytest.approx(left + span / 2, abs=0.1)
    assert ends["#111111"] == pytest.approx((left + 0.4 * span, left + 0.6 * span), abs=0.1)
    assert ends["#333333"][1] == pytest.approx(right, abs=0.1)  # cut off at the axis
    assert "#222222" not in discs
    diamonds = [points(p)[0][0] for p in root.iter(f"{SVG}path")]
    assert diamonds[:2] == pytest.approx([left + span / 4, left + 0.75 * span], abs=0.1)


def test_an_agent_has_one_colour_and_no_other_agent_has_it() -> None:
    assert set(COLORS) == set(paper.TITLES) <= set(AGENTS)
    assert len(set(COLORS.values())) == len(COLORS)
    assert color_of("my_agent") == color_of("my_agent")
    assert color_of("my_agent\ud800") not in COLORS.values()


# ---------------------------------------------------------------- curves


def run_of(agent: str, seed: int, curve: dict[int, float], evaluations: Any = (), **options: Any) -> Run:
    steps = tuple(curve)
    return Run(
        Path(f"{agent}-{seed}-{options}"),
        config_of("walker-walk", agent, seed, **options),
        tuple(RunEvaluation("walker-walk", s, 0, r, "none", (mean,) * n, step) for s, step, n, r, mean in evaluations),
        Curve(steps, tuple(curve.values()), tuple(map(float, steps))),
        max(steps, default=0),
    )


def test_mean_over_seeds_by_hand() -> None:
    grid, mean, std = curves.mean_curve([([0, 10, 20], [0, 10, 20]), ([20, 0], [40, 20]), ([30], [7])])
    assert grid.tolist() == [0, 10, 20, 30]
    assert mean.tolist() == [10, 20, 30, 7]  # of 0 and 20, 10 and 30, 20 and 40, the last alone
    assert std[:3].tolist() == [10, 10, 10]
    assert math.isnan(std[3])


def test_training_chart_has_a_line_for_each_way_of_training() -> None:
    runs = [
        run_of("sgqn", 0, {100: 10.0, 200: 30.0}),
        run_of("sgqn", 1, {100: 20.0, 200: 50.0}),
        run_of("sgqn", 0, {100: 1.0, 300: 2.0}, action_repeat=2),
        run_of("sac", 0, {100: 5.0, 200: 6.0}),
        run_of("sac", 1, {}),
        run_of("svea", 0, {100: 5.0}),  # a single point is no curve
    ]
    chart = curves.training_chart(runs)
    assert chart is not None
    by_name = {line.name: line for line in chart.lines}
    assert list(by_name) == ["SAC", "SGQN", "SGQN, action repeat 2"]
    assert (by_name["SGQN"].y, by_name["SGQN"].low) == ([15.0, 40.0], [10.0, 30.0])
    assert by_name["SGQN, action repeat 2"].dashed
    assert by_name["SGQN"].color == by_name["SGQN, action repeat 2"].color == COLORS["sgqn"]
    assert list(by_name["SAC"].low) == []
    assert chart.x_range == (0, 300)
    assert chart.marks == ()  # too few steps for the paper's scores to mean anything
    assert curves.training_chart(runs[4:]) is None  # nothing, and a single point


def test_many_points_are_averaged_in_equal_parts() -> None:
    curve = {step: float(step) for step in range(1000, 501_000, 1000)}
    chart = curves.training_chart([run_of("sgqn", 0, curve)])
    assert chart is not None
    (line,) = chart.lines
    assert len(line.x) == curves.MOST_BINS
    assert line.x[:2] == [5000, 10_000]
    assert line.y[:2] == [3000, 8000]  # of 1000 .. 5000, 6000 .. 10,000
    assert {mark.y for mark in chart.marks} == {937}
    assert chart.y_range == (0, 1000.0)


def test_the_evaluation_with_the_most_episodes_counts_at_each_step() -> None:
    evaluations = [
        ("train", 100, 5, "gl", 1.0),
        ("train", 100, 30, "warp", 2.0),
        ("train", 100, 30, "gl", 3.0),
        ("train", 200, 5, "gl", 4.0),
        ("video_hard", 200, 5, "gl", 5.0),
    ]
    (train,) = curves.shift_charts([run_of("sgqn", 0, {}, evaluations)])  # one point of video_hard is no curve
    assert (train.title, train.lines[0].x, train.lines[0].y) == ("walker-walk, train", [100, 200], [3.0, 4.0])


def test_neighbours_share_their_axes() -> None:
    evaluations = [("train", 100, 1, "gl", 3.0), ("train", 200, 1, "gl", 47.0)]
    runs = [run_of("sgqn", 0, {100: 10.0, 200: 30.0}), run_of("sac", 0, {100: 1.0, 400: -12.0}, evaluations)]
    ((training, train),) = curves.learning_charts(runs)
    assert [chart.title for chart in (training, train)] == ["walker-walk, while training", "walker-walk, train"]
    assert training.x_range == train.x_range == (0, 400)
    assert training.y_range == train.y_range
    assert training.y_range is not None
    assert training.y_range[0] <= -12 < 47 <= training.y_range[1]
    known = run_of("svea", 0, {100: 900.0, 200: 950.0})
    assert {chart.y_range for chart in curves.learning_charts([*runs, known])[0]} == {(0, 1000)}
    assert curves.learning_charts([]) == []


def test_scores_of_a_shift_are_one_chart() -> None:
    def run(task: str, agent: str, shift: str, mean: float) -> Run:
        evaluation = RunEvaluation(task, shift, 0, "gl", "none", (mean,), 1)
        return Run(Path(f"{task}-{agent}-{shift}"), config_of(task, agent, 0), (evaluation,))

    table = headline(
        [
            run("walker-walk", "sgqn", "video_hard", 700.0),
            run("walker-walk", "sac", "video_hard", 100.0),
            run("finger-spin", "sgqn", "video_hard", 800.0),
            run("finger-spin", "sgqn", "color_hard", 800.0),
        ]
    )
    assert table is not None
    (chart,) = curves.score_charts(table)  # the paper has no scores of color_hard
    assert (chart.title, chart.x_range) == ("video_hard", (0, 1000))
    rows = [(row.group, row.name, row.ours and row.ours.mean, row.paper and row.paper.mean) for row in chart.rows]
    assert rows == [("walker-walk", "SAC", 100, 122), ("", "SGQN", 700, 739), ("finger-spin", "SGQN", 800, 822)]


def test_every_colour_has_one_for_dark_pages() -> None:
    chart = Chart("t", "x", "y", tuple(Line(agent, color_of(agent), [0, 1], [0, 1]) for agent in paper.TITLES))
    dots = DotChart("t", "x", (DotRow("a", color_of("a"), Dot(1, 1), Dot(2, 1)),))
    used = {c for one in (chart, dots) for c in re.findall(r'(?:fill|stroke)="(#\w+)"', draw(one, legend=True))}
    assert used | set(COLORS.values()) | set(OTHERS) <= set(ON_DARK)
    assert len(set(ON_DARK.values())) == len(ON_DARK)


def test_profiles_by_hand() -> None:
    runs = [run_of("sgqn", seed, {}, [("train", 1, 1, "gl", mean)]) for seed, mean in enumerate((100.0, 500.0))]
    (chart,) = curves.profile_charts([*runs, run_of("sac", 0, {}, [("train", 1, 1, "gl", 250.0)])])
    sac, sgqn = chart.lines
    share = dict(zip(sgqn.x, sgqn.y, strict=True))
    assert (share[90], share[100], share[490], share[500]) == (1, 0.5, 0.5, 0)
    assert len(sgqn.low) == len(sgqn.x)
    assert len(sac.low) == 0  # one run: nothing to resample
    assert dict(zip(sac.x, sac.y, strict=True))[240] == 1
