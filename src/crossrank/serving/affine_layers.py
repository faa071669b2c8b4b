"""One or two affine cross layers under a linear head: a polynomial of degree three, and an inner product.

With x1 = x0 ⊙ (β0 + W0 x0) and u = W1ᵀ (w ⊙ x0) + w, the logit w·x2 is u·x1 + (w ⊙ b1)·x0. Split x0 into c and v, let
``p = β0 + W0[:, C] c`` and ``g = w + W1[C]ᵀ (w ⊙ c)`` be the request's, and ``A s = W0[:, I] v`` and
``B t = W1[I]ᵀ (w ⊙ v)`` the item's, s and t as narrow as the rank of the layer or the item allows::

    logit = Σ_C c (g + B t)(p + A s) + Σ_I v (g + B t)(p + A s) + (w ⊙ b1)·x0

          = a(c) + b(v)
          + (c g)[C]·A s + (c p)[C]·B t + tᵀ M(c) s        M(c) = B[C]ᵀ diag(c) A[C]
          + (g p)[I]·v + g[I]·(v ⊙ A s) + p[I]·(v ⊙ B t)

Each term is a product of something of the request with something of the item, so with ``tᵀ M s = vec(M)·(t ⊗ s)``, or
``c·(A s ⊙ B t)[C]`` where that is shorter, the whole is φ(c)·ψ(v) + a(c). Separable layers have A[C] = 0 and no M.
"""

from __future__ import annotations

import copy
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from crossrank.nn import CrossNetwork
from crossrank.serving.fused import Kernels, kernels
from crossrank.serving.multiplying import Array, Dense, bilinear, dots, dots_of_each, matvecs
from crossrank.serving.threads import READ, threads_for


class Sides(NamedTuple):
    """The places in x0 that the context fills, (C,), and those that the item does, (I,)."""

    context: Tensor
    item: Tensor

    def spaced(self, part: Tensor, places: Tensor) -> Tensor:
        """One side's elements at their places, zeros at the others: (..., C) or (..., I) -> (..., D)."""
        whole = part.new_zeros(*part.shape[:-1], len(self.context) + len(self.item))
        whole[..., places] = part
        return whole

    def joined(self, c: Tensor, v: Tensor) -> Tensor:
        """x0 of each context with each item: (B, C), (B or 1, N, I) -> (B, N, D)."""
        whole = self.spaced(c, self.context)[:, None].repeat(1, v.shape[1], 1)
        return whole.index_copy_(2, self.item, v.expand(len(c), -1, -1))


class Affine(NamedTuple):
    """A layer ``x0 ⊙ (up down xl + bias) + residual xl``, its matrix as narrow as it was made.

    Shape: up (D, R), down (R, D), bias (D,).
    """

    up: Tensor
    down: Tensor
    bias: Tensor
    residual: float

    @classmethod
    def of(cls, layer: Any) -> Affine:
        """Read off what the layer says of itself, in float64, so that nothing is lost to its bias.

        For a layer that mixes, ``up`` belongs to what is mixed and ``down`` to what is projected.
        """
        exact, like = copy.deepcopy(layer).double(), next(layer.parameters())
        every = torch.eye(layer.input_dim, dtype=torch.float64)
        down = exact.project(every).T  # (Z, D)
        width = exact.mix(down[:, 0]).shape[0]
        bias = exact.spread(every.new_zeros(width))  # (D,)
        up = (exact.spread(torch.eye(width, dtype=torch.float64)) - bias).T  # (D, M)
        return cls(up.to(like), down.to(like), bias.to(like), float(layer.residual))

    @property
    def shift(self) -> Tensor:
        """β, what x0 is multiplied with besides W xl in the first layer."""
        return self.bias + self.residual


def cross(x0: Tensor, read: Tensor, xl: Tensor, residual: float) -> Tensor:
    """``x0 ⊙ read + residual xl``; a residual is 1 or 0."""
    return torch.addcmul(xl, x0, read) if residual else x0 * read


def thin(up: Tensor, down: Tensor) -> tuple[Tensor, Tensor | None]:
    """``up @ down`` as a product through the narrower of the two inner widths: (D, R), (R, I) -> the same, or W, None.

    None stands for the identity.
    """
    return (up, down) if down.shape[0] < down.shape[1] else (up @ down, None)


def is_polynomial(network: CrossNetwork) -> bool:
    """Whether a network is one or two layers ``x0 ⊙ (W xl + b) + xl``."""
    layers: list[Any] = list(network.layers)
    return len(layers) <= 2 and all(layer.is_affine for layer in layers)


class Parts(NamedTuple):
    """What is known of B requests before any item; p and g as the head of this file has them."""

    constant: Array  # (B,), a(c)
    p: Array  # (B, I), the item's elements
    g: Array  # (B, I)
    projected: Array  # (B, R), what p is made of where the layer is narrow
    pulled: Array  # (B, R'), and g
    of_s: Array  # (B, S)
    of_t: Array  # (B, T)


@dataclass(frozen=True)
class _Request:
    constant: Tensor  # (B,)
    phi: Tensor  # (B, I + F), of the items' rows
    c: Tensor  # (B, C)
    find_middle: Callable[[Tensor], Tensor | None]

    @cached_property
    def middle(self) -> Tensor | None:
        """M(c), (B, T, S), where it is not zero; found once it is asked for."""
        return self.find_middle(self.c)


class Polynomial:
    """``w·cross(x0)`` of one or two affine layers, as the head of this file has it.

    The row of an item is ``[v | s | t | v ⊙ A s | v ⊙ B t | b(v)]``. Where s or t is v it stands there once, and where
    a layer is narrower than the item, the products are kept in its space: 3 I + 1 numbers for full layers, I + 4 R + 1
    for narrow ones.
    """

    def __init__(self, network: CrossNetwork, head: Tensor, sides: Sides) -> None:
        first, *others = (Affine.of(layer) for layer in network.layers)
        nothing = first.up.new_zeros(len(head), 0)
        second = others[0] if others else Affine(nothing, nothing.T, head.new_zeros(len(head)), 1.0)
        (context, item), self.sides = sides, sides
        self.first, self.second, self.head = first, second, head
        self.a, self.to_s = thin(first.up, first.down[:, item])
        self.b, self.to_t = thin(second.down.T, (second.up[item] * head[item, None]).T)
        self.a_context, self.b_context = (one[context].T.contiguous() for one in (self.a, self.b))  # (S, C), (T, C)
        self.has_middle = bool(self.a_context.any() and self.b_context.any())
        self.to_middle = Dense(self.a_context)
        self.narrow_p, self.narrow_g = first.up.shape[1] < len(item), second.down.shape[0] < len(item)
        # What makes p and g of c, the context's elements before the item's, and (w ⊙ b1)·c: in one step through a
        # matrix whose rows are read once, or through a narrow layer in two.
        order, weights = torch.cat([context, item]), head[context]
        to_p, to_g = first.down[:, context], (weights[:, None] * second.up[context]).T  # (R, C), (R', C)
        up, down = first.up[order], second.down[:, order].T  # (D, R), (D, R')
        self.up, self.down = up.contiguous().numpy(), down.contiguous().numpy()
        to_p, to_g = to_p if self.narrow_p else up @ to_p, to_g if self.narrow_g else down @ to_g
        self.ends = len(to_p), len(to_p) + len(to_g)
        of_bias = (weights * second.bias[context])[None]
        self.of_c = np.concatenate([one.numpy() for one in (to_p, to_g, of_bias)])  # numpy asks for large pages
        self.least_p, self.least_g = first.shift[order].numpy(), (second.residual * head[order]).numpy()
        self.is_full = self.has_middle and self.to_s is self.to_t is None and not (self.narrow_p or self.narrow_g)
        self._kernels = kernels() if self.is_full and head.dtype == torch.float32 else None

    def item(self, v: Tensor) -> Tensor:
        places, head = self.sides.item, self.head[self.sides.item]
        s, t = (v if to is None else v @ to.T for to in (self.to_s, self.to_t))
        q, h = s @ self.a[places].T, t @ self.b[places].T  # (N, I) each
        constant = (v * q * h).sum(dim=1) + v @ (head * self.second.bias[places])
        known = [one for one, to in ((s, self.to_s), (t, self.to_t)) if to is not None]
        if self.narrow_g:
            known.append((v * q) @ self.second.down[:, places].T)
            constant = constant + self.second.residual * (v * q) @ head
        else:
            known.append(v * q)
        if self.narrow_p:
            known.append((v * h) @ self.first.up[places])
            constant = constant + (v * h) @ self.first.shift[places]
        else:
            known.append(v * h)
        return torch.cat([*known, constant[:, None]], dim=1)

    def parts(self, c: Array, found: Array) -> Parts:
        """(B, C), and what ``of_c`` makes of it, (B, R or D, R' or D, and 1) -> what does not depend on the item"""
        (stop_p, stop_g), width = self.ends, c.shape[1]
        projected, pulled = found[:, :stop_p], found[:, stop_p:stop_g]
        p = self.least_p + (matvecs(self.up, projected) if self.narrow_p else projected)  # (B, D)
        g = self.least_g + (matvecs(self.down, pulled) if self.narrow_g else pulled)  # (B, D)
        cp, cg = c * p[:, :width], c * g[:, :width]
        constant = found[:, -1] + np.vecdot(cg, p[:, :width])
        of_s, of_t = matvecs(self.a_context.numpy(), cg), matvecs(self.b_context.numpy(), cp)
        return Parts(constant, p[:, width:], g[:, width:], projected, pulled, of_s, of_t)

    def middle(self, c: Tensor) -> Tensor | None:
        """M(c) of B requests, (B, T, S), where it is not zero."""
        if not self.has_middle:
            return None
        with threads_for(len(c) * len(self.a_context) * self.b_context.numel()):
            return self.to_middle(self.b_context * c[:, None])

    def request(self, c: Tensor, found: Array | None = None) -> _Request:
        found = matvecs(self.of_c, c.numpy()) if found is None else found
        if self._kernels is not None and len(c) == 1:
            return self._fused_request(c, found[0], self._kernels)
        parts = self.parts(c.numpy(), found)
        of_v, phi = parts.g * parts.p, []
        for of_it, to in ((parts.of_s, self.to_s), (parts.of_t, self.to_t)):
            if to is not None:
                phi.append(of_it)
            elif of_it.shape[1]:
                of_v += of_it
        phi += [parts.pulled if self.narrow_g else parts.g, parts.projected if self.narrow_p else parts.p]
        whole = np.concatenate([of_v, *phi, np.ones_like(of_v, shape=(len(c), 1))], axis=1)
        return _Request(torch.from_numpy(parts.constant), torch.from_numpy(whole), c, self.middle)

    def _fused_request(self, c: Tensor, found: Array, kernels: Kernels) -> _Request:
        constant, phi = np.empty(1, np.float32), np.empty((1, 3 * len(self.sides.item) + 1), np.float32)
        weights = self.least_p, self.least_g, self.a_context.numpy(), self.b_context.numpy()
        kernels.request(c.numpy()[0], found, *weights, constant, phi[0])
        return _Request(torch.from_numpy(constant), torch.from_numpy(phi), c, self.middle)

    def logits(self, request: _Request, v: Tensor, known: Tensor) -> Tensor:
        of_v, of_known = torch.tensor_split(request.phi, [v.shape[-1]], dim=1)
        flat = dots_of_each(v, of_v) + dots_of_each(known, of_known) + request.constant[:, None]
        return flat + self.cubic(request.middle, v[0], known[0])

    def cubic(self, middle: Tensor | None, v: Tensor, known: Tensor) -> Tensor:
        """tᵀ M(c) s, what is no product of a vector of the request with the item's row: (B, N)."""
        if middle is None:
            return v.new_zeros(())
        s, t = self.s_and_t(v, known)
        return bilinear(t, middle, s)

    def s_and_t(self, v: Tensor, known: Tensor) -> tuple[Tensor, Tensor]:
        start = 0 if self.to_s is None else len(self.to_s)
        s = v if self.to_s is None else known[..., :start]
        return s, v if self.to_t is None else known[..., start : start + len(self.to_t)]

    @property
    def work(self) -> int:
        """The multiply-adds of an item with M(c)."""
        return self.a.shape[1] * self.b.shape[1] if self.has_middle else 0

    @property
    def num_products(self) -> int:
        """How many numbers of an item spare it M(c), if they take less time to read than that to multiply with."""
        num_context = self.a_context.shape[1]
        return num_context if self.is_full and READ * num_context < self.work else 0

    def products(self, v: Tensor, known: Tensor) -> Tensor:
        """``(A s ⊙ B t)[C]``, whose product with c is tᵀ M(c) s: (N, I), (N, F) -> (N, C)."""
        s, t = self.s_and_t(v, known)
        return (s @ self.a_context) * (t @ self.b_context)

    @property
    def by_place(self) -> bool:
        """Whether ``(A s ⊙ B t)[C]`` is shorter than ``t ⊗ s``."""
        return self.a_context.shape[1] < self.a.shape[1] * self.b.shape[1]

    def psi(self, v: Tensor, known: Tensor) -> Tensor:
        """An item's vector: (N, I), (N, F) -> (N, P)."""
        if not self.has_middle:
            return torch.cat([v, known], dim=1)
        if self.by_place:
            return torch.cat([v, known, self.products(v, known)], dim=1)
        s, t = self.s_and_t(v, known)
        return torch.cat([v, known, torch.einsum("nt,ns->nts", t, s).flatten(1)], dim=1)  # (N, T S)

    def phi(self, c: Tensor) -> Tensor:
        """A request's vector: (B, C) -> (B, P); φ·ψ is the logit less a(c), which is the same for every item."""
        request = self.request(c)
        if self.by_place and self.has_middle:
            return torch.cat([request.phi, c], dim=1)
        return request.phi if request.middle is None else torch.cat([request.phi, request.middle.flatten(1)], dim=1)


class Unexpanded(Polynomial):
    """The same with a row that is linear in v, ``[v | s | t | (A s)[I] | (B t)[I]]``, so that it may be known in parts.

    What is left for each item is the sum over its elements as it stands before the terms are sorted.
    """

    def item(self, v: Tensor) -> Tensor:
        s, t = (v if to is None else v @ to.T for to in (self.to_s, self.to_t))
        known = [one for one, to in ((s, self.to_s), (t, self.to_t)) if to is not None]
        return torch.cat([*known, s @ self.a[self.sides.item].T, t @ self.b[self.sides.item].T], dim=1)

    def request(self, c: Tensor, found: Array | None = None) -> tuple[Parts, Tensor | None]:  # type: ignore[override]
        found = matvecs(self.of_c, c.numpy()) if found is None else found
        return self.parts(c.numpy(), found), self.middle(c)

    def logits(self, request: tuple[Parts, Tensor | None], v: Tensor, known: Tensor) -> Tensor:  # type: ignore[override]
        item = self.sides.item
        q, h = known[..., -2 * len(item) :].chunk(2, dim=-1)  # (B, N, I) each
        s, t = self.s_and_t(v, known)
        parts, middle = request
        constant, p, g, _, _, of_s, of_t = map(torch.from_numpy, parts)
        products = torch.addcmul(self.head[item] * self.second.bias[item], q + p[:, None], h + g[:, None])
        crossed = dots(v, products) + dots_of_each(s, of_s) + dots_of_each(t, of_t)
        return crossed + self.cubic(middle, v, known) + constant[:, None]
