"""Several trained models of one shape as one."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from crossrank.models.base import LABEL_UNITS, Model
from crossrank.nn import Features


class Ensemble(Model):
    """The mean of the logits of models that differ in their weights.

    ``logit = (1 / N) Σ_i logit_i``

    Logits and not probabilities are averaged: then the answer stays a logit, or a number, as every other model's is;
    what explains it is the mean of what explains the members, and still adds up to it. By convexity its log loss, and
    its squared error, is at most the mean of the members'.

    Shape: features of B rows -> (B,).
    Cost: that of all members.
    Limits: of equal members, one of them.
    """

    def __init__(self, members: Sequence[Model]) -> None:
        nn.Module.__init__(self)  # each member has its own tables
        self.layout, self.member = members[0].layout, nn.ModuleList(members)
        self.num_outputs = members[0].num_outputs
        for name in LABEL_UNITS:
            self.register_buffer(name, getattr(members[0], name).clone())

    @property
    def members(self) -> Sequence[Model]:
        return [member for member in self.member if isinstance(member, Model)]

    def forward(self, features: Features) -> Tensor:
        return torch.stack([member(features) for member in self.member]).mean(dim=0)  # (N, B) -> (B,)

    def logits(self, x0: Tensor) -> Tensor:
        raise TypeError("Each member of an ensemble has an x0 of its own; call the model with features.")
