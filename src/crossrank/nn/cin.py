"""The compressed interaction network of xDeepFM."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from crossrank.errors import ConfigError
from crossrank.nn.activations import Activation, activation_name, resolve_activation
from crossrank.nn.checks import check_count
from crossrank.nn.linear import Linear
from crossrank.nn.products import check_fields


class CompressedInteractionNetwork(nn.Module):
    """Crosses of whole fields, one degree more with each layer, each compressed into a few feature maps.

    | ``X^k_h = f(Σ_i Σ_j W^{k,h}_ij (X^{k-1}_i ⊙ X^0_j))``  (xDeepFM, Eq. 6; f is the identity there)
    | ``p^k_h = Σ_e X^k_he``  (Eq. 7), and the output is all p^k side by side

    ==========  =========  ===========================================================================
    code        xDeepFM    meaning
    ==========  =========  ===========================================================================
    layers[k]   W^k        (H_k, H_{k-1} F), for each feature map a weight of each pair of vectors
    sizes       H_k        feature maps of each layer
    split_half  direct     off: all maps go on to the next layer and to the output ("direct"); on: the
                           first half goes on, the second half to the output ("indirect")
    ==========  =========  ===========================================================================

    Shape: fields (B, F, e) -> (B, output_dim); output_dim = Σ H_k, or with split_half half of each but the last.
    Cost: Σ_k e F H_{k-1} (H_k + 1) multiplications for each row, Σ_k F H_{k-1} H_k parameters, where H_0 = F and
    H_{k-1} counts only maps that go on: e times more work than parameters, where most layers need as much as they have.
    Limits: one layer with ``W^1,h_ij = w_ij``, the map ``Σ_i x_i ⊙ (W_i x)`` of a cross layer without residual whose
    blocks are ``W_ij = w_ij I`` (DCN-V2, section 4.2).

    Choices: no bias and the identity, as in Eq. 6 and in the search of DCN-V2; DeepCTR adds a bias to each map and its
    default is ReLU. With split_half the first half goes on, as in the authors' code and DeepCTR.

    Args:
        num_fields: F.
        sizes: H_1, H_2, …; at least one.
        split_half: send half of each layer's maps on and pool the other half; then all sizes but the last are even.
        activation: f, a name or a callable.

    Raises:
        ConfigError: for no fields, no layers, a size below 1, an odd size to be halved, or an unknown activation.
        ShapeError: for another number of fields.

    Example:
        >>> network = CompressedInteractionNetwork(3, sizes=[8, 4], split_half=True)
        >>> network(torch.randn(5, 3, 2)).shape  # 8 / 2 + 4
        torch.Size([5, 8])
    """

    def __init__(
        self,
        num_fields: int,
        *,
        sizes: Sequence[int],
        split_half: bool = False,
        activation: str | Activation | None = None,
    ) -> None:
        super().__init__()
        check_count("num_fields", num_fields)
        check_count("the number of sizes", len(sizes))
        for size in sizes:
            check_count("a layer size", size)
        if split_half and any(size % 2 for size in sizes[:-1]):
            raise ConfigError(
                f"With split_half, all sizes but the last must be even; got {list(sizes)}.",
                hint="Make them even, or turn split_half off.",
            )
        # Maps that go on to the next layer; nothing goes on after the last.
        self.passed_on = [size // 2 if split_half else size for size in sizes[:-1]] + [0]
        self.output_dim = sum(sizes) - (sum(self.passed_on) if split_half else 0)
        self.num_fields, self.split_half = num_fields, split_half
        self.activation, self.activation_name = resolve_activation(activation), activation_name(activation)
        inputs = [num_fields, *self.passed_on[:-1]]
        self.layers = nn.ModuleList(
            Linear(maps * num_fields, size, bias=False) for maps, size in zip(inputs, sizes, strict=True)
        )

    def forward(self, fields: Tensor) -> Tensor:
        check_fields(fields, self.num_fields)
        x0 = xl = fields.transpose(1, 2)  # (B, e, F): the fields last, so that each layer is one matrix product
        pooled = []
        for layer, passed_on in zip(self.layers, self.passed_on, strict=True):
            pairs = (xl.unsqueeze(3) * x0.unsqueeze(2)).flatten(2)  # (B, e, H_{k-1} F)
            maps = self.activation(layer(pairs))  # (B, e, H_k)
            xl, kept = maps[..., :passed_on], maps[..., passed_on:] if self.split_half else maps
            pooled.append(kept.sum(dim=1))  # (B, H_k or half of it)
        return torch.cat(pooled, dim=1)  # (B, output_dim)

    def extra_repr(self) -> str:
        return f"num_fields={self.num_fields}, split_half={self.split_half}, activation={self.activation_name}"
