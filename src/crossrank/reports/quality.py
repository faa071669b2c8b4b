"""How good the runs are, in words and tables, and which is best of those measured on the same rows."""

from __future__ import annotations

import json
import statistics
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from crossrank.evaluation.metrics import TASK_METRICS, badness
from crossrank.reports.markup import Markup, amount, brief, decimal, percent, signed, table, text
from crossrank.runs import Run


class Metric(NamedTuple):
    """What a metric is called, how bad a value of it is, and what it means, where it is shown large."""

    title: str
    badness: Callable[[float], float]
    meaning: str = ""


def _low(value: float) -> float:
    return value


def _high(value: float) -> float:
    return -value


METRICS = {  # by the name in report.json
    "logloss": Metric("log loss", _low, "mean of −log of the probability given to what happened"),
    "rmse": Metric("RMSE", _low, "root of the mean squared error, in units of {label}"),
    "auc": Metric("AUC", _high, "chance that a positive row scores above a negative one"),
    "accuracy": Metric("accuracy", _high, "share of rows whose most probable class is theirs"),
    "macro_auc": Metric("macro AUC", _high, "mean over classes of the AUC of each against the others"),
    "r2": Metric("R²", _high, "share of the variance of {label} explained"),
    "grouped_auc": Metric("grouped AUC", _high),
    "ndcg@10": Metric("NDCG@10", _high, "gains of the first ten rows of a group, over those of their best order"),
    "mrr": Metric("MRR", _high),
    "calibration": Metric(
        "calibration", lambda value: abs(value - 1), "predicted positives over observed ones; 1 is right"
    ),
    "ece": Metric("ECE", _low, "expected calibration error"),
    "normalized_entropy": Metric("norm. entropy", _low),
}
CRITERIA = ("logloss", "rmse", "ndcg@10")  # the first that a run has
COMPARED = ("logloss", "rmse", "auc", "accuracy", "macro_auc", "r2")


def measured(run: Run) -> tuple[str, dict[str, Any]]:
    """The split that counts, and its metrics: test, else valid, else none."""
    return next(((split, run.report[split]) for split in ("test", "valid") if split in run.report), ("", {}))


def criterion_of(run: Run) -> float:
    """What runs are ordered by, lower is better; infinite where it was not measured."""
    metrics = measured(run)[1]
    return next((badness(metrics, key) for key in CRITERIA if metrics.get(key) is not None), float("inf"))


def rows_of(run: Run) -> tuple[str, str]:
    """What two runs must share for their metrics to be comparable: the data, and the split of it."""
    return run.info["data_fingerprint"], measured(run)[0]


def are_seeds(runs: Sequence[Run]) -> bool:
    """Whether they are one setting on one dataset."""
    alike = {json.dumps([run.config, run.info["data_fingerprint"]], sort_keys=True) for run in runs}
    return len(runs) > 1 and len(alike) == 1


def figure(key: str, value: float | None, digits: int = 4) -> str | None:
    """A metric as text: an error in units of the label by its leading digits, all others by their decimals."""
    return amount(value, digits + 1) if key == "rmse" else decimal(value, digits)


def headline(run: Run, baselines: Sequence[Run], names: Mapping[Path, str]) -> Markup:
    """The few numbers that matter, large, each with its interval and beside the best baseline of the same rows."""
    split, metrics = measured(run)
    if not metrics:
        return Markup("<p>This run was not measured.</p>")
    intervals = _intervals(run)
    rivals = [other for other in baselines if rows_of(other) == rows_of(run) and other.config != run.config]
    parts = []
    for key, metric in ((key, METRICS[key]) for key in METRICS if METRICS[key].meaning and key in metrics):
        notes = [metric.meaning.format(label=run.schema.label.name)]
        notes += ["mean over tasks"] if run.schema.label.columns else []
        known = [other for other in rivals if measured(other)[1].get(key) is not None]
        if known and key in COMPARED and metrics[key] is not None:
            best = min(known, key=lambda other: metric.badness(measured(other)[1][key]))
            notes = [_difference(key, metrics[key], measured(best)[1][key], names[best.path])]
        if key == "r2" and (metrics[key] or 0) < 0:
            notes.append("below 0: worse than always answering the mean")
        if key in intervals:
            notes.insert(0, f"95% interval {_interval(key, intervals[key])}")
        lines = "".join(f"<p>{text(note)}</p>" for note in notes)
        parts.append(f"<div><dt>{text(metric.title)}</dt><dd>{text(figure(key, metrics[key]))}</dd>{lines}</div>")
    caption = f'<p class="note">On {metrics["rows"]:,} {text(split)} rows.</p>'
    return Markup(f'<dl class="figures">{"".join(parts)}</dl>{caption}{_tasks(run, metrics)}')


def _tasks(run: Run, metrics: Mapping[str, Any]) -> Markup:
    """A row for each task, and none for other labels."""
    tasks, keys = run.schema.label.columns, [key for key in METRICS if key in TASK_METRICS]
    rows = [
        [
            task,
            f"{metrics[f'rows_{task}']:,}",
            percent(metrics[f"positive_rate_{task}"] or 0.0),
            *(figure(key, metrics[f"{key}_{task}"]) for key in keys),
        ]
        for task in tasks
    ]
    return table(["task", "rows", "ones", *(METRICS[key].title for key in keys)], rows) if tasks else Markup()


def _difference(key: str, value: float, other: float, name: str) -> str:
    gap = METRICS[key].badness(value) - METRICS[key].badness(other)
    if gap == 0:
        return f"the same as {name}, the best baseline"
    return f"{_gap(key, value - other)}, {'better' if gap < 0 else 'worse'} than {name}, the best baseline"


def _gap(key: str, value: float) -> str | None:
    return signed(value) if key != "rmse" else f"{'−' if value < 0 else '+'}{amount(abs(value))}"


def _intervals(run: Run) -> dict[str, Any]:
    """By metric; empty where the run has none, or they are of other rows than its metrics."""
    curves = run.curves
    known = curves.get("intervals") or {} if curves.get("split") == measured(run)[0] else {}
    return {key: pair for key, pair in known.items() if len(pair) == 2 and None not in pair}


def _interval(key: str, pair: Sequence[float]) -> str:
    return f"{figure(key, pair[0])} to {figure(key, pair[1])}"


def comparison(runs: Sequence[Run], baselines: Sequence[Run], names: Mapping[Path, str]) -> Markup:
    """A table for each set of runs that were measured on the same rows, the best criterion first."""
    everyone = sorted([*runs, *baselines], key=criterion_of)
    keys = dict.fromkeys(rows_of(run) for run in [*runs, *baselines])
    parts = []
    for key in keys:
        group = [run for run in everyone if rows_of(run) == key]
        if len(keys) > 1:
            rows = f"{measured(group[0])[1]['rows']:,} {key[1]} rows" if key[1] else "not measured"
            parts.append(f"<h3>{text(group[0].schema.label.name)}: {text(rows)}, data {text(key[0][:8])}</h3>")
        parts.append(_table(group, [run for run in runs if run in group], names))
    return Markup("".join(parts))


def _table(group: Sequence[Run], runs: Sequence[Run], names: Mapping[Path, str]) -> Markup:
    present = [key for key in METRICS if any(key in measured(run)[1] for run in group)]
    values = {key: [measured(run)[1].get(key) for run in group] for key in present}
    criterion = next((key for key in CRITERIA if key in present), None)
    marked = len(group) > 1 and not are_seeds(group)
    best = {key: _best(key, values[key]) for key in present} if marked else {}
    cells: dict[str, list[Any]] = {}
    for key in present:
        title = METRICS[key].title
        cells[title] = [_mark(figure(key, value), value == best.get(key)) for value in values[key]]
        if key != criterion:
            continue
        pairs = [_intervals(run).get(key) for run in group]
        if any(pairs):
            cells["95% interval"] = [pair and _interval(key, pair) for pair in pairs]
        if best.get(key) is not None:
            cells["to the best"] = [_to_the_best(key, value, best[key]) for value in values[key]]
    rows = [
        [names[run.path], run.config["model"]["name"], *(column[i] for column in cells.values()), *_cost(run)]
        for i, run in enumerate(group)
    ]
    if are_seeds(runs):
        spread = {METRICS[key].title: _spread([measured(run)[1].get(key) for run in runs], key) for key in present}
        rows.append(["mean ± deviation", "", *(spread.get(title, "") for title in cells), "", ""])
    strong = group.index(runs[0]) if len(runs) == 1 and len(group) > 1 else None
    notes = ["Bold: the best of its column."] * bool(best) + ["Tinted: this run."] * (strong is not None)
    note = f'<p class="note">{" ".join(notes)}</p>' if notes else ""
    return Markup(table(["run", "model", *cells, "parameters", "seconds"], rows, strong=strong, words=(0, 1)) + note)


def _best(key: str, values: Sequence[float | None]) -> float | None:
    return min((value for value in values if value is not None), key=METRICS[key].badness, default=None)


def _mark(shown: str | None, best: bool) -> Any:
    return Markup(f"<b>{text(shown)}</b>") if best and shown is not None else shown


def _to_the_best(key: str, value: float | None, best: float | None) -> str | None:
    if value is None or best is None:
        return None
    return "best" if value == best else _gap(key, value - best)


def _cost(run: Run) -> tuple[str, str]:
    report = run.report
    return brief(sum(report["parameters"].values())), f"{report['training']['seconds']:,.0f}"


def _spread(values: Sequence[float | None], key: str) -> str | None:
    known = [value for value in values if value is not None]
    if len(known) < len(values):
        return None
    return f"{figure(key, statistics.fmean(known))} ± {figure(key, statistics.stdev(known))}"
