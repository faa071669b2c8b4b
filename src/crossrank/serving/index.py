"""The best items of a whole catalogue by inner products of a request's vector with the items' vectors."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Literal, get_args

import numpy as np
import torch
from torch import Tensor

from crossrank.errors import ConfigError, MissingExtraError, listing

if TYPE_CHECKING:
    from crossrank.serving.ranker import Ranker, Ranking

IndexKind = Literal["exact", "faiss"]
FEW = 39  # items of a cell below which faiss warns


class Index:
    """The top of the whole catalogue, for models whose logit is φ(request)·ψ(item) + a(request): cross networks of one
    or two layers without gates and activations, and no deep network beside them.

    ``exact``: every item's logit, as :meth:`Ranker.rank` finds it. ``faiss``: an approximate index of ψ divides the
    items into cells, of which as many are searched as the recall needs; what it finds is scored exactly.

    Args:
        ranker: with a catalogue.
        kind: "exact" or "faiss".
        contexts: for "faiss", requests to measure the recall with.
        k: how many items the recall counts.
        recall: for "faiss", the recall to reach with as few cells as possible.

    Attributes:
        recall: the share of the exact top k that is found, measured on the contexts; 1 for "exact".
        num_probes: for "faiss", how many cells are searched, out of ``num_cells``.
    """

    def __init__(
        self,
        ranker: Ranker,
        kind: IndexKind = "exact",
        *,
        contexts: Sequence[Mapping[str, Any]] = (),
        k: int = 20,
        recall: float = 0.95,
    ) -> None:
        if kind not in get_args(IndexKind):
            raise ConfigError(f"kind must be one of {listing(get_args(IndexKind))}; got {kind!r}.")
        catalogue = ranker.loaded
        pairing = ranker.pairing
        if not pairing.splits or not all(split.inner_products for _, split in pairing.splits):
            raise ConfigError(
                "An index is for a logit that is an inner product: a cross network alone, of one or two full or "
                f"low-rank layers; got {pairing.why_plain or 'another model'}.",
                hint="rank(context, k=...) ranks the whole catalogue exactly with any model.",
            )
        self.ranker, self.kind, self.recall = ranker, kind, 1.0
        self.num_cells = self.num_probes = 0
        if kind == "exact":
            return
        if not contexts:
            raise ConfigError(
                "An approximate index measures its recall; it needs contexts.",
                hint="Pass some requests: index('faiss', contexts=[...]).",
            )
        try:
            import faiss
        except ImportError:
            raise MissingExtraError("An approximate index", "retrieve") from None
        known = catalogue.known
        assert isinstance(known, Tensor)
        vectors = torch.cat([self._psi(part) for part in torch.split(known, 65_536)]).numpy()
        self.num_cells = max(1, min(int(np.sqrt(len(vectors))), len(vectors) // FEW))
        flat = faiss.IndexFlatIP(vectors.shape[1])
        self.index = faiss.IndexIVFFlat(flat, vectors.shape[1], self.num_cells, faiss.METRIC_INNER_PRODUCT)
        self.index.train(vectors)
        self.index.add(vectors)
        exact = [set(ranker.rank(context, k=k).positions.tolist()) for context in contexts]
        self.num_probes = 1
        while True:
            found = [len(best & set(self._near(one, k))) for best, one in zip(exact, contexts, strict=True)]
            self.recall = sum(found) / sum(map(len, exact))
            if self.recall >= recall or self.num_probes == self.num_cells:
                break
            self.num_probes = min(2 * self.num_probes, self.num_cells)

    def search(self, context: Mapping[str, Any], *, k: int = 20) -> Ranking:
        """The best k items of the catalogue; positions are those in it."""
        if self.kind == "exact":
            return self.ranker.rank(context, k=k)
        places = np.sort(np.array(self._near(context, k), np.int64))
        ids = self.ranker.loaded.ids
        found = self.ranker.rank(context, [ids[place] for place in places], k=k)
        return dataclasses.replace(found, positions=places[found.positions])

    def _near(self, context: Mapping[str, Any], k: int) -> list[int]:
        import faiss

        options = faiss.SearchParametersIVF(nprobe=self.num_probes)  # type: ignore[call-arg]
        _, places = self.index.search(self._phi(context)[None].numpy(), k, params=options)
        return [place for place in places[0].tolist() if place >= 0]

    @torch.inference_mode()
    def _psi(self, known: Tensor) -> Tensor:
        """(N, width) -> (N, P)"""
        splits = [split for _, split in self.ranker.pairing.splits]
        vectors = []
        each = torch.split(known.float(), [sum(one.widths) for one in splits], dim=1)
        for split, rows in zip(splits, each, strict=True):
            v, *parts, _ = torch.split(rows, split.widths, dim=1)
            vectors += [term.psi(v, part) for term, part in zip(split.inner_products, parts, strict=True)]
        return torch.cat(vectors, dim=1)

    @torch.inference_mode()
    def _phi(self, context: Mapping[str, Any]) -> Tensor:
        """-> (P,)"""
        pairing = self.ranker.pairing
        rows = pairing.joiner.half_rows([context], item=False, called="the context")
        return torch.cat([term.phi(c) for c, split in pairing.contexts(rows) for term in split.inner_products])
