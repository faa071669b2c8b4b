"""The mixture of low-rank crosses: Eqs. 3 and 4 of DCN-V2."""

from __future__ import annotations

from typing import Literal, get_args

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from crossrank.errors import ConfigError, did_you_mean, listing
from crossrank.nn.activations import SMOOTH, Activation, activation_name, resolve_activation, slope
from crossrank.nn.checks import check_count, check_rank
from crossrank.nn.cross_base import BaseCrossLayer
from crossrank.nn.linear import Linear

Gate = Literal["softmax", "sigmoid", "constant"]
GATES: tuple[str, ...] = get_args(Gate)


class MixtureCrossLayer(BaseCrossLayer):
    """Several low-rank crosses, weighted for each row by a gate.

    | ``x_{l+1} = Σ_k G_k(x_l) E_k(x_l) + x_l``  (Eq. 3)
    | ``E_k(x_l) = x_0 ⊙ (U_k (V_kᵀ x_l) + b)``
    | ``E_k(x_l) = x_0 ⊙ (U_k g(C_k g(V_kᵀ x_l)) + b)``  (Eq. 4, where an activation is given)

    ==========  =====  ====================================================================
    code        paper  meaning
    ==========  =====  ====================================================================
    up          U_k    (K, D, R), back from each expert's subspace
    down        V_kᵀ   (K, R, D), into each expert's subspace
    middle      C_k    (K, R, R), within each subspace; None for Eq. 3
    bias        b_l    (D,), inside every expert
    gate        G      Linear D -> K without bias; None where the weights are constant
    activation  g      an elementwise function; None for Eq. 3
    ==========  =====  ====================================================================

    Shape: x0 (..., D), xl (..., D) -> (..., D).
    Cost: K R (2 D + R) + K D multiplications for each row (Eq. 3 without the K R²), as many parameters and D more.
    Limits: gate "constant" and K = 1, :class:`~crossrank.nn.LowRankCrossLayer`. The bias stands inside every expert, so
    it counts Σ_k G_k times: once with "softmax", K times with "constant".

    Args:
        input_dim: D, the width of x0 and xl.
        rank: R, the width of each expert's subspace.
        num_experts: K.
        gate: "softmax", "sigmoid", or "constant" for a weight of 1 each.
        activation: None for Eq. 3; a name or a callable for Eq. 4.
        bias: add b_l.
        residual: add x_l.

    Raises:
        ConfigError: for a width or a count below 1, a rank outside 1..D, an unknown gate or activation.
        ShapeError: for inputs of another width.

    Example:
        >>> layer = MixtureCrossLayer(8, rank=2, num_experts=4, activation="tanh")
        >>> x0 = torch.randn(5, 8)
        >>> layer(x0, x0).shape
        torch.Size([5, 8])
    """

    label = "mixture"
    middle: nn.Parameter | None
    gate: Linear | None

    def __init__(
        self,
        input_dim: int,
        *,
        rank: int,
        num_experts: int,
        gate: Gate = "softmax",
        activation: str | Activation | None = None,
        bias: bool = True,
        residual: bool = True,
    ) -> None:
        super().__init__(input_dim, bias=bias, residual=residual)
        check_rank(rank, input_dim)
        check_count("num_experts", num_experts)
        if gate not in GATES:
            raise ConfigError(f"gate must be one of {listing(GATES)}; got {gate!r}.", hint=did_you_mean(gate, GATES))
        self.rank, self.num_experts, self.gate_name = rank, num_experts, gate
        self.up = nn.Parameter(torch.empty(num_experts, input_dim, rank))
        self.down = nn.Parameter(torch.empty(num_experts, rank, input_dim))
        middle = nn.Parameter(torch.empty(num_experts, rank, rank)) if activation is not None else None
        self.register_parameter("middle", middle)
        self.gate = None if gate == "constant" else Linear(input_dim, num_experts, bias=False)
        self.activation = resolve_activation(activation)
        self.activation_name = activation_name(activation)
        self.reset_parameters()

    def forward(self, x0: Tensor, xl: Tensor) -> Tensor:
        carried = self._carried(x0, xl)
        return x0 * self.spread(self.mix(self.project(xl))) + carried

    def project(self, xl: Tensor) -> Tensor:
        """V_kᵀ x_l of each expert, and the gates' scores: (..., K R + K), or (..., K R) with constant gates."""
        hidden = F.linear(xl, self.down.flatten(0, 1))  # (..., K R)
        return hidden if self.gate is None else torch.cat([hidden, self.gate(xl)], dim=-1)

    def mix(self, projected: Tensor) -> Tensor:
        """[G_1 h_1; …; G_K h_K; Σ_k G_k]: a gate is one number for each expert, so one product goes back with all."""
        width = self.num_experts * self.rank
        gates = self._weigh(projected[..., width:])  # (..., K)
        shape = (*projected.shape[:-1], self.num_experts, self.rank)
        hidden = projected[..., :width].reshape(shape)  # (..., K, R)
        if self.middle is not None:
            hidden = self.activation(hidden)
            hidden = self.activation(torch.einsum("...kr,ksr->...ks", hidden, self.middle))
        weighted = (gates.unsqueeze(-1) * hidden).flatten(-2)  # (..., K R)
        return torch.cat([weighted, gates.sum(dim=-1, keepdim=True).expand(*weighted.shape[:-1], 1)], dim=-1)

    def spread(self, mixed: Tensor) -> Tensor:
        experts = F.linear(mixed[..., :-1], self.up.movedim(0, 1).flatten(1))  # (..., D)
        return experts if self.bias is None else torch.addcmul(experts, mixed[..., -1:], self.bias)

    @property
    def is_smooth(self) -> bool:  # type: ignore[override]
        return self.activation_name in SMOOTH

    def matrix(self, xl: Tensor) -> Tensor:
        """Σ_k U_k M_k V_kᵀ with M_k = E[G_k] I (Eq. 3), or C_k ⊙ E[G_k g'(outer) g'(inner)ᵀ] (Eq. 4).

        That is the mean of the slope diag(g') C_k diag(g') that the activations leave.
        """
        gates = self.gates(xl).expand(len(xl), -1)  # (B, K)
        if self.middle is None:
            return torch.einsum("k,kdr,kre->de", gates.mean(dim=0), self.up, self.down)
        inner = torch.einsum("bd,krd->bkr", xl, self.down)  # (B, K, R)
        outer = torch.einsum("bkr,ksr->bks", self.activation(inner), self.middle)  # (B, K, R)
        slopes = torch.einsum("bk,bks,bkr->ksr", gates, slope(self.activation, outer), slope(self.activation, inner))
        return torch.einsum("kds,ksr,kre->de", self.up, self.middle * slopes / len(xl), self.down)

    def reset_parameters(self) -> None:
        super().reset_parameters()
        if self.gate is not None:
            self.gate.reset_parameters()

    def gates(self, xl: Tensor) -> Tensor:
        """G(x_l), the weight of each expert.

        Shape: (..., D) -> (..., K), or (K,) where the weights are constant.
        """
        return self._weigh(xl[..., :0] if self.gate is None else self.gate(xl))

    def _weigh(self, scores: Tensor) -> Tensor:
        """The same of the gates' scores, (..., K), or (..., 0) where the weights are constant."""
        if self.gate is None:
            return scores.new_ones(self.num_experts)
        return scores.softmax(dim=-1) if self.gate_name == "softmax" else scores.sigmoid()

    def extra_repr(self) -> str:
        mixture = f"rank={self.rank}, num_experts={self.num_experts}, gate={self.gate_name}"
        return f"{super().extra_repr()}, {mixture}, activation={self.activation_name}"
