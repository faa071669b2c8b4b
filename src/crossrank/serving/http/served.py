"""The model that a server answers with: a run, its version, and the items it can rank by their id."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from crossrank.data.encoder import UNSEEN_ID
from crossrank.data.rows import EncodedRows
from crossrank.data.text import text_of_value
from crossrank.errors import DataError, SchemaError, did_you_mean
from crossrank.runs import Run

Row: TypeAlias = Mapping[str, Any]
Scores: TypeAlias = NDArray[np.float32]


class Served:
    """A run, ready to answer.

    Args:
        run: the trained model.
        catalogue: item rows by the text of their id.

    Attributes:
        name: what the run's folder, or the link to it, is called.
        version: twelve letters that are equal for equal weights, encoders and settings.
        inputs: the columns that a row must have.
    """

    def __init__(self, run: Run, catalogue: Mapping[str, Row] | None = None) -> None:
        self.run, self.schema, self.catalogue = run, run.schema, catalogue
        self.name = run.path.absolute().name  # a link keeps its name when it is turned to another run
        self.version = version_of(run)
        self.inputs = tuple(self.schema.inputs)
        self.lists = {column.input for column in self.schema.multivalent}

    @classmethod
    def open(cls, path: Path, catalogue: Path | None = None, id: str | None = None) -> Served:  # noqa: A002
        """Open a run, and a table of items where one is given."""
        run = Run.open(path)
        served = cls(run, read_catalogue(catalogue, id, run) if catalogue is not None and id is not None else None)
        for rows in (1, 2, 64):  # what is made at first use is made now
            served.score([dict.fromkeys(served.inputs)] * rows)
        return served

    def score(self, rows: Sequence[Row]) -> tuple[Scores, dict[str, int]]:
        """The answer to each row, and how many values of each column training had not seen."""
        encoded = self.run.encoder.encode_rows(rows)
        return self.run.answers([encoded.features()]), self._unseen(encoded)

    def _unseen(self, encoded: EncodedRows) -> dict[str, int]:
        names = [column.name for column in self.schema.categorical]
        counts = dict(zip(names, (encoded.categorical[:, : len(names)] == UNSEEN_ID).sum(axis=0).tolist(), strict=True))
        for column, (ids, _) in zip(self.schema.multivalent, encoded.bags, strict=True):
            counts[column.name] = int((ids == UNSEEN_ID).sum())
        return {name: count for name, count in counts.items() if count}

    def item(self, id_: object) -> Row:
        """The row of an item of the catalogue."""
        if self.catalogue is None:
            raise DataError("Items are named by id where a catalogue is loaded; none is.", hint="Send them as objects.")
        row = self.catalogue.get(text_of_value(id_) or "")
        if row is None:
            raise DataError(f"An item must be in the catalogue; got the id {str(id_)[:100]!r}.")
        return row


def version_of(run: Run) -> str:
    """Equal for runs with equal files."""
    content = json.dumps(run.info["checksums"], sort_keys=True)
    return hashlib.blake2b(content.encode(), digest_size=6).hexdigest()


def read_catalogue(path: Path, id_: str, run: Run) -> dict[str, Row]:
    """Item rows by the text of their id; each holds the columns of the table that the model reads."""
    from crossrank.data.table import open_table

    table = open_table(path)
    if id_ not in table.columns:
        hint = did_you_mean(id_, table.columns)
        raise SchemaError(f"The catalogue {table.name} must have a column '{id_}'; it has none.", hint=hint)
    columns = [name for name in table.columns if name in run.schema.inputs]
    items: dict[str, Row] = {}
    for chunk in table.chunks():
        ids = chunk.frame[id_].to_list()
        for place, (value, row) in enumerate(zip(ids, chunk.frame.select(columns).to_dicts(), strict=True)):
            text = text_of_value(value)
            if text is None or text in items:
                problem = "is missing" if text is None else f"'{text}' comes twice"
                raise DataError(f"Column '{id_}' must name each item once; in {chunk.where(place)} it {problem}.")
            items[text] = row
    return items
