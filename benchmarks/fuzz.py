"""Fuzz the files and the command line: damaged and hostile files, nonsensical commands.

    python benchmarks/fuzz.py --files 1000 --commands 500     # the figures in docs/reliability.md
    python benchmarks/fuzz.py --minutes 60                    # as many as fit into an hour, of both
    python benchmarks/fuzz.py --tiny                          # check that the script works

A case is refused with one line, or accepted. Fails (exit code 1) if there is a traceback, an error of several lines, a
hang (10 s), a memory growth of more than 1 GB, a write outside of the run's folder, or a changed content that is
accepted silently; such cases are printed. tests/fuzz/files.py says what exactly counts as silent. The same seed makes
the same cases.
"""

from __future__ import annotations

import argparse
import importlib
import os
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

ROUND = 100
"""Cases between two looks at the clock."""
FINE = ("refused", "accepted unchanged", "another valid file", "ran")
"""Outcomes that are no failure."""
FAILURES = ("traceback", "lines", "hang", "memory", "silent", "wrote elsewhere")

Outcomes = Callable[[int, int], Counter[str]]


def half(name: str) -> Outcomes | None:
    """One half of the suite; None if it is not there."""
    root = str(Path(__file__).resolve().parent.parent)
    if root not in sys.path:
        sys.path.insert(0, root)
    try:
        module: Any = importlib.import_module(f"tests.fuzz.{name}")
    except ModuleNotFoundError as error:
        if error.name is None or not error.name.startswith("tests"):
            raise
        return None
    return module.outcomes


def counted(outcomes: Outcomes, count: int, seed: int, until: float) -> Counter[str]:
    """So many cases, or as many as fit until then, in rounds with seeds of their own."""
    found: Counter[str] = Counter()
    for number, first in enumerate(range(0, count, ROUND)):
        if time.monotonic() > until:
            break
        found += outcomes(min(ROUND, count - first), seed + number)
        print(f"{found.total()} cases: {dict(found)}", file=sys.stderr, flush=True)
    return found


def table(found: dict[str, Counter[str]]) -> str:
    """The outcomes as a Markdown table."""
    usual = [*FINE, *FAILURES]
    names = [*usual, *sorted(set().union(*found.values()) - set(usual))]
    rows = [f"| | cases | {' | '.join(names)} |", "|---" * (len(names) + 2) + "|"]
    for half_name, counts in found.items():
        rows.append(f"| {half_name} | {counts.total()} | {' | '.join(str(counts[name]) for name in names)} |")
    return "\n".join(rows)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--files", type=int, default=1000, metavar="N", help="damaged and hostile files")
    parser.add_argument("--commands", type=int, default=500, metavar="N", help="command lines")
    parser.add_argument("--minutes", type=float, metavar="M", help="half of this time for each, instead of a number")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--tiny", action="store_true", help="a few cases, to check that the script works")
    options = parser.parse_args()
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    os.environ["SGQN_DATA"] = tempfile.mkdtemp(prefix="sgqn-no-data-")  # the built-in data only
    counts = {"files": options.files, "commands": options.commands}
    if options.minutes is not None:
        counts = dict.fromkeys(counts, sys.maxsize)
    if options.tiny:
        counts = dict.fromkeys(counts, 3)
    found: dict[str, Counter[str]] = {}
    for name, count in counts.items():
        outcomes = half(name) if count else None
        if outcomes is None:
            print(f"{name}: skipped", file=sys.stderr)
            continue
        until = float("inf") if options.minutes is None else time.monotonic() + options.minutes * 30
        found[name] = counted(outcomes, count, options.seed, until)
    print(table(found))
    return int(any(name not in FINE for counts in found.values() for name in counts))


if __name__ == "__main__":
    raise SystemExit(main())
