"""What a rival's server does with a request: our encoder, a whole row for each item, and the model on all of them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np

from crossrank.data.rows import EncodedRows
from crossrank.serving.scorer import Scorer

Row = dict[str, Any]


class KeptItems:
    """A scorer, and items whose columns are encoded already; nothing is taken apart."""

    def __init__(self, model: str, items: str) -> None:
        self.scorer = Scorer.open(model)
        rows = json.loads(Path(items).read_text())
        inputs, features = self.scorer.schema.inputs, self.scorer.features
        self.place = {row["id"]: place for place, row in enumerate(rows)}
        self.encoded = self.scorer.encoder.encode_rows([{**dict.fromkeys(inputs), **row} for row in rows])
        self.blank = dict.fromkeys(inputs)
        self.ids, self.numbers = (
            np.array([one.column in rows[0] for one in features if one.kind == kind for _ in range(one.width)], bool)
            for kind in ("categorical", "numeric")
        )

    def score(self, rows: list[Row]) -> list[float]:
        found: list[float] = self.scorer.score(rows).tolist()
        return found

    def rank_rows(self, rows: list[Row], k: int) -> list[Row]:
        """Whole rows, as they were sent."""
        return best(self.scorer.score(rows), k)

    def rank(self, context: Row, ids: list[Any], k: int) -> list[Row]:
        """Items that are named."""
        items = self.encoded.take(np.array([self.place[one] for one in ids]))
        asked = self.scorer.encoder.encode_rows([{**self.blank, **context}])
        categorical = np.where(self.ids, items.categorical, asked.categorical)
        whole = EncodedRows(categorical, np.where(self.numbers, items.numeric, asked.numeric))
        return best(self.scorer.answers(whole), k)


def best(scores: Any, k: int) -> list[Row]:
    return [{"index": place, "score": float(scores[place])} for place in np.argsort(-scores)[:k].tolist()]
