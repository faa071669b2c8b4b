"""What single features are worth to a model, and how its answer moves with their values.

- **importance** of a feature, here a column of the table: how much the criterion (log loss, RMSE for a number,
  1 - NDCG@10 for grades) rises when its cells are shuffled among the rows, so that they no longer belong to them: the
  mean over a few shuffles. All slots of x0 that are made of a column are shuffled together; a cross is a column of its
  own. Features that say the same share their importance, for each can stand in for the other.
- **partial dependence**: the mean answer when all rows are given one and the same value of a feature, the others
  staying as they are.

The work is bounded, whatever the table and the model: both are measured on fewer rows where there are many features or
where a row costs much.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from itertools import islice, pairwise
from typing import Any, NamedTuple

import numpy as np
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from crossrank.data import Encoder, Split
from crossrank.data.rows import SCORING_ROWS, EncodedRows, Ids, Positions
from crossrank.evaluation.grouped import Floats, ndcg, weighted_mean
from crossrank.evaluation.metrics import CRITERIA, row_losses, sigmoid, task_loss
from crossrank.evaluation.thresholds import short
from crossrank.evaluation.values import namer, raw_numbers
from crossrank.models import Model
from crossrank.schema import LabelKind

REPEATS = 3
FEWEST_ROWS, MOST_ROWS = 40, 20_000
WORK = 4e10  # of all shuffles together, in multiplications of a matrix product: a second or two of one core
DEPENDENCE_WORK = WORK / 4
ELEMENT = 40  # any other element of a tensor takes about as long as so many of them
FACTORS = {"aten::mm": 0, "aten::bmm": 0, "aten::addmm": 1}  # which argument's last axis a product sums over
TOP_FEATURES = 6  # whose dependence is told
CATEGORIES = 12
QUANTILES = 20


def measure_importance(model: Model, rows: Split, encoder: Encoder) -> dict[str, Any]:
    """Importance of every feature, strongest first, and partial dependence of the first six.

    The same each time: which rows are taken and how they are shuffled depends on the table and the model alone.

    Returns:
        ``{"metric", "rows", "repeats", "base", "features": [{"feature", "importance", "deviation"}, …], "dependence":
        [{"feature", "kind", "points": [{"value", "share", "mean"}, …]}, …]}``, where base is the criterion of the rows
        as they are, deviation is over the repeats, and share that of the rows that a point stands for. Nothing where no
        row weighs anything.
    """
    there = np.arange(rows.num_rows) if rows.weights is None else np.flatnonzero(rows.weights)
    if not len(there):
        return {}
    kind, features, work = encoder.schema.label.kind, list(_features(encoder)), _work_per_row(model, rows)
    labeled = rows.rows.take(there[_spread(len(there), WORK / work / (REPEATS * len(features)))])
    encoded, everyone = labeled.encoded, np.arange(len(labeled))
    weights = np.ones(len(labeled)) if labeled.weights is None else labeled.weights.astype(np.float64)
    judge = _judge(labeled.labels.astype(np.float64), weights, labeled.groups, kind)
    random = np.random.default_rng(0)
    orders = [random.permutation(len(labeled)) for _ in range(REPEATS)]
    changes = [_Change(features[0], everyone), *(_Change(one, order) for one in features for order in orders)]
    base, *shuffled = [judge(logits) for logits in _answers(model, encoded, everyone, changes)]
    rises = np.reshape(shuffled, (len(features), REPEATS)) - base
    strongest = np.argsort(-rises.mean(axis=1), kind="stable")
    few = _spread(len(labeled), DEPENDENCE_WORK / work / (TOP_FEATURES * QUANTILES))
    return {
        "metric": CRITERIA[kind],
        "rows": len(labeled),
        "repeats": REPEATS,
        "base": base,
        "features": [
            {
                "feature": features[place].name,
                "importance": float(rises[place].mean()),
                "deviation": float(rises[place].std(ddof=1)),
            }
            for place in strongest
        ],
        "dependence": [
            _dependence(model, encoded, encoder, features[place], few, weights, kind)
            for place in [place for place in strongest if features[place].kind != "cross"][:TOP_FEATURES]
            if model.num_outputs == 1
        ],
    }


class _Feature(NamedTuple):
    """A column, and where its cells are: columns of ids, of numbers, and the number of its bag if it has one."""

    name: str
    kind: str
    ids: Positions
    numbers: Positions
    bag: int | None


class _Change(NamedTuple):
    """A feature, and for each row the one that lends it its cell."""

    feature: _Feature
    lenders: Positions


def _features(encoder: Encoder) -> Iterator[_Feature]:
    columns = [*encoder.schema.encoded, *encoder.schema.crosses]
    places: dict[str, dict[str, list[int]]] = {column.name: {} for column in columns}
    counts = Counter[str]()
    for feature in encoder.features:
        start, width = counts[feature.kind], feature.width
        places[feature.column].setdefault(feature.kind, []).extend(range(start, start + width))
        counts[feature.kind] += width
    for column in columns:
        of_kind = places[column.name]
        ids, numbers = (np.array(of_kind.get(kind, []), np.int64) for kind in ("categorical", "numeric"))
        yield _Feature(column.name, column.kind, ids, numbers, next(iter(of_kind.get("multivalent", [])), None))


def _spread(num_rows: int, most: float) -> Positions:
    """Rows spread evenly: as many as asked for, within what is sensible."""
    count = min(num_rows, int(np.clip(most, FEWEST_ROWS, MOST_ROWS)))
    return np.linspace(0, num_rows - 1, count).astype(np.int64)


def _judge(labels: Floats, weights: Floats, groups: Ids | None, kind: LabelKind) -> Callable[[Floats], float]:
    """The criterion of logits."""

    def judge(logits: Floats) -> float:
        if kind == "grade" and groups is not None:
            return 1 - ndcg(labels, logits, groups, k=10, weights=weights)
        if kind == "tasks":
            return task_loss(labels, logits, weights)
        loss = weighted_mean(row_losses(labels, logits, kind), weights)
        return float(np.sqrt(loss)) if kind == "real" else loss

    return judge


def _answers(model: Model, rows: EncodedRows, places: Positions, changes: Sequence[_Change]) -> Iterator[Floats]:
    """The logits of the rows at these places, after each change alone; several changes go through the model at once."""
    together = max(1, SCORING_ROWS // max(len(places), 1))
    for first in range(0, len(changes), together):
        some = changes[first : first + together]
        changed = _changed(rows, places, some)
        parts = (changed.slice(start, start + SCORING_ROWS) for start in range(0, len(changed), SCORING_ROWS))
        logits = model.predict_logits(part.features() for part in parts).numpy()
        # A shuffled row may be stranger than any that was ever seen: its logit may overflow.
        yield from np.nan_to_num(logits).astype(np.float64).reshape(len(some), len(places), *logits.shape[1:])


def _changed(rows: EncodedRows, places: Positions, changes: Sequence[_Change]) -> EncodedRows:
    """The rows at these places once for each change, one after the other."""
    usual = np.tile(places, len(changes))
    changed = rows.take(usual)
    lent: dict[int, Positions] = {}  # by bag
    for number, (feature, lenders) in enumerate(changes):
        part = slice(number * len(places), (number + 1) * len(places))
        changed.categorical[part, feature.ids] = rows.categorical[lenders[:, None], feature.ids]
        changed.numeric[part, feature.numbers] = rows.numeric[lenders[:, None], feature.numbers]
        if feature.bag is not None:
            lent.setdefault(feature.bag, usual.copy())[part] = lenders
    bags = tuple(
        rows.take(lent[position]).bags[position] if position in lent else bag
        for position, bag in enumerate(changed.bags)
    )
    return EncodedRows(changed.categorical, changed.numeric, bags)


def _dependence(
    model: Model,
    rows: EncodedRows,
    encoder: Encoder,
    feature: _Feature,
    places: Positions,
    weights: Floats,
    kind: LabelKind,
) -> dict[str, Any]:
    numeric = feature.kind == "numeric"
    points = list(_quantiles(rows, encoder, feature) if numeric else _categories(rows, encoder, feature))
    changes = [_Change(feature, np.full(len(places), lender)) for _, lender, _ in points]
    found = []
    for (value, _, share), logits in zip(points, _answers(model, rows, places, changes), strict=True):
        answers = sigmoid(logits) if kind == "binary" else logits
        (mean,) = short([weighted_mean(answers, weights[places])])
        found.append({"value": value, "share": share, "mean": mean})
    return {"feature": feature.name, "kind": "numeric" if numeric else "categorical", "points": found}


def _quantiles(rows: EncodedRows, encoder: Encoder, feature: _Feature) -> Iterator[tuple[float, int, float]]:
    """Numbers spread evenly over the rows: each with a row that has it, and the share of rows it stands for."""
    numbers = raw_numbers(encoder, rows)[:, list(encoder.numbers).index(feature.name)]
    order = np.argsort(numbers, kind="stable")[: np.count_nonzero(~np.isnan(numbers))]
    parts = [part for part in np.array_split(order, QUANTILES) if len(part)]
    middles = np.array([part[len(part) // 2] for part in parts], np.int64)
    starts = np.flatnonzero(np.append(True, np.diff(numbers[middles]) != 0)[: len(middles)])
    for start, stop in pairwise([*starts, len(parts)]):
        (value,) = short([numbers[middles[start]]])
        yield value, int(middles[start]), sum(map(len, parts[start:stop])) / len(rows)


def _categories(rows: EncodedRows, encoder: Encoder, feature: _Feature) -> Iterator[tuple[str, int, float]]:
    """The most frequent cells: each with a row that has it, and the share of rows that have it."""
    name = namer(encoder, feature.name)
    if feature.bag is None:
        cells: list[tuple[int, ...]] = [(id_,) for id_ in rows.categorical[:, feature.ids[0]].tolist()]
        separator = ""
    else:
        ids, offsets = rows.bags[feature.bag]
        cells = [tuple(ids[start:stop].tolist()) for start, stop in pairwise(offsets)]
        separator = next(one.separator for one in encoder.schema.multivalent if one.name == feature.name)
    for cell, count in islice(Counter(cells).most_common(), CATEGORIES):
        text = separator.join(map(name, cell)) or "<empty>"
        yield text, cells.index(cell), count / len(cells)


class _Work(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Counts what a model does, in multiplications of a matrix product."""

    total = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        if isinstance(result, Tensor) and not func.is_view:
            factor = FACTORS.get(func._schema.name)
            self.total += result.numel() * (ELEMENT if factor is None else args[factor].shape[-1])
        return result


def _work_per_row(model: Model, rows: Split) -> float:
    features = rows.take(np.arange(min(rows.num_rows, FEWEST_ROWS))).features
    with _Work() as work:  # type: ignore[no-untyped-call]
        model.predict_logits([features])
    return float(max(work.total / len(features.categorical), 1))
