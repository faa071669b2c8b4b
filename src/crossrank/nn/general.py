"""The cross layer with the switches that came after DCN-V2: source, inner activation, heads, information gate."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal, get_args

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from crossrank.errors import ConfigError, did_you_mean, listing
from crossrank.nn.activations import SMOOTH, Activation, activation_name, resolve_activation, slope
from crossrank.nn.checks import check_count
from crossrank.nn.cross_base import BaseCrossLayer
from crossrank.nn.linear import Linear
from crossrank.nn.separable import context_of, separated

Source = Literal["x0", "previous"]
SOURCES: tuple[str, ...] = get_args(Source)


class GeneralCrossLayer(BaseCrossLayer):
    """A full cross layer with four switches.

    | ``x_{l+1} = s ⊙ 1/M Σ_m g(W_m x_l + b_m) ⊙ σ(V_m x_l) + x_l``
    | ``s = x_0``, or ``x_l`` with source "previous"; without a gate there is no σ(…), without an inner activation no g

    ======  ====  ===========================================================================
    code          meaning
    ======  ====  ===========================================================================
    weight  W_m   (M, D, D), which element is crossed with which
    bias    b_m   (M, D), inside the product and inside g; starts at zero
    gate    V     Linear D -> M D without bias, how much of each cross passes; None without a gate
    inner   g     an elementwise function inside the product; nothing stands outside
    ======  ====  ===========================================================================

    GDCN (Wang et al. 2023) is ``gate="information"``; its published code starts b uniformly in [0, 1], here it is zero
    as in every layer. Heads are averaged, not summed, so that M equal heads are one head, whatever M is.

    Shape: x0 (..., D), xl (..., D) -> (..., D).
    Cost: M D² multiplications for each row, twice that with a gate; as many parameters, and M D more.
    Limits: no switch, :class:`~crossrank.nn.CrossLayer`; with ``context`` :class:`~crossrank.nn.SeparableCrossLayer`.
    V = 0, half of the layer without a gate. Heads without g and gate are one layer with the mean of their matrices. A
    network of L layers without g and gate is a polynomial of degree L + 1, with source "previous" of degree 2^L; with
    relu inside it is one in each region of x_0, with a gate it is none.

    Args:
        input_dim: D, the width of x0 and xl.
        source: what is multiplied, "x0" or "previous" for x_l.
        inner: g, a name or a callable; None for the identity.
        heads: M.
        gate: "information" for σ(V x_l), None for no gate.
        context: places of x0 that never see the others, as in :class:`~crossrank.nn.SeparableCrossLayer`.
        bias: add b_m.
        residual: add x_l.

    Raises:
        ConfigError: for a width or a count below 1, an unknown source, gate or activation, or places outside x0.
        ShapeError: for inputs of another width.

    Example:
        >>> layer = GeneralCrossLayer(8, source="previous", inner="relu", heads=2)
        >>> x0 = torch.randn(5, 8)
        >>> layer(x0, x0).shape
        torch.Size([5, 8])
    """

    gate: Linear | None
    context: Tensor | None

    def __init__(
        self,
        input_dim: int,
        *,
        source: Source = "x0",
        inner: str | Activation | None = None,
        heads: int = 1,
        gate: Literal["information"] | None = None,
        context: Sequence[int] | None = None,
        bias: bool = True,
        residual: bool = True,
    ) -> None:
        super().__init__(input_dim, bias=bias, residual=residual)
        check_count("heads", heads)
        if source not in SOURCES:
            hint = did_you_mean(source, SOURCES)
            raise ConfigError(f"source must be one of {listing(SOURCES)}; got {source!r}.", hint=hint)
        if gate not in (None, "information"):
            raise ConfigError(f"gate must be 'information' or left out; got {gate!r}.")
        self.source, self.heads = source, heads
        self.inner, self.inner_name = resolve_activation(inner), activation_name(inner)
        self.weight = nn.Parameter(torch.empty(heads, input_dim, input_dim))
        self.bias = nn.Parameter(torch.empty(heads, input_dim)) if bias else None
        self.gate = Linear(input_dim, heads * input_dim, bias=False) if gate else None
        self.register_buffer("context", None if context is None else context_of(input_dim, context), persistent=False)
        self.reset_parameters()

    def forward(self, x0: Tensor, xl: Tensor) -> Tensor:
        carried = self._carried(x0, xl)
        return self.factor(x0, xl) * self.mix(self.project(xl)) + carried

    def factor(self, x0: Tensor, xl: Tensor) -> Tensor:
        return x0 if self.source == "x0" else xl

    def project(self, xl: Tensor) -> Tensor:
        """W_m x_l of each head, then V_m x_l of each: (..., M D), with a gate (..., 2 M D)."""
        kernels = [kernel.flatten(0, 1) for kernel in self._kernels()]
        return F.linear(xl, torch.cat(kernels) if len(kernels) > 1 else kernels[0])

    def mix(self, projected: Tensor) -> Tensor:
        """1/M Σ_m g(W_m x_l + b_m) ⊙ σ(V_m x_l), all that the factor is multiplied with: (..., D)."""
        inner, gates = self._split(projected)
        return (self.inner(inner) * gates).mean(dim=-2) if gates is not None else self.inner(inner).mean(dim=-2)

    def spread(self, mixed: Tensor) -> Tensor:
        return mixed

    @property
    def can_split(self) -> bool:
        """Whether x0 is what is multiplied; what is multiplied with x_l has no part that only one side knows."""
        return self.source == "x0" and super().can_split

    @property
    def is_smooth(self) -> bool:  # type: ignore[override]
        return self.inner_name in SMOOTH

    def matrix(self, xl: Tensor) -> Tensor:
        """1/M Σ_m diag(E [g'(W_m x_l + b_m) ⊙ σ(V_m x_l)]) W_m: the mean of the slopes that g and the gate leave."""
        inner, gates = self._split(self.project(xl))  # (B, M, D)
        slopes = slope(self.inner, inner) * (1.0 if gates is None else gates)
        return (slopes.mean(dim=0)[:, :, None] * self._kernels()[0]).mean(dim=0)

    def kernel(self) -> Tensor:
        return self._kernels()[0].mean(dim=0)

    @property
    def label(self) -> str:
        switches = {
            "previous source": self.source == "previous",
            f"inner {self.inner_name}": self.inner_name != "identity",
            f"{self.heads} heads": self.heads > 1,
            "information gate": self.gate is not None,
            "separable": self.context is not None,
        }
        return " with ".join(["full", ", ".join(name for name, on in switches.items() if on)])

    def reset_parameters(self) -> None:
        super().reset_parameters()
        if self.gate is not None:
            self.gate.reset_parameters()

    def _kernels(self) -> list[Tensor]:
        """W and, where there is a gate, V; (M, D, D) each."""
        kernels: list[Tensor] = [self.weight]
        if self.gate is not None:
            kernels.append(self.gate.weight.view_as(self.weight))
        return kernels if self.context is None else [separated(kernel, self.context) for kernel in kernels]

    def _split(self, projected: Tensor) -> tuple[Tensor, Tensor | None]:
        """W_m x_l + b_m, and σ(V_m x_l) or None; (..., M, D) each."""
        count = 1 if self.gate is None else 2
        parts = projected.reshape(*projected.shape[:-1], count, self.heads, self.input_dim)  # (..., count, M, D)
        inner = parts[..., 0, :, :] if self.bias is None else parts[..., 0, :, :] + self.bias
        return inner, None if self.gate is None else parts[..., 1, :, :].sigmoid()

    def extra_repr(self) -> str:
        switches = f"source={self.source}, inner={self.inner_name}, heads={self.heads}"
        return f"{super().extra_repr()}, {switches}"
