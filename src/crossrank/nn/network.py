"""Cross layers on top of each other."""

from __future__ import annotations

import inspect
from typing import Any, Literal

from torch import Tensor, nn

from crossrank.errors import ConfigError, did_you_mean, listing
from crossrank.nn.checks import check_count
from crossrank.nn.cross import CrossLayer, LowRankCrossLayer, VectorCrossLayer
from crossrank.nn.cross_base import BaseCrossLayer
from crossrank.nn.general import GeneralCrossLayer
from crossrank.nn.mixture import MixtureCrossLayer
from crossrank.nn.separable import SeparableCrossLayer

LayerKind = Literal["full", "low_rank", "mixture", "vector", "separable", "general"]
LAYERS: dict[str, type[BaseCrossLayer]] = {
    "full": CrossLayer,
    "low_rank": LowRankCrossLayer,
    "mixture": MixtureCrossLayer,
    "vector": VectorCrossLayer,
    "separable": SeparableCrossLayer,
    "general": GeneralCrossLayer,
}


class CrossNetwork(nn.Module):
    """All crosses of the input's elements up to degree num_layers + 1; 2^num_layers with the previous x as source.

    ``x_{l+1} = layer_l(x_0, x_l)`` for l = 0 … L_c - 1, from x_0 to x_{L_c}  (section "Cross Network")

    ===========  =====  ==================================================
    code         paper  meaning
    ===========  =====  ==================================================
    layers              one layer for each step, each with its own weights
    num_layers   L_c    the number of layers
    ===========  =====  ==================================================

    Shape: x0 (..., D) -> (..., D).
    Cost: num_layers times the layer's.
    Limits: one layer, that layer with xl = x0; all kernels and biases zero, the identity.

    Args:
        input_dim: D, the width of x0.
        num_layers: L_c.
        layer: "full" (Eq. 1), "low_rank" (Eq. 2), "mixture" (Eqs. 3 and 4), "vector" (DCN), "separable" (a context
            that never sees the item), "general" (source, inner activation, heads, gate), or a class of your own below
            :class:`BaseCrossLayer`.
        layer_options: what the layer's class takes by keyword, such as ``rank``.

    Raises:
        ConfigError: for no layers, an unknown kind of layer, or options that the kind does not take.
        ShapeError: for an input of another width.

    Example:
        >>> import torch
        >>> network = CrossNetwork(8, num_layers=3, layer="low_rank", rank=2)
        >>> network(torch.randn(5, 8)).shape
        torch.Size([5, 8])
    """

    def __init__(
        self,
        input_dim: int,
        *,
        num_layers: int,
        layer: LayerKind | type[BaseCrossLayer] = "full",
        **layer_options: Any,
    ) -> None:
        super().__init__()
        check_count("num_layers", num_layers)
        kind: Any = LAYERS.get(layer) if isinstance(layer, str) else layer
        if not (isinstance(kind, type) and issubclass(kind, BaseCrossLayer)):
            raise ConfigError(
                f"layer must be one of {listing(LAYERS)}, or a class below BaseCrossLayer; got {layer!r}.",
                hint=did_you_mean(str(layer), LAYERS),
            )
        self.input_dim = input_dim
        signature = inspect.signature(kind)
        try:
            signature.bind(input_dim, **layer_options)
        except TypeError as error:
            known = listing([name for name in signature.parameters if name != "input_dim"], most=10)
            name = layer if isinstance(layer, str) else kind.__name__
            raise ConfigError(f"A '{name}' cross layer takes {known}; {error}.") from None
        self.layers = nn.ModuleList(kind(input_dim, **layer_options) for _ in range(num_layers))

    def forward(self, x0: Tensor) -> Tensor:
        return self.steps(x0)[-1]

    def steps(self, x0: Tensor) -> list[Tensor]:
        """x_0, x_1, …, x_{L_c}."""
        steps = [x0]
        for layer in self.layers:
            steps.append(layer(x0, steps[-1]))
        return steps
