"""Update the tables of performance.md and performance-details.md from the benchmark outputs in docs/performance.

    python benchmarks/gpu.py --sections training updates parts roofline --windows 2 --json gpu.json > gpu.txt
    python benchmarks/gpu_equality.py > equality.txt
    python docs/make_performance.py --gpu gpu.txt gpu.json --equality equality.txt     # keep new outputs
    python docs/make_performance.py                                                    # update the tables only

`gpu.md` and `equality.md` are what the benchmarks printed. `kernels.json` has all kernels, of which gpu.py prints the
largest.
"""

from __future__ import annotations

import argparse
import json
import re
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import NamedTuple

DOCS = Path(__file__).resolve().parent
DATA = DOCS / "performance"
BEGIN, END = "<!-- {}: made by docs/make_performance.py -->", "<!-- end -->"

GPU = "python benchmarks/gpu.py --sections training updates parts roofline --windows 2"
EQUALITY = "python benchmarks/gpu_equality.py"

KERNELS = {
    "encoder: forward": r"encoder_forward",
    "encoder: gradient through the layers": r"encoder_backward",
    "encoder: gradient of the weights, layout conversion": r"encoder_(first_)?weights|encoder_(un)?pack",
    "encoder: gradient of the images, first layer": r"encoder_pixels",
    "heads and decoder: matrix products (cuBLAS)": r"nvjet_.*|void cublasLt::.*",
    "heads: other kernels, value losses": (
        r"(value|norm_tanh|gaussian)_(forward|backward)|relu_backward|join|squared_errors|soft_target"
    ),
    "decoder: convolutions (cuDNN)": r".*_cudnn\b.*",
    "decoder: other kernels": r"(upsample|logits)_.*|gate_sums|bias_relu|decoder_.*",
    "masks: quantile, fill, statistics, loss": r"quantile|fill_unmasked|byte_range|share_of_ones|agreement|bce_.*",
    "Adam, bf16 copies of weights": r"adam|convert",
    "batches: sampling, shifts, overlay": r"window|blend|void at::native::vectorized_gather_kernel.*",
    "small PyTorch kernels: copies, sums, target networks, random numbers": (
        r"void (at::native|\(anonymous namespace\))::.*|Memset.*|memcpy.*"
    ),
}
"""Groups of kernels. A kernel belongs to the first group whose pattern matches its whole name, or else to "others".
On the path `kernels` the encoder has its own kernels, so `gate_sums` and `bias_relu` belong to the decoder."""
NAME_LENGTH = 160
"""Kernel names are truncated, because template arguments can be very long."""

PATHS = ("autocast", "captured", "cudnn", "kernels")
DRIFTS = ("captured", "kernels, eager", "cudnn", "kernels")
ENCODER_PATHS = {
    "captured fp32": "captured, fp32",
    "captured bf16": "captured, bf16",
    "cudnn bf16": "cudnn",
    "kernels bf16": "kernels",
}
NETWORKS = {
    **{name: name for name in ("encoder", "projection", "heads", "actor", "decoder")},
    "projector": "SODA projector",
    "predictor": "SODA predictor",
}
NOISE = "consistency"
"""This loss is mere rounding error in the compared state."""

Row = dict[str, str]

# ---------------------------------------------------------------- benchmark outputs


class Kernel(NamedTuple):
    name: str
    us: float
    launches: float


def keep(name: str, command: str, printed_by_it: Path) -> None:
    """Copy what a benchmark printed to docs/performance."""
    title = f"# Output of {command.split()[1]} on an NVIDIA H200"
    (DATA / f"{name}.md").write_text(f"{title}\n\n    {command}\n\n{printed_by_it.read_text()}")


def keep_kernels(numbers: Path) -> None:
    """Copy the kernels from the JSON file of benchmarks/gpu.py to docs/performance."""
    found = json.loads(numbers.read_text())["parts"]["kernels"]
    lines = [json.dumps([k["name"][:NAME_LENGTH], round(k["us"], 2), k["launches"]]) for k in found]
    (DATA / "kernels.json").write_text("[\n" + ",\n".join(lines) + "\n]\n")


def kernels() -> list[Kernel]:
    return [Kernel(*row) for row in json.loads((DATA / "kernels.json").read_text())]


def printed(name: str, title: str) -> list[Row]:
    """Rows of the table below the line that begins with this title in docs/performance/<name>.md.

    If two columns have the same name, " 2" is appended to the second.
    """
    text = (DATA / f"{name}.md").read_text()
    _, below = re.split(rf"(?m)^{re.escape(title)}.*\n\n", text, maxsplit=1)
    head, _, *body = map(cells, below.split("\n\n")[0].splitlines())
    columns = [f"{column} 2" if column in head[:i] else column for i, column in enumerate(head)]
    return [dict(zip(columns, row, strict=True)) for row in body]


def numbers(name: str, pattern: str) -> tuple[str, ...]:
    """Groups of the first match in docs/performance/<name>.md."""
    found = re.search(pattern, (DATA / f"{name}.md").read_text())
    assert found is not None, f"{name}.md does not contain {pattern!r}"
    return found.groups()


def cells(line: str) -> list[str]:
    return [cell.strip() for cell in line.strip("|").split("|")]


# ---------------------------------------------------------------- tables


def updates() -> str:
    rows = printed("gpu", "One update, ms")
    rows.sort(key=lambda row: row["agent"] != "sgqn")
    paths = ("eager fp32", "captured bf16", "cudnn bf16", "kernels bf16")
    head = ["agent", *(path.replace(" ", ", ") for path in paths), "authors' code", "speedup"]
    columns = (*paths, "authors", "times faster")
    return grid([head, *([code(row), *(row[name].replace("-", "") for name in columns)] for row in rows)])


def training() -> str:
    found = {row["quantity"]: row["value"] for row in printed("gpu", "Training sgqn")}
    captured = "set-up: random steps and capture of the updates, with fused kernels in the cache"
    rows = [
        ("agent steps/s", found["agent steps/s"]),
        (
            "share of time not spent on updates: environments, rendering, replay buffer, policy",
            percent(float(found["share of collection"]), 1),
        ),
        ("set-up: construction of the trainer", f"{found['set-up: construction (s)']} s"),
        (captured, f"{found['set-up: until updates are captured (s)']} s"),
        ("replay buffer of 500,000 transitions", f"{found['replay buffer of 500,000 transitions (GB)']} GB"),
        (
            f"memory in use on the device, with a replay buffer of {found['replay buffer of this run (GB)']} GB",
            f"{float(found['memory in use on the device (GB)']):.1f} GB",
        ),
    ]
    return grid([("quantity", "value"), *rows])


def parts() -> str:
    """Kernels of an update by group."""
    sums: dict[str, list[Kernel]] = {group: [] for group in KERNELS}
    for kernel in kernels():
        sums.setdefault(group_of(kernel.name), []).append(kernel)
    sums["all"] = kernels()
    whole = sum(kernel.us for kernel in kernels())
    rows = []
    for group, members in sums.items():
        us, launches = sum(kernel.us for kernel in members), sum(kernel.launches for kernel in members)
        rows.append((group, f"{us:,.0f}", f"{launches:.1f}", percent(us / whole)))
    return grid([("kernels", "us", "launches", "share"), *rows])


def group_of(kernel: str) -> str:
    return next((group for group, pattern in KERNELS.items() if re.fullmatch(pattern, kernel)), "others")


def roofline() -> str:
    """A whole update compared with the measured peak."""
    update = r"update: (\d+) GFLOP in (.+) ms: (\d+) TFLOP/s, (\d+)% .* would take (.+) ms"
    flop, ms, rate, share, least = numbers("gpu", update)
    peak, bandwidth = numbers("gpu", r"8192\^3 (\d+) TFLOP/s, copy of 1 GB (\d+) GB/s")
    rows = [
        ("convolutions and matrix products of one update", f"{flop} GFLOP"),
        ("time of one update", f"{ms} ms"),
        ("rate", f"{rate} TFLOP/s"),
        ("measured peak: bf16 product of 8192 x 8192 matrices", f"{peak} TFLOP/s"),
        ("rate, relative to the peak", f"{share} %"),
        ("time of one update at the peak", f"{least} ms"),
        ("measured peak: copy of 1 GB", f"{int(bandwidth):,} GB/s"),
    ]
    return grid([("quantity", "value"), *rows])


def encoder() -> str:
    rows = {row["pass"]: row for row in printed("gpu", "Encoder, batch 128")}
    passes = [name.removeprefix("kernels bf16: ") for name in rows if name.startswith("kernels bf16: ")]
    times = (f"{name}: ms" for name in ENCODER_PATHS.values())
    table = [["pass", "GFLOP", "MB (lower bound)", *times, "kernels: of peak FLOP/s", "of peak bytes/s"]]
    for name in passes:
        fused = rows[f"kernels bf16: {name}"]
        ms = (f"{float(rows[f'{path}: {name}']['ms']):.3f}" for path in ENCODER_PATHS)
        peaks = (fused[column].replace("%", " %") for column in ("of peak", "of peak 2"))
        table.append([name, fused["GFLOP"], fused["MB (lower bound)"], *ms, *peaks])
    return grid(table)


def equality() -> str:
    """One row per agent: gradients and losses of one update on the path `kernels`, and autocast."""
    noisy = {row["agent, optimizer"] for row in printed("equality", "Gradients that are noisy in bf16")}
    gradients = by_agent(
        row
        for row in printed("equality", "One update: minimum cosine")
        if f"{row['agent']}, {row['optimizer']}" not in noisy
    )
    losses = by_agent(row for row in printed("equality", "One update: losses") if row["loss"] != NOISE)
    masks = by_agent(printed("equality", "Masks: IoU"))
    paths = ("autocast", "cudnn", "kernels")
    head = ["agent"]
    for quantity in ("minimum cosine", "loss, difference", "mask IoU"):
        head += [f"{quantity}: {paths[0]}", *paths[1:]]
    table = [head]
    for agent, found in gradients.items():
        cosines = (min((row[path] for row in found), key=float) for path in paths)
        apart = (max(abs(float(row[path]) / float(row["fp32"]) - 1) for row in losses[agent]) for path in paths)
        overlap = (row[path].split()[0] for row in masks.get(agent, []) for path in paths)
        table.append([agent, *cosines, *(percent(value, 2) for value in apart), *(list(overlap) or [""] * len(paths))])
    return grid(table)


def noise() -> str:
    """Gradients of SODA's auxiliary loss."""
    table = [["agent", "1 - cosine", *PATHS]]
    for row in printed("equality", "Gradients that are noisy in bf16"):
        agent = row["agent, optimizer"].removesuffix(", auxiliary")
        for i, (name, quantile) in enumerate(((f"`{agent}`", "median"), ("", "upper quartile"))):
            table.append([name, quantile, *(row[path].split(" / ")[i] for path in PATHS)])
    return grid(table, left=2)


def drift() -> str:
    rows = {row["network"]: row for row in printed("equality", "Drift relative to autocast")}
    columns = ("agents", *DRIFTS)
    return grid(
        [
            ["network", *columns],
            *([title, *(rows[name][column] for column in columns)] for name, title in NETWORKS.items()),
        ]
    )


PAGES: dict[str, tuple[Callable[[], str], ...]] = {
    "performance.md": (updates, training, equality),
    "performance-details.md": (parts, roofline, encoder, noise, drift),
}
"""The tables of each page."""


def by_agent(rows: Iterable[Row]) -> dict[str, list[Row]]:
    found: dict[str, list[Row]] = {}
    for row in rows:
        found.setdefault(code(row), []).append(row)
    return found


def code(row: Row) -> str:
    return f"`{row['agent']}`"


def percent(share: float, digits: int = 0) -> str:
    return f"{share:.{digits}%}".replace("%", " %")


def grid(rows: Sequence[Sequence[str]], left: int = 1) -> str:
    """A Markdown table whose first columns are aligned to the left and the others to the right."""
    head, *body = (f"| {' | '.join(row)} |".replace("  ", " ") for row in rows)
    return "\n".join([head, f"|{'---|' * left}{'---:|' * (len(rows[0]) - left)}", *body])


def page(name: str) -> str:
    """The text of a page with updated tables."""
    text = (DOCS / name).read_text()
    for table in PAGES[name]:
        mark = BEGIN.format(table.__name__)
        before, rest = text.split(mark)
        _, after = rest.split(END, maxsplit=1)
        text = f"{before}{mark}\n\n{table()}\n\n{END}{after}"
    return text


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--gpu", type=Path, nargs=2, metavar=("TEXT", "JSON"), help="new outputs of benchmarks/gpu.py")
    parser.add_argument("--equality", type=Path, metavar="TEXT", help="new output of benchmarks/gpu_equality.py")
    parser.add_argument("--out", type=Path, default=DOCS, help="folder of the pages (default: docs)")
    options = parser.parse_args()
    if options.gpu:
        keep("gpu", GPU, options.gpu[0])
        keep_kernels(options.gpu[1])
    if options.equality:
        keep("equality", EQUALITY, options.equality)
    for name in PAGES:
        (options.out / name).write_text(page(name))
