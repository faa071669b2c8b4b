"""Activation functions by name."""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal, TypeAlias

import torch
import torch.nn.functional as F
from torch import Tensor

from crossrank.errors import ConfigError, did_you_mean, listing

Activation: TypeAlias = Callable[[Tensor], Tensor]
ActivationName: TypeAlias = Literal[
    "identity", "relu", "leaky_relu", "elu", "gelu", "silu", "softplus", "sigmoid", "tanh", "hard_tanh"
]


def identity(x: Tensor) -> Tensor:
    return x


ACTIVATIONS: dict[str, Activation] = {
    "identity": identity,
    "relu": F.relu,
    "leaky_relu": F.leaky_relu,
    "elu": F.elu,
    "gelu": F.gelu,
    "silu": F.silu,
    "softplus": F.softplus,
    "sigmoid": torch.sigmoid,
    "tanh": torch.tanh,
    "hard_tanh": F.hardtanh,
}
SMOOTH = ("identity", "gelu", "silu", "softplus", "sigmoid", "tanh")


def resolve_activation(activation: str | Activation | None) -> Activation:
    """The function behind a name; a callable is returned as it is, and None is the identity.

    Raises:
        ConfigError: for an unknown name, with the nearest known one.

    Example:
        >>> resolve_activation("relu")(torch.tensor([-1.0, 2.0]))
        tensor([0., 2.])
    """
    if activation is None:
        return identity
    if callable(activation):
        return activation
    if activation not in ACTIVATIONS:
        raise ConfigError(
            f"activation must be one of {listing(ACTIVATIONS, most=30)} or a callable; got {activation!r}.",
            hint=did_you_mean(str(activation), ACTIVATIONS),
        )
    return ACTIVATIONS[activation]


def activation_name(activation: str | Activation | None) -> str:
    """How an activation is written in a layer's ``repr``."""
    if isinstance(activation, str):
        return activation
    return "identity" if activation is None else getattr(activation, "__name__", type(activation).__name__)


def slope(activation: Activation, x: Tensor) -> Tensor:
    """g'(x), elementwise."""
    with torch.enable_grad():
        x = x.detach().requires_grad_()
        (slope,) = torch.autograd.grad(activation(x).sum(), x)
    return slope
