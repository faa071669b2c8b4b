"""The best of many items for a request, by the model's own scores."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, get_args

import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray

from crossrank.data.rows import Positions
from crossrank.errors import ConfigError, DataError, listing
from crossrank.evaluation.row_explanation import RowExplanation, explain_row
from crossrank.models.base import answers_of
from crossrank.runs import Run
from crossrank.serving.catalogue import NAME, Catalogue, Precision, open_items
from crossrank.serving.index import Index, IndexKind
from crossrank.serving.pairing import Pairing
from crossrank.serving.sides import item_columns

FEW = 2_000  # items that are sorted at once


@dataclasses.dataclass(frozen=True)
class Ranking:
    """The best items, best first; of equal ones the first in the catalogue, or among the candidates.

    Attributes:
        ids: of the items; of candidates given as rows without an id, their positions.
        positions: in the catalogue, or among the candidates where some were given.
        scores: probabilities, or numbers where the label is one.
        logits: what the scores are made of; the same where the label is a number.
        explanations: what moved each score, where asked for.
    """

    ids: list[Any]
    positions: NDArray[np.int64]
    scores: NDArray[Any]
    logits: NDArray[Any]
    explanations: list[RowExplanation] | None = None

    def __len__(self) -> int:
        return len(self.ids)


class Ranker:
    """Ranks items for requests with the exact scores of a trained model, for a fraction of their cost.

    What a model makes of a row is taken apart into the context's share, found once for a request, the item's share,
    found once for a catalogue, and the rest (:mod:`crossrank.serving.splitting`). Which columns are the item's is told
    by the ``side`` of each column of the schema, by ``item``, or else by the catalogue: those that it has.

    Scores agree with :meth:`Run.predict`; sums are taken in another order, so up to rounding. May be used by several
    threads at once.

    Example::

        ranker = Ranker.open("runs/first").load("items.parquet", id="item")
        ranker.rank({"user": "u7", "country": "pt", "hour": 9}, k=10).ids
    """

    def __init__(self, run: Run, *, item: Sequence[str] | None = None, deep_precision: Precision = "float32") -> None:
        _check_precision("deep_precision", deep_precision)
        if run.schema.label.num_outputs > 1:
            raise ConfigError("A ranking is by one score; got a label with several classes or tasks.")
        self.run, self.given = run, None if item is None else list(item)
        self.catalogue: Catalogue | None = None
        self._deep = torch.bfloat16 if deep_precision == "bfloat16" else None
        self._pairings: dict[frozenset[str], Pairing] = {}

    @classmethod
    def open(
        cls, run: Run | Path | str, *, item: Sequence[str] | None = None, deep_precision: Precision = "float32"
    ) -> Ranker:
        """Open a run to rank with.

        Args:
            run: a run, or its folder.
            item: the columns that describe an item, where the schema does not say or says otherwise.
            deep_precision: of the products of a deep network with each candidate. bfloat16 is faster where the
                processor has it, and scores are not exact.
        """
        return cls(run if isinstance(run, Run) else Run.open(run), item=item, deep_precision=deep_precision)

    def load(self, catalogue: Any, *, id: str, precision: Precision = "float32") -> Ranker:  # noqa: A002
        """Take in a table of items, and find out what is known of each before any request.

        Args:
            catalogue: a data frame, a path to a table, or a list of dictionaries.
            id: the column that names an item; it may also be a feature.
            precision: of the numbers that are kept. With bfloat16 they take half the memory, and scores are not exact.

        Returns:
            This ranker.
        """
        _check_precision("precision", precision)
        items = open_items(catalogue)
        self.catalogue = Catalogue(self._pairing_of(items.columns, NAME), items, id_column=id, precision=precision)
        return self

    def _pairing_of(self, columns: Iterable[str], source: str) -> Pairing:
        item = item_columns(self.run.schema, columns, source, self.given)
        if item not in self._pairings:
            self._pairings[item] = Pairing(self.run.model, self.run.encoder, item, self._deep)
        return self._pairings[item]

    @property
    def bytes_per_item(self) -> float:
        """The memory that the catalogue's numbers take for an item."""
        return self.loaded.bytes_per_item

    @property
    def how(self) -> str:
        """``"split"``, or ``"plain: "`` and why each row is scored by itself."""
        return f"plain: {self.pairing.why_plain}" if self.pairing.why_plain else "split"

    def rank(
        self,
        context: Mapping[str, Any],
        candidates: Sequence[Any] | None = None,
        *,
        k: int = 20,
        exclude: Iterable[Any] | None = None,
        mask: ArrayLike | None = None,
        explain: bool = False,
    ) -> Ranking:
        """The best k items for a context.

        Args:
            context: a value for each column of the context; others are not looked at.
            candidates: ids of the catalogue, or dictionaries with a value for each column of the item; the whole
                catalogue where left out.
            k: how many at most.
            exclude: ids that must not be among them.
            mask: for each candidate, or item of the catalogue, whether it may be among them.
            explain: tell the pairs of features behind each score.

        Raises:
            SchemaError: for a column that is missing.
            DataError: for an id that is not in the catalogue, or a mask of another length.
        """
        return self.rank_many([context], candidates, k=k, exclude=exclude, mask=mask, explain=explain)[0]

    def rank_many(
        self,
        contexts: Iterable[Mapping[str, Any]],
        candidates: Sequence[Any] | None = None,
        *,
        k: int = 20,
        exclude: Iterable[Any] | None = None,
        mask: ArrayLike | None = None,
        explain: bool = False,
    ) -> list[Ranking]:
        """A ranking for each context, of the same candidates; options are those of :meth:`rank`.

        What requests have in common is done once: candidates are looked up, and products are found, for several of them
        at a time.
        """
        if isinstance(k, bool) or not isinstance(k, int) or k < 1:
            raise ConfigError(f"k must be a number from 1 on; got {k!r}.")
        contexts, given = list(contexts), None if candidates is None else list(candidates)
        rows = given if given and all(isinstance(one, Mapping) for one in given) else None
        pairing = self.pairing if rows is None or self.catalogue else self._pairing_of(rows[0], "candidate 1")
        requests = pairing.joiner.half_rows(contexts, item=False, called="context")
        at: Positions | None = None  # of candidates whose rows are read where they stand
        if rows is not None:
            encoded = pairing.joiner.half_rows(rows, item=True, called="candidate")
            pairing.check(requests, encoded)
            known = pairing.know(encoded)
            name = self.catalogue.id_column if self.catalogue else ""
            ids = [row.get(name, place) for place, row in enumerate(rows)]
        else:
            ids, known = self.loaded.ids if given is None else given, self.loaded.known
            at = None if given is None else self.loaded.places(given)
            if at is not None and not pairing.fuses(known, len(contexts)):
                known, at = known.take(at), None
        allowed = self._allowed(ids, exclude, mask)
        promising = None
        if len(contexts) == 1 and given is None and self.loaded.pruning:
            promising = self.loaded.pruning.promising(requests, k, allowed)
            known, allowed = self.loaded.take(promising), None
        rankings, at_once = [], pairing.requests_at_once(len(known if at is None else at))
        for start in range(0, len(contexts), at_once):
            some = requests.slice(start, start + at_once)
            every = pairing.logits(some, known) if at is None else pairing.logits_at(some, known, at)
            for logits in every.numpy():
                order = _best(logits, k, allowed)
                best, places = logits[order], order if promising is None else promising[order]
                scores = answers_of(torch.from_numpy(best), self.run.schema.label.kind).numpy()
                rankings.append(Ranking([ids[place] for place in places.tolist()], places, scores, best))
        if explain:
            for number, (context, ranking) in enumerate(zip(contexts, rankings, strict=True)):
                chosen = [rows[i] for i in ranking.positions] if rows else [self.loaded.row(id_) for id_ in ranking.ids]
                whole = ({**context, **{name: row[name] for name in pairing.joiner.inputs[True]}} for row in chosen)
                told = [explain_row(self.run, row) for row in whole]
                rankings[number] = dataclasses.replace(ranking, explanations=told)
        return rankings

    def _allowed(
        self, ids: Sequence[Any], exclude: Iterable[Any] | None, mask: ArrayLike | None
    ) -> NDArray[np.bool_] | None:
        """Which candidates may be ranked; None for all."""
        if exclude is None and mask is None:
            return None
        allowed = np.ones(len(ids), bool) if mask is None else np.array(mask)
        if allowed.shape != (len(ids),) or allowed.dtype != bool:
            raise DataError(
                f"A mask must have a true or false for each of {len(ids):,} items; got {allowed.dtype} of shape "
                f"{allowed.shape}."
            )
        banned = set(exclude or ())
        if banned and self.catalogue and ids is self.catalogue.ids:
            allowed[[self.catalogue.place_of[id_] for id_ in banned if id_ in self.catalogue.place_of]] = False
        elif banned:
            allowed &= np.fromiter((id_ not in banned for id_ in ids), bool, len(ids))
        return allowed

    def index(self, kind: IndexKind = "exact", **options: Any) -> Index:
        """Find the best items of the whole catalogue by inner products; see :class:`crossrank.serving.index.Index`.

        Args:
            kind: "exact" or "faiss".
            options: for "faiss": ``contexts``, requests to measure the recall with; ``k``, how many items it counts;
                ``recall``, which to reach with as few cells as possible.
        """
        return Index.build(self, kind, **options)

    def open_index(self, folder: Path | str) -> Index:
        """An approximate index that was saved, of the same model and catalogue."""
        return Index.open(self, folder)

    @property
    def loaded(self) -> Catalogue:
        """The catalogue."""
        if self.catalogue is None:
            raise ConfigError(
                "Ids are of items of a catalogue; none is loaded.",
                hint="Call load(catalogue, id=...) first, or give the candidates as dictionaries.",
            )
        return self.catalogue

    @property
    def pairing(self) -> Pairing:
        """The model with the sides that the catalogue has."""
        return self.loaded.pairing


def _check_precision(name: str, value: object) -> None:
    if value not in get_args(Precision):
        raise ConfigError(f"{name} must be one of {listing(get_args(Precision))}; got {value!r}.")


def _best(logits: NDArray[Any], k: int, allowed: NDArray[np.bool_] | None) -> NDArray[np.int64]:
    """The places of the k largest, of equal ones the first."""
    places = np.arange(len(logits)) if allowed is None else np.flatnonzero(allowed)
    values = logits if allowed is None else logits[places]
    if len(values) > max(k, FEW):
        least = torch.topk(torch.from_numpy(values), k).values[-1].item()  # numpy's takes longer
        enough = np.flatnonzero(values >= least)
        places, values = places[enough], values[enough]
    return places[np.argsort(-values, kind="stable")[:k]]
