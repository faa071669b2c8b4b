"""Wukong: a stack of factorization machines."""

from __future__ import annotations

import dataclasses

from torch import Tensor, nn

from crossrank.config import setting
from crossrank.models.base import Model
from crossrank.models.fields import FieldStack
from crossrank.models.settings import DeepSettings, ModelSettings
from crossrank.nn import OutputLayer, WukongLayer
from crossrank.nn.checks import check_count
from crossrank.schema import InputLayout


@dataclasses.dataclass(frozen=True, kw_only=True)
class StackSettings:
    num_layers: int = setting(2, "layers on top of each other")
    num_fm: int = setting(16, "fields that a layer makes of products")
    num_linear: int = setting(16, "fields that a layer makes of sums")
    rank: int = setting(8, "columns that stand for all inner products of a field")
    sizes: tuple[int, ...] = setting((64,), "sizes of the hidden layers on the products")

    def __post_init__(self) -> None:
        check_count("model.stack.num_layers", self.num_layers)


@dataclasses.dataclass(frozen=True, kw_only=True)
class WukongSettings(ModelSettings):
    name: str = setting("wukong", "which model")
    stack: StackSettings = setting(StackSettings(), "")
    deep: DeepSettings = setting(DeepSettings(), "")


class Wukong(Model):
    """``logit = wᵀ deep(flat(X_L)) + b`` with ``X_{l+1} = LN([FMB(X_l); W_l X_l] + X_l)`` (Zhang et al. 2024).

    X_0 has a row for each field; ``FMB(X) = MLP(LN(flat(X (Xᵀ Y))))``; see :class:`~crossrank.nn.WukongLayer`.

    Shape: features of B rows -> (B,).
    Cost: per row and layer 2 N e K + N e n_L multiply-adds for N fields, K columns of Y and n_L fields of sums, those
    of an MLP from N K to n_F e numbers, N e (n_F + n_L) where the number of fields changes; and the deep network's.
    Limits: all embedded features have one width; with a width of 1 the norms leave nothing of a field.

    Choices: the paper's layer, whose compression sums fields, W_L X; public code of others compresses all numbers
    flattened, has as many fields in each layer, and one norm over all of them. Numbers are fields x_j v_j.
    """

    takes_classes = True

    def __init__(self, layout: InputLayout, settings: WukongSettings) -> None:
        super().__init__(layout, embedding_dropout=settings.embedding.dropout)
        self.fields = FieldStack(layout, needed_by="Wukong")
        stack, width, made = settings.stack, self.fields.width, settings.stack.num_fm + settings.stack.num_linear
        self.layers = nn.ModuleList(
            WukongLayer(
                made if number else self.fields.num_fields,
                width=width,
                num_fm=stack.num_fm,
                num_linear=stack.num_linear,
                rank=stack.rank,
                sizes=stack.sizes,
            )
            for number in range(stack.num_layers)
        )
        self.deep = settings.deep.network(made * width)
        self.output = OutputLayer(self.deep.output_dim)

    def logits(self, x0: Tensor) -> Tensor:
        fields: Tensor = self.fields(x0)  # (B, F, e)
        for layer in self.layers:
            fields = layer(fields)  # (B, n_F + n_L, e)
        logits: Tensor = self.output(self.deep(fields.flatten(1)))  # (B,)
        return logits
