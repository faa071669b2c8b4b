"""What is tried on a table about which nothing was said, and kept where it does better on the validation rows.

**Variants**: numbers in one bin in place of many, the stacked structure in place of the parallel one, and both.

**A memory** of columns, pairs and triples of columns, with the best of these:

1. Which ones may pay is found in the training rows. A regression puts together what the rows before a row say of its
   values in each column (:mod:`crossrank.data.ordered`); what a memory of a pair would have taken off its loss is the
   pair's gain (:mod:`crossrank.evaluation.missed`). The best pairs join the regression, and triples that extend them
   are looked at in the same way. Where no pair gains anything, that is all.
2. Whether they do is found in the validation rows: a model is trained without, one with statistics of these pairs and
   triples, and if that is better, one with statistics of single columns too, and one with all these and most elements
   of the vectors of ids dropped: ids are learned by heart in two or three passes, in which a network does not make the
   most of statistics, and those of single columns can stand in for them.

What is tried is kept where it takes more than a standard error off the loss of a validation row, more dropout where it
takes three: a network is then trained for two to three times as many steps, and what one gains four gain in part.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from itertools import combinations
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from crossrank.data import EncodedDataset
from crossrank.data.cell_codes import CellKeys
from crossrank.data.crossing import add_crosses, parts_in_order
from crossrank.data.narrowing import with_one_bin
from crossrank.data.ordered import Doubles, OrderedStatistics
from crossrank.errors import ConfigError
from crossrank.evaluation.evaluate import score_split
from crossrank.evaluation.intervals import mean_and_error
from crossrank.evaluation.metrics import row_losses, sigmoid
from crossrank.evaluation.missed import Missed, rank_missed
from crossrank.folders import MEMBERS
from crossrank.runs import Run
from crossrank.schema import Cross, LabelKind, Schema
from crossrank.training.finish import complete_run, measured_splits
from crossrank.training.plan import Planned
from crossrank.training.settings import Config, TrainingSettings, without_tries
from crossrank.training.train import train_or_resume

MOST_ROWS = 200_000  # that are looked at
MOST_PAIRS, MOST_TRIPLES = 20, 10
LEAST_GAIN, CERTAIN = 2e-4, 2.0  # of the loss of a row; standard errors
MOST_ORDERED = 34  # ids of a numeric column that is joined to pairs, as categorical ones are
FEWEST_VALUES = 20  # of a single column: fewer are learned well enough by themselves
DROPPED, SURE = 0.9, 3.0  # of the vectors of ids; standard errors, since each network is then trained for longer
RIDGE, STEPS = 10.0, 12


class Arm(NamedTuple):
    """A training: the rows it saw, its settings of the model, what came out, and the loss of each validation row."""

    dataset: EncodedDataset
    model: dict[str, Any]
    run: Run
    losses: Doubles


class Tried(NamedTuple):
    """The best of several trainings, and for the report of a run what was tried: ``variants`` and ``memory``."""

    best: Arm
    about: dict[str, list[dict[str, Any]]]

    @property
    def num_trainings(self) -> int:
        return 1 + sum(map(len, self.about.values()))


def is_asked(training: TrainingSettings) -> bool:
    """Whether anything is to be tried."""
    return "auto" in (training.variants, training.memory)


def try_all(
    dataset: EncodedDataset,
    config: Config | Mapping[str, Any],
    training: TrainingSettings,
    folder: Path,
    *,
    schema: Schema | None,
    seed: int,
    **options: Any,
) -> Tried | None:
    """Train with what may pay and without, in subfolders of a folder; what is there already is kept.

    Args:
        dataset: the rows.
        config: what was written.
        training: what was made of it: says what to try.
        folder: for the trainings.
        schema: as it was written, if it was; what it says of a number's encoding stays.
        seed: of all trainings.
        options: of :func:`~crossrank.training.train`.

    Returns:
        None where there is nothing to try.
    """
    if dataset.schema.label.num_outputs > 1:
        name = "variants" if training.variants == "auto" else "memory"
        raise ConfigError(
            f"training.{name}=auto is of a label with one logit; got several classes or tasks.",
            hint=f"Leave training.{name} out.",
        )
    place, about = folder / MEMBERS, dict[str, list[dict[str, Any]]]()

    def train(name: str, data: EncodedDataset, model: dict[str, Any]) -> Arm:
        alone = without_tries(config, **model, ensemble=1)
        run = train_or_resume(data, into=place / name, config=alone, seed=seed, test=False, **options)
        logits = score_split(run.model, data.valid).astype(np.float64)
        labels = np.asarray(data.valid.labels, np.float64)
        return Arm(data, model, run, row_losses(labels, logits, data.schema.label.kind))

    def better(best: Arm, arm: Arm, kind: str, *, certain: float = 1.0, **what: Any) -> Arm:
        gain, error = mean_and_error(best.losses - arm.losses, dataset.valid.weights)
        pays = gain > certain * error
        about.setdefault(kind, []).append({**what, "gain": gain, "error": error, "pays": pays})
        return arm if pays else best

    several, single = worthwhile(dataset) if training.memory == "auto" else ([], [])
    if not several and training.variants == "none":
        return None
    best = train("without", dataset, {})
    if training.variants == "auto":
        binned = _binned(dataset, schema)
        data = with_one_bin(dataset, binned, place / "one-bin.dataset", overwrite=True) if binned else dataset
        stacked = {"structure": "stacked"} if _is_open(best, config) else {}
        one_bin = [("numbers in one bin", data, dict[str, Any]())] if binned else []
        other = [("stacked", dataset, stacked)] if stacked else []
        both = [("numbers in one bin, stacked", data, stacked)] if binned and stacked else []
        for number, (what, rows, model) in enumerate([*one_bin, *other, *both]):
            best = better(best, train(f"variant-{number}", rows, model), "variants", what=what)
        if several and best.dataset is not dataset:
            several, single = worthwhile(best.dataset)
    base, model = best.dataset, best.model
    memories: list[tuple[str, list[Cross], dict[str, float]]]
    memories = [("pairs", several, {}), ("all", [*several, *single], {})]
    if _has_open_dropout(best, config):
        memories.append(("dropout", [*several, *single], {"dropout": DROPPED}))
    for name, crosses, more in memories if several else ():
        if not more:  # which is of the same statistics as the one before
            data = add_crosses(base, crosses, place / f"{name}.dataset", overwrite=True)
        vectors = {"embedding": {**_embedding(config), **more}} if more else {}
        arm = train(name, data, model | vectors)
        certain = SURE if more else 1.0
        best = better(best, arm, "memory", certain=certain, of=[list(one.of) for one in crosses], **more)
        if best.dataset is base:  # without pairs nothing more is tried
            break
    return Tried(best, about)


def _binned(dataset: EncodedDataset, schema: Schema | None) -> list[str]:
    """The numeric columns that have ids of bins because nothing else was said of them, if none is crossed yet."""
    if dataset.schema.crosses:
        return []
    said = {one.name for one in schema.numeric if one.encoding != "auto"} if schema else set()
    return [one.column for one in dataset.encoder.values.values() if one.is_binned and one.column not in said]


def _is_open(arm: Arm, config: Config | Mapping[str, Any]) -> bool:
    """Whether nobody said that a model is to be parallel."""
    said = isinstance(config, Config) or "structure" in config.get("model", {})
    return not said and arm.run.config["model"].get("structure") == "parallel"


def _has_open_dropout(arm: Arm, config: Config | Mapping[str, Any]) -> bool:
    """Whether vectors of ids have a dropout that nobody wrote."""
    said = isinstance(config, Config) or "dropout" in _embedding(config)
    return not said and arm.run.config["model"].get("embedding", {}).get("dropout", 0) > 0


def _embedding(config: Config | Mapping[str, Any]) -> Mapping[str, Any]:
    """What was written of the vectors of ids."""
    return {} if isinstance(config, Config) else config.get("model", {}).get("embedding", {})


def finish_tried(found: Tried, run: Planned, folder: Path, *, test: bool) -> None:
    """Make the best training the run of a folder."""
    data, _, made, _ = found.best
    (folder / "metrics.jsonl").write_bytes((made.path / "metrics.jsonl").read_bytes())
    names = measured_splits(data, test)[1:]
    logits = {name: score_split(made.model, data.split(name)) for name in names}
    about = {"training": made.report["training"], **found.about}
    initial = [dataclasses.replace(one, values=one.initial) for one in made.spectrum]
    planned = dataclasses.replace(run, config=Config.parse(made.config))
    complete_run(folder, planned, made.model, data, logits, about, initial=initial)


def worthwhile(dataset: EncodedDataset) -> tuple[list[Cross], list[Cross]]:
    """Statistics of pairs and triples that may pay, and those of single columns to add to them."""
    features = [one for one in dataset.encoder.features if one.kind == "categorical"]
    columns, numbers = [one.column for one in features], {one.name for one in dataset.schema.numeric}
    walk = _Walk(dataset)
    singles = [(name,) for name in columns]
    pairs = _best(walk.rank(singles, combinations(columns, 2)), MOST_PAIRS)
    values = [one.column for one in features if one.column not in numbers or one.vocab_size <= MOST_ORDERED]
    wider = {tuple(sorted({*pair, name})) for pair in pairs[: MOST_PAIRS // 2] for name in values if name not in pair}
    triples = _best(walk.rank([*singles, *pairs], sorted(wider)), MOST_TRIPLES) if pairs else []
    many = [one.column for one in features if one.column in values and one.vocab_size >= FEWEST_VALUES]
    return (
        [Cross(of=columns, ids=False) for columns in (*pairs, *triples)],
        [Cross(of=(name,)) for name in many],
    )


class _Walk:
    """The training rows in an order."""

    def __init__(self, dataset: EncodedDataset) -> None:
        train, self.kind = dataset.train, dataset.schema.label.kind
        rows = np.concatenate([rows for rows, _ in parts_in_order(dataset, 0)])[:MOST_ROWS]
        self.features = dataset.encoder.with_crosses([]).features
        self.ids, labels = np.asarray(train.categorical[rows]), np.asarray(train.labels[rows], np.float64)
        self.labels = labels / (labels.std() or 1.0) if self.kind == "real" else labels

    def cells(self, columns: Sequence[str]) -> NDArray[np.uint64]:
        return CellKeys.of(columns, self.features).keys(self.ids)

    def rank(self, known: Sequence[tuple[str, ...]], more: Any) -> list[Missed]:
        """What memories of more columns would gain beside those of known ones, the largest gain first."""
        numbers = [np.unique(self.cells(columns), return_inverse=True)[1] for columns in known]
        found = [OrderedStatistics(int(one.max()) + 1, self.kind).add(one, self.labels) for one in numbers]
        logits = regress(np.column_stack(found).astype(np.float64), self.labels, self.kind)
        return rank_missed(logits, self.labels, ((one, self.cells(one)) for one in more), kind=self.kind)


def regress(inputs: Doubles, labels: Doubles, kind: LabelKind) -> Doubles:
    """The answers of a linear regression, or the logits of a logistic one, to its own rows: (N, K), (N,) -> (N,)."""
    scaled = (inputs - inputs.mean(axis=0)) / (inputs.std(axis=0) + 1e-9)
    x = np.column_stack([np.ones(len(inputs)), scaled])
    weights, ridge = np.zeros(x.shape[1]), RIDGE * np.eye(x.shape[1])
    for _ in range(STEPS if kind == "binary" else 1):  # Newton's; of a square, one is enough
        answers = sigmoid(x @ weights) if kind == "binary" else x @ weights
        curvature = answers * (1 - answers) if kind == "binary" else np.ones(len(x))
        weights += np.linalg.solve((x * curvature[:, None]).T @ x + ridge, x.T @ (labels - answers) - ridge @ weights)
    logits: Doubles = x @ weights
    return logits


def _best(found: Sequence[Missed], most: int) -> list[tuple[str, ...]]:
    return [one.columns for one in found[:most] if one.gain > max(CERTAIN * one.error, LEAST_GAIN)]
