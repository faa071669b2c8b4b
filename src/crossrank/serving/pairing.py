"""The logits of contexts with many items: taken apart where the model allows it, else row by row."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from functools import partial
from typing import TypeAlias

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from crossrank.data import Encoder
from crossrank.data.rows import SCORING_ROWS, EncodedRows, Positions
from crossrank.errors import listing
from crossrank.models import Model
from crossrank.models.base import LABEL_UNITS, Terms
from crossrank.nn import Features
from crossrank.serving.affine_layers import Sides
from crossrank.serving.cross_cells import SharedCells
from crossrank.serving.known_values import KnownValues
from crossrank.serving.lookup import Lookup
from crossrank.serving.sides import Joiner
from crossrank.serving.splitting import Shared, Split, can_split
from crossrank.serving.threads import parts_for, side_by_side

AGREEMENT = 1e-3  # of a logit, or of one where it is smaller; where a model's terms are not its logit, it is far more
ROUGH_AGREEMENT = 0.05  # with a deep network in bfloat16
FEW = 8  # items to compare
CACHED = 2**19  # numbers of items' rows at a time and thread: they stay in the processor's cache
MOST_REQUESTS, MOST_LOGITS = 16, 2**25  # at a time
MOST_PRODUCTS = 2**29  # bytes of a catalogue
MOST_VALUES = 2**28  # bytes of what is known of contexts' values
CONTEXT, ITEM = 0, 1


@dataclasses.dataclass(frozen=True)
class KnownItems:
    """What is kept of N items.

    Attributes:
        rows: what a model taken apart knows of each, (N, width).
        cells: the number of each in the J crosses of both sides, (N, J).
        products: what spares candidates M(c), (N, C); None where they do not pay, or take too much memory.
    """

    rows: Tensor
    cells: NDArray[np.uint32]
    products: Tensor | None = None

    def __len__(self) -> int:
        return len(self.rows)

    @property
    def bytes_each(self) -> int:
        tensors = [self.rows] if self.products is None else [self.rows, self.products]
        numbers = sum(one.shape[1] * one.element_size() for one in tensors)
        return numbers + int(self.cells.shape[1]) * self.cells.itemsize

    def take(self, places: Positions) -> KnownItems:
        rows = self.rows.new_empty(len(places), self.rows.shape[1])
        np.take(_bytes(self.rows), places, axis=0, out=_bytes(rows), mode="clip")  # in half the time of torch's
        return KnownItems(rows, self.cells[places])

    def slice(self, start: int, stop: int) -> KnownItems:
        return self if start == 0 and stop >= len(self) else KnownItems(self.rows[start:stop], self.cells[start:stop])

    @classmethod
    def joined(cls, parts: Sequence[KnownItems]) -> KnownItems:
        """In numpy's memory, which asks for large pages: rows far apart are then found faster."""
        rows = torch.from_numpy(np.concatenate([_bytes(one.rows) for one in parts])).view(parts[0].rows.dtype)
        return cls(rows, np.concatenate([one.cells for one in parts]))


def _bytes(rows: Tensor) -> NDArray[np.uint8]:
    """(N, width) -> (N, bytes), of any type, in the same memory"""
    found: NDArray[np.uint8] = rows.view(torch.uint8).numpy()
    return found


Known: TypeAlias = KnownItems | EncodedRows  # the encoded rows where nothing is taken apart


def mean(logits: Sequence[Tensor]) -> Tensor:
    """Of the members of a model."""
    return torch.stack(list(logits)).mean(dim=0) if len(logits) > 1 else logits[0]


class _Member:
    """A model taken apart.

    Args:
        shared: the cells of the crosses of both sides.
    """

    def __init__(self, model: Model, terms: Terms, joiner: Joiner, deep: torch.dtype | None, shared: list[SharedCells]):
        self.embedding, self.linear = model.embedding, terms.linear
        *self.places, crossed = joiner.places(model.layout)
        self.columns = joiner.places(model.layout.with_width(1))
        sides = Sides(self.places[CONTEXT], torch.cat([self.places[ITEM], crossed]))
        self.split = Split(terms, sides, deep, num_crossed=len(crossed))
        tables = {slot.name: model.embedding.table(i) for i, slot in enumerate(model.layout.embedded)}
        dtype = terms.bias.new_empty(0).numpy().dtype
        self._vectors = []  # of each cross and cell, the last one for cells that are not known
        for name, cells in zip(joiner.shared, shared, strict=True):
            vectors = [tables[name][torch.from_numpy(ids.astype(np.int64))].numpy() for ids in cells.ids.T]
            self._vectors.append(np.concatenate([*vectors, cells.numbers], axis=1).astype(dtype))
        self._lookup = Lookup.of(model, self.places[CONTEXT]) if self.linear is None else None
        self._known: KnownValues | None = None

    def know_values(self, counts: Sequence[NDArray[np.int64]], memory: int) -> None:
        """Find out what requests have in common, given how many training rows had each id of single values."""
        if self._lookup is not None:
            self._known = KnownValues.of(self.split.of_c, self._lookup, counts, memory)

    def context(self, rows: EncodedRows) -> Tensor:
        """The contexts' elements, as :meth:`half` has them."""
        return self.half(rows.features(), CONTEXT) if self._lookup is None else self._lookup.elements(rows)

    def request(self, rows: EncodedRows) -> Shared:
        """What is known of contexts before any item."""
        c = self.context(rows)
        known = self._known if len(rows) == 1 else None  # several are one product of matrices
        return self.split.request(c, None if known is None else known.products(rows, c))

    def half(self, features: Features, side: int) -> Tensor:
        """One side's elements of x0, (N, C) or (N, I), and after them what a linear term makes of that side."""
        half: Tensor = self.embedding(features)[:, self.places[side]]
        if self.linear is None:
            return half
        return torch.cat([half, self.linear(features)[:, self.columns[side]].sum(dim=1, keepdim=True)], dim=1)

    def crossed(self, cells: Sequence[Positions]) -> Tensor | None:
        """z, from the cells of each cross: (B, N) each -> (B, N, Z)."""
        parts = [vectors[found] for vectors, found in zip(self._vectors, cells, strict=True)]
        return torch.from_numpy(np.concatenate(parts, axis=2)) if parts else None


class Pairing:
    """What a model makes of contexts and items.

    Args:
        deep: the precision of deep networks where it is not the model's.

    Attributes:
        why_plain: why rows are scored one by one; empty where the model is taken apart.
    """

    def __init__(self, model: Model, encoder: Encoder, item: frozenset[str], deep: torch.dtype | None = None) -> None:
        self.model, self.joiner, self.deep = model, Joiner(encoder, item), deep
        self.members: list[_Member] = []
        self._checked = False
        self._unitless = all(getattr(model, name).item() == value for name, value in LABEL_UNITS.items())
        self.why_plain = self._why_plain()
        if not self.why_plain:
            self._shared = [SharedCells(encoder.crosses[name], own) for name, own in self.joiner.shared.items()]
            with torch.no_grad():
                for member in model.members:
                    terms = member.terms()
                    assert terms is not None
                    self.members.append(_Member(member, terms, self.joiner, deep, self._shared))

    def _why_plain(self) -> str:
        name, terms = type(self.model.members[0]).__name__, [member.terms() for member in self.model.members]
        if not all(one is not None and can_split(one) for one in terms):
            return f"{name} does not say how its logit is taken apart"
        if self.joiner.shared and not all(one is not None and can_split(one, crossed=True) for one in terms):
            return f"{listing(self.joiner.shared)} cross the context with the item, and {name} multiplies them again"
        return ""

    @property
    def splits(self) -> list[Split]:
        return [member.split for member in self.members]

    def of_members(self, rows: Tensor) -> Sequence[Tensor]:
        """The rows of each member: (N, width) -> (N, Σ widths) each."""
        return rows.to(self.splits[0].bias.dtype).chunk(len(self.splits), dim=1)  # members are of one make

    @torch.inference_mode()
    def know(self, rows: EncodedRows) -> Known:
        """What is kept of items."""
        if not self.members:
            return rows
        features = self.joiner.encoder.add_cells(rows).features()  # with the crosses of the item's own columns
        numbers = torch.cat([member.split.item(member.half(features, ITEM)) for member in self.members], dim=1)
        cells = [cells.items(rows.categorical) for cells in self._shared]
        return KnownItems(numbers, np.stack(cells, axis=1) if cells else np.empty((len(rows), 0), np.uint32))

    def requests_at_once(self, num_items: int) -> int:
        """How many requests are stacked: as many as make a product large without leaving the caches."""
        if self.splits and all(split.inner_products for split in self.splits):
            return max(1, min(MOST_REQUESTS, MOST_LOGITS // max(num_items, 1)))
        return max(1, (self._rows_at_once if self.members else SCORING_ROWS) // max(num_items, 1))

    @property
    def _rows_at_once(self) -> int:
        width = sum(sum(split.widths) for split in self.splits)
        return max(torch.get_num_threads() * CACHED // width, SCORING_ROWS // 8)

    @torch.inference_mode()
    def logits(self, contexts: EncodedRows, known: Known) -> Tensor:
        """The logits of B contexts with N items, in units of the label: (B, N)."""
        raw = self._taken_apart(contexts, known) if isinstance(known, KnownItems) else self._row_by_row(contexts, known)
        return self.bounded(raw)

    def fuses(self, known: Known, num_contexts: int = 1) -> bool:
        """Whether a request's logits are found in one pass over some items' rows, by :meth:`logits_at`."""
        if not isinstance(known, KnownItems) or known.rows.dtype != torch.float32:
            return False
        pays = num_contexts == 1 or known.products is not None  # M(c) of several requests is better found at once
        return pays and bool(self.splits) and all(split.kernels is not None for split in self.splits)

    @torch.inference_mode()
    def with_products(self, known: Known) -> Known:
        """The items of a catalogue, with what makes rankings of some of them faster where memory allows."""
        if not (isinstance(known, KnownItems) and self.fuses(known)):
            return known
        width = sum(split.num_products for split in self.splits)
        if not 0 < 4 * len(known) * width <= MOST_PRODUCTS:
            return known
        products = torch.from_numpy(np.empty((len(known), width), np.float32))  # in large pages
        for rows, part in zip(torch.split(known.rows, SCORING_ROWS), torch.split(products, SCORING_ROWS), strict=True):
            each = zip(self.splits, self.of_members(rows), strict=True)
            part.copy_(torch.cat([split.products(own) for split, own in each], dim=1))
        return dataclasses.replace(known, products=products)

    @torch.inference_mode()
    def logits_at(self, contexts: EncodedRows, known: Known, places: Positions) -> Tensor:
        """``logits(contexts, known.take(places))``, where these fuse: (B, N)"""
        assert isinstance(known, KnownItems)
        requests = self.requests(contexts)
        work = len(contexts) * len(places) * sum(split.work for split in self.splits)

        def score(piece: slice) -> Tensor:
            each = enumerate(zip(self.splits, requests, strict=True))
            read = known.rows, places[piece], known.products
            return mean([split.logits_at(request, *read, member=number) for number, (split, request) in each])

        parts = side_by_side([partial(score, piece) for piece in self._pieces(len(places), work)], work)
        return self.bounded(torch.cat(parts, dim=1) if len(parts) > 1 else parts[0])

    def _pieces(self, num_items: int, work: int) -> list[slice]:
        """Items at a time, for which so many multiply-adds are to be divided."""
        at_once = min(self._rows_at_once, max(-(-num_items // parts_for(work)), 1))
        return [slice(start, start + at_once) for start in range(0, max(num_items, 1), at_once)]

    def bounded(self, raw: Tensor) -> Tensor:
        """What networks make in units of the label, within its bounds."""
        if self._unitless:
            return raw
        return self.model.in_units(raw).clamp(self.model.label_low, self.model.label_high)

    def contexts(self, contexts: EncodedRows) -> list[Tensor]:
        """The contexts' half of x0, (B, C), of each member of the model."""
        rows = self.joiner.encoder.add_cells(contexts)
        return [member.context(rows) for member in self.members]

    def requests(self, contexts: EncodedRows) -> list[Shared]:
        """What each member of the model knows of contexts before any item."""
        rows = self.joiner.encoder.add_cells(contexts)
        return [member.request(rows) for member in self.members]

    @torch.inference_mode()
    def know_values(self) -> None:
        """Spare requests the first products of their more frequent values, where memory allows."""
        slots = self.model.layout.of_kind("categorical")
        counts = [self.joiner.encoder.counts(slot.name) for slot in slots]
        for member in self.members:
            member.know_values(counts, MOST_VALUES // len(self.members))

    def _taken_apart(self, contexts: EncodedRows, known: KnownItems) -> Tensor:
        requests = self.requests(contexts)
        finders = [cells.of_contexts(contexts.categorical, len(known)) for cells in self._shared]
        alone = len(contexts) == 1 and all(split.work for split in self.splits)
        work = len(known) * sum(split.work for split in self.splits) if alone else 0

        def score(piece: slice) -> Tensor:
            part = known.slice(piece.start, piece.stop)
            cells = [np.stack([find(own) for find in each]) for each, own in zip(finders, part.cells.T, strict=True)]
            each_member = zip(self.members, requests, self.of_members(part.rows), strict=True)
            return mean([one.split.logits(request, rows, one.crossed(cells)) for one, request, rows in each_member])

        parts = side_by_side([partial(score, piece) for piece in self._pieces(len(known), work)], work)
        return torch.cat(parts, dim=1) if len(parts) > 1 else parts[0]

    def _row_by_row(self, contexts: EncodedRows, items: EncodedRows) -> Tensor:
        starts = range(0, max(len(items), 1), SCORING_ROWS)
        chunks = (items.slice(start, start + SCORING_ROWS) for start in starts)
        parts = [self.model(self.joiner.joined(contexts, chunk).features()) for chunk in chunks]
        return torch.cat([part.reshape(len(contexts), -1) for part in parts], dim=1)

    @torch.inference_mode()
    def check(self, contexts: EncodedRows, items: EncodedRows) -> None:
        """Score row by row from now on where a few items' logits are not the plain model's; looked at once."""
        if self._checked or not (self.members and len(contexts) and len(items)):
            return
        self._checked = True
        context, items = contexts.slice(0, 1), items.slice(0, FEW)
        plain, split = self._row_by_row(context, items), self._taken_apart(context, self.know(items))  # type: ignore[arg-type]
        most = AGREEMENT if self.deep is None else ROUGH_AGREEMENT
        if not ((plain - split).abs() <= most * plain.abs().clamp_min(1)).all():
            self.members = []
            self.why_plain = f"{type(self.model.members[0]).__name__} has another formula than its terms"
