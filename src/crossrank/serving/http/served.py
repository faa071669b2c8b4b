"""The model that a server answers with: a scorer, and a ranker where a catalogue is loaded."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias

import numpy as np
from numpy.typing import NDArray

from crossrank.data.rows import EncodedRows
from crossrank.data.vocabulary import UNSEEN_ID
from crossrank.errors import ConfigError, DataError
from crossrank.folders import recover
from crossrank.serving.bundle import is_bundle
from crossrank.serving.http.settings import ServeSettings
from crossrank.serving.scorer import Scorer

if TYPE_CHECKING:
    from crossrank.runs import Run
    from crossrank.serving.ranker import Ranker

Row: TypeAlias = Mapping[str, Any]
Scores: TypeAlias = NDArray[np.float32]
MOST_REASONS = 5


class Served:
    """A run or a bundle, ready to answer.

    Attributes:
        name: what its folder, or the link to it, is called.
        version: the fingerprint of the run.
        inputs: the columns that a row must have.
        lists: those of them that may hold several values.
        run: where it is a run, which can rank a catalogue and tell reasons.
    """

    def __init__(self, name: str, scorer: Scorer, run: Run | None = None, ranker: Ranker | None = None) -> None:
        self.name, self.scorer, self.run, self.ranker = name, scorer, run, ranker
        self.version, self.schema = scorer.version, scorer.schema
        self.inputs = self.schema.inputs
        self.lists = {column.input for column in self.schema.multivalent}
        self._categorical = [column.name for column in self.schema.categorical]

    @classmethod
    def open(cls, path: Path, catalogue: Path | None = None, id: str | None = None) -> Served:  # noqa: A002
        """Open a run or a bundle, and a table of items where one is given; what is made at first use is made now."""
        name = path.absolute().name  # a link keeps its name when it is turned to another run
        recover(path)
        if is_bundle(path):
            if catalogue is not None:
                raise ConfigError("A catalogue is ranked by a run; got a bundle.", hint="Serve the run itself.")
            return cls(name, Scorer.open(path))
        from crossrank.runs import Run
        from crossrank.serving.ranker import Ranker

        run = Run.open(path)
        ranker = Ranker.open(run).load(catalogue, id=id) if catalogue is not None and id is not None else None
        return cls(name, Scorer.open(run), run, ranker)

    @classmethod
    def open_all(cls, settings: ServeSettings) -> Models:
        """Open what a server was told to answer with."""
        also, shadow = (cls.open(path) if path else None for path in (settings.also, settings.shadow))
        return Models(cls.open(settings.run, settings.catalogue, settings.id), also, shadow)

    @property
    def kind(self) -> str:
        """What computes the scores."""
        return str(self.run.config["model"]["name"]) if self.run else f"onnx, {self.scorer.precision}"

    @property
    def num_items(self) -> int | None:
        """How many items are loaded, if any are."""
        return len(self.ranker.loaded) if self.ranker else None

    def score(self, rows: Sequence[Row]) -> tuple[Scores, dict[str, int]]:
        """The answer to each row, and how many values of each column training had not seen."""
        encoded = self.scorer.encoder.encode_rows(rows)
        return self.scorer.answers(encoded), self._unseen(encoded)

    def _unseen(self, encoded: EncodedRows) -> dict[str, int]:
        names = self._categorical
        found = (encoded.categorical[:, : len(names)] == UNSEEN_ID).sum(axis=0).tolist()
        bags = [int((ids == UNSEEN_ID).sum()) for ids, _ in encoded.bags]
        named = zip([*names, *(column.name for column in self.schema.multivalent)], [*found, *bags], strict=True)
        return {name: count for name, count in named if count}

    def rank(self, context: Row, ids: Sequence[Any] | None, k: int, exclude: Sequence[Any]) -> list[dict[str, Any]]:
        """The best items of the catalogue, or of those named."""
        if self.ranker is None:
            raise DataError("Items are named by id where a catalogue is loaded; none is.", hint="Send them as objects.")
        if ids is not None and not ids:
            return []
        try:
            found = self.ranker.rank(context, ids, k=k, exclude=exclude or None)
        except DataError:
            known = self.ranker.loaded.place_of
            for place, id_ in enumerate(ids or ()):
                if id_ not in known:
                    raise DataError(
                        f"items[{place}] must be an item of the catalogue; got {str(id_)[:100]!r}."
                    ) from None
            raise
        return [{"id": id_, "score": score} for id_, score in zip(found.ids, found.scores.tolist(), strict=True)]

    def item(self, id_: Any) -> Row:
        """The columns of an item of the catalogue that the model reads."""
        row = self.ranker.loaded.row(id_) if self.ranker else {}
        return {name: row[name] for name in self.inputs if name in row}

    def reasons(self, row: Row) -> dict[str, Any]:
        """The features and pairs of features that moved a row's logit most."""
        from crossrank.evaluation.row_explanation import explain_row

        if self.run is None:
            raise DataError("Reasons are told by a run; a bundle is served.", hint="Leave out explain.")
        found = explain_row(self.run, row)
        return {"base": found.base, "alone": found.alone[:MOST_REASONS], "pairs": found.pairs[:MOST_REASONS]}


class Models(NamedTuple):
    """What a process has loaded: the model, another version that is asked for by name, and one that only watches."""

    model: Served
    also: Served | None = None
    shadow: Served | None = None

    @property
    def versions(self) -> dict[str, Served]:
        return {one.version: one for one in (self.also, self.model) if one is not None}
