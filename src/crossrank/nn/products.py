"""One number for each pair of fields: inner products (IPNN, DLRM) and outer products under a kernel (OPNN)."""

from __future__ import annotations

from typing import Literal

import torch
from torch import Tensor, nn

from crossrank.errors import ConfigError, ShapeError, did_you_mean, listing
from crossrank.nn.checks import check_count
from crossrank.nn.linear import he_normal_

Kernel = Literal["matrix", "vector", "number"]
KERNELS = ("matrix", "vector", "number")


def check_fields(fields: Tensor, num_fields: int, width: int | None = None) -> None:
    """As many fields, and as wide, as the layer was built for; more of them would be left out unnoticed."""
    if fields.dim() != 3 or fields.shape[1] != num_fields or width not in (None, fields.shape[2]):
        raise ShapeError(
            f"fields must have shape (B, {num_fields}, {'e' if width is None else width}); got {tuple(fields.shape)}."
        )


class _PairLayer(nn.Module):
    """What both layers share: which two fields make up which pair."""

    left: Tensor
    right: Tensor
    places: Tensor

    def __init__(self, num_fields: int, *, with_itself: bool = False) -> None:
        super().__init__()
        check_count("num_fields", num_fields)
        left, right = torch.triu_indices(num_fields, num_fields, offset=0 if with_itself else 1)
        self.num_fields, self.num_pairs = num_fields, left.shape[0]
        self.register_buffer("left", left, persistent=False)
        self.register_buffer("right", right, persistent=False)
        self.register_buffer("places", left * num_fields + right, persistent=False)

    def _inner(self, fields: Tensor) -> Tensor:
        # One matrix product for all F² products, of which half are unused, beats gathering the pairs' vectors.
        gram = fields @ fields.transpose(1, 2)  # (B, F, F)
        return gram.flatten(1).index_select(1, self.places)  # (B, P)

    def extra_repr(self) -> str:
        return f"num_fields={self.num_fields}, num_pairs={self.num_pairs}"


class InnerProducts(_PairLayer):
    """The inner product of each pair of fields.

    ``p_ij = ⟨v_i, v_j⟩`` for i < j  (DLRM: Naumov et al. 2019, section 2.1.3; IPNN: Qu et al. 2016, section III-B)

    Shape: fields (B, F, e) -> (B, P), P = F (F - 1) / 2, in the order (0, 1), (0, 2), …, (1, 2), …
    Cost: F² e multiplications for each row; no parameters.
    Limits: one field, no pairs; summed over the pairs, :class:`~crossrank.nn.FactorizationMachine`.

    Choices: IPNN's paper has all i and j, and factorises the weights behind the products to avoid all F² of them; its
    code and DeepCTR have i < j and do not factorise, and so does this: the deep network behind sees every product.

    Args:
        num_fields: F.
        with_itself: also ``⟨v_i, v_i⟩``, so i <= j and P = F (F + 1) / 2; an option of DLRM's code.

    Raises:
        ConfigError: for no fields.
        ShapeError: for another number of fields.

    Example:
        >>> fields = torch.tensor([[[1.0, 2.0], [3.0, 4.0], [5.0, 6.0]]])
        >>> InnerProducts(3)(fields)
        tensor([[11., 17., 39.]])
    """

    def forward(self, fields: Tensor) -> Tensor:
        check_fields(fields, self.num_fields)
        return self._inner(fields)


class OuterProducts(_PairLayer):
    """The outer product of each pair of fields, weighed to one number by a kernel of the pair's own.

    | ``p_ij = Σ_fg W_ij,fg v_if v_jg = v_iᵀ W_ij v_j``  ("matrix")
    | ``p_ij = Σ_f w_ij,f v_if v_jf``  ("vector", W_ij diagonal)
    | ``p_ij = w_ij ⟨v_i, v_j⟩``  ("number", W_ij = w_ij I)

    for i < j. Written out over all d² pairs of elements of x0, each p_ij is one row of a projection: the paper's
    "creates all the d² pairwise interactions, and then projects them" (DCN-V2, section 4.2).

    Shape: fields (B, F, e) -> (B, P), P = F (F - 1) / 2, in the order (0, 1), (0, 2), …, (1, 2), …
    Cost: multiplications for each row, parameters: P e (e + 1), P e²; 2 P e, P e; F² e + P, P.
    Limits: one field, no pairs; W_ij = I, :class:`InnerProducts`. Block (i, j) of a cross layer's matrix does the
    same before the sum: ``p_ij = 1ᵀ (v_i ⊙ W_ij v_j)``.

    Choices: OPNN's paper sums all fields before a single outer product, to save time. Its authors' code, their later
    kernel product networks, DeepCTR and the search space of DCN-V2 weigh each pair by its own kernel, and so does
    this.

    Args:
        num_fields: F.
        width: e.
        kernel: what each pair has: a "matrix" (e, e), a "vector" (e,) or a "number".

    Raises:
        ConfigError: for a size below 1 or an unknown kernel.
        ShapeError: for another number or width of fields.

    Example:
        >>> layer = OuterProducts(3, width=2, kernel="number")
        >>> _ = layer.weight.data.copy_(torch.tensor([[1.0], [2.0], [0.0]]))
        >>> fields = torch.tensor([[[1.0, 2.0], [3.0, 4.0], [5.0, 6.0]]])
        >>> layer(fields).tolist()
        [[11.0, 34.0, 0.0]]
    """

    def __init__(self, num_fields: int, *, width: int, kernel: Kernel = "matrix") -> None:
        super().__init__(num_fields)
        check_count("width", width)
        if kernel not in KERNELS:
            raise ConfigError(
                f"kernel must be one of {listing(KERNELS)}; got {kernel!r}.", hint=did_you_mean(str(kernel), KERNELS)
            )
        self.width, self.kernel = width, kernel
        shape = {"matrix": (width, width), "vector": (width,), "number": (1,)}[kernel]
        self.weight = nn.Parameter(torch.empty(self.num_pairs, *shape))
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """A He-normal kernel for each pair."""
        he_normal_(self.weight)

    def forward(self, fields: Tensor) -> Tensor:
        check_fields(fields, self.num_fields, self.width)
        if self.kernel == "number":
            return self._inner(fields) * self.weight[:, 0]  # (B, P)
        left, right = fields.index_select(1, self.left), fields.index_select(1, self.right)  # (B, P, e) each
        if self.kernel == "vector":
            return (left * self.weight * right).sum(dim=2)  # (B, P)
        weighed = torch.einsum("pfg,bpg->bpf", self.weight, right)  # (B, P, e)
        return (left * weighed).sum(dim=2)  # (B, P)

    def extra_repr(self) -> str:
        return f"{super().extra_repr()}, kernel={self.kernel}"
