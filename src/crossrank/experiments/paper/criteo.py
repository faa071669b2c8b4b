"""The studies on Criteo: on a user's own train.txt, or on generated rows of the same shape whose truth is known.

On generated rows every width is smaller by the same factor as the embeddings make the input narrower, so that a table
shows the shape of the paper's findings, not its numbers.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from crossrank.data import EncodedDataset
from crossrank.experiments.figures import dots, lines
from crossrank.experiments.paper.page import Page
from crossrank.experiments.paper.studies import HEADER, Setting, cells, measure
from crossrank.files import publish
from crossrank.models.paper_settings import CRITEO
from crossrank.runs.run import read_json

if TYPE_CHECKING:
    from matplotlib.figure import Figure

NUM_CATEGORICAL, NUM_NUMERIC = 26, 13
WORK = Path("runs/paper")


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
    rows=1_000_000,
    training={"learning_rate": 1e-3, "epochs": 4, "eval_every": 800, "patience": 3, "average_decay": 0.999},
)
QUICK = Scale(
    embedding_dim=2, seeds=1, rows=4000, training={"learning_rate": 1e-2, "max_steps": 10, "average_decay": 0.9}
)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Study:
    """A table or figure on Criteo.

    Attributes:
        title, text: of its page.
        settings: the rows of its table at a scale.
        axis: what the figure's horizontal axis is; "" for a row of dots for each setting.
        numeric: take the numbers besides the categories.
    """

    title: str
    text: str
    settings: Callable[[Scale], list[Setting]]
    axis: str = ""
    numeric: bool = True


def run_study(study: Study, *, quick: bool = False, data: Path | None = None, work: Path = WORK) -> Page:
    """Train the settings of a study and lay them out.

    Args:
        study: which.
        quick: few generated rows and few steps.
        data: Criteo's train.txt; left out, generated rows.
        work: where datasets and runs are kept, so that a second call trains nothing twice.
    """
    scale = QUICK if quick else PAPER_SCALE if data else GENERATED
    work = work / ("criteo-quick" if quick else "criteo" if data else "criteo-like")
    dataset, origin, best = criteo_dataset(data, work, scale, numeric=study.numeric)
    settings = study.settings(scale)
    found = measure(dataset, settings, work / ("runs" if study.numeric else "runs-categorical"), seeds=scale.seeds)
    return _page(study, settings, found, [study.text, origin], best)


def criteo_dataset(
    data: Path | None, work: Path, scale: Scale, *, numeric: bool = True
) -> tuple[EncodedDataset, str, float | None]:
    """The encoded rows, a sentence on where they come from, and the log loss of the truth where it is known."""
    from crossrank.data.prepare import prepare
    from crossrank.data.sources import open_source
    from crossrank.data.sources.synthetic import synthesize
    from crossrank.schema import Schema

    source, best = data, None
    if source is None:
        source = work / "train.txt"
        if not source.is_file():
            synthesize(source, rows=scale.rows, progress=False)
        best = read_json(source.with_name("train.txt.truth.json"))["best_logloss"]
    folder = work / ("dataset" if numeric else "dataset-categorical")
    if not (folder / "manifest.json").is_file():
        table, schema, split = open_source("criteo", [source])
        if not numeric:
            schema = Schema(schema.categorical, schema.label)
        partial_folder = folder.with_name(f"{folder.name}.partial")
        prepare(table, schema, partial_folder, split=split, progress=False, overwrite=True)
        publish(partial_folder, folder)
    dataset = EncodedDataset.open(folder)
    rows = sum(dataset.split(name).num_rows for name in ("train", "valid", "test"))
    origin = (
        f"{rows:,} rows of {'Criteo' if data else 'generated data in the shape of Criteo'}, split as the paper does"
    )
    known = f"; the log loss of the truth itself is {best:.4f}" if best is not None else ""
    return dataset, f"{origin}{known}. Embeddings of width {scale.embedding_dim}, {scale.seeds} seeds, test rows.", best


def _page(
    study: Study,
    settings: Sequence[Setting],
    found: Mapping[str, Mapping[str, Any]],
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
            axes.set_xticks(sorted({setting.place for setting in settings}))
            axes.legend()
        else:
            losses = {setting.label: found[setting.label]["logloss"] for setting in settings}
            dots(axes, losses, {}, label="log loss, test rows", log=False)

    return Page(
        title=study.title,
        text=text,
        tables={"Mean ± standard deviation over the seeds:": table},
        notes=[],
        values={"settings": found, "best_logloss": best},
        draw=draw,
    )
