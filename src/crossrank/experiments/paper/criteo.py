"""The studies on Criteo: on a user's own train.txt, or on generated rows of the same shape whose truth is known.

On generated rows every width is smaller by the same factor as the embeddings make the input narrower, so that a table
shows the shape of the paper's findings, not its numbers.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any, NamedTuple

from crossrank.data import EncodedDataset
from crossrank.data.dataset import is_dataset
from crossrank.data.generators.criteo_like import BEST_BY_ORDER
from crossrank.data.generators.synthetic import synthesize
from crossrank.data.prepare import prepare
from crossrank.data.sources import criteo
from crossrank.data.splits import SPLITS
from crossrank.experiments.figures import Figure, dots, lines
from crossrank.experiments.paper.page import Page
from crossrank.experiments.paper.studies import HEADER, Setting, cells, first_runs, measure_tasks, tasks, trained_on
from crossrank.experiments.paper.table6 import CRITEO
from crossrank.files import read_json
from crossrank.schema import Schema

NUM_CATEGORICAL, NUM_NUMERIC = 26, 13
WORK = Path("runs/paper")
GENERATED_ROWS = "generated data in the shape of Criteo"
TRUTH = (
    "That truth is a polynomial of order 4 in one number for each value; its parts of orders up to 1, 2 and 3 alone "
    f"would allow {BEST_BY_ORDER[1]}, {BEST_BY_ORDER[2]} and {BEST_BY_ORDER[3]}."
)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Scale:
    """How large a study is.

    Attributes:
        embedding_dim: of each category.
        seeds: of each setting.
        training: settings of every training.
        rows: how many are generated; unused where there is a file.
    """

    embedding_dim: int
    seeds: int
    training: Mapping[str, Any]
    rows: int = 0

    @property
    def input_dim(self) -> int:
        return NUM_CATEGORICAL * self.embedding_dim + NUM_NUMERIC

    def sized(self, width: int) -> int:
        """A width of the paper, in proportion to the input."""
        return max(2, round(width * self.input_dim / (NUM_CATEGORICAL * CRITEO.embedding_dim + NUM_NUMERIC)))

    def config(self, **model: Any) -> dict[str, Any]:
        return {"model": {"embedding": {"dim": self.embedding_dim}, **model}, "training": dict(self.training)}


PAPER_SCALE = Scale(
    embedding_dim=CRITEO.embedding_dim,
    seeds=5,
    training={"learning_rate": 2e-4, "max_steps": 300_000, "eval_every": 10_000, "patience": 3},
)
GENERATED = Scale(
    embedding_dim=8,
    seeds=3,
    rows=6_000_000,
    training={
        "batch_size": 1536,
        "learning_rate": 3e-3,
        "epochs": 1,
        "average_decay": 0.999,
        "tables": "lazy",
    },
)
QUICK = Scale(
    embedding_dim=2, seeds=1, rows=4000, training={"learning_rate": 1e-2, "max_steps": 10, "average_decay": 0.9}
)


Found = Mapping[str, Mapping[str, Any]]  # by label, as :func:`measure` returns it


@dataclasses.dataclass(frozen=True, kw_only=True)
class Study:
    """A table or figure on Criteo.

    Attributes:
        title, text: of its page.
        settings: the rows of its table at a scale.
        axis: what the figure's horizontal axis is; "" for a row of dots for each setting.
        numeric: take the numbers besides the categories.
        bound: the lowest log loss of a cross network at each place, where the truth is known.
        finding: a line on the numbers, besides the usual ones.
    """

    title: str
    text: str
    settings: Callable[[Scale], list[Setting]]
    axis: str = ""
    numeric: bool = True
    bound: Mapping[int, float] = dataclasses.field(default_factory=dict)
    finding: Callable[[Found], str] | None = None


def run_study(
    study: Study, *, quick: bool = False, data: Path | None = None, work: Path = WORK, jobs: int | None = None
) -> Page:
    """Train the settings of a study and lay them out.

    Args:
        study: which.
        quick: few generated rows and few steps.
        data: Criteo's train.txt; left out, generated rows.
        work: where datasets and runs are kept, so that a second call trains nothing twice.
        jobs: settings that are trained at a time; left out, one for each core.
    """
    rows = criteo_rows(data, work, quick=quick, numeric=study.numeric)
    settings = study.settings(rows.scale)
    wanted = tasks(rows.dataset, settings, rows.runs, seeds=rows.scale.seeds)
    measured = measure_tasks(wanted, jobs)
    found = {setting.label: values for setting, values in zip(settings, measured, strict=True)}
    page = _page(study, settings, found, [study.text, rows.origin], rows.best)
    return dataclasses.replace(page, runs=first_runs(wanted))


class Rows(NamedTuple):
    """What a study is trained on.

    Attributes:
        dataset: the encoded rows.
        origin: a sentence on where they come from.
        best: the log loss of the truth, where it is known.
        scale: how large the study is.
        runs: the folder of its runs.
    """

    dataset: EncodedDataset
    origin: str
    best: float | None
    scale: Scale
    runs: Path


def criteo_rows(data: Path | None, work: Path, *, quick: bool, numeric: bool) -> Rows:
    """Criteo's rows, encoded once, or generated ones."""
    data = None if quick else data
    scale = QUICK if quick else PAPER_SCALE if data else GENERATED
    work = work / ("criteo-quick" if quick else "criteo" if data else "criteo-like")
    folder = work / ("dataset" if numeric else "dataset-categorical")
    schema = criteo.schema()
    if not numeric:
        schema = Schema(schema.categorical, schema.label)
    best = None
    if data is None:
        best = generate(folder, schema, scale.rows)
    elif not is_dataset(folder):
        prepare(criteo.open_set(data), schema, folder, split=criteo.SPLIT, progress=False, overwrite=True)
    dataset = EncodedDataset.open(folder)
    rows = sum(dataset.split(name).num_rows for name in SPLITS)
    origin = f"{rows:,} rows of {'Criteo' if data else GENERATED_ROWS}, split as the paper does"
    known = f"; the log loss of the truth itself is {best:.4f}. {TRUTH}" if best is not None else "."
    sizes = f"Embeddings of width {scale.embedding_dim}, {scale.seeds} seeds, test rows."
    return Rows(dataset, f"{origin}{known} {sizes}", best, scale, work / ("runs" if numeric else "runs-categorical"))


def generate(folder: Path, schema: Schema, rows: int) -> float:
    """Generate the rows where they are not there yet, and return the log loss of their truth."""
    file = folder.with_name(f"{folder.name}.truth.json")
    if not file.is_file() or read_json(file)["rows"] != rows:
        folder.parent.mkdir(parents=True, exist_ok=True)
        return synthesize(
            folder, rows=rows, format="encoded", schema=schema, overwrite=True, progress=False
        ).best_logloss
    best: float = read_json(file)["best_logloss"]
    return best


def _page(
    study: Study,
    settings: Sequence[Setting],
    found: Found,
    text: Sequence[str],
    best: float | None,
) -> Page:
    table = [["setting", *HEADER], *([s.label, *cells(found[s.label], s.paper)] for s in settings)]
    groups = dict.fromkeys(setting.line for setting in settings)

    def draw(figure: Figure) -> None:
        figure.set_size_inches(6.4, max(3.2, 0.35 * len(settings)) if not study.axis else 4)
        axes = figure.subplots()
        if study.axis:
            for line in groups:
                members = [setting for setting in settings if setting.line == line]
                points = [found[setting.label]["logloss"] for setting in members]
                places = [setting.place for setting in members]
                lines(axes, places, {line: points}, x_label=study.axis, y_label="log loss, test rows", log=False)
            if study.bound and best is not None:
                axes.plot(*zip(*study.bound.items(), strict=True), "k:", label="lowest possible for CrossNet")
            axes.set_xticks(sorted({setting.place for setting in settings}))
            axes.legend()
        else:
            losses = {setting.label: found[setting.label]["logloss"] for setting in settings}
            dots(axes, losses, {}, label="log loss, test rows", log=False)

    return Page(
        title=study.title,
        text=text,
        tables={"Mean ± standard deviation over the seeds:": table},
        notes=[*_findings(study, settings, found), trained_on(found)],
        values={"settings": found, "best_logloss": best},
        draw=draw,
    )


def _findings(study: Study, settings: Sequence[Setting], found: Found) -> list[str]:
    """What the numbers say, to be held against what the paper says."""
    losses = {setting.label: found[setting.label]["logloss"]["mean"] for setting in settings}
    notes = [study.finding(found)] if study.finding else []
    if not study.axis:
        ordered = sorted(losses.items(), key=lambda pair: pair[1])
        return [f"Best first: {', '.join(f'{label} {loss:.4f}' for label, loss in ordered)}.", *notes]
    lines_of: dict[str, dict[float, float]] = {}
    for setting in settings:
        lines_of.setdefault(setting.line, {})[setting.place] = losses[setting.label]
    for line, points in lines_of.items():
        gains = ", ".join(f"{before - after:+.4f}" for before, after in pairwise(points.values()))
        notes += [f"{line}: what each step along the axis gains: {gains}."] if gains else []
    if {"CrossNet", "DNN"} <= set(lines_of):
        better = [f"{place:g}" for place, loss in lines_of["CrossNet"].items() if loss < lines_of["DNN"][place]]
        notes.append(f"CrossNet is better than DNN at {study.axis} {', '.join(better) or '(none)'}.")
    return notes
