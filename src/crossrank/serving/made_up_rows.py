"""Raw rows made up from what an encoder knows, where no real ones are at hand."""

from __future__ import annotations

from typing import Any

import numpy as np

from crossrank.data.encoder import Encoder
from crossrank.data.scaling import log_shifts, undo_logs
from crossrank.data.vocabulary import FIRST_ID, UNSEEN_TEXT, AnyVocabulary
from crossrank.schema import Date, Multivalent, Numeric

MISSING_SHARE = 0.05
MOST_IN_BAG = 3


def draw_rows(encoder: Encoder, count: int) -> list[dict[str, Any]]:
    """Rows whose columns are drawn apart: values evenly from the vocabulary, also missing and unseen ones, and numbers
    from a normal distribution with the mean and deviation of the training rows; dates are missing.
    """
    draw = np.random.default_rng(0)
    rows: list[dict[str, Any]] = [{} for _ in range(count)]
    # Where two features are made of one column, the one that is read more strictly comes last.
    order = [*encoder.schema.in_table]
    order.sort(key=lambda column: isinstance(column, Numeric) + 2 * isinstance(column, Date))
    for column in order:
        for row in rows:
            row[column.input] = None if isinstance(column, Date) else _cell(column, encoder, draw)
    return rows


def _cell(column: Any, encoder: Encoder, draw: np.random.Generator) -> Any:
    if isinstance(column, Numeric):
        known = encoder.statistics[column.name]
        # An encoder of before there were limits has none: then the mean stands for all.
        low, high = (known.mean if end is None else end for end in (known.low, known.high))
        logged = np.array([[draw.normal(known.mean, known.deviation)]]).clip(low, high)
        return None if draw.random() < MISSING_SHARE else float(undo_logs(logged, log_shifts([column]))[0, 0])
    texts = _texts(encoder.vocabularies[column.name], draw, MOST_IN_BAG if isinstance(column, Multivalent) else 1)
    return [text for text in texts if text is not None] if isinstance(column, Multivalent) else texts[0]


def _texts(vocabulary: AnyVocabulary, draw: np.random.Generator, count: int) -> list[str | None]:
    special = [None, UNSEEN_TEXT]
    ids = draw.integers(vocabulary.size, size=count).tolist()
    return [special[id_] if id_ < FIRST_ID else vocabulary.text_of(id_) for id_ in ids]
