"""FM: the factorization machine of degree two."""

from __future__ import annotations

import dataclasses

import torch
from torch import Tensor, nn

from crossrank.config import setting
from crossrank.models.base import Terms, alone
from crossrank.models.fields import BesideLinear, FieldStack, LinearTerm
from crossrank.models.settings import ModelSettings
from crossrank.nn import FactorizationMachine
from crossrank.schema import InputLayout


@dataclasses.dataclass(frozen=True, kw_only=True)
class FMSettings(ModelSettings):
    name: str = setting("fm", "which model")


class FM(BesideLinear):
    """Each value has a weight and a vector; two values interact as the inner product of their vectors.

    ``logit = b + Σ_i w_i x_i + Σ_{i<j} ⟨v_i, v_j⟩ x_i x_j``  (Rendle 2010, Eq. 1)

    | here          | Rendle | meaning                                          |
    | ------------- | ------ | ------------------------------------------------ |
    | ``bias``      | w_0    | the logit of a row of zeros                      |
    | ``linear``    | w_i    | one weight for each value and for each number     |
    | ``embedding`` | v_i    | one vector for each value                        |
    | ``fields``    | v_i    | one vector for each number                       |

    Shape: features of B rows -> (B,).
    Cost: per row (F + 1) e multiply-adds for the products of F fields, and one for each number.
    Limits: one field, logistic regression. All embedded features have one width.

    Choices: a multivalent feature is one field, the mean of its values' vectors, as in every model here; in Rendle's
    equation its values also interact with each other.
    """

    def __init__(self, layout: InputLayout, settings: FMSettings) -> None:
        super().__init__(layout, embedding_dropout=settings.embedding.dropout)
        self.linear = LinearTerm(layout)
        self.fields = FieldStack(layout, needed_by="FM")
        self.interaction = FactorizationMachine()
        self.bias = nn.Parameter(torch.zeros(1))

    def logits(self, x0: Tensor) -> Tensor:
        logits: Tensor = self.interaction(self.fields(x0)) + self.bias  # (B,)
        return logits

    def terms(self) -> Terms:
        pairs = alone(lambda x0: self.interaction(self.fields(x0)), self.bias)
        return Terms(self.bias[0], quadratic=pairs, linear=self.linear.each)
