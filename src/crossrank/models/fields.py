"""What models of feature fields share: x0 cut into equally wide vectors, and the linear term over single values."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from crossrank.models.base import Model, embed, with_first
from crossrank.nn import Features
from crossrank.nn.embedding import INITIAL_SPREAD
from crossrank.schema import InputLayout


class BesideLinear(Model):
    """A model that adds ``self.linear``, a term of features, to what :meth:`logits` makes of x0.

    The linear term belongs to the first path.

    Shape: features of B rows -> (B,).
    """

    takes_classes = False  # the term is one number
    linear: Any  # a module: features -> (B,)

    def forward(self, features: Features) -> Tensor:
        linear: Tensor = self.linear(features)  # (B,)
        return linear + self.logits(self.embedding(features))

    def heads(self, features: Features) -> Tensor:
        return with_first(super().heads(features), self.linear(features))


class FieldStack(nn.Module):
    """x0 as one vector per feature: v_i for an embedded feature, x_j v_j for a number x_j with a learned v_j.

    A feature of several numbers, such as the pieces of one, is the sum Σ_k x_jk v_jk of theirs. The numbers enter as
    Rendle's factorization machine has them, so that every field-based model crosses the same fields; ``numbers=False``
    leaves them out, for models that treat them apart.

    Shape: x0 (B, D) -> (B, num_fields, width).
    Raises: ConfigError where the embedded features differ in width.
    """

    def __init__(self, layout: InputLayout, *, needed_by: str, numbers: bool = True) -> None:
        super().__init__()
        self.width = layout.equal_width(needed_by=needed_by)
        self.num_embedded = len(layout.embedded)
        self.embedded_dim = self.num_embedded * self.width
        self.widths = [slot.width for slot in layout.of_kind("numeric")] if numbers else []
        self.num_fields = self.num_embedded + len(self.widths)
        self.vectors = nn.Parameter(torch.empty(sum(self.widths), self.width)) if self.widths else None
        self.reset_parameters()

    def reset_parameters(self) -> None:
        if self.vectors is not None:
            nn.init.normal_(self.vectors, std=INITIAL_SPREAD)

    def forward(self, x0: Tensor) -> Tensor:
        fields = x0[:, : self.embedded_dim].reshape(-1, self.num_embedded, self.width)  # (B, F, e)
        if self.vectors is None:
            return fields
        numbers = x0[:, self.embedded_dim :, None] * self.vectors  # (B, all numbers, e)
        if max(self.widths) > 1:
            parts = torch.split(numbers, self.widths, dim=1)
            numbers = torch.stack([part.sum(dim=1) for part in parts], dim=1)  # (B, M, e)
        return torch.cat([fields, numbers], dim=1)  # (B, F + M, e)


class LinearTerm(nn.Module):
    """``Σ_i w_i[id_i] + Σ_j u_j x_j``: the first-order part of FM and of the models built on it; starts at zero.

    Shape: features of B rows -> (B,).
    """

    def __init__(self, layout: InputLayout) -> None:
        super().__init__()
        self.embedding = embed(layout.with_width(1))
        self.numbers = nn.Parameter(torch.empty(layout.num_numbers))
        self.reset_parameters()

    def reset_parameters(self) -> None:
        nn.init.zeros_(self.embedding.weight)
        nn.init.zeros_(self.numbers)

    def forward(self, features: Features) -> Tensor:
        x0: Tensor = self.embedding(features)  # (B, F + M)
        num_embedded = x0.shape[1] - self.numbers.shape[0]
        values = x0[:, :num_embedded].sum(dim=1)  # (B,)
        if not len(self.numbers) and torch.onnx.is_in_onnx_export():
            return values  # a product over nothing is 0; onnxruntime 1.31 returns what the memory held
        return values + x0[:, num_embedded:] @ self.numbers

    def each(self, features: Features) -> Tensor:
        """What each feature's value and each number adds: (B, F + M)."""
        x0: Tensor = self.embedding(features)
        ones = self.numbers.new_ones(x0.shape[1] - len(self.numbers))
        return x0 * torch.cat([ones, self.numbers])
