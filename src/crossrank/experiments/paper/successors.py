"""Networks after DCN-V2 beside PNN, DCN-V2 and DCN-Mix, each searched with the same budget.

The search is a grid of learning rates and embedding dropouts, judged by validation rows. What it chooses is trained
again, and only then test rows are read: over random splits of MovieLens-1M (:mod:`.movielens`), and over seeds on the
tables below.
"""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from crossrank.data import EncodedDataset
from crossrank.data.dataset import is_dataset
from crossrank.data.drafting import draft_table
from crossrank.data.prepare import prepare
from crossrank.data.sources import criteo
from crossrank.data.table import open_table
from crossrank.experiments.figures import Figure, dots
from crossrank.experiments.paper.criteo import GENERATED, GENERATED_ROWS, WORK, generate
from crossrank.experiments.paper.page import Page, Table
from crossrank.experiments.paper.studies import (
    METRICS,
    Setting,
    Task,
    difference,
    measure_tasks,
    spread_text,
    tasks,
    trained_on,
)
from crossrank.training.defaults import fill_in

REFERENCES = ("PNN", "DCN-V2")  # what the others are compared with
NUM_GENERATED = 600_000  # fewer than the other studies have, so that twelve models are searched in an hour
QUICK_ROWS, QUICK_TRAINING = 2000, {"max_steps": 4, "average_decay": 0.9}
Choices = Mapping[str, Mapping[str, float]]  # by model: its learning rate, dropout, and log loss on validation rows


def models(deep: Sequence[int]) -> dict[str, dict[str, Any]]:
    """The rows of the table, with deep networks of these sizes where they have one."""
    layers, parallel = {"sizes": list(deep)}, {"structure": "parallel", "deep": {"sizes": list(deep)}}
    shallow = {**parallel, "deep": {"sizes": list(deep[:1])}}  # as the search for the paper's table found them
    mixture = {"num_layers": 2, "num_experts": 4, "rank": 32, "gate": "sigmoid"}
    quadratic = {"num_layers": 2, "num_heads": 2, "dropout": 0.1}
    return {
        "PNN": {"model": {"name": "pnn", "deep": layers}},
        "DCN-V2": {"model": {"name": "dcn-v2", "cross": {"num_layers": 2}, **shallow}},
        "DCN-Mix": {"model": {"name": "dcn-mix", "cross": mixture, **shallow}},
        "GDCN": {"model": {"name": "gdcn", "cross": {"num_layers": 2}, **parallel}},
        "GDCN, pooled pairs, own losses": {
            "model": {"name": "gdcn", "cross": {"num_layers": 1, "pooled": "first"}, **parallel},
            "training": {"heads": "own"},
        },
        "FCN": {"model": {"name": "fcn"}, "training": {"heads": "weighted"}},
        "QNN-α": {"model": {"name": "qnn-alpha", "cross": quadratic}, "training": {"heads": "distil"}},
        "FinalMLP": {"model": {"name": "final-mlp", "deep": layers, "second": layers}},
        "FinalNet": {"model": {"name": "final-net", "deep": layers}, "training": {"heads": "distil"}},
        "MaskNet": {"model": {"name": "mask-net", "deep": layers}},
        "EDCN": {"model": {"name": "edcn", "layer": "full"}},
        "Wukong": {"model": {"name": "wukong", "deep": layers}},
    }


@dataclasses.dataclass(frozen=True, kw_only=True)
class Recipe:
    """How all models are trained on a table.

    Attributes:
        dim: of the embeddings.
        deep: sizes of the deep network.
        training: settings that all share; what is left out suits the rows.
        rates, dropouts: the grid that is searched.
        seeds: with which the chosen setting is trained.
    """

    dim: int
    deep: Sequence[int]
    training: Mapping[str, Any]
    rates: tuple[float, ...]
    dropouts: tuple[float, ...]
    seeds: int = 1

    def quick(self) -> Recipe:
        training = {**self.training, **QUICK_TRAINING}
        grid = {"rates": self.rates[:1], "dropouts": self.dropouts[:1]}
        return dataclasses.replace(self, dim=8, deep=(8,), training=training, seeds=2, **grid)

    def config(self, dataset: EncodedDataset, label: str, *, rate: float, dropout: float) -> dict[str, Any]:
        asked = models(self.deep)[label]
        model = {**asked["model"], "embedding": {"dim": self.dim, "dropout": dropout}}
        # Filled in for the largest rate, so that the trainings of a search differ in nothing but what is searched.
        training = {**self.training, **asked.get("training", {}), "learning_rate": max(self.rates)}
        config = fill_in({"model": model, "training": training}, dataset)
        both = {"second": config["model"]["deep"]} if "second" in model else {}  # streams of FinalMLP
        return {"model": config["model"] | both, "training": config["training"] | {"learning_rate": rate}}

    def search_tasks(self, dataset: EncodedDataset, work: Path) -> list[Task]:
        """The grid of every model; the trainings of one task differ in their learning rate."""
        settings = [
            Setting(
                label=f"{label}, dropout {dropout:g}",
                config=self.config(dataset, label, rate=self.rates[0], dropout=dropout),
                line=label,
                place=dropout,
            )
            for label in models(self.deep)
            for dropout in self.dropouts
        ]
        return tasks(dataset, settings, work, seeds=1, rates=self.rates)

    def test_tasks(self, dataset: EncodedDataset, work: Path, choices: Choices, *, seeds: int) -> list[Task]:
        """The chosen setting of every model."""
        settings = [
            Setting(
                label=label,
                config=self.config(dataset, label, rate=chosen["learning_rate"], dropout=chosen["dropout"]),
            )
            for label, chosen in choices.items()
        ]
        return tasks(dataset, settings, work, seeds=seeds)

    def __str__(self) -> str:
        rates, dropouts = (", ".join(f"{one:g}" for one in values) for values in (self.rates, self.dropouts))
        return (
            f"embeddings of width {self.dim}, deep layers {'-'.join(map(str, self.deep))}; every model was searched "
            f"with {len(self.rates) * len(self.dropouts)} trainings (learning rate {rates}; embedding dropout "
            f"{dropouts}), one seed each, judged by log loss on the validation rows"
        )


def choose(wanted: Sequence[Task], found: Sequence[Mapping[str, Any]]) -> Choices:
    """Of each model the setting with the lowest log loss on the validation rows; what diverged is none."""
    best: dict[str, dict[str, float]] = {}
    for task, values in zip(wanted, found, strict=True):
        label, dropout = task.setting.line, task.setting.place
        for rate, loss in values["valid"].items():
            if loss is not None and (label not in best or loss < best[label]["valid_logloss"]):
                best[label] = {"learning_rate": float(rate), "dropout": dropout, "valid_logloss": loss}
    return best


MOVIELENS = Recipe(
    dim=30,
    deep=(192, 192),
    training={"batch_size": 128, "epochs": 15, "eval_every": 2310, "patience": 4},
    rates=(0.0005, 0.001, 0.002, 0.004),
    dropouts=(0.3, 0.4),
)
# Small: on a processor, where as many processes share its cores, each on one thread.
SAMPLE = Recipe(dim=8, deep=(64, 64), training={"device": "cpu"}, rates=(0.001, 0.003), dropouts=(0.2, 0.4), seeds=5)


class Rows(NamedTuple):
    about: str
    recipe: Recipe


TABLES = {
    "criteo-like": Rows(
        GENERATED_ROWS,
        Recipe(
            dim=GENERATED.embedding_dim,
            deep=(GENERATED.sized(768),) * 2,
            training={**GENERATED.training, "batch_size": 512, "average_decay": 0.99},
            rates=(0.004, 0.01),
            dropouts=(0.0,),  # no row comes twice
            seeds=3,
        ),
    ),
    "criteo-sample": Rows("a sample of Criteo", SAMPLE),
    "avazu-sample": Rows("a sample of Avazu", SAMPLE),
    "book-crossing": Rows(
        "Book-Crossing",
        Recipe(
            dim=16,
            deep=(128, 128),
            training={"batch_size": 1024},
            rates=(0.002, 0.005),
            dropouts=(0.2, 0.4),
            seeds=3,
        ),
    ),
}
SETS = tuple(TABLES)[1:]  # those that a user has to bring


def run(
    *, quick: bool = False, data: Mapping[str, Path] | None = None, work: Path = WORK, jobs: int | None = None
) -> Page:
    """Search and train every model on every table.

    Args:
        quick: few rows, few steps, a smaller grid.
        data: the files of the tables in ``SETS``, by name. Where some are named, what is neither named nor there in the
            working folder is left out; where none is, the rows are generated.
        work: where datasets and runs are kept, so that a second call trains nothing twice.
        jobs: processes, each on one thread; left out, one for each core.
    """
    jobs, folder = jobs or os.cpu_count() or 1, work / ("successors-quick" if quick else "successors")
    datasets = {name: _dataset(name, data or {}, work, folder, quick=quick) for name in TABLES}
    given = {name: dataset for name, dataset in datasets.items() if dataset is not None}
    recipes = {name: TABLES[name].recipe.quick() if quick else TABLES[name].recipe for name in given}
    searches = {name: recipes[name].search_tasks(rows, folder / name / "search") for name, rows in given.items()}
    tried = iter(measure_tasks([task for wanted in searches.values() for task in wanted], jobs))
    choices = {name: choose(wanted, [next(tried) for _ in wanted]) for name, wanted in searches.items()}
    tests = {
        name: recipes[name].test_tasks(rows, folder / name / "runs", choices[name], seeds=recipes[name].seeds)
        for name, rows in given.items()
    }
    measured = iter(measure_tasks([task for wanted in tests.values() for task in wanted], jobs))
    found = {name: {task.setting.label: next(measured) for task in wanted} for name, wanted in tests.items()}
    tables, notes = {}, []
    for name, dataset in given.items():
        recipe, about = recipes[name], TABLES[name].about
        rows = ", ".join(f"{count:,} {split}" for split, count in dataset.num_rows.items())
        caption = f"{about[0].upper()}{about[1:]} ({rows} rows): {recipe}; then {recipe.seeds} seeds."
        tables[caption] = comparison(found[name], choices[name])
        notes.append(f"{about[0].upper()}{about[1:]}: {ahead(found[name])}")
    missing = [TABLES[name].about for name in TABLES if name not in given]
    notes += [f"Left out here: {', '.join(missing)}."] if missing else []

    def draw(figure: Figure) -> None:
        figure.set_size_inches(3 + 3 * len(found), 4.2)
        for axes, name in zip(figure.subplots(1, len(found), sharey=True, squeeze=False)[0], found, strict=True):
            losses = {label: values["logloss"] for label, values in found[name].items()}
            dots(axes, losses, {}, label=f"{name}: log loss, test rows", log=False)

    return Page(
        title="Networks after DCN-V2 on other tables",
        text=[
            "Every model of a table is searched with the same grid, on validation rows; the best setting of each is "
            "then trained with several seeds, and test rows are read once. Mean ± standard deviation over the seeds, "
            "and the mean difference of the same seeds with its 95% interval; a star marks what is larger than the "
            "noise of seeds. That is not the noise of the rows, which on the small samples is far larger.",
        ],
        tables=tables,
        notes=[*notes, trained_on({f"{name} {label}": one for name in found for label, one in found[name].items()})],
        values={"tables": found, "choices": choices},
        draw=draw,
    )


def comparison(found: Mapping[str, dict[str, Any]], choices: Choices) -> Table:
    """A row for each model, with its paired differences, which are noted in its values too."""
    against = [f"against {reference}" for reference in REFERENCES]
    lines = [["model", "log loss", *against, "AUC", *against, "parameters", "FLOPs", "rate", "dropout"]]
    for label, values in found.items():
        line = [label]
        for metric in METRICS:
            line.append(spread_text(values[metric]))
            for reference in REFERENCES:
                apart = difference(values[metric]["values"], found[reference][metric]["values"])
                values[f"{metric}_against_{reference}"] = dataclasses.asdict(apart)
                line.append("" if label == reference else str(apart))
        chosen = (f"{choices[label][key]:g}" for key in ("learning_rate", "dropout"))
        lines.append([*line, f"{values['parameters']:,}", f"{values['flops']:,}", *chosen])
    return lines


def ahead(found: Mapping[str, Mapping[str, Any]]) -> str:
    """Which model is the lowest in log loss, and which are lower than the references by more than noise."""
    best = min(found, key=lambda label: found[label]["logloss"]["mean"])
    parts = [f"the lowest log loss has {best}, {found[best]['logloss']['mean']:.4f}"]
    for reference in REFERENCES:
        apart = {label: values[f"logloss_against_{reference}"] for label, values in found.items()}
        better = [f"{label} by {-one['mean']:.4f}" for label, one in apart.items() if one["mean"] < -one["margin"]]
        parts.append(f"better than {reference} by more than noise: {', '.join(better) or 'none'}")
    return f"{'; '.join(parts)}."


def _dataset(name: str, data: Mapping[str, Path], work: Path, folder: Path, *, quick: bool) -> EncodedDataset | None:
    """The encoded rows of a table: as they are there already, generated, or from their file; else None."""
    path, into = data.get(name), folder / name / "dataset"
    if name not in SETS and (is_dataset(into) or not data):
        generate(into, criteo.schema(), QUICK_ROWS if quick else NUM_GENERATED)
    elif not is_dataset(into):
        if path is None:
            return None
        from crossrank.data.sources import avazu, open_source  # which need polars

        if name == "book-crossing":
            table = open_table(path)
            schema = draft_table(table, label="label").schema
        else:
            table, schema, _ = open_source(name.removesuffix("-sample"), [path])
        table = open_table(table.head(QUICK_ROWS)) if quick else table
        named = "split" in table.columns and not quick  # the first rows may be of one split
        prepare(table, schema, into, split=None if named else avazu.SPLIT, progress=False)
    return EncodedDataset.open(into)
