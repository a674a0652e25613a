"""The numbers of "Look where you look! Saliency-guided Q-networks for generalization in visual Reinforcement Learning".

Every table of the paper, with our names for tasks, shifts and agents, as printed: scores, averages, differences and
percentages. `REMARKS` lists where the print disagrees with its own arithmetic or with another of its tables.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import Literal

from sgqn.errors import UnknownNameError

TASKS = ("walker-walk", "walker-stand", "ball_in_cup-catch", "cartpole-swingup", "finger-spin")
ROBOT_TASKS = ("robot-reach", "robot-peg_in_box")
SHIFTS = ("train", "video_easy", "video_hard")
ROBOT_SHIFTS = ("train", "test1", "test2", "test3")
AVERAGE = "average"
"""The task of rows that average over tasks, and the shift of rows that average over test shifts."""

Base = Literal["second best", "best", "sac"]


@dataclass(frozen=True)
class Score:
    """Mean and standard deviation over runs; printed averages over tasks have no deviation."""

    mean: float
    std: float | None = None


@dataclass(frozen=True)
class Change:
    """How a score compares with the table's `base`, as printed; None where nothing is."""

    difference: float | None
    percent: float | None


@dataclass(frozen=True)
class Column:
    """What a column of scores is of."""

    name: str
    title: str
    agent: str
    rho: float | None = None
    """The quantile, where the column is about it; else the task's own."""


@dataclass(frozen=True)
class Row:
    """The scores of one task and shift, by column."""

    task: str
    shift: str
    scores: dict[str, Score]
    changes: dict[str, Change] = field(default_factory=dict)

    @property
    def is_average(self) -> bool:
        return AVERAGE in (self.task, self.shift)


@dataclass(frozen=True)
class Table:
    """One table of scores."""

    name: str
    label: str
    """The label in the paper's source."""
    caption: str
    columns: tuple[Column, ...]
    rows: tuple[Row, ...]
    averages: tuple[Row, ...] = ()
    base: Base | None = None
    """What changes compare with: the best of the other agents, or SAC. Percentages are of it, but of the row's
    best score, SGQN's own where it wins, if the base is `best`."""
    digits: int = 0
    """Decimals of averages and differences."""
    action_repeat: int | None = None
    """The same for all tasks, where the table is about it; else the task's own."""

    @property
    def shifts(self) -> tuple[str, ...]:
        return tuple(dict.fromkeys(row.shift for row in self.rows))

    @property
    def tasks(self) -> tuple[str, ...]:
        return tuple(dict.fromkeys(row.task for row in self.rows))

    def row(self, task: str, shift: str) -> Row | None:
        """The row of a task and shift; either may be `AVERAGE`."""
        return next((row for row in (*self.rows, *self.averages) if (row.task, row.shift) == (task, shift)), None)

    def averaged(self, average: Row) -> list[Row]:
        """The rows that a row of `averages` is the mean of; a robot's do not include the training scene."""
        over_shifts = average.shift == AVERAGE
        return [
            row
            for row in self.rows
            if average.task in (AVERAGE, row.task)
            and (row.shift == average.shift or (over_shifts and row.shift != "train"))
        ]


@dataclass(frozen=True)
class Claim:
    """A percentage in the paper's running text, and the row and column of the table that it quotes."""

    text: str
    percent: float
    table: str
    task: str
    shift: str
    column: str


@dataclass(frozen=True)
class Remark:
    """A number that the paper's own numbers contradict."""

    table: str
    task: str
    shift: str
    column: str
    quantity: Literal["average", "difference", "percent", "score"]
    printed: float | None
    gives: float
    """What the table's cells give; of a `score`, what the tables before it print."""
    why: str = ""


def tables() -> list[Table]:
    """Every table of scores, in the paper's order."""
    return list(TABLES.values())


def table(name: str) -> Table:
    if name not in TABLES:
        raise UnknownNameError("table of the paper", name, TABLES)
    return TABLES[name]


def score(task: str, agent: str, shift: str) -> Score | None:
    """The paper's score of an agent with the paper's settings, from the first table that has it.

    Tables about another action repeat or quantile are left out; read those with `table`.
    """
    for candidate in TABLES.values():
        row = candidate.row(task, shift)
        column = next((column for column in candidate.columns if column.agent == agent and column.rho is None), None)
        if row is not None and column is not None and candidate.action_repeat is None:
            return row.scores[column.name]
    return None


def remarks(table: str) -> list[Remark]:
    """What there is to say about the print of one table."""
    return [remark for remark in REMARKS if remark.table == table]


TITLES = {
    "sac": "SAC",
    "drq": "DrQ",
    "rad": "RAD",
    "soda": "SODA",
    "svea": "SVEA",
    "svea_soda": "SVEA + SODA",
    "sac_consistency": "SAC + consistency",
    "sac_selfsup": "SAC + self-supervised",
    "sgqn": "SGQN",
}

_NUMBER = re.compile(r"(?P<value>[+-]?[\d.]*)(?:±(?P<std>[\d.]+))?(?:\((?P<percent>[+-]?\d+)%\))?")


def _float(text: str | None) -> float | None:
    return float(text) if text and text not in "+-" else None


def _row(line: str, columns: tuple[Column, ...]) -> Row:
    """`task shift`, then for each column `mean±std(percent%)`, then perhaps SGQN's `difference(percent%)`."""
    task, shift, *cells = line.split()
    scores: dict[str, Score] = {}
    changes: dict[str, Change] = {}
    names = [column.name for column in columns]
    for index, cell in enumerate(cells):
        found = _NUMBER.fullmatch(cell)
        assert found, f"not a cell of a table: {cell!r}"
        value, std, percent = (_float(found[name]) for name in ("value", "std", "percent"))
        if index == len(names):
            changes["sgqn"] = Change(value, percent)
            continue
        assert value is not None, f"no number in {cell!r}"
        scores[names[index]] = Score(value, std)
        if percent is not None:
            changes[names[index]] = Change(None, percent)
    return Row(task, shift, scores, changes)


def _table(
    name: str,
    label: str,
    caption: str,
    columns: str | tuple[Column, ...],
    text: str,
    *,
    base: Base | None = None,
    digits: int = 0,
    action_repeat: int | None = None,
) -> Table:
    if isinstance(columns, str):
        columns = tuple(Column(agent, TITLES[agent], agent) for agent in columns.split())
    lines = [_row(line, columns) for line in text.strip().splitlines()]
    rows = tuple(row for row in lines if not row.is_average)
    averages = tuple(row for row in lines if row.is_average)
    return Table(name, label, caption, columns, rows, averages, base, digits, action_repeat)


TABLES: dict[str, Table] = {
    found.name: found
    for found in (
        _table(
            "video",
            "table:dmc_generalization",
            "Performance on video easy and video hard testing levels. Δ = difference with second best.",
            "sac drq rad soda svea sgqn",
            """
            walker-walk        video_easy  245±165  747±21   608±92   771±66   828±66   910±24  +82(10%)
            walker-stand       video_easy  389±131  926±30   879±64   965±7    966±5    955±9   -11(1%)
            ball_in_cup-catch  video_easy  192±157  380±188  363±158  939±10   908±55   950±24  +11(1%)
            cartpole-swingup   video_easy  398±60   459±81   473±54   742±73   753±45   761±28  +8(1%)
            finger-spin        video_easy  206±169  599±62   516±113  783±51   723±98   956±26  +173(22%)
            average            video_easy  286      622      568      836      836      906     +70(8%)
            walker-walk        video_hard  122±47   121±52   80±10    312±32   385±63   739±21  +354(92%)
            walker-stand       video_hard  231±57   252±57   229±45   736±132  747±43   851±24  +104(14%)
            ball_in_cup-catch  video_hard  101±37   100±40   98±40    381±163  498±174  782±57  +284(57%)
            cartpole-swingup   video_hard  158±17   136±29   152±29   403±17   401±38   544±43  +141(35%)
            finger-spin        video_hard  13±10    38±13    39±20    309±49   307±24   822±24  +513(166%)
            average            video_hard  125      129      119      430      468      748     +280(60%)
            """,
            base="second best",
        ),
        _table(
            "ablation",
            "table:ablation",
            "Ablation study. Percentages indicate variations compared to vanilla SAC.",
            "sac sac_consistency sac_selfsup sgqn",
            """
            walker-walk        train       287±165  449±100(+56%)   934±28(+225%)   937±12(+226%)
            walker-walk        video_easy  245±165  423±96(+73%)    844±53(+244%)   910±24(+271%)
            walker-walk        video_hard  122±47   344±87(+182%)   226±48(+85%)    739±21(+505%)
            walker-stand       train       467±162  857±120(+84%)   957±11(+105%)   960±9(+106%)
            walker-stand       video_easy  389±131  846±107(+117%)  944±14(+143%)   955±9(+145%)
            walker-stand       video_hard  231±57   696±150(+201%)  769±32(+233%)   851±24(+268%)
            ball_in_cup-catch  train       284±329  755±261(-8%)    967±1(+240%)    971±7(+242%)
            ball_in_cup-catch  video_easy  192±157  440±214(+129%)  705±43(+267%)   950±24(+399%)
            ball_in_cup-catch  video_hard  101±37   190±63(+88%)    203±122(+100%)  782±57(+670%)
            cartpole-swingup   train       850±29   863±9(+2%)      857±20(+1%)     839±37(-1%)
            cartpole-swingup   video_easy  398±60   663±96(+67%)    647±42(+63%)    761±28(+91%)
            cartpole-swingup   video_hard  158±17   228±62(+44%)    294±40(+86%)    544±43(+244%)
            finger-spin        train       829±21   985±1(+19%)     985±1(+19%)     985±1(+19%)
            finger-spin        video_easy  382±40   865±65(+126%)   803±65(+110%)   956±26(+150%)
            finger-spin        video_hard  20±10    352±58(+1660%)  385±45(+1825%)  822±24(+4010%)
            average            train       543      781(+44%)       940(+73%)       938(+73%)
            average            video_easy  321      647(+102%)      789(+146%)      906(+182%)
            average            video_hard  126      362(+187%)      375(+198%)      747(+493%)
            """,
            base="sac",
        ),
        _table(
            "action_repeat",
            "table:action_repeat",
            "Performance on video easy and video hard testing levels with a constant action repetition parameter of "
            "4 time steps for all environments. Δ = difference with second best.",
            "sac drq rad soda svea sgqn",
            """
            walker-walk        video_easy  245±165  747±21   608±92   771±66   828±66   910±24  +82(10%)
            walker-stand       video_easy  389±131  926±30   879±64   965±7    966±5    955±9   -11(1%)
            ball_in_cup-catch  video_easy  192±157  380±188  363±158  939±10   908±55   950±24  +11(1%)
            cartpole-swingup   video_easy  474±26   350±83   391±66   678±120  702±80   717±35  +15(2%)
            finger-spin        video_easy  152±8    313±180  334±54   535±52   537±11   609±61  +72(13%)
            average            video_easy  292      551      515      777      785      828     +(5%)
            walker-walk        video_hard  122±47   121±52   80±10    312±32   385±63   739±21  +354(92%)
            walker-stand       video_hard  231±57   252±57   229±45   736±132  747±43   851±24  +104(14%)
            ball_in_cup-catch  video_hard  101±37   100±40   98±40    381±163  498±174  782±57  +284(57%)
            cartpole-swingup   video_hard  153±22   128±19   117±22   339±87   392±37   526±41  +134(34%)
            finger-spin        video_hard  25±6     25±36    15±6     221±48   174±39   540±53  +319(144%)
            average            video_hard  127      130      108      396      437      688     +(57%)
            """,
            base="second best",
            action_repeat=4,
        ),
        _table(
            "robots",
            "tab:robotic_envs",
            "Performance on the robotic environments",
            "sac soda svea sgqn",
            """
            robot-reach       train    9.7±22     31.8±1    32.2±0    31.8±1    -0.4(1%)
            robot-reach       test1    -20.9±16   -30.9±43  -17.6±10  14.4±14   +32(220%)
            robot-reach       test2    -21.9±14   -20.2±29  -2.1±39   31.0±3    +33.1(107%)
            robot-reach       test3    -43.2±6    -68.4±30  1.4±29    29.2±7    +27.8(95%)
            robot-reach       average  -28.6±8    -39.9±31  -6.1±23   24.9±6    +31(124%)
            robot-peg_in_box  train    -46.7±7    180.0±1   177.5±1   183.9±1   +3.9(2%)
            robot-peg_in_box  test1    -59.6±26   16.9±44   -21.3±10  -72.0±14  -88.9(526%)
            robot-peg_in_box  test2    -60.15±10  0.7±30    96.8±40   110.7±3   +13.9(12%)
            robot-peg_in_box  test3    -48.8±17   73.6±31   40.5±28   154.6±7   +81(52%)
            robot-peg_in_box  average  -56.2±7    30.4±31   38.6±23   64.4±6    +25.8(40%)
            """,
            base="best",
            digits=1,
        ),
        _table(
            "rho",
            "tab:rho",
            "Impact of ρ for Ball in cup and Cartpole*",
            (Column("rho_0.98", "ρ = 0.98", "sgqn", 0.98), Column("rho_0.95", "ρ = 0.95", "sgqn", 0.95)),
            """
            ball_in_cup-catch  video_easy  950±24  905±39
            cartpole-swingup   video_easy  761±28  705±38
            ball_in_cup-catch  video_hard  782±57  789±96
            cartpole-swingup   video_hard  569±56  457±60
            """,
        ),
        _table(
            "svea_soda",
            "tab:soda_svea",
            "Comparison with SVEA + SODA",
            "soda svea svea_soda sgqn",
            """
            walker-walk        video_easy  771±66   828±66   792±101  910±24
            walker-stand       video_easy  965±7    966±5    948±18   955±9
            ball_in_cup-catch  video_easy  939±10   908±55   825±114  950±24
            cartpole-swingup   video_easy  742±73   753±45   677±100  761±28
            finger-spin        video_easy  783±51   723±98   767±37   956±26
            average            video_easy  836      836      801      906
            walker-walk        video_hard  312±32   385±63   424±178  739±21
            walker-stand       video_hard  736±132  747±43   773±35   851±24
            ball_in_cup-catch  video_hard  381±163  498±174  211±107  782±57
            cartpole-swingup   video_hard  339±87   403±17   351±82   569±56
            finger-spin        video_hard  309±49   307±24   244±27   822±24
            average            video_hard  430      468      401      747
            """,
        ),
    )
}

HOURS: dict[str, float] = {
    "sac": 5,
    "rad": 5,
    "soda": 15,
    "svea": 15,
    "sgqn": 15,
    "sac_consistency": 5,
    "sac_selfsup": 15,
}
"""About how long one run took the authors (`table:experiments_details`); DrQ and SVEA + SODA are not listed."""
HARDWARE = "Intel i9 of the 10th generation, 64 GB RAM, one NVIDIA RTX 3090"

RUNS = 5
"""Repetitions behind every score."""
STEPS = 500_000
ROBOT_STEPS = 250_000

ACTION_REPEAT = {
    "walker-walk": 4,
    "walker-stand": 4,
    "ball_in_cup-catch": 4,
    "cartpole-swingup": 8,
    "finger-spin": 2,
}
RHO = {
    "walker-walk": 0.95,
    "walker-stand": 0.95,
    "finger-spin": 0.95,
    "cartpole-swingup": 0.98,
    "ball_in_cup-catch": 0.98,
}
HYPERPARAMETERS: dict[str, int | float | str | tuple[int | float, ...]] = {
    "frame rendering": (84, 84, 3),
    "stacked frames": 3,
    "discount factor": 0.99,
    "episode length": 1000,
    "number of frames": 500_000,
    "replay buffer size": 500_000,
    "optimizer of SAC: learning rate": 1e-3,
    "optimizer of SAC: betas": (0.9, 0.999),
    "optimizer of self-supervised learning: learning rate": 3e-4,
    "optimizer of self-supervised learning: betas": (0.9, 0.999),
    "optimizer of the temperature: learning rate": 1e-4,
    "optimizer of the temperature: betas": (0.5, 0.999),
    "batch size": 128,
    "target networks: update frequency": 2,
    "target networks: momentum of the encoder": 0.05,
    "target networks: momentum of the critic": 0.01,
    "auxiliary updates: frequency": 2,
    "data augmentation": "overlay",
}
"""The rest of `table:hyperparam`, in addition to `ACTION_REPEAT` and `RHO`."""

CLAIMS: tuple[Claim, ...] = (
    Claim("average margin over the second best", 60, "video", AVERAGE, "video_hard", "sgqn"),
    Claim("smallest gain on video hard", 14, "video", "walker-stand", "video_hard", "sgqn"),
    Claim("largest gain on video hard", 166, "video", "finger-spin", "video_hard", "sgqn"),
    Claim("self-supervised learning, more than", 73, "ablation", AVERAGE, "train", "sac_selfsup"),
    Claim("self-supervised learning, more than", 146, "ablation", AVERAGE, "video_easy", "sac_selfsup"),
    Claim("self-supervised learning, more than", 198, "ablation", AVERAGE, "video_hard", "sac_selfsup"),
    Claim("consistency, more than", 44, "ablation", AVERAGE, "train", "sac_consistency"),
    Claim("consistency", 102, "ablation", AVERAGE, "video_easy", "sac_consistency"),
    Claim("consistency", 187, "ablation", AVERAGE, "video_hard", "sac_consistency"),
    Claim("SGQN on average", 73, "ablation", AVERAGE, "train", "sgqn"),
    Claim("SGQN up to", 242, "ablation", "ball_in_cup-catch", "train", "sgqn"),
    Claim("SGQN on average", 182, "ablation", AVERAGE, "video_easy", "sgqn"),
    Claim("SGQN up to", 399, "ablation", "ball_in_cup-catch", "video_easy", "sgqn"),
    Claim("SGQN on average", 493, "ablation", AVERAGE, "video_hard", "sgqn"),
    Claim("SGQN up to", 4010, "ablation", "finger-spin", "video_hard", "sgqn"),
    Claim("Reach, outperforms on average by more than", 124, "robots", "robot-reach", AVERAGE, "sgqn"),
    Claim("Peg in box, better on average", 40, "robots", "robot-peg_in_box", AVERAGE, "sgqn"),
)

_CUT = "cut off, not rounded"
_OF_ROUNDED = "computed from the rounded averages"

REMARKS: tuple[Remark, ...] = (
    Remark("video", AVERAGE, "video_easy", "soda", "average", 836, 840),
    Remark("video", AVERAGE, "video_easy", "sgqn", "difference", 70, 66, "follows from SODA's average of 836"),
    Remark("video", AVERAGE, "video_hard", "rad", "average", 119, 120, _CUT),
    Remark("video", AVERAGE, "video_hard", "soda", "average", 430, 428),
    Remark("ablation", "finger-spin", "video_easy", "sac", "score", 382, 206),
    Remark("ablation", "finger-spin", "video_hard", "sac", "score", 20, 13),
    Remark("ablation", "walker-walk", "video_hard", "sgqn", "percent", 505, 506, _CUT),
    Remark("ablation", "walker-stand", "video_easy", "sgqn", "percent", 145, 146, _CUT),
    Remark("ablation", "ball_in_cup-catch", "train", "sac_consistency", "percent", -8, 166, "a rise printed as a fall"),
    Remark("ablation", "ball_in_cup-catch", "video_easy", "sgqn", "percent", 399, 395),
    Remark("ablation", "ball_in_cup-catch", "video_hard", "sac_selfsup", "percent", 100, 101, _CUT),
    Remark("ablation", "ball_in_cup-catch", "video_hard", "sgqn", "percent", 670, 674),
    Remark("ablation", AVERAGE, "train", "sac_consistency", "average", 781, 782, _CUT),
    Remark("ablation", AVERAGE, "video_hard", "sgqn", "average", 747, 748, _CUT),
    Remark("ablation", AVERAGE, "video_hard", "sac_consistency", "percent", 187, 186, _OF_ROUNDED),
    Remark("ablation", AVERAGE, "video_hard", "sac_selfsup", "percent", 198, 197, _OF_ROUNDED),
    Remark("ablation", AVERAGE, "video_hard", "sgqn", "percent", 493, 491, _OF_ROUNDED),
    Remark("action_repeat", AVERAGE, "video_easy", "sac", "average", 292, 290),
    Remark("action_repeat", AVERAGE, "video_easy", "drq", "average", 551, 543),
    Remark("action_repeat", AVERAGE, "video_easy", "soda", "average", 777, 778, _CUT),
    Remark("action_repeat", AVERAGE, "video_easy", "svea", "average", 785, 788),
    Remark("action_repeat", AVERAGE, "video_easy", "sgqn", "difference", None, 40, "left blank"),
    Remark("action_repeat", AVERAGE, "video_hard", "sac", "average", 127, 126),
    Remark("action_repeat", AVERAGE, "video_hard", "drq", "average", 130, 125),
    Remark("action_repeat", AVERAGE, "video_hard", "soda", "average", 396, 398),
    Remark("action_repeat", AVERAGE, "video_hard", "svea", "average", 437, 439),
    Remark("action_repeat", AVERAGE, "video_hard", "sgqn", "difference", None, 248, "left blank"),
    Remark("robots", "robot-reach", "test1", "sgqn", "percent", 220, 222),
    Remark("robots", "robot-reach", AVERAGE, "sac", "average", -28.6, -28.7, _CUT),
    Remark("robots", "robot-reach", AVERAGE, "soda", "average", -39.9, -39.8),
    Remark("robots", "robot-reach", AVERAGE, "sgqn", "percent", 124, 125, _OF_ROUNDED),
    Remark("robots", "robot-peg_in_box", "test2", "sgqn", "percent", 12, 13, _CUT),
    Remark("robots", "robot-peg_in_box", AVERAGE, "svea", "average", 38.6, 38.7, _CUT),
    Remark("rho", "cartpole-swingup", "video_hard", "rho_0.98", "score", 569, 544),
    Remark("svea_soda", "cartpole-swingup", "video_hard", "soda", "score", 339, 403, "its score at action repeat 4"),
    Remark("svea_soda", "cartpole-swingup", "video_hard", "svea", "score", 403, 401, "SODA's score in `video`"),
    Remark("svea_soda", "cartpole-swingup", "video_hard", "sgqn", "score", 569, 544, "as in `rho`"),
    Remark("svea_soda", AVERAGE, "video_easy", "soda", "average", 836, 840, "as in `video`"),
    Remark("svea_soda", AVERAGE, "video_easy", "svea_soda", "average", 801, 802, _CUT),
    Remark("svea_soda", AVERAGE, "video_hard", "soda", "average", 430, 415, "as in `video`, with another Cartpole"),
    Remark("svea_soda", AVERAGE, "video_hard", "sgqn", "average", 747, 753, "as in `ablation`, with another Cartpole"),
)

NOTES: dict[str, tuple[str, ...]] = {
    "ablation": (
        "The text's `more than` 73, 146 and 198 % for self-supervised learning, and 44 % for consistency in training, "
        "are rounded up: the cells give 73.0 (below 73), 145.5, 197.0 and 43.9 %.",
    ),
    "robots": (
        "Percentages are of the row's best score, SGQN's own where it wins, not of the second best as in the video "
        "tables: the text's `40 % better` on Peg in box is 67 % of the second best.",
        "SGQN's deviations are the same five numbers in both tasks (1, 14, 3, 7, 6), and the averages of SODA and "
        "SVEA have the same deviations in both (31, 23).",
    ),
    "rho": (
        "The text says that 0.95 does slightly worse; on Ball in cup, video hard, it is better (789 against 782).",
        "The star of Cartpole is not explained.",
    ),
    "svea_soda": (
        "The text says that the combination does worse than either method alone except on Walker walk, video hard; "
        "it also does better than both on Walker stand, video hard, and lies between them on Walker walk and "
        "Finger spin, video easy, and on Cartpole, video hard.",
    ),
}
"""What the print of a table, or the text about it, leaves to say in words."""
