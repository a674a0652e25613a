from __future__ import annotations

import math
import random
import time
from collections.abc import Callable

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sgqn.errors import InvalidValueError
from sgqn.results.statistics import (
    Interval,
    Summary,
    bootstrap_interval,
    generalization_gap,
    improvement_probability,
    mean_over_tasks,
    performance_profile,
    summarize,
    trimmed_mean,
)

NUMBERS = st.floats(-1e6, 1e6, allow_subnormal=False)
SCORES = st.dictionaries(
    st.sampled_from(["walker-walk", "finger-spin", "cartpole-swingup"]),
    st.lists(NUMBERS, min_size=1, max_size=8),
    min_size=1,
)
FEW = settings(max_examples=50, deadline=None)


def plain_iqm(values: list[float]) -> float:
    """The definition, written plainly: sort, drop a quarter on either side, average."""
    kept = sorted(values)
    for _ in range(int(0.25 * len(values))):
        kept = kept[1:-1]
    return math.fsum(kept) / len(kept)


def interquartile_mean(scores: dict[str, list[float]]) -> float:
    return bootstrap_interval(scores, resamples=1).value


def normal_scores(seed: int, runs: int = 5, tasks: int = 5) -> dict[str, list[float]]:
    rng = np.random.default_rng(seed)
    return {f"task{i}": rng.normal(500, 100, runs).tolist() for i in range(tasks)}


# ---------------------------------------------------------------- point statistics


def test_summary_by_hand():
    summary = summarize([1.0, 2.0, 3.0, 6.0])
    assert summary == Summary(3.0, math.sqrt(3.5), 4)
    assert summary.text() == "3 ± 2"
    assert summary.text(1) == "3.0 ± 1.9"
    assert summarize([7.5]) == Summary(7.5, 0.0, 1)


@pytest.mark.parametrize(
    ("values", "expected"),
    [
        ([5], 5),
        ([1, 2, 6], 3),  # a quarter of three is no whole run
        ([0, 1, 3, 100], 2),
        ([8, 1, 2, 3, 4, 5, 6, 900], 4.5),  # 3, 4, 5, 6
        ([1, 2, 3, 4, 50], 3),  # one on either side
    ],
)
def test_interquartile_mean_by_hand(values: list[float], expected: float):
    assert interquartile_mean({"task": values}) == expected
    half = len(values) // 2
    if half:
        assert (
            interquartile_mean({"one": values[:half], "two": values[half:]}) == expected
        )  # over all runs of all tasks


@FEW
@given(st.lists(NUMBERS, min_size=1, max_size=40))
def test_interquartile_mean_is_the_plain_one_and_scipys(values: list[float]):
    ours = interquartile_mean({"task": values})
    assert ours == pytest.approx(plain_iqm(values), rel=1e-9, abs=1e-6)
    try:
        from scipy.stats import trim_mean
    except ImportError:
        return
    assert ours == pytest.approx(float(trim_mean(values, 0.25)), rel=1e-9, abs=1e-6)


@FEW
@given(SCORES, st.randoms(use_true_random=False))
def test_interquartile_mean_is_bounded_and_knows_no_order(scores: dict[str, list[float]], order: random.Random):
    value = interquartile_mean(scores)
    flat = [score for runs in scores.values() for score in runs]
    slack = 1e-9 * max(map(abs, flat))
    assert min(flat) - slack <= value <= max(flat) + slack
    tasks = list(scores)
    order.shuffle(tasks)
    assert interquartile_mean({task: order.sample(scores[task], len(scores[task])) for task in tasks}) == value


def test_mean_over_tasks_weighs_tasks_not_runs():
    tasks = [np.array([0.0, 0.0, 0.0, 0.0]), np.array([10.0])]
    assert mean_over_tasks(tasks) == 5
    assert trimmed_mean(tasks) == 0
    batched = [np.array([[1.0, 3.0], [5.0, 7.0]]), np.array([[0.0], [2.0]])]
    assert mean_over_tasks(batched).tolist() == [1, 4]
    assert trimmed_mean(batched).tolist() == pytest.approx([4 / 3, 14 / 3])


# ---------------------------------------------------------------- bootstrap


def test_bootstrap_of_two_runs_by_hand():
    # The mean of two draws from {0, 1} is 0, 1/2, 1 with probabilities 1/4, 1/2, 1/4.
    scores = {"task": [0.0, 1.0]}
    assert bootstrap_interval(scores, mean_over_tasks) == Interval(0.0, 0.5, 1.0)
    assert bootstrap_interval(scores, mean_over_tasks, confidence=0.4) == Interval(0.5, 0.5, 0.5)


def test_bootstrap_is_the_plain_loop():
    scores = {"a": [1.0, 5.0, 2.0], "b": [10.0, 30.0], "c": [7.0]}
    rng = np.random.default_rng(11)
    draws = {task: rng.integers(len(runs), size=(300, len(runs))) for task, runs in scores.items()}
    resampled = [plain_iqm([runs[i] for task, runs in scores.items() for i in draws[task][k]]) for k in range(300)]
    interval = bootstrap_interval(scores, seed=11, resamples=300, confidence=0.9)
    assert interval.value == pytest.approx(plain_iqm([1, 5, 2, 10, 30, 7]))
    assert (interval.low, interval.high) == pytest.approx(tuple(np.quantile(resampled, [0.05, 0.95])))


def test_bootstrap_repeats_with_its_seed():
    scores = normal_scores(0)
    first = bootstrap_interval(scores, seed=3)
    assert first == bootstrap_interval(scores, seed=3)
    assert first == bootstrap_interval(scores, seed=np.random.default_rng(3))
    assert first != bootstrap_interval(scores, seed=4)
    generator = np.random.default_rng(3)
    assert bootstrap_interval(scores, seed=generator) != bootstrap_interval(scores, seed=generator)


@pytest.mark.parametrize("statistic", [mean_over_tasks, trimmed_mean])
def test_bootstrap_draws_within_tasks(statistic: Callable):
    # Unstratified draws would mix the levels 0 and 1000.
    still = bootstrap_interval({"low": [0.0] * 5, "high": [1000.0] * 5}, statistic)
    assert still == Interval(500.0, 500.0, 500.0)


def test_a_constant_task_adds_no_variance():
    moving = {"moving": [1.0, 4.0, 9.0, 16.0, 25.0]}
    alone = bootstrap_interval(moving, mean_over_tasks, seed=5)
    both = bootstrap_interval({**moving, "still": [100.0] * 5}, mean_over_tasks, seed=5)
    assert both.low == pytest.approx((alone.low + 100) / 2)
    assert both.value == pytest.approx((alone.value + 100) / 2)
    assert both.high == pytest.approx((alone.high + 100) / 2)


@pytest.mark.parametrize("statistic", [mean_over_tasks, trimmed_mean])
def test_intervals_cover_the_truth_about_as_often_as_they_say(statistic: Callable):
    # Five normal tasks around 500: mean and interquartile mean are both 500.
    covered = 0
    for seed in range(300):
        interval = bootstrap_interval(normal_scores(seed, runs=20), statistic, seed=seed, resamples=400)
        covered += interval.low <= 500 <= interval.high
    assert 0.89 <= covered / 300 <= 0.985  # 0.95 within sampling error; percentile intervals run a little narrow


def test_intervals_shrink_with_the_square_root_of_runs():
    def width(runs: int) -> float:
        intervals = [bootstrap_interval(normal_scores(seed, runs), mean_over_tasks) for seed in range(20)]
        return float(np.mean([interval.high - interval.low for interval in intervals]))

    assert width(10) / width(40) == pytest.approx(2, rel=0.15)
    expected = 2 * 1.96 * 100 / math.sqrt(5 * 40)
    assert width(40) == pytest.approx(expected, rel=0.1)


def test_bootstrap_is_fast():
    scores, taus = normal_scores(0), np.linspace(0, 1000, 101)
    start = time.perf_counter()
    bootstrap_interval(scores, resamples=2000)
    performance_profile(scores, taus, resamples=2000)
    assert time.perf_counter() - start < 0.5


# ---------------------------------------------------------------- profiles


def test_profile_by_hand():
    scores = {"a": [1.0, 2.0, 3.0, 4.0], "b": [10.0, 20.0]}
    profile = performance_profile(scores, [0, 2, 3.5, 10, 20])
    # Above, not at: 2 is not above 2. Either task weighs a half.
    assert profile.share.tolist() == [1, 0.75, 0.625, 0.25, 0]
    assert profile.taus.tolist() == [0, 2, 3.5, 10, 20]
    assert profile.low[[0, 4]].tolist() == profile.high[[0, 4]].tolist() == [1, 0]
    assert (profile.low[1:4] < profile.share[1:4]).all()
    assert (profile.share[1:4] < profile.high[1:4]).all()


def test_bands_of_a_profile_are_bootstrap_intervals():
    scores, taus = normal_scores(2, runs=4, tasks=3), [400.0, 500.0, 600.0]
    profile = performance_profile(scores, taus, seed=9, resamples=500)
    for k, tau in enumerate(taus):
        above = {task: [float(score > tau) for score in runs] for task, runs in scores.items()}
        interval = bootstrap_interval(above, mean_over_tasks, seed=9, resamples=500)
        at_tau = (profile.low[k], profile.share[k], profile.high[k])
        assert at_tau == pytest.approx((interval.low, interval.value, interval.high))


@FEW
@given(SCORES, st.lists(NUMBERS, min_size=1, max_size=20))
def test_profiles_fall(scores: dict[str, list[float]], taus: list[float]):
    profile = performance_profile(scores, sorted(taus), resamples=50)
    for line in (profile.share, profile.low, profile.high):
        assert (np.diff(line) <= 1e-12).all()
        assert ((line >= 0) & (line <= 1 + 1e-12)).all()
    assert (profile.low <= profile.high).all()


# ---------------------------------------------------------------- gap


def test_gap_by_hand():
    train = {"a": {0: 100.0, 1: 200.0, 2: 999.0}, "b": {0: 50.0}}
    shifted = {"a": {1: 150.0, 0: 90.0}, "b": {0: 60.0, 7: 0.0}, "c": {0: 1.0}}
    gap = generalization_gap(train, shifted)
    # a loses 10 and 50 of 100 and 200; b gains 10 of 50; run 2, run 7 and task c have no pair.
    assert gap.absolute.value == pytest.approx((30 - 10) / 2)
    assert gap.relative is not None
    assert gap.relative.value == pytest.approx(10 / 100)
    assert gap.runs == 3
    assert (gap.absolute.low, gap.absolute.high) == (0, 20)


def test_gap_is_paired():
    # Runs differ by hundreds, every one loses 10 %: paired, the relative gap is certain.
    train = {"task": {seed: 100.0 * (seed + 1) for seed in range(8)}}
    shifted = {"task": {seed: 90.0 * (seed + 1) for seed in reversed(range(8))}}
    gap = generalization_gap(train, shifted)
    assert gap.relative is not None
    assert (gap.relative.low, gap.relative.value, gap.relative.high) == pytest.approx((0.1, 0.1, 0.1))
    constant = {"task": {seed: score - 25 for seed, score in train["task"].items()}}
    assert generalization_gap(train, constant).absolute == Interval(25, 25, 25)


def test_relative_gap_of_negative_and_zero_scores():
    falling = generalization_gap({"robot-reach": {0: -50.0}}, {"robot-reach": {0: -60.0}})
    assert falling.relative == Interval(0.2, 0.2, 0.2)  # a loss is positive whatever the sign of the score
    assert generalization_gap({"task": {0: 0.0}}, {"task": {0: 1.0}}).relative is None
    some = generalization_gap({"task": {0: 0.0, 1: 5.0}}, {"task": {0: 0.0, 1: 1.0}})
    assert some.relative is None  # a resample may hold the zero alone
    assert some.absolute.value == 2


# ---------------------------------------------------------------- probability of improvement


def test_probability_of_improvement_by_hand():
    ours = {"a": [3.0, 1.0], "b": [7.0], "c": [1.0]}
    theirs = {"b": [5.0, 7.0], "a": [2.0, 0.0, 4.0], "d": [9.0]}
    # a: 3 beats two of three, 1 beats one; b: one win and one tie; the other tasks belong to one agent only.
    expected = (3 / 6 + 1.5 / 2) / 2
    assert improvement_probability(ours, theirs).value == pytest.approx(expected)
    assert improvement_probability(theirs, ours).value == pytest.approx(1 - expected)


@FEW
@given(st.lists(st.integers(-5, 5), min_size=1, max_size=9), st.lists(st.integers(-5, 5), min_size=1, max_size=9))
def test_probability_of_improvement_is_mann_whitneys(ours: list[int], theirs: list[int]):
    value = improvement_probability({"task": ours}, {"task": theirs}, resamples=10).value
    pairs = [(x > y) + (x == y) / 2 for x in ours for y in theirs]
    assert value == pytest.approx(math.fsum(pairs) / len(pairs))
    try:
        from scipy.stats import mannwhitneyu
    except ImportError:
        return
    statistic = mannwhitneyu(ours, theirs, method="asymptotic").statistic
    assert value == pytest.approx(float(statistic) / len(pairs))


def test_improvement_s_bootstrap_is_the_plain_loop():
    ours, theirs = {"a": [1.0, 5.0, 2.0], "b": [10.0, 30.0]}, {"a": [2.0, 4.0], "b": [20.0, 9.0, 31.0]}
    rng = np.random.default_rng(5)
    draws = [
        {task: rng.integers(len(runs), size=(200, len(runs))) for task, runs in of.items()} for of in (ours, theirs)
    ]
    resampled = []
    for k in range(200):
        of_tasks = []
        for task in ours:
            x, y = ([of[task][i] for i in drawn[task][k]] for of, drawn in zip((ours, theirs), draws, strict=True))
            of_tasks.append(np.mean([(a > b) + (a == b) / 2 for a in x for b in y]))
        resampled.append(np.mean(of_tasks))
    interval = improvement_probability(ours, theirs, seed=5, resamples=200, confidence=0.9)
    assert (interval.low, interval.high) == pytest.approx(tuple(np.quantile(resampled, [0.05, 0.95])))


def test_equal_agents_improve_half_of_the_time():
    covered = 0
    for seed in range(100):
        interval = improvement_probability(normal_scores(seed), normal_scores(1000 + seed), resamples=500)
        covered += interval.low <= 0.5 <= interval.high
    assert covered >= 85  # percentile intervals of five runs are a little short


# ---------------------------------------------------------------- bad input


@pytest.mark.parametrize("function", [bootstrap_interval, lambda s: performance_profile(s, [0])])
@pytest.mark.parametrize(
    ("scores", "message"),
    [
        ({}, "no scores"),
        ({"walker-walk": []}, "walker-walk: expected a list of at least one"),
        ({"walker-walk": [[1.0]]}, r"walker-walk: .*not shape \(1, 1\)"),
        ({"walker-walk": [1.0, math.nan]}, "walker-walk: number 1 is nan"),
        ({"walker-walk": [1.0], "finger-spin": [math.inf]}, "finger-spin: number 0 is inf"),
    ],
)
def test_bad_scores_are_refused(function: Callable, scores: dict, message: str):
    with pytest.raises(InvalidValueError, match=message):
        function(scores)


def test_other_bad_input_is_refused():
    for values in ([], [math.nan]):
        with pytest.raises(InvalidValueError, match="scores"):
            summarize(values)
        with pytest.raises(InvalidValueError, match="taus"):
            performance_profile({"task": [1.0]}, values)
    for resamples in (0, -1):
        with pytest.raises(InvalidValueError, match="resamples"):
            bootstrap_interval({"task": [1.0]}, resamples=resamples)
        with pytest.raises(InvalidValueError, match="resamples"):
            performance_profile({"task": [1.0]}, [0.0], resamples=resamples)
    for confidence in (0.0, 1.0, 95.0, math.nan):
        with pytest.raises(InvalidValueError, match="confidence"):
            bootstrap_interval({"task": [1.0]}, confidence=confidence)
    with pytest.raises(InvalidValueError, match="no task"):
        generalization_gap({"a": {0: 1.0}}, {"b": {0: 1.0}})
    with pytest.raises(InvalidValueError, match="no task"):
        improvement_probability({"a": [1.0]}, {"b": [1.0]})
    with pytest.raises(InvalidValueError, match="a: number 0 is nan"):
        improvement_probability({"a": [1.0]}, {"a": [math.nan]})
    with pytest.raises(InvalidValueError, match="no run of 'a'"):
        generalization_gap({"a": {0: 1.0}}, {"a": {1: 1.0}})
    with pytest.raises(InvalidValueError, match="number 0 is nan"):
        generalization_gap({"a": {0: 1.0}}, {"a": {0: math.nan}})


def test_one_run_has_an_interval_without_width():
    assert bootstrap_interval({"task": [3.0]}) == Interval(3.0, 3.0, 3.0)
