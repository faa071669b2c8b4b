"""A side's elements of x0 by numpy; for one row they cost a fraction of what torch's calls do."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from crossrank.data.rows import EncodedRows, Positions
from crossrank.models import Model
from crossrank.nn import FeatureEmbedding


class Lookup(NamedTuple):
    """Where the elements at some places of x0 come from, single values before numbers."""

    weight: NDArray[Any]  # of the embedding
    columns: Positions  # of each embedded element, the column of its id
    widths: Positions  # and how far the vectors of ids lie apart
    starts: Positions  # and where that of the first id has it
    numbers: Positions  # the columns of the other elements

    @classmethod
    def of(cls, model: Model, places: Tensor) -> Lookup | None:
        """None where a place is that of a bag, or the embedding is another one."""
        embedding, slots, where = model.embedding, model.layout.of_kind("categorical"), places.numpy()
        widths, first_number = [slot.width for slot in slots], model.layout.input_dim - model.layout.num_numbers
        single, numbers = where[where < sum(widths)], where[where >= first_number] - first_number
        if type(embedding) is not FeatureEmbedding or len(single) + len(numbers) < len(where):
            return None
        first = [embedding.table(i).storage_offset() - embedding.weight.storage_offset() for i in range(len(slots))]
        starts = np.repeat(np.array(first) - [slot.start for slot in slots], widths)[single] + single
        columns, each = np.repeat(np.arange(len(slots)), widths), np.repeat(widths, widths)
        return cls(embedding.weight.detach().numpy(), columns[single], each[single], starts, numbers)

    def vectors(self, ids: Positions, places: slice) -> NDArray[Any]:
        """The elements at these places, all of one column, for each of some ids: (N,) -> (N, places)."""
        found: NDArray[Any] = self.weight[ids[:, None] * self.widths[places] + self.starts[places]]
        return found

    def elements(self, rows: EncodedRows) -> Tensor:
        """(B, places), as ``embedding(rows.features())[:, places]``."""
        ids, numbers = rows.categorical.take(self.columns, axis=1), rows.numeric.take(self.numbers, axis=1)
        vectors = self.weight[ids * self.widths + self.starts]
        return torch.from_numpy(np.concatenate([vectors, numbers.astype(self.weight.dtype)], axis=1))
