"""How much the answers need each feature alone, as tables with bars."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from crossrank.reports.markup import Markup, decimal, places, table, text
from crossrank.reports.quality import METRICS, figure
from crossrank.runs import Run

SHOWN = 20  # features of one run; the others are folded away
SHOWN_BESIDE = 10  # of each of several runs
WHEN = "when the values of one feature are shuffled among the rows"
CAUTION = "A feature whose news another one brings as well may seem unneeded."


def importance(runs: Sequence[Run], names: Mapping[Path, str]) -> Markup:
    """What shuffling each feature costs; nothing where no run has measured it."""
    found = {run.path: known for run in runs if (known := run.found_importance) and known["features"]}
    if not found:
        return Markup()
    if len(found) > 1:
        return Markup(f"<p>How far the error of each run rises {WHEN}. {CAUTION}</p>{_beside(found, names)}")
    (known,) = found.values()
    base = f"{METRICS[known['metric']].title} rises from {figure(known['metric'], known['base'])}"
    shuffled = f"on {known['rows']:,} {text(known['split'])} rows; mean and deviation of {known['repeats']:,} shuffles"
    return Markup(f"<p>How far {base} {WHEN}, {shuffled}. {CAUTION}</p>{_table(known['features'])}")


def _table(features: Sequence[Mapping[str, Any]]) -> str:
    top = features[0]["importance"]
    digits = _digits(top)
    headers = ["feature", "", "importance", "deviation"]
    rows = [
        [one["feature"], _bar(one["importance"], top), *(decimal(one[key], digits) for key in headers[2:])]
        for one in features
    ]
    shown = table(headers, rows[:SHOWN], words=(0, 1), wrap=0)
    rest = rows[SHOWN:]
    if not rest:
        return shown
    folded = table(headers, rest, words=(0, 1), wrap=0)
    return f"{shown}<details><summary>The other {len(rest):,} features</summary>{folded}</details>"


def _beside(found: Mapping[Path, Mapping[str, Any]], names: Mapping[Path, str]) -> str:
    """The strongest features of any run, and what each run needs them for; each run has its own measure of bars."""
    by_run = {path: {one["feature"]: one["importance"] for one in known["features"]} for path, known in found.items()}
    strongest = dict.fromkeys(name for values in by_run.values() for name in list(values)[:SHOWN_BESIDE])
    rows = [[name, *(_cell(values, name) for values in by_run.values())] for name in strongest]
    headers = [f"{names[path]}, {METRICS[known['metric']].title}" for path, known in found.items()]
    return table(["feature", *headers], rows, words=range(len(by_run) + 1), wrap=0)


def _cell(values: Mapping[str, float], name: str) -> Markup | None:
    if name not in values:
        return None
    top = max(values.values())
    return Markup(f"{decimal(values[name], _digits(top))}<br>{_bar(values[name], top)}")


def _bar(value: float, top: float) -> Markup:
    return Markup(f'<span class="bar" style="width: {8 * max(value, 0) / max(top, 1e-30):.2f}rem"></span>')


def _digits(top: float) -> int:
    """Decimals that show the strongest by three digits, and all others beside it."""
    return places(top, 3) if top > 0 else 4
