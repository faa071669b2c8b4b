"""PNN: products of all pairs of fields, read by a deep network together with the fields."""

from __future__ import annotations

import dataclasses
from typing import Literal

import torch
from torch import Tensor, nn

from crossrank.config import setting
from crossrank.models.base import Model, Terms
from crossrank.models.fields import FieldStack
from crossrank.models.settings import DeepSettings, ModelSettings
from crossrank.nn import InnerProducts, OuterProducts, OutputLayer
from crossrank.schema import InputLayout


@dataclasses.dataclass(frozen=True, kw_only=True)
class PNNSettings(ModelSettings):
    name: str = setting("pnn", "which model")
    product: Literal["inner", "outer", "both"] = setting("outer", "product of two fields: IPNN, OPNN or PNN*")
    kernel: Literal["matrix", "vector", "number"] = setting("matrix", "what weighs each pair's outer product")
    deep: DeepSettings = setting(DeepSettings(), "")


class PNN(Model):
    """``logit = wᵀ deep([x0; p]) + b`` with one product p_ij for each pair i < j of fields (after Qu et al. 2016).

    | inner (IPNN): ``p_ij = ⟨v_i, v_j⟩``
    | outer (OPNN): ``p_ij = v_iᵀ W_ij v_j``, W_ij a matrix, diagonal (vector) or w_ij I (number)
    | both (PNN*):  the two side by side

    The first deep layer is the paper's ``l_1 = relu(l_z + l_p + b_1)`` (Eq. 3): one kernel over x0, the linear signal
    z, and over p.

    Shape: features of B rows -> (B,).
    Cost: per row, with F fields and P = F (F - 1) / 2 pairs, F² e multiply-adds (inner), P e (e + 1), 2 P e or
    F² e + P (outer), and P more columns of the first deep layer.
    Limits: without deep layers (``deep.sizes`` empty) the product layer alone, ``logit = wᵀ [x0; p] + b``; one field,
    DNN. All embedded features have one width.

    Choices: the paper's l_p sums over all i and j, a field with itself too; its authors' code has i < j, and so has
    this. Each pair has its own kernel (see :class:`~crossrank.nn.OuterProducts`); numbers are fields x_j v_j of the
    products, where DeepCTR lets them skip the product layer.
    """

    takes_classes = True

    def __init__(self, layout: InputLayout, settings: PNNSettings) -> None:
        super().__init__(layout, embedding_dropout=settings.embedding.dropout)
        self.fields = FieldStack(layout, needed_by="PNN")
        num_fields, width = self.fields.num_fields, self.fields.width
        self.products = nn.ModuleList()
        if settings.product != "outer":
            self.products.append(InnerProducts(num_fields))
        if settings.product != "inner":
            self.products.append(OuterProducts(num_fields, width=width, kernel=settings.kernel))
        num_products = len(self.products) * num_fields * (num_fields - 1) // 2
        self.deep = settings.deep.network(layout.input_dim + num_products)
        self.output = OutputLayer(self.deep.output_dim)

    def _signals(self, x0: Tensor) -> Tensor:
        """z and p side by side: (B, D) -> (B, D + P)."""
        fields = self.fields(x0)  # (B, F, e)
        return torch.cat([x0, *(product(fields) for product in self.products)], dim=1)

    def logits(self, x0: Tensor) -> Tensor:
        logits: Tensor = self.output(self.deep(self._signals(x0)))  # (B,)
        return logits

    def terms(self) -> Terms:
        return Terms(self.output.bias[0], quadratic=(self._signals, self.deep, self.output.weight[0]))
