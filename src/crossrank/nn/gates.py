"""A gate on each element of x0, as FinalMLP puts before its streams."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from crossrank.nn.checks import check_count, check_width
from crossrank.nn.deep import DeepNetwork
from crossrank.nn.linear import Linear


class FeatureGate(nn.Module):
    """x0 with each element weighted between 0 and 2, by what some of its elements say.

    ``y = 2 σ(W deep(c) + b) ⊙ x0``, c the elements of the context  (FinalMLP, section "Stream-Specific Feature
    Selection")

    ========  ======================================================
    code      meaning
    ========  ======================================================
    deep      the hidden layers on c
    scores    W and b; b alone, (D,), where there is no context
    ========  ======================================================

    Shape: (..., D) -> (..., D).
    Cost: the hidden layers' multiplications, H D for W, 2 D for the gate.
    Limits: W and b zero, the identity; no context, one gate for all rows, 2 σ(b), which starts as the identity.

    Choices: without a context the original feeds a learned vector to the hidden layers; what comes out is the same for
    all rows, so here that vector of D numbers is learned itself.

    Args:
        input_dim: D.
        context: the places of c in x0.
        sizes: of the hidden layers.

    Raises:
        ConfigError: for a width below 1.
        ShapeError: for an input of another width.

    Example:
        >>> FeatureGate(3)(torch.tensor([[1.0, 2.0, 3.0]]))
        tensor([[1., 2., 3.]], grad_fn=<MulBackward0>)
    """

    places: Tensor

    def __init__(self, input_dim: int, *, context: Sequence[int] = (), sizes: Sequence[int] = ()) -> None:
        super().__init__()
        check_count("input_dim", input_dim)
        self.input_dim = input_dim
        self.register_buffer("places", torch.tensor(list(context), dtype=torch.int64), persistent=False)
        self.deep = DeepNetwork(len(context), sizes=sizes) if context else None
        self.scores = Linear(self.deep.output_dim, input_dim) if self.deep else None
        self.bias = nn.Parameter(torch.zeros(input_dim)) if self.deep is None else None

    def forward(self, x0: Tensor) -> Tensor:
        check_width("x0", x0, self.input_dim)
        if self.deep is None or self.scores is None:
            return 2 * torch.sigmoid(self.bias) * x0  # type: ignore[arg-type]
        scores = self.scores(self.deep(x0.index_select(-1, self.places)))  # (..., D)
        return 2 * torch.sigmoid(scores) * x0

    def extra_repr(self) -> str:
        return f"input_dim={self.input_dim}"
