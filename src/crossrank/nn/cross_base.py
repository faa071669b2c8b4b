"""What a cross layer is, ours or yours."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from crossrank.errors import ConfigError
from crossrank.nn.checks import check_count, check_width
from crossrank.nn.linear import he_normal_

SAID = ("matrix", "label", "is_smooth", "project", "mix", "spread", "kernel", "factor")  # of a layer by itself


class BaseCrossLayer(nn.Module):
    """What every cross layer has: ``layer(x0, xl)`` of one width, and what it says of itself.

    A layer of your own is a subclass, of this class or of one below. What a class says of itself, ``matrix``, ``label``
    and ``is_smooth``, is about its ``forward``: with a forward of its own, a subclass does not inherit these from its
    parent, whose formula is another. It says them itself, or its crosses are not told.

    A layer that is ``x0 ⊙ spread(mix(project(xl))) + xl`` may say so too: ``project`` is linear and ``spread`` affine,
    so what they make of a sum is the sum of what they make of its parts, and many rows that share some of their
    features are scored for less (:mod:`crossrank.serving.splitting`).

    Attributes:
        label: what people call such a layer; the name of the class, where it does not say.
        is_smooth: False for a function with kinks. A row is explained by derivatives where there are none; that the
            parts add up is checked all the same.
    """

    bias: nn.Parameter | None
    is_smooth: bool = True

    def __init_subclass__(cls, **options: Any) -> None:
        super().__init_subclass__(**options)
        definers = {
            name: min(i for i, one in enumerate(cls.__mro__) if name in vars(one)) for name in (*SAID, "forward")
        }
        for name in SAID:
            if definers[name] > definers["forward"]:
                setattr(cls, name, vars(BaseCrossLayer)[name])

    def __init__(self, input_dim: int, *, bias: bool = True, residual: bool = True) -> None:
        super().__init__()
        check_count("input_dim", input_dim)
        self.input_dim = input_dim
        self.residual = residual
        self.register_parameter("bias", nn.Parameter(torch.empty(input_dim)) if bias else None)

    def reset_parameters(self) -> None:
        """He-normal kernels, zero bias."""
        for name, kernel in self.named_parameters(recurse=False):
            nn.init.zeros_(kernel) if name == "bias" else he_normal_(kernel)

    @property
    def label(self) -> str:
        return type(self).__name__

    def matrix(self, xl: Tensor) -> Tensor:
        """W where the layer makes x0 ⊙ (W xl + …) + …; its mean over the rows, where it is not the same for each.

        Shape: xl (B, D) -> (D, D).

        Raises:
            ConfigError: where the class does not say; see :attr:`tells_matrix`.
        """
        raise ConfigError(f"A cross layer must tell its matrix; {type(self).__name__} has no matrix(xl) of its own.")

    @property
    def tells_matrix(self) -> bool:
        return type(self).matrix is not BaseCrossLayer.matrix

    def kernel(self) -> Tensor:
        """W of the products ``factor ⊙ W xl``, before gates and activations; the mean of several. Shape: (D, D).

        Raises:
            ConfigError: where the class has no such matrix.
        """
        raise ConfigError(f"A layer whose products are pooled must have one kernel; {type(self).__name__} has none.")

    def factor(self, x0: Tensor, xl: Tensor) -> Tensor:
        """What the layer multiplies, x0 in most; what is said of its matrix is said of products with this."""
        return x0

    def project(self, xl: Tensor) -> Tensor:
        """All that the layer reads of xl, a linear map. Shape: (..., D) -> (..., Z)."""
        raise ConfigError(f"A cross layer that is taken apart must project; {type(self).__name__} does not say how.")

    def mix(self, projected: Tensor) -> Tensor:
        """What happens before the way back: nothing, or anything. Shape: (..., Z) -> (..., M)."""
        return projected

    def spread(self, mixed: Tensor) -> Tensor:
        """What x0 is multiplied with, an affine map. Shape: (..., M) -> (..., D)."""
        raise ConfigError(f"A cross layer that is taken apart must spread; {type(self).__name__} does not say how.")

    @property
    def can_split(self) -> bool:
        """Whether the layer says how it is taken apart."""
        return BaseCrossLayer.project is not type(self).project and BaseCrossLayer.spread is not type(self).spread

    @property
    def is_affine(self) -> bool:
        """Whether ``spread(mix(project(xl)))`` is W xl + b, the same for each row."""
        return self.can_split and type(self).mix is BaseCrossLayer.mix

    def _carried(self, x0: Tensor, xl: Tensor) -> Tensor | float:
        """The term that carries xl past the cross, after a look at both inputs."""
        check_width("x0", x0, self.input_dim)
        check_width("xl", xl, self.input_dim)
        return xl if self.residual else 0.0

    def extra_repr(self) -> str:
        return f"input_dim={self.input_dim}, bias={self.bias is not None}, residual={self.residual}"


def crossed(x0: Tensor, mixed: Tensor, carried: Tensor | float) -> Tensor:
    """``x0 ⊙ mixed + carried``, in the room of the product."""
    if x0.device.type == "cpu" and mixed.dtype == torch.bfloat16:
        mixed = mixed.to(x0.dtype)  # torch would convert it for this product, and again on the way back
    return (x0 * mixed).add_(carried)


def label_of(layer: nn.Module) -> str:
    """What people call a layer, also one that is no :class:`BaseCrossLayer`."""
    return str(getattr(layer, "label", type(layer).__name__))
