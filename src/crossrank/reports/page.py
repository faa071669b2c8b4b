"""One self-contained HTML file about a run, or about several side by side."""

from __future__ import annotations

import json
import warnings
from collections.abc import Sequence
from importlib.resources import files
from pathlib import Path
from string import Template
from typing import Any

from crossrank.data import EncodedDataset, Table, open_data
from crossrank.errors import ConfigError, CrossRankError, RunError, did_you_mean, listing
from crossrank.evaluation.curves import group_metrics, measure_curves
from crossrank.evaluation.evaluate import encoded_rows, score_split
from crossrank.files import write_text, writing
from crossrank.folders import is_marked, locked
from crossrank.reports import quality, sections, tried
from crossrank.reports.contents import run_contents
from crossrank.reports.importance import importance
from crossrank.reports.markup import Markup, text
from crossrank.runs import Run
from crossrank.runs.lifecycle import is_run
from crossrank.serving.http.page import hashes

ASSETS = files("crossrank.reports") / "assets"
SCRIPTS = ("charts.js", "quality.js", "features.js", "map.js")
MOST_BASELINES = 12
DECIDED_BY = {"classes": "log loss", "tasks": "log loss, in the mean over tasks", "grade": "NDCG@10"}
ANSWERS = {"binary": "logit", "real": "prediction", "grade": "score"}  # by kind of label
MENU = {
    "quality": "Quality",
    "features": "Features",
    "crosses": "Crosses",
    "spectra": "Spectra",
    "cost": "Cost",
    "data": "Data",
    "settings": "Settings",
    "repeat": "Repeat",
}

Source = Run | Path | str


def write_report(
    runs: Source | Sequence[Source],
    into: Path | str | None = None,
    *,
    group_column: str | None = None,
    data: Any = None,
) -> Path:
    """Write a page that opens anywhere, without a network: charts, crosses, cost, data, settings.

    Args:
        runs: a run, several to compare, or the folder of a training with several seeds. A single run is shown beside
            the other runs of its parent folder that were trained on the same data.
        into: the file; left out, report.html in the run's folder, or comparison.html beside the first of several runs.
        group_column: the column whose values the breakdown shows first.
        data: rows to draw the curves from instead of those kept with the run: an encoded dataset (its test rows) or a
            raw table with the label, where ``group_column`` may be any column.

    Returns:
        The path of the file.
    """
    chosen, folder = _open(runs)
    baselines = _siblings(chosen[0]) if len(chosen) == 1 else []
    names = _names([*chosen, *baselines])
    contents = [run_contents(run, names[run.path]) for run in chosen]
    if data is not None:
        opened = open_data(data)
        for run, content in zip(chosen, contents, strict=True):
            content["curves"] = _curves(run, opened, group_column)
    _check_column(group_column, contents)
    path = Path(into) if into is not None else folder
    page = _page(chosen, baselines, names, {"runs": contents, "column": group_column})
    with writing(path, RunError), locked(path, RunError):
        write_text(path, page)
    return path


def _open(runs: Source | Sequence[Source]) -> tuple[list[Run], Path]:
    """The runs that were meant, and where their page goes."""
    if isinstance(runs, str | Path) and not is_run(Path(runs)):
        seeds = sorted(Path(runs).glob("seed-*"), key=lambda path: (len(path.name), path.name))
        if seeds:
            return [Run.open(seed) for seed in seeds], Path(runs) / "report.html"
    sources = [runs] if isinstance(runs, Run | str | Path) else list(runs)
    if not sources:
        raise ConfigError("A report needs at least one run; got none.")
    opened = [source if isinstance(source, Run) else Run.open(source) for source in sources]
    first = opened[0].path
    return opened, first / "report.html" if len(opened) == 1 else first.parent / "comparison.html"


def _siblings(run: Run) -> list[Run]:
    """The best other runs of the same folder that were trained on the same data; a damaged one is named, left out."""
    found = []
    for file in sorted(run.path.resolve().parent.glob("*/run.json")):
        if is_marked(file.parent):
            continue  # it is being made, or was replaced
        try:
            other = Run.open(file.parent, verify=False)
            same = other.info["data_fingerprint"] == run.info["data_fingerprint"]
            if same and other.path != run.path.resolve() and other.config and other.curves is not None:
                found.append((quality.criterion_of(other), other))
        except CrossRankError as error:  # also of one from a later version
            warnings.warn(f"{file.parent} is left out of the report: {error.message}", stacklevel=3)
    return [other for _, other in sorted(found, key=lambda pair: pair[0])[:MOST_BASELINES]]


def _names(runs: Sequence[Run]) -> dict[Path, str]:
    """The last part of each path, or the last two where that is not enough to tell runs apart."""
    names = {run.path: run.path.name for run in runs}
    if len(set(names.values())) < len(names):
        return {path: f"{path.resolve().parent.name}/{name}" for path, name in names.items()}
    return names


def _curves(run: Run, data: EncodedDataset | Table, group_column: str | None) -> dict[str, Any]:
    """Curves of other rows than those kept with the run."""
    rows = encoded_rows(run.encoder, data, "test")
    curves = measure_curves(run.model, rows, run.encoder)
    if isinstance(data, EncodedDataset):
        return {"split": "test", **curves}
    if group_column is not None and group_column not in curves["groups"]:
        import numpy as np

        chunks = [chunk.frame[group_column].cast(str) for chunk in data.chunks([group_column])]
        values = np.concatenate([chunk.fill_null("<missing>").to_numpy() for chunk in chunks])
        labels, scores = (np.asarray(part, np.float64) for part in (rows.labels, score_split(run.model, rows)))
        curves["groups"][group_column] = group_metrics(values, labels, scores, curves["kind"])
    return {"split": "given", **curves}


def _check_column(column: str | None, contents: Sequence[dict[str, Any]]) -> None:
    known = [name for content in contents if content["curves"] for name in content["curves"]["groups"]]
    if column is not None and column not in known:
        raise ConfigError(
            f"The breakdown knows the columns {listing(dict.fromkeys(known))}; got '{column}'.",
            hint=did_you_mean(column, known) or "Give the table that has it as data.",
        )


def _page(runs: Sequence[Run], baselines: Sequence[Run], names: dict[Path, str], content: dict[str, Any]) -> str:
    single = len(runs) == 1
    title = names[runs[0].path] if single else "Comparison of " + ", ".join(names[run.path] for run in runs)
    lead = sections.describe(runs[0]) if single else f"{len(runs)} runs side by side."
    kinds = {run.schema.label.kind for run in runs}
    features = importance(runs, names)
    unexplained = sections.unexplained(runs, names)
    spectra, mapped = (any(one[key] for one in content["runs"]) for key in ("spectra", "crosses"))
    has = {"features": features, "crosses": mapped or unexplained, "spectra": spectra}
    absent = {key for key, there in has.items() if not there}
    parts = {
        "title": text(title),
        "lead": text(lead),
        "made": text(runs[0].info["finished"][:10]),
        "menu": " ".join(f'<a href="#{key}">{word}</a>' for key, word in MENU.items() if key not in absent),
        **{f"{key}_hidden": " hidden" if key in absent else "" for key in MENU},
        "answer": " or ".join(word for kind, word in ANSWERS.items() if kind in kinds),
        "headline": quality.headline(runs[0], baselines, names) if single else Markup(),
        "comparison": quality.comparison(runs, baselines, names),
        "compression": Markup("".join(sections.compression(run) for run in runs)),
        "promotion": Markup("".join(tried.tries(run) + tried.promotion(run) for run in runs)),
        "importance": features,
        "unexplained": unexplained,
        "map_hidden": "" if mapped else " hidden",
        "stability": Markup(sections.pairs_beside(runs, names) + sections.stable_pairs(runs)),
        "spectrum": sections.spectrum_summary(runs, names),
        "costs": sections.costs(runs, names),
        "data": sections.data_summary(runs, names),
        "configuration": sections.configuration(runs, names),
        "repeat": sections.repeat(runs, names),
        "blocks": "".join(map(_block, sorted(kinds))),
        "style": _asset("page.css"),
        "libraries": "\n".join(_library(name) for name in ("d3.min.js", "plot.umd.min.js")),
        "content": _json(content),
        "script": "<script>\n" + "\n".join(map(_asset, SCRIPTS)) + "\n</script>",
    }
    parts["allowed"] = hashes("script", parts["libraries"] + parts["script"])  # no other script may run
    return Template(_asset("page.html")).substitute(parts)


def _block(kind: str) -> str:
    """The template of a label's charts; learning curves alone, where what decided is the whole difference."""
    if kind not in DECIDED_BY:
        return _asset(f"{kind}.html")
    return Template(_asset("learning.html")).substitute(kind=kind, best=DECIDED_BY[kind])


def _asset(name: str) -> str:
    return (ASSETS / name).read_text(encoding="utf-8")


def _library(name: str) -> str:
    """A chart library with its licence, which every copy must carry."""
    licence = _asset(f"{name.split('.')[0]}.LICENSE.txt")
    return f"<script>\n/*!\n{licence}*/\n{_asset(name)}\n</script>"


def _json(content: Any) -> str:
    """JSON that may stand inside a script element, whatever the names of features and values."""
    return json.dumps(content, ensure_ascii=False, separators=(",", ":")).replace("<", "\\u003c")
