"""How much the answers need each feature alone, as tables with bars."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from crossrank.reports.contents import optional
from crossrank.reports.quality import METRICS
from crossrank.reports.tables import Markup, amount, table, text
from crossrank.runs import Run

SHOWN = 20  # features of one run; the others are folded away
SHOWN_BESIDE = 10  # of each of several runs


def importance(runs: Sequence[Run], names: Mapping[Path, str]) -> Markup:
    """What shuffling each feature costs; nothing where no run has measured it."""
    found = {run.path: known for run in runs if (known := optional(run, "importance.json")) and known["features"]}
    if not found:
        return Markup()
    if len(found) == 1:
        (known,) = found.values()
        return Markup(_lead(known) + _table(known["features"]))
    return Markup(_lead(next(iter(found.values()))) + _beside(found, names))


def _lead(known: Mapping[str, Any]) -> str:
    metric = METRICS[known["metric"]].title
    return (
        f"<p>How far {metric} rises from {amount(known['base'])} when the values of one feature are shuffled among "
        f"{known['rows']:,} {text(known['split'])} rows: mean and deviation of {known['repeats']} shuffles. Features "
        "that tell the same share their importance.</p>"
    )


def _table(features: Sequence[Mapping[str, Any]]) -> str:
    top = max(features[0]["importance"], 0)
    headers = ["feature", "", "importance", "deviation"]
    rows = [
        [one["feature"], _bar(one["importance"], top), _signed(one["importance"]), amount(one["deviation"], 3)]
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
    by_run = {
        path: {one["feature"]: one["importance"] for one in known["features"]} for path, known in found.items()
    }
    strongest = dict.fromkeys(name for values in by_run.values() for name in list(values)[:SHOWN_BESIDE])
    rows = [[name, *(_cell(values, name) for values in by_run.values())] for name in strongest]
    headers = [f"{names[path]}, {METRICS[known['metric']].title}" for path, known in found.items()]
    return table(["feature", *headers], rows, words=range(len(by_run) + 1), wrap=0)


def _cell(values: Mapping[str, float], name: str) -> Markup | None:
    if name not in values:
        return None
    return Markup(f"{_signed(values[name])}<br>{_bar(values[name], max(0, *values.values()))}")


def _bar(value: float, top: float) -> Markup:
    return Markup(f'<span class="bar" style="width: {8 * max(value, 0) / (top or 1):.2f}rem"></span>')


def _signed(value: float) -> str:
    return f"{'−' if value < 0 else ''}{amount(abs(value), 3)}"
