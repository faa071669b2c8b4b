"""What is left out of a configuration, as it suits the rows it is trained on.

The paper's values are meant for millions of rows; from 500,000 training rows on, and where the rows of a group are
compared by a label that is no grade, they stay. With fewer, a network learns a table by heart within a few passes:
there is noise in training, the average of the weights is a short one, and the validation rows are asked several times a
pass. The answers of several seeds are averaged, and of short tables of numbers several variants are tried. A number as
label is learned in more and larger steps. The rules were chosen on the validation rows of seven tables, those for
shorter ones on further tables; docs/guides/tuning.md has all of them. Grades were tried on one more, LightGBM's example
of a ranking.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from crossrank.config import to_dict
from crossrank.data import EncodedDataset
from crossrank.models import parse_model_settings
from crossrank.training.growing import FIRST_ROWS, POWER
from crossrank.training.loss import is_order
from crossrank.training.settings import most_table_decay

MANY_ROWS, FEW_ROWS = 500_000, 4096
ENOUGH_ROWS = 2048  # for trying things
VARIED_ROWS = range(ENOUGH_ROWS, 20_000)  # of mostly numbers, for which variants are tried
NUM_SEEDS = 4
MOST_L2, L2_ROWS = 3e-4, 3.0  # the penalty, and its product with the training rows
RAMP = 0.5  # of batches with more rows than the first steps have
DROPOUT, OF_NUMBERS = {"embedding": {"dropout": 0.2}, "deep": {"dropout": 0.4}}, {"deep": {"dropout": 0.1}}


def fill_in(values: Mapping[str, Any], dataset: EncodedDataset, *, raw: bool = False) -> dict[str, Any]:
    """A configuration in which what was left out suits the training rows of a dataset; what was written stays.

    Args:
        values: what was written.
        dataset: the rows.
        raw: they come from a table, not from a dataset that somebody prepared, which is taken as it is.
    """
    model, training, rows = values.get("model", {}), dict(values.get("training", {})), len(dataset.train)
    kind = dataset.schema.label.kind
    if kind != "grade" and is_order(training.get("loss", "auto"), kind):
        return dict(values)
    known = to_dict(parse_model_settings({key: model[key] for key in model if key == "name"}))
    parts: dict[str, Any] = {}
    if kind == "real":
        filled = _numbers(dataset, training)
        parts = {"embedding": {"dropout": 0.3}} if _has_ids(dataset) else {}
    elif rows >= MANY_ROWS:
        filled = _large_batches(dataset, training)
    else:
        numbers_alone = kind == "binary" and not _ids_of_texts(dataset)
        filled = _rows(dataset, training, patience=8 if numbers_alone else 4)
        filled |= _penalty(dataset) if kind == "binary" and _has_kernels(known, model) else {}
        parts |= DROPOUT | (OF_NUMBERS if numbers_alone else {})
        parts |= {"structure": "parallel"} if known.get("structure") == "stacked" else {}
    tries = _tries(dataset) if raw else {}
    parts |= {"ensemble": NUM_SEEDS} if raw and rows < MANY_ROWS else {}
    parts = {key: value for key, value in parts.items() if key in known}
    return {**values, "training": filled | tries | training, "model": _under(parts, model)}


def _has_kernels(known: Mapping[str, Any], given: Mapping[str, Any]) -> bool:
    """Whether a model has cross or deep layers, whose kernels a penalty counts."""
    return "cross" in known or ("deep" in known and given.get("deep", {}).get("sizes") != [])


def _has_ids(dataset: EncodedDataset) -> bool:
    return any(feature.kind == "categorical" for feature in dataset.features)


def _ids_of_texts(dataset: EncodedDataset) -> int:
    """The ids of categorical and multivalent columns."""
    numbers = {column.name for column in dataset.schema.numeric}
    return sum(feature.vocab_size for feature in dataset.features if feature.column not in numbers)


def _tries(dataset: EncodedDataset) -> dict[str, Any]:
    """Variants, and a memory of pairs of columns, where nobody gave crosses and trying does not take too long."""
    kind, rows = dataset.schema.label.kind, len(dataset.train)
    ids = sum(feature.kind == "categorical" for feature in dataset.features)
    if dataset.schema.crosses or kind not in ("binary", "real"):
        return {}
    numbers, others = dataset.encoder.values.values(), ids - len(dataset.encoder.values)
    mostly_numbers = sum(one.is_binned for one in numbers) > others
    variants = {"variants": "auto"} if kind == "binary" and rows in VARIED_ROWS and mostly_numbers else {}
    return variants | ({"memory": "auto"} if ENOUGH_ROWS <= rows < MANY_ROWS and ids > 1 else {})


def _large_batches(dataset: EncodedDataset, given: Mapping[str, Any]) -> dict[str, Any]:
    """There are few steps of many rows, and each is larger; the first ones grow, in rows or in length."""
    size = given.get("batch_size", 0)
    times = size / FIRST_ROWS
    if times <= 1 or "learning_rate" in given or given.get("tables") == "dense":
        return {}
    whole = dataset.schema.label.kind == "grade" or given.get("schedule") in ("linear", "cosine")
    if ramp := given.get("ramp", 0.0 if whole else RAMP):
        rate, table_rate, steps = 0.002 * times**POWER, 0.004 * times**POWER, dataset.train.num_batches(size)
        more = {"ramp": ramp, "average_decay": min(0.9999, round(1 - 9 / max(steps, 18), 4))}
    else:
        rate, table_rate, more = 0.001 * times**0.75, 0.002 * times, {"warmup_steps": 30}
    return {"learning_rate": float(f"{rate:.2g}"), "table_learning_rate": float(f"{table_rate:.2g}"), **more}


def _penalty(dataset: EncodedDataset) -> dict[str, Any]:
    """On kernels, where most columns are numbers: the fewer rows there are, the sooner they are learned by heart."""
    numbers, columns = len(dataset.schema.numeric), {feature.column for feature in dataset.features}
    l2 = float(f"{min(MOST_L2, L2_ROWS / len(dataset.train)):.2g}")
    return {"l2": l2} if 2 * numbers > len(columns) else {}


def _rows(dataset: EncodedDataset, given: dict[str, Any], *, patience: int) -> dict[str, Any]:
    is_grade = dataset.schema.label.kind == "grade"
    few = len(dataset.train) < FEW_ROWS and not is_grade
    pace: dict[str, Any] = {"batch_size": 64 if few else 256, "learning_rate": 0.001} | given
    steps = dataset.train.num_batches(pace["batch_size"])
    decay = pace.get("average_decay", 1 - 1 / min(100, max(2, steps)))
    most = most_table_decay(decay, pace.get("table_learning_rate") or pace["learning_rate"])
    shortest = 20 if is_grade else min(60, max(15, 2 * steps))
    return pace | {
        "average_decay": decay,
        "table_decay": min(3.0, round(10 * _ids_of_texts(dataset) / len(dataset.train), 2), most),
        "epochs": max(25, -(-2000 // steps)),
        "eval_every": max(shortest, steps // 4),
        "patience": patience,
    }


def _numbers(dataset: EncodedDataset, given: dict[str, Any]) -> dict[str, Any]:
    """A number as label needs more steps: short tables are read more often."""
    pace: dict[str, Any] = {"batch_size": 256, "learning_rate": 0.003 if _has_ids(dataset) else 0.01} | given
    epochs = max(10, -(-6000 // dataset.train.num_batches(pace["batch_size"])))
    return pace | {"epochs": epochs, "patience": max(2, epochs // 10)}


def _under(filled: Mapping[str, Any], given: Mapping[str, Any]) -> dict[str, Any]:
    """What was given, over what was filled in."""
    nested = {key: _under(value, given[key]) for key, value in filled.items() if isinstance(given.get(key), Mapping)}
    return {**filled, **given, **nested}
