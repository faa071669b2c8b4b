"""Experts that tasks share, and a gate for each task: MMoE's layer, and one level of PLE."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn

from crossrank.errors import ConfigError
from crossrank.nn.activations import Activation
from crossrank.nn.checks import check_count, check_width
from crossrank.nn.deep import DeepNetwork
from crossrank.nn.linear import Linear


class GatedExperts(nn.Module):
    """Deep networks as experts, some for one task, some for all; each task weighs its own and the shared ones.

    | ``y_k = Σ_e softmax(G_k x_k)_e f_e``, over what task k's experts make of x_k and the shared ones of x_s
    | ``y_s = Σ_e softmax(G_s x_s)_e f_e``, over all of them, where a further level follows  (Tang et al. 2020)

    =============  ==========================================================
    code           meaning
    =============  ==========================================================
    x              x_1 … x_K of the K tasks, and x_s, what they share
    specific       for each task its experts
    shared         the experts of all
    gate           G_1 … G_K, without a bias; and G_s unless it is the last
    =============  ==========================================================

    Shape: x (..., K + 1, D) -> (..., K, H), or (..., K + 1, H) unless it is the last; H the last of the sizes.
    Cost: for each row that of num_tasks num_specific + num_shared deep networks, and D + H multiplications for each
    expert that each gate weighs.
    Limits: no specific experts and all x equal, MMoE (Ma et al. 2018); one expert, that expert for all tasks.

    Args:
        input_dim: D.
        num_tasks: K.
        num_specific: experts of each task.
        num_shared: experts of all tasks.
        sizes: the layers of an expert.
        activation, dropout: as in :class:`DeepNetwork`.
        is_last: no level follows, so nothing is made for what tasks share.

    Raises:
        ConfigError: for no task, no expert, or what :class:`DeepNetwork` refuses.
        ShapeError: for an input of another width.

    Example:
        >>> GatedExperts(8, num_tasks=2, num_specific=1, num_shared=3, sizes=[16, 4])(torch.randn(5, 3, 8)).shape
        torch.Size([5, 2, 4])
    """

    def __init__(
        self,
        input_dim: int,
        *,
        num_tasks: int,
        num_specific: int,
        num_shared: int,
        sizes: Sequence[int],
        activation: str | Activation = "relu",
        dropout: float = 0.0,
        is_last: bool = True,
    ) -> None:
        super().__init__()
        check_count("num_tasks", num_tasks)
        if min(num_specific, num_shared) < 0 or num_specific + num_shared < 1:
            raise ConfigError(
                f"num_specific and num_shared must be 0 or more, and not both 0; got {num_specific} and {num_shared}."
            )

        def experts(count: int) -> nn.ModuleList:
            networks = (
                DeepNetwork(input_dim, sizes=sizes, activation=activation, dropout=dropout) for _ in range(count)
            )
            return nn.ModuleList(networks)

        self.input_dim, self.output_dim = input_dim, [input_dim, *sizes][-1]
        self.specific = nn.ModuleList(experts(num_specific) for _ in range(num_tasks))
        self.shared = experts(num_shared)
        weighed = [num_specific + num_shared] * num_tasks + [num_tasks * num_specific + num_shared] * (not is_last)
        self.gate = nn.ModuleList(Linear(input_dim, count, bias=False) for count in weighed)

    def forward(self, x: Tensor) -> Tensor:
        check_width("x", x, self.input_dim)
        *of_tasks, of_all = x.unbind(dim=-2)  # K and one of (..., D)
        experts_of: Any = self.specific
        specific = [[expert(own) for expert in some] for own, some in zip(of_tasks, experts_of, strict=True)]
        shared = [expert(of_all) for expert in self.shared]  # each (..., H)
        weighed = [[*own, *shared] for own in specific]
        weighed.append([*(one for own in specific for one in own), *shared])  # of x_s; not asked for in the last level
        mixed = [
            (gate(one).softmax(dim=-1)[..., None] * torch.stack(experts, dim=-2)).sum(dim=-2)  # (..., E, H) -> (..., H)
            for gate, one, experts in zip(self.gate, x.unbind(dim=-2), weighed, strict=False)
        ]
        return torch.stack(mixed, dim=-2)
