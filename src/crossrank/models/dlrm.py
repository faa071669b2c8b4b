"""DLRM: inner products of all pairs of fields, with all numbers together as one field."""

from __future__ import annotations

import dataclasses

import torch
from torch import Tensor

from crossrank.config import setting
from crossrank.errors import ConfigError
from crossrank.models.base import Model, Terms
from crossrank.models.fields import FieldStack
from crossrank.models.settings import DeepSettings, ModelSettings
from crossrank.nn import DeepNetwork, InnerProducts, OutputLayer
from crossrank.schema import InputLayout


@dataclasses.dataclass(frozen=True, kw_only=True)
class DLRMSettings(ModelSettings):
    name: str = setting("dlrm", "which model")
    bottom_sizes: tuple[int, ...] = setting(
        (256, 64), "sizes of the layers under the numbers; one more, as wide as an embedding, comes on top of them"
    )
    with_itself: bool = setting(False, "multiply each field with itself too")
    deep: DeepSettings = setting(DeepSettings(), "")

    def __post_init__(self) -> None:
        if any(size < 1 for size in self.bottom_sizes):
            raise ConfigError(f"model.bottom_sizes must be positive; got {list(self.bottom_sizes)}.")


class DLRM(Model):
    """``logit = wᵀ deep([v_0; p]) + b`` with ``p_ij = ⟨v_i, v_j⟩``, i < j (Naumov et al. 2019, section 2).

    ``v_0 = bottom(x_dense)`` is the one field that a network makes of all numbers; v_1 … v_F are the embedded features.

    Shape: features of B rows -> (B,).
    Cost: per row (F + 1)² e multiply-adds for the products, plus those of the bottom and the deep network.
    Limits: without numbers there is neither bottom network nor v_0, and the products alone reach the deep network.
    What the deep network reads of an embedded feature are its products only, never its vector. All embedded features
    have one width.

    Choices: the bottom network ends in a layer as wide as an embedding, like the 512-256-64-16 of DLRM's code, so the
    settings name the layers before it; its activation and dropout are the deep network's. ``with_itself`` is DLRM's
    ``arch_interaction_itself``.

    Raises:
        ConfigError: for a single field, which leaves nothing to multiply.
    """

    takes_classes = True

    def __init__(self, layout: InputLayout, settings: DLRMSettings) -> None:
        super().__init__(layout, embedding_dropout=settings.embedding.dropout)
        self.fields = FieldStack(layout, needed_by="DLRM", numbers=False)
        width, num_numbers = self.fields.width, layout.num_numbers
        num_fields = self.fields.num_fields + bool(num_numbers)
        self.products = InnerProducts(num_fields, with_itself=settings.with_itself)
        if not self.products.num_pairs:
            raise ConfigError(
                f"DLRM multiplies pairs of fields, so it needs two; got '{layout.names[0]}' alone.",
                hint="Add a feature, set model.with_itself=true, or pick logistic-regression or dnn.",
            )
        self.bottom: DeepNetwork | None = None
        if num_numbers:
            self.bottom = dataclasses.replace(settings.deep, sizes=(*settings.bottom_sizes, width)).network(num_numbers)
        self.deep = settings.deep.network(self.products.num_pairs + (width if num_numbers else 0))
        self.output = OutputLayer(self.deep.output_dim)

    def logits(self, x0: Tensor) -> Tensor:
        fields = self.fields(x0)  # (B, F, e)
        if self.bottom is None:
            crossed = self.products(fields)  # (B, P)
        else:
            dense = self.bottom(x0[:, self.fields.embedded_dim :])  # (B, e)
            products = self.products(torch.cat([dense.unsqueeze(1), fields], dim=1))  # (B, P)
            crossed = torch.cat([dense, products], dim=1)  # (B, e + P)
        logits: Tensor = self.output(self.deep(crossed))  # (B,)
        return logits

    def terms(self) -> Terms | None:
        if self.bottom is not None:  # what it makes of the numbers is no polynomial of them
            return None
        quadratic = (lambda x0: self.products(self.fields(x0))), self.deep, self.output.weight[0]
        return Terms(self.output.bias[0], quadratic=quadratic)
