"""Embedding tables as a graph stores them: each on its own, in fewer bits if asked for."""

from __future__ import annotations

import copy
from typing import Literal

import torch
from torch import Tensor, nn

from crossrank.models import Model
from crossrank.nn import FeatureEmbedding

Precision = Literal["float32", "bfloat16", "int8"]
LARGEST_CODE = 127


class PackedEmbedding(FeatureEmbedding):
    """The same layer, whose tables are one tensor each and are unpacked after the lookup, row by row.

    | bfloat16: each number rounded to 8 significant bits
    | int8: ``row ≈ s · code``, with the row's own ``s = max |row| / 127`` and whole numbers from -127 to 127

    Tables of width 1 stay as they are: a scale for each row would take more room than it saves.
    """

    weight = nn.Parameter(torch.empty(0), requires_grad=False)  # of which only the type is still asked for

    @classmethod
    def pack(cls, embedding: FeatureEmbedding, precision: Precision) -> None:
        """Turn a layer into a packed one, in place."""
        tables = [table.detach() for table in embedding.tables]
        del embedding.weight
        embedding.__class__ = cls
        for number, table in enumerate(tables):
            scales = None
            if precision == "bfloat16":
                table = table.bfloat16()
            elif precision == "int8" and table.shape[1] > 1:
                table, scales = to_int8(table)
            embedding.register_buffer(f"table_{number}", table, persistent=False)
            embedding.register_buffer(f"scales_{number}", scales, persistent=False)

    @property
    def tables(self) -> list[Tensor]:
        return [getattr(self, f"table_{number}") for number in range(len(self._groups))]

    def _look_up(self, number: int, table: Tensor, rows: Tensor) -> Tensor:
        scales = getattr(self, f"scales_{number}")
        found = table.index_select(0, rows).float()
        return found if scales is None else found * scales.index_select(0, rows)


def to_int8(table: Tensor) -> tuple[Tensor, Tensor]:
    """Codes and the scale of each row: (v, e) -> (v, e), (v, 1)."""
    scales = table.abs().amax(dim=1, keepdim=True) / LARGEST_CODE
    scales[scales == 0] = 1
    return (table / scales).round().to(torch.int8), scales


def packed(model: Model, precision: Precision) -> Model:
    """A model that shares its weights with the given one, its tables packed; a layer of somebody's own stays."""
    shared = {id(tensor): tensor for tensor in (*model.parameters(), *model.buffers())}
    model = copy.deepcopy(model, shared)
    for module in [*model.modules()]:
        if type(module) is FeatureEmbedding:
            PackedEmbedding.pack(module, precision)
    return model.eval()
