"""The embedding layer: encoded features in, x0 out."""

from __future__ import annotations

import dataclasses
import functools
import tempfile
from collections.abc import Callable, Sequence
from contextvars import ContextVar
from itertools import accumulate

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from crossrank.errors import ConfigError, ShapeError
from crossrank.nn.checks import check_count, check_dropout
from crossrank.nn.features import Bag, Features

# The paper does not say. On MovieLens-1M TensorFlow's 1 / sqrt(e_i) ends 0.006 higher in log loss, 0.01 about 0.001.
INITIAL_SPREAD = 0.05

# A folder for the weights of layers made in this context, for tables that memory cannot hold.
weights_in: ContextVar[str | None] = ContextVar("weights_in", default=None)


class FeatureEmbedding(nn.Module):
    """The vectors of the embedded features, then the numbers, side by side.

    ``x_0 = [x_embed,1; …; x_embed,n; x_dense]``, ``x_embed,i = W_embed,i e_i``  (section "Embedding Layer")

    ==============  =========  =====================================================================
    code            paper      meaning
    ==============  =========  =====================================================================
    table(i)        W_embed,i  (v_i, e_i), one row for each value; transposed against the paper
    vocab_sizes     v_i        how many values feature i has
    embedding_dims  e_i        how wide its vectors are
    weight                     (Σ v_i e_i,), all tables; those of one width lie below each other
    ==============  =========  =====================================================================

    Single-valued features come first, then multivalent ones (the mean of their values' vectors), then numbers; each
    kind in the order given. One lookup serves all features of a width, so equal widths are the fastest.

    Shape: categorical (B, F), one bag for each multivalent feature, numeric (B, M) -> (B, output_dim).
    Cost: no multiplications; Σ v_i e_i parameters. The gradient is as large as the tables, unless ``read`` is a
    function: then the rows for a forward pass that is to be trained come from it, by the number of their table.
    Limits: no embedded features, the numbers alone; a bag of one value, its vector; an empty bag, the zero vector.
    Ids are not compared with vocab_sizes, which would stall a GPU: one that is too large reads a neighbour's vector.

    Args:
        vocab_sizes: v_i, single-valued features first.
        embedding_dims: e_i, in the same order.
        num_multivalent: how many of the last features are multivalent.
        num_numeric: M.
        dropout: the share of embedded elements, not of the numbers, set to zero while training.

    Raises:
        ConfigError: for sizes below 1, lists of different lengths, or a dropout outside [0, 1).
        ShapeError: for another number of columns, bags or numbers than the layer was built for.

    Example:
        >>> embedding = FeatureEmbedding([10, 24, 5], [4, 4, 2], num_multivalent=1, num_numeric=1)
        >>> tags = Bag(ids=torch.tensor([3, 0, 4]), offsets=torch.tensor([0, 1, 3]))
        >>> features = Features(torch.tensor([[9, 23], [0, 7]]), torch.zeros(2, 1), (tags,))
        >>> embedding(features).shape  # 4 + 4 + 2 + 1
        torch.Size([2, 11])
        >>> embedding.table(2).shape
        torch.Size([5, 2])
    """

    columns: Tensor | None
    row_offsets: Tensor

    def __init__(
        self,
        vocab_sizes: Sequence[int],
        embedding_dims: Sequence[int],
        *,
        num_multivalent: int = 0,
        num_numeric: int = 0,
        dropout: float = 0.0,
    ) -> None:
        super().__init__()
        _check_sizes(vocab_sizes, embedding_dims, num_multivalent, num_numeric)
        check_dropout(dropout)
        self.vocab_sizes, self.embedding_dims = tuple(vocab_sizes), tuple(embedding_dims)
        self.num_single, self.num_multivalent = len(vocab_sizes) - num_multivalent, num_multivalent
        self.num_numeric, self.dropout = num_numeric, dropout
        self.num_rows = sum(vocab_sizes)
        self.output_dim = sum(embedding_dims) + num_numeric
        self._groups = _plan(self.vocab_sizes, self.embedding_dims, self.num_single)
        self.read: Callable[[int, Tensor], Tensor] | None = None
        self._register_offsets()
        self.weight = nn.Parameter(_room(sum(group.num_weights for group in self._groups)))
        self.reset_parameters()

    def _register_offsets(self) -> None:
        """The order of id columns that puts equal widths side by side, and what makes an id a row of its group."""
        columns = [i for group in self._groups for i in group.single]
        offsets = [group.first_rows[i] for group in self._groups for i in group.single]
        # Equal widths, the usual case, are in order already.
        order = torch.tensor(columns) if columns != sorted(columns) else None
        self.register_buffer("columns", order, persistent=False)
        self.register_buffer("row_offsets", torch.tensor(offsets, dtype=torch.int64), persistent=False)

    def reset_parameters(self) -> None:
        """N(0, 0.05²): small, so that a row seen seldom is near zero rather than noise."""
        nn.init.normal_(self.weight, std=INITIAL_SPREAD)

    def forward(self, features: Features) -> Tensor:
        self._check(features)
        ids, numeric, bags = features
        ids = ids if self.columns is None else ids.index_select(1, self.columns)
        ids = ids + self.row_offsets  # (B, F), from here on rows of a group's table
        counts = [len(group.single) for group in self._groups]
        pieces: dict[int, Tensor] = {}
        # The tables are split off once: each further split would return a gradient as large as all of them.
        groups = zip(self._groups, self.tables, _split(ids, counts, dim=1), strict=True)
        for number, (group, table, rows) in enumerate(groups):
            look_up = functools.partial(self._look_up, number, table)
            pieces |= group.embed(look_up, rows, [bags[i - self.num_single] for i in group.bags])
        embedded = [F.dropout(pieces[i], self.dropout, self.training) for i in sorted(pieces)]
        return torch.cat([*embedded, numeric.to(self.weight.dtype)], dim=1)  # (B, output_dim)

    def _look_up(self, number: int, table: Tensor, rows: Tensor) -> Tensor:
        """Rows of a group's table: (N,) -> (N, width)."""
        if self.read is None or not torch.is_grad_enabled():
            return table.index_select(0, rows)
        return self.read(number, rows)

    def table(self, i: int) -> Tensor:
        """The vectors of feature i, a view into ``weight``.

        Shape: (v_i, e_i).
        """
        size, width = self.vocab_sizes[i], self.embedding_dims[i]
        group = next(group for group in self._groups if group.width == width)
        start = group.start + group.first_rows[i] * width
        return self.weight.narrow(0, start, size * width).view(size, width)

    @property
    def tables(self) -> list[Tensor]:
        """One (rows, width) table for each distinct width, views into ``weight``."""
        parts = _split(self.weight, [group.num_weights for group in self._groups])
        return [part.view(-1, group.width) for part, group in zip(parts, self._groups, strict=True)]

    def _check(self, features: Features) -> None:
        """Compare shapes only; a look at the values would wait for the device."""
        ids, numeric, bags = features
        if ids.dim() != 2 or ids.shape[1] != self.num_single:
            raise ShapeError(f"categorical must have shape (B, {self.num_single}); got {tuple(ids.shape)}.")
        if numeric.shape != (ids.shape[0], self.num_numeric):
            raise ShapeError(
                f"numeric must have shape ({ids.shape[0]}, {self.num_numeric}); got {tuple(numeric.shape)}."
            )
        if len(bags) != self.num_multivalent:
            raise ShapeError(f"bags must be {self.num_multivalent}, one for each multivalent feature; got {len(bags)}.")
        for bag in bags:
            if bag.offsets.shape != (ids.shape[0] + 1,):
                raise ShapeError(
                    f"The offsets of a bag must have shape ({ids.shape[0] + 1},); got {tuple(bag.offsets.shape)}.",
                    hint="Row i owns ids[offsets[i]:offsets[i + 1]], so there is one offset more than rows.",
                )

    def extra_repr(self) -> str:
        kinds = f"{self.num_single} single-valued, {self.num_multivalent} multivalent, {self.num_numeric} numeric"
        return f"{kinds}, num_rows={self.num_rows}, output_dim={self.output_dim}, dropout={self.dropout}"


@dataclasses.dataclass(frozen=True)
class _Group:
    """The features of one width, whose tables lie below each other in one table."""

    width: int
    start: int  # of the group's table in the flat weight
    first_rows: dict[int, int]  # of each feature's table in the group's table
    num_weights: int
    single: tuple[int, ...]  # the numbers of the single-valued features, which are also their columns
    bags: tuple[int, ...]  # the numbers of the multivalent features
    runs: dict[int, int]  # single-valued features side by side in x0: the first one's number, and their joint width

    def embed(self, look_up: Callable[[Tensor], Tensor], ids: Tensor, bags: Sequence[Bag]) -> dict[int, Tensor]:
        """The pieces of x0 that this group fills, each under the number of its first feature.

        Shape: ids (B, number of single-valued features) -> each piece (B, its width).
        """
        values = [bag.ids.long() + self.first_rows[i] for i, bag in zip(self.bags, bags, strict=True)]
        # One lookup for all: each further one would cost a gradient as large as the whole table.
        rows = torch.cat([ids.flatten(), *values]) if values else ids.flatten()
        single, *bagged = _split(look_up(rows), [ids.numel(), *(value.shape[0] for value in values)])
        wide = single.view(ids.shape[0], sum(self.runs.values()))  # (B, number of single-valued features · width)
        pieces = dict(zip(self.runs, _split(wide, list(self.runs.values()), dim=1), strict=True))
        means = {i: _mean(vectors, bag.offsets) for i, vectors, bag in zip(self.bags, bagged, bags, strict=True)}
        return pieces | means


def embedding_layers(module: nn.Module) -> list[FeatureEmbedding]:
    """Every embedding layer inside a module."""
    return [layer for layer in module.modules() if isinstance(layer, FeatureEmbedding)]


def _plan(vocab_sizes: Sequence[int], embedding_dims: Sequence[int], num_single: int) -> list[_Group]:
    """Group the features by width, in the order in which the widths first appear."""
    groups: list[_Group] = []
    start = 0
    for width in dict.fromkeys(embedding_dims):
        members = [i for i, dim in enumerate(embedding_dims) if dim == width]
        *first_rows, num_rows = accumulate((vocab_sizes[i] for i in members), initial=0)
        single, bags = (tuple(i for i in members if (i < num_single) is kind) for kind in (True, False))
        rows = dict(zip(members, first_rows, strict=True))
        groups.append(_Group(width, start, rows, num_rows * width, single, bags, _runs(single, width)))
        start += num_rows * width
    return groups


def _runs(single: Sequence[int], width: int) -> dict[int, int]:
    """Neighbours joined into one piece: the first one's number, and the piece's width."""
    runs: dict[int, int] = {}
    first = previous = -2
    for i in single:
        first = first if i == previous + 1 else i
        runs[first] = runs.get(first, 0) + width
        previous = i
    return runs


def _split(x: Tensor, sizes: list[int], dim: int = 0) -> tuple[Tensor, ...]:
    """``torch.split``, whose gradient is a copy, only where there is something to split."""
    return torch.split(x, sizes, dim) if len(sizes) > 1 else (x,) * len(sizes)


def _mean(vectors: Tensor, offsets: Tensor) -> Tensor:
    """The mean over each bag, zero for an empty one.

    Shape: vectors (N, width), offsets (B + 1,) -> (B, width).
    """
    if torch.onnx.is_in_onnx_export():
        return _scattered_mean(vectors, offsets.long())
    every = torch.arange(vectors.shape[0], device=vectors.device)
    return F.embedding_bag(every, vectors, offsets.long(), mode="mean", include_last_offset=True)


def _scattered_mean(vectors: Tensor, offsets: Tensor) -> Tensor:
    """The same of operations that ONNX has: how many bags have ended before each vector tells the bag it belongs to."""
    ended = offsets.new_zeros(vectors.shape[0] + 1).scatter_add(0, offsets[1:], torch.ones_like(offsets[1:]))
    bags = ended.cumsum(0)[:-1]  # (N,)
    sums = vectors.new_zeros(offsets.shape[0] - 1, vectors.shape[1]).index_add(0, bags, vectors)
    return sums / offsets.diff().clamp(min=1)[:, None]


def _room(count: int) -> Tensor:
    """A tensor of this many weights, in memory or mapped from a new file."""
    folder, size = weights_in.get(), torch.get_default_dtype().itemsize * count
    if folder is None or count == 0:
        return torch.empty(count)
    with tempfile.NamedTemporaryFile(dir=folder, delete=False) as file:
        file.truncate(size)
    return torch.from_file(file.name, shared=True, size=count)


def _check_sizes(vocab_sizes: Sequence[int], embedding_dims: Sequence[int], num_multivalent: int, num: int) -> None:
    if len(vocab_sizes) != len(embedding_dims):
        raise ConfigError(
            f"Each vocabulary needs one embedding width; got {len(vocab_sizes)} vocab_sizes and "
            f"{len(embedding_dims)} embedding_dims."
        )
    for name, values in (("vocab_sizes", vocab_sizes), ("embedding_dims", embedding_dims)):
        for i, value in enumerate(values):
            check_count(f"{name}[{i}]", value)
    if not 0 <= num_multivalent <= len(vocab_sizes):
        raise ConfigError(
            f"num_multivalent must be between 0 and {len(vocab_sizes)}, the number of tables; got {num_multivalent}."
        )
    if num < 0:
        raise ConfigError(f"num_numeric must be at least 0; got {num}.")
