"""The logits of one context with many items: taken apart where the model allows it, else row by row."""

from __future__ import annotations

from typing import TypeAlias

import torch
from torch import Tensor

from crossrank.data import Encoder
from crossrank.data.rows import SCORING_ROWS, EncodedRows
from crossrank.errors import listing
from crossrank.models import Model
from crossrank.models.base import Terms
from crossrank.nn import Features
from crossrank.serving.sides import Joiner
from crossrank.serving.splitting import Split, can_split

Known: TypeAlias = Tensor | EncodedRows  # what is kept of items: a row of numbers each, or the encoded rows
AGREEMENT = 1e-3  # of a logit, or of one where it is smaller; where a model's terms are not its logit, it is far more
ROUGH_AGREEMENT = 0.05  # with a deep network in bfloat16
FEW = 8  # items to compare
CACHED = 2**19  # numbers of items' rows at a time and thread: they stay in the processor's cache


CONTEXT, ITEM = 0, 1


class _Halves:
    """One side's elements of a model's x0, and after them what its linear term makes of that side, where it has one."""

    def __init__(self, model: Model, terms: Terms, joiner: Joiner) -> None:
        self.embedding, self.linear = model.embedding, terms.linear
        self.sides, self.columns = joiner.places(model.layout), joiner.places(model.layout.with_width(1))

    def of(self, features: Features, side: int) -> Tensor:
        """(N, C) or (N, I), or one more"""
        half: Tensor = self.embedding(features)[:, self.sides[side]]
        if self.linear is None:
            return half
        return torch.cat([half, self.linear(features)[:, self.columns[side]].sum(dim=1, keepdim=True)], dim=1)


class Pairing:
    """What a model makes of contexts and items.

    Args:
        deep: the precision of deep networks where it is not the model's.

    Attributes:
        why_plain: why rows are scored one by one; empty where the model is taken apart.
    """

    def __init__(self, model: Model, encoder: Encoder, item: frozenset[str], deep: torch.dtype | None = None) -> None:
        self.model, self.joiner, self.deep = model, Joiner(encoder, item), deep
        self.splits: list[tuple[_Halves, Split]] = []
        self._checked = False
        self.why_plain = self._why_plain()
        if not self.why_plain:
            with torch.no_grad():
                for member in model.members:
                    terms = member.terms()
                    assert terms is not None
                    halves = _Halves(member, terms, self.joiner)
                    self.splits.append((halves, Split(terms, halves.sides, deep)))

    def _why_plain(self) -> str:
        if self.joiner.shared:
            return f"{listing(self.joiner.shared)} cross the context with the item"
        terms = [member.terms() for member in self.model.members]
        if not all(one is not None and can_split(one) for one in terms):
            return f"{type(self.model.members[0]).__name__} does not say how its logit is taken apart"
        return ""

    @torch.inference_mode()
    def know(self, rows: EncodedRows) -> Known:
        """What is kept of items: (N, width) numbers, or the rows as they are."""
        if not self.splits:
            return rows
        features = self.joiner.whole(rows).features()
        return torch.cat([split.item(halves.of(features, ITEM)) for halves, split in self.splits], dim=1)

    @torch.inference_mode()
    def logits(self, context: EncodedRows, known: Known) -> Tensor:
        """The logits of a context with items, in units of the label: (N,)."""
        raw = self._taken_apart(context, known) if isinstance(known, Tensor) else self._row_by_row(context, known)
        return self.model.in_units(raw).clamp(self.model.label_low, self.model.label_high)

    def contexts(self, context: EncodedRows) -> list[tuple[Tensor, Split]]:
        """The context's half of x0, (C,), of each member of the model, and how its logit is taken apart."""
        features = self.joiner.whole(context).features()
        return [(halves.of(features, CONTEXT)[0], split) for halves, split in self.splits]

    def _taken_apart(self, context: EncodedRows, known: Tensor) -> Tensor:
        requests = [(split, split.request(c)) for c, split in self.contexts(context)]
        widths = [sum(split.widths) for split, _ in requests]
        logits = []
        for chunk in torch.split(known, max(torch.get_num_threads() * CACHED // sum(widths), SCORING_ROWS // 8)):
            items = torch.split(chunk.to(self.splits[0][1].bias.dtype), widths, dim=1)
            each = [split.logits(request, one) for (split, request), one in zip(requests, items, strict=True)]
            logits.append(torch.stack(each).mean(dim=0) if len(each) > 1 else each[0])
        return torch.cat(logits)

    def _row_by_row(self, context: EncodedRows, items: EncodedRows) -> Tensor:
        starts = range(0, max(len(items), 1), SCORING_ROWS)
        chunks = (items.slice(start, start + SCORING_ROWS) for start in starts)
        return torch.cat([self.model(self.joiner.joined(context, chunk).features()) for chunk in chunks])

    @torch.inference_mode()
    def check(self, context: EncodedRows, items: EncodedRows) -> None:
        """Score row by row from now on where a few items' logits are not the plain model's; looked at once."""
        if self._checked or not self.splits or not len(items):
            return
        self._checked = True
        items = items.slice(0, FEW)
        plain, split = self._row_by_row(context, items), self._taken_apart(context, self.know(items))  # type: ignore[arg-type]
        most = AGREEMENT if self.deep is None else ROUGH_AGREEMENT
        if not ((plain - split).abs() <= most * plain.abs().clamp_min(1)).all():
            self.splits = []
            self.why_plain = f"{type(self.model.members[0]).__name__} has another formula than its terms"
