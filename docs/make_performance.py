"""Makes the tables of docs/performance.md, and its picture, from what docs/performance keeps.

    python docs/make_performance.py                    # the tables; prints what the text says of the runs
    python docs/make_performance.py --picture          # docs/images/learning_gpu.png too: needs matplotlib
    python docs/make_performance.py seed0=runs/walker-walk/sgqn/0/metrics.jsonl     # first takes a run's returns over,
    python docs/make_performance.py kernels=gpu.json   # or the kernels of `benchmarks/gpu.py --json gpu.json`

`gpu.md` and `equality.md` are what benchmarks/gpu.py and benchmarks/gpu_equality.py printed, `kernels.json` is what the
former wrote of the kernels, of which it prints the largest alone. Runs are CSV files: `seed0` (500,000
steps), `lagging0` and `lagging1` (the same with targets that lagged, seeds 0 and 1), `sky` (stopped; with the stars of
the sky as sharp as its texture), `cudnn`, `resumed` and `killed` (the same run before it was killed).
"""

from __future__ import annotations

import csv
import json
import re
import sys
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np

DOCS = Path(__file__).parent
DATA, PAGE = DOCS / "performance", DOCS / "performance.md"
BEGIN, END = "<!-- {}: made by docs/make_performance.py -->", "<!-- end -->"

COLUMNS = ("step", "return", "seconds", "loss_mask")
CURVES = {
    "seed0": ("kernels, seed 0", "C0", "-"),
    "lagging1": ("lagging targets, seed 1", "0.45", "-"),
    "lagging0": ("lagging targets, seed 0", "0.7", "-"),
    "sky": ("sharper sky", "C4", "-"),
    "cudnn": ("cudnn", "C1", "-"),
    "resumed": ("killed and resumed", "C2", "-"),
    "killed": ("the same before the kill", "C2", ":"),
}
LONG = {
    "seed0": "seed 0",
    "lagging1": "seed 1, with [lagging targets](#a-fault-that-it-found)",
    "lagging0": "seed 0, with lagging targets",
}
SHORT = {
    "seed0": "`kernels`",
    "cudnn": "`cudnn`",
    "resumed": "`kernels`, killed and resumed",
    "killed": "the same before the kill",
    "lagging1": "`kernels`, lagging, seed 1",
    "lagging0": "`kernels`, lagging, seed 0",
}
MARKS = (48_000, 96_000, 100_000, 200_000, 300_000, 500_000)
FIRST_MARKS = (4_000, 8_000, 12_000, 16_000, 20_000)
ALONE = "lagging0"
"""The run that had the GPU for itself: its seconds are a measure of speed."""

KERNELS = {
    "encoder: forward": r"encoder_forward",
    "encoder: gradient through the layers": r"encoder_backward",
    "encoder: gradient of the weights, layouts": r"encoder_(first_)?weights|encoder_(un)?pack",
    "encoder: gradient of the pictures, first layer": r"encoder_pixels",
    "heads and decoder: cuBLAS's products": r"nvjet_.*|void cublasLt::.*",
    "heads: what is between the products, losses of values": (
        r"(value|norm_tanh|gaussian)_(forward|backward)|relu_backward|join|squared_errors|soft_target"
    ),
    "decoder: cuDNN's convolutions": r".*_cudnn\b.*",
    "decoder: what is between them": r"(upsample|logits)_.*|gate_sums|bias_relu|decoder_.*",
    "masks: quantile, filling, statistics, loss": r"quantile|fill_unmasked|byte_range|share_of_ones|agreement|bce_.*",
    "Adam, copies of weights in bf16": r"adam|convert",
    "batches: sampling, shifts, overlay": r"window|blend|void at::native::vectorized_gather_kernel.*",
    "PyTorch's small kernels: copies, sums, target networks, random numbers": (
        r"void (at::native|\(anonymous namespace\))::.*|Memset.*|memcpy.*"
    ),
}
"""Groups of kernels: each kernel belongs to the first whose pattern is its whole name. On the path `kernels` the
encoder has kernels of its own, so `gate_sums` and `bias_relu` are the decoder's; `relu_backward` is the heads' but for
one launch in each auxiliary step. What no pattern knows is shown as a row of its own."""
NAME_LENGTH = 160
"""What is kept of a kernel's name; template arguments go on for pages."""

PATHS = ("autocast", "captured", "cudnn", "kernels")
DRIFTS = ("autocast", "captured", "kernels, eager", "cudnn", "kernels")
ENCODER_PATHS = {
    "captured fp32": "captured, fp32",
    "captured bf16": "captured, bf16",
    "cudnn bf16": "cudnn",
    "kernels bf16": "kernels",
}
NETWORKS = {
    **{name: name for name in ("encoder", "projection", "heads", "actor", "decoder")},
    "projector": "SODA's projector",
    "predictor": "SODA's predictor",
}
NOISE = "consistency"
"""The loss that is nothing but rounding at the state where losses are compared."""

Row = dict[str, str]

# ---------------------------------------------------------------- what is kept


class Kernel(NamedTuple):
    name: str
    us: float
    launches: float


def take_over(name: str, source: Path) -> None:
    """Keep what a page's part is made of in docs/performance: of a run's metrics, or of benchmarks/gpu.py --json."""
    DATA.mkdir(exist_ok=True)
    if name == "kernels":
        found = json.loads(source.read_text())["parts"]["kernels"]
        lines = [json.dumps([k["name"][:NAME_LENGTH], round(k["us"], 2), k["launches"]]) for k in found]
        (DATA / "kernels.json").write_text("[\n" + ",\n".join(lines) + "\n]\n")
    else:
        take_over_run(name, source)


def take_over_run(name: str, metrics: Path) -> None:
    """Write a run's returns to docs/performance/<name>.csv, with the loss of the mask's prediction since the last."""
    rows: list[tuple[int, str, str, str]] = []
    losses: list[float] = []
    for line in map(json.loads, metrics.read_text().splitlines()):
        if "loss/mask" in line:
            losses.append(line["loss/mask"])
        if "episode/return" in line:
            loss = f"{np.mean(losses):.4f}" if losses else ""
            rows.append((line["step"], f"{line['episode/return']:.1f}", f"{line['seconds']:.1f}", loss))
            losses = []
    with (DATA / f"{name}.csv").open("w", newline="") as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(COLUMNS)
        writer.writerows(rows)


def read(name: str) -> np.ndarray:
    """Steps, returns, seconds, losses of the mask's prediction."""
    return np.genfromtxt(DATA / f"{name}.csv", delimiter=",", skip_header=1).reshape(-1, len(COLUMNS)).T


def kernels() -> list[Kernel]:
    return [Kernel(*row) for row in json.loads((DATA / "kernels.json").read_text())]


def printed(name: str, title: str) -> list[Row]:
    """The table below the line that begins with this title in docs/performance/<name>.md, row by row.

    Of two columns of one name the second has a 2 behind it.
    """
    text = (DATA / f"{name}.md").read_text()
    _, below = re.split(rf"(?m)^{re.escape(title)}.*\n\n", text, maxsplit=1)
    head, _, *body = map(cells, below.split("\n\n")[0].splitlines())
    columns = [f"{column} 2" if column in head[:i] else column for i, column in enumerate(head)]
    return [dict(zip(columns, row, strict=True)) for row in body]


def cells(line: str) -> list[str]:
    return [cell.strip() for cell in line.strip("|").split("|")]


# ---------------------------------------------------------------- the tables


def updates() -> str:
    rows = printed("gpu", "One update, ms")
    rows.sort(key=lambda row: row["agent"] != "sgqn")
    paths = ("eager fp32", "captured bf16", "cudnn bf16", "kernels bf16")
    head = ["agent", *(path.replace(" ", ", ") for path in paths), "authors' code", "authors' / kernels"]
    columns = (*paths, "authors", "times faster")
    return grid([head, *([code(row), *(row[name].replace("-", "") for name in columns)] for row in rows)])


def training() -> str:
    found = {row["what"]: row["value"] for row in printed("gpu", "Training sgqn")}
    captured = "set-up: until the updates are captured, random steps included; with the fused kernels in the cache"
    rows = [
        ("agent steps/s", found["agent steps/s"]),
        (
            "share of the time between updates: environments, rendering, replay, policy",
            percent(float(found["collection's share"]), 1),
        ),
        ("set-up: until the trainer is built", f"{found['set-up: construction, s']} s"),
        (captured, f"{found['set-up: until updates are captured, s']} s"),
        ("replay of 500,000 transitions", f"{found['replay of 500,000 transitions, GB']} GB"),
        (
            f"memory in use on the device, with a replay of {found['replay of this run, GB']} GB",
            f"{float(found['memory in use on the device, GB']):.1f} GB",
        ),
    ]
    return grid([("what", "value"), *rows])


def parts() -> str:
    """The kernels of an update, put together."""
    sums: dict[str, list[Kernel]] = {group: [] for group in KERNELS}
    for kernel in kernels():
        sums.setdefault(group_of(kernel.name), []).append(kernel)
    sums["all"] = kernels()
    whole = sum(kernel.us for kernel in kernels())
    rows = []
    for group, members in sums.items():
        us, launches = sum(kernel.us for kernel in members), sum(kernel.launches for kernel in members)
        rows.append((group, f"{us:,.0f}", f"{launches:.1f}", percent(us / whole)))
    return grid([("what", "us", "launches", "share"), *rows])


def group_of(kernel: str) -> str:
    return next((group for group, pattern in KERNELS.items() if re.fullmatch(pattern, kernel)), "others")


def encoder() -> str:
    rows = {row["pass"]: row for row in printed("gpu", "The encoder, batch 128")}
    passes = [name.removeprefix("kernels bf16: ") for name in rows if name.startswith("kernels bf16: ")]
    times = (f"{name}: ms" for name in ENCODER_PATHS.values())
    table = [["pass", "GFLOP", "MB at least", *times, "kernels: of peak FLOP/s", "of peak bytes/s"]]
    for name in passes:
        fused = rows[f"kernels bf16: {name}"]
        ms = (f"{float(rows[f'{path}: {name}']['ms']):.3f}" for path in ENCODER_PATHS)
        peaks = (fused[column].replace("%", " %") for column in ("of peak", "of peak 2"))
        table.append([name, fused["GFLOP"], fused["MB at least"], *ms, *peaks])
    return grid(table)


def gradients() -> str:
    """Least cosines over an agent's optimisers, but for those where bf16 itself loses the direction."""
    lost = {row["agent, optimiser"] for row in printed("equality", "Where bf16 itself loses the direction")}
    rows = [
        row
        for row in printed("equality", "One update: the least cosine")
        if f"{row['agent']}, {row['optimiser']}" not in lost
    ]
    table = [["agent", "tensors", *PATHS, "sizes, kernels"]]
    for agent, found in by_agent(rows).items():
        cosines = (min((row[path] for row in found), key=float) for path in PATHS)
        low, high = zip(*(row["sizes, kernels"].split(" to ") for row in found), strict=True)
        sizes = f"{min(low, key=float)} to {max(high, key=float)}"
        table.append([agent, str(sum(int(row["tensors"]) for row in found)), *cosines, sizes])
    return grid(table)


def soda() -> str:
    table = [["agent", "what is lost of the cosine", *PATHS]]
    for row in printed("equality", "Where bf16 itself loses the direction"):
        agent = row["agent, optimiser"].removesuffix(", auxiliary")
        for i, (name, what) in enumerate(((f"`{agent}`", "median"), ("", "upper quartile"))):
            table.append([name, what, *(row[path].split(" / ")[i] for path in PATHS)])
    return grid(table, left=2)


def masks() -> str:
    rows = printed("equality", "Masks: overlap")
    return grid([["agent", *PATHS], *([code(row), *(row[path] for path in PATHS)] for row in rows)])


def losses() -> str:
    rows = [row for row in printed("equality", "One update: losses") if row["loss"] != NOISE]
    table = [["agent", *PATHS]]
    for agent, found in by_agent(rows).items():
        apart = (max(abs(float(row[path]) / float(row["fp32"]) - 1) for row in found) for path in PATHS)
        table.append([agent, *(percent(value, 2) for value in apart)])
    return grid(table)


def drift() -> str:
    head, networks = ["agent"], ("encoder", "projection")
    for network in networks:
        head += [f"{network}: {DRIFTS[0]}", *DRIFTS[1:]]
    table = [head]
    for agent, found in by_agent(printed("equality", "50 updates: distance")).items():
        rows = {row["network"]: row for row in found}
        table.append([agent, *(rows[network][path] for network in networks for path in DRIFTS)])
    return grid(table)


def ratios() -> str:
    rows = {row["network"]: row for row in printed("equality", "Drift beside autocast's")}
    columns = ("agents", *DRIFTS[1:])
    return grid(
        [
            ["network", *columns],
            *([title, *(rows[name][column] for column in columns)] for name, title in NETWORKS.items()),
        ]
    )


def learning() -> str:
    table = [["run", f"{MARKS[0]:,} steps", *(f"{mark:,}" for mark in MARKS[1:]), "700 passed at"]]
    for name, title in LONG.items():
        at, returns, *_ = read(name)
        table.append([title, *(return_at(name, mark) for mark in MARKS), f"{at[returns >= 700][0]:,.0f}"])
    return grid(table)


def first_steps() -> str:
    rows = ([f"{mark:,}", *(return_at(name, mark) for name in SHORT)] for mark in FIRST_MARKS)
    return grid([["steps", *SHORT.values()], *rows], left=0)


TABLES = (updates, training, parts, encoder, gradients, soda, masks, losses, drift, ratios, learning, first_steps)


def by_agent(rows: Iterable[Row]) -> dict[str, list[Row]]:
    found: dict[str, list[Row]] = {}
    for row in rows:
        found.setdefault(code(row), []).append(row)
    return found


def code(row: Row) -> str:
    return f"`{row['agent']}`"


def percent(share: float, digits: int = 0) -> str:
    return f"{share:.{digits}%}".replace("%", " %")


def return_at(name: str, mark: int) -> str:
    at, returns, *_ = read(name)
    return "".join(f"{value:.0f}" for value in returns[at == mark])


def grid(rows: Sequence[Sequence[str]], left: int = 1) -> str:
    """The first columns to the left, the others, which are numbers, to the right."""
    head, *body = (f"| {' | '.join(row)} |".replace("  ", " ") for row in rows)
    return "\n".join([head, f"|{'---|' * left}{'---:|' * (len(rows[0]) - left)}", *body])


def page(text: str) -> str:
    """The page with its tables made anew."""
    for table in TABLES:
        mark = BEGIN.format(table.__name__)
        before, rest = text.split(mark)
        _, after = rest.split(END, maxsplit=1)
        text = f"{before}{mark}\n\n{table()}\n\n{END}{after}"
    return text


# ---------------------------------------------------------------- the picture, and what the text says of the runs


def draw() -> None:
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    figure, (left, right) = plt.subplots(1, 2, figsize=(9, 3.6), constrained_layout=True)
    left.axhline(700, color="0.8", linewidth=1)
    for name in LONG:
        steps, returns, *_ = read(name)
        left.plot(steps / 1000, returns, color=CURVES[name][1], label=CURVES[name][0])
    steps, _, seconds, _ = read(ALONE)
    left.set(xlabel="thousand agent steps", ylabel="return of training episodes", ylim=(0, 1000))
    left.legend(frameon=False, loc="lower right")
    left.set_xlim(0, steps[-1] / 1000)
    thousands, minutes = np.append(0, steps) / 1000, np.append(0, seconds) / 60
    top = left.secondary_xaxis(
        "top", functions=(lambda x: np.interp(x, thousands, minutes), lambda x: np.interp(x, minutes, thousands))
    )
    top.set_xlabel("minutes")
    for name, (label, color, style) in CURVES.items():
        at, returns, *_ = read(name)
        first = at <= 20_000
        right.plot(at[first] / 1000, returns[first], style, color=color, marker=".", label=label)
    right.set(xlabel="thousand agent steps", ylim=(0, 1000), xticks=range(0, 21, 4))
    right.legend(frameon=False, loc="upper left")
    for axes in (left, right):
        axes.spines[["right"]].set_visible(False)
    right.spines["top"].set_visible(False)
    figure.savefig(DOCS / "images" / "learning_gpu.png", dpi=110)


def say() -> None:
    for name in CURVES:
        at, returns, _, losses = read(name)
        passed = f"700 at {at[returns >= 700][0]:.0f}" if (returns >= 700).any() else ""
        spans = [(low, low + 20_000) for low in (150_000, 480_000) if at[-1] > low]
        parts = (f"mask's loss from {low:,}: {losses[(at > low) & (at <= high)].mean():.4f}" for low, high in spans)
        print(f"{name}: {returns[-1]:.0f} at {at[-1]:.0f}", passed, *parts)
    steps, _, seconds, _ = read(ALONE)
    rate = (steps[-1] - steps[0]) / (seconds[-1] - seconds[0])
    print(
        f"the run `{ALONE}`, from step {steps[0]:,.0f} to {steps[-1]:,.0f}: {rate:.0f} agent steps/s; "
        f"{seconds[-1] / 60:.1f} minutes in all"
    )


def main(arguments: list[str]) -> None:
    given = [argument for argument in arguments if argument != "--picture"]
    for argument in given:
        name, _, path = argument.partition("=")
        if name not in (*CURVES, "kernels") or not path:
            sys.exit(f"{argument!r} is not NAME=FILE with a name of {', '.join(CURVES)}, kernels")
        take_over(name, Path(path))
    PAGE.write_text(page(PAGE.read_text()))
    say()
    if "--picture" in arguments:
        draw()


if __name__ == "__main__":
    main(sys.argv[1:])
