"""The best items of a whole catalogue by inner products of a request's vector with the items' vectors."""

from __future__ import annotations

import dataclasses
import hashlib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, TypedDict, get_args

import numpy as np
import torch
from torch import Tensor

from crossrank.errors import ConfigError, RunError, listing, needed
from crossrank.files import checksum, read_json, write_json
from crossrank.folders import making, publish
from crossrank.serving.pairing import KnownItems

if TYPE_CHECKING:
    from crossrank.serving.ranker import Ranker, Ranking

IndexKind = Literal["exact", "faiss"]
FEW = 39  # items of a cell below which faiss warns
ABOUT, CELLS = "index.json", "index.faiss"


class _About(TypedDict):
    """index.json"""

    recall: float
    k: int
    num_probes: int
    items: str
    checksum: str


class Index:
    """The top of the whole catalogue, for models whose logit is φ(request)·ψ(item) + a(request): cross networks of one
    or two layers without gates and activations, and no deep network beside them.

    ``exact``: every item's logit, as :meth:`Ranker.rank` finds it. ``faiss``: an approximate index of ψ divides the
    items into cells, of which as many are searched as the recall needs; what it finds is scored exactly.

    Made by :meth:`Ranker.index`. :meth:`save` keeps an approximate one, :meth:`Ranker.open_index` opens it again.

    Attributes:
        recall: the share of the exact top k that is found, measured on the contexts; 1 for "exact".
        k: how many items the recall counts.
        num_probes: for "faiss", how many cells are searched, out of ``num_cells``.
    """

    def __init__(
        self, ranker: Ranker, cells: Any = None, *, recall: float = 1.0, k: int = 20, num_probes: int = 0
    ) -> None:
        pairing = ranker.pairing
        if not pairing.splits or not all(split.inner_products for split in pairing.splits):
            raise ConfigError(
                "An index is for a logit that is an inner product: a cross network alone, of one or two full or "
                f"low-rank layers; got {pairing.why_plain or 'another model'}.",
                hint="rank(context, k=...) ranks the whole catalogue exactly with any model.",
            )
        self.ranker, self.cells, self.recall, self.k, self.num_probes = ranker, cells, recall, k, num_probes

    @classmethod
    def build(
        cls,
        ranker: Ranker,
        kind: IndexKind = "exact",
        *,
        contexts: Sequence[Mapping[str, Any]] = (),
        k: int = 20,
        recall: float = 0.95,
    ) -> Index:
        """Make an index of a ranker's catalogue; see :meth:`Ranker.index`."""
        if kind not in get_args(IndexKind):
            raise ConfigError(f"kind must be one of {listing(get_args(IndexKind))}; got {kind!r}.")
        index = cls(ranker, k=k)
        if kind == "exact":
            return index
        if not contexts:
            raise ConfigError(
                "An approximate index measures its recall; it needs contexts.",
                hint="Pass some requests: index('faiss', contexts=[...]).",
            )
        faiss = _faiss()
        vectors = torch.cat([index._psi(part) for part in torch.split(index._known, 65_536)]).numpy()
        num_cells = max(1, min(int(np.sqrt(len(vectors))), len(vectors) // FEW))
        flat = faiss.IndexFlatIP(vectors.shape[1])
        index.cells = faiss.IndexIVFFlat(flat, vectors.shape[1], num_cells, faiss.METRIC_INNER_PRODUCT)
        index.cells.train(vectors)
        index.cells.add(vectors)
        exact = [set(ranker.rank(context, k=k).positions.tolist()) for context in contexts]
        index.num_probes = 1
        while True:
            found = [len(best & set(index._near(one, k))) for best, one in zip(exact, contexts, strict=True)]
            index.recall = sum(found) / sum(map(len, exact))
            if index.recall >= recall or index.num_probes == num_cells:
                return index
            index.num_probes = min(2 * index.num_probes, num_cells)

    @property
    def num_cells(self) -> int:
        return 0 if self.cells is None else int(self.cells.nlist)

    def save(self, folder: Path | str) -> None:
        """Write an approximate index and its recall into a folder; it fits the model and the catalogue it is of."""
        if self.cells is None:
            raise ConfigError("An exact index is made at once; there is nothing to save.")
        folder = Path(folder)
        with making(folder, ConfigError) as partial:
            _faiss().write_index(self.cells, str(partial / CELLS))
            about = {"recall": self.recall, "k": self.k, "num_probes": self.num_probes}
            write_json(partial / ABOUT, {**about, "items": self._fingerprint, "checksum": checksum(partial / CELLS)})
            publish(partial, folder)

    @classmethod
    def open(cls, ranker: Ranker, folder: Path | str) -> Index:
        """Read what :meth:`save` wrote.

        Raises:
            RunError: where it is damaged.
            ConfigError: where it is of another model or other items.
        """
        folder, index = Path(folder), cls(ranker)
        about = read_json(folder / ABOUT, _About, hint="Make it again.")
        if not (folder / CELLS).is_file() or checksum(folder / CELLS) != about["checksum"]:
            raise RunError(f"The index {folder} is damaged: {CELLS} is not what was written.", hint="Make it again.")
        if about["items"] != index._fingerprint:
            raise ConfigError(
                f"The index {folder} must be of the ranker's model and items; it is of others.",
                hint="Make it again: index('faiss', contexts=[...]).save(...).",
            )
        cells = _faiss().read_index(str(folder / CELLS))
        return cls(ranker, cells, recall=about["recall"], k=about["k"], num_probes=about["num_probes"])

    @property
    def _known(self) -> Tensor:
        known = self.ranker.loaded.known
        assert isinstance(known, KnownItems)
        return known.rows

    @property
    def _fingerprint(self) -> str:
        """That of the items' numbers, which the weights are in."""
        content = self._known.contiguous().view(torch.uint8).numpy()
        return hashlib.blake2b(content.data, digest_size=16).hexdigest()

    def search(self, context: Mapping[str, Any], *, k: int = 20) -> Ranking:
        """The best k items of the catalogue; positions are those in it."""
        if self.cells is None:
            return self.ranker.rank(context, k=k)
        places = np.sort(np.array(self._near(context, k), np.int64))
        ids = self.ranker.loaded.ids
        found = self.ranker.rank(context, [ids[place] for place in places], k=k)
        return dataclasses.replace(found, positions=places[found.positions])

    def _near(self, context: Mapping[str, Any], k: int) -> list[int]:
        options = _faiss().SearchParametersIVF(nprobe=self.num_probes)
        _, places = self.cells.search(self._phi(context)[None].numpy(), k, params=options)
        return [place for place in places[0].tolist() if place >= 0]

    @torch.inference_mode()
    def _psi(self, known: Tensor) -> Tensor:
        """(N, width) -> (N, P)"""
        splits = self.ranker.pairing.splits
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
        halves = pairing.contexts(pairing.joiner.half_rows([context], item=False, called="context"))
        each = zip(pairing.splits, halves, strict=True)
        return torch.cat([term.phi(c)[0] for split, c in each for term in split.inner_products])


def _faiss() -> Any:
    return needed("faiss", "An approximate index", "retrieve")
