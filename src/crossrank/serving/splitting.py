"""A logit taken apart: what a request costs once, what an item costs once, and what is left for each pair of them.

A row is x0 = [c; v], c the context's slots, v the item's. ``W[:, C]`` are the columns that multiply c, ``W[C]`` the
rows that c multiplies; w is the head over a network, β = b + 1 a layer's bias and its residual::

    first layer    W x0 + b = p + q                     p = W[:, C] c + b of the request, q = W[:, I] v of the item
    last layer     w·x_L = u·x_{L-1} + (w ⊙ b)·x0       u = Wᵀ (w ⊙ x0) + w, which is G + h in the same way
    second layer   P x1 = P[:, C] (c ⊙ (p + 1)) + M(c) v + P[:, I] x1[I]        M(c) = P[:, C] diag(c) W[C, I]

Deep networks: :mod:`crossrank.serving.deep_terms`. Two affine layers need no vector as wide as x0:
:mod:`crossrank.serving.affine_layers`. Where the context never sees the item, no layer does:
:mod:`crossrank.serving.separable`. All of it is exact; only the order of the sums differs from the plain model's. A
layer says how it is taken apart by ``project``, ``mix`` and ``spread`` (:class:`crossrank.nn.BaseCrossLayer`). What is
known of an item is one row: v, then the columns of each term.

What is only known of a context and an item together, z, counts among the item's elements: what a term keeps of an item
is linear in them, so that of [v; z] is that of [v; 0], known before, and z times a matrix. Only ``Polynomial`` and
``Quadratic`` keep products of an item's elements; in place of the first there is ``Unexpanded``.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cached_property
from typing import Any, NamedTuple, Protocol

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from crossrank.data.rows import Positions
from crossrank.models.base import Terms
from crossrank.nn import CrossNetwork
from crossrank.serving.affine_layers import Polynomial, Sides, Unexpanded, is_polynomial
from crossrank.serving.crossed import Crossed
from crossrank.serving.deep_terms import Deep
from crossrank.serving.fused import Kernels, kernels
from crossrank.serving.multiplying import Array, dots_of_each
from crossrank.serving.quadratic import Quadratic
from crossrank.serving.separable import Separable, SeparableStacked, is_separable
from crossrank.serving.stacked import AffineStacked, Stacked
from crossrank.serving.threads import READ


class Term(Protocol):
    """A summand of the logit."""

    def item(self, v: Tensor) -> Tensor:
        """(N, I) -> (N, F), what is known of items before any request."""

    @property
    def request(self) -> Callable[..., Any]:
        """(B, C) -> what is known of B requests before any item; takes what ``of_c`` makes of c too, if it has one."""

    def logits(self, request: Any, v: Tensor, known: Tensor) -> Tensor:
        """B requests, v (B or 1, N, I), known (B or 1, N, F) -> (B, N); rows that are given once are for all."""


class Shared(NamedTuple):
    constant: Tensor  # (B, 1)
    states: list[Any]  # of the terms
    phi: Tensor | None = None  # (B, Σ widths), where all terms are inner products: one product with the whole row


class Split:
    """A model's logit as a sum of terms.

    Args:
        terms: the networks that make it; their layers say ``can_split``.
        sides: which elements of x0 are the context's, and which the item's.
        precision: of the deep network, less a first layer that is taken apart; that of the model where left out.
        num_crossed: how many of the item's elements, the last ones, are only known of a context and an item together.
    """

    def __init__(
        self, terms: Terms, sides: Sides, precision: torch.dtype | None = None, *, num_crossed: int = 0
    ) -> None:
        self.sides, self.bias, self.num_crossed = sides, terms.bias, num_crossed
        self.terms: list[Term] = [_cross_term(*one, sides, num_crossed) for one in terms.crosses]
        if terms.deep is not None:
            deep = *terms.deep, sides, precision or terms.bias.dtype
            if not terms.below:
                self.terms.append(Deep(*deep))
            elif all(is_separable(network, sides) for network in terms.below):
                self.terms.append(SeparableStacked(terms.below, *deep))
            else:
                stacked = AffineStacked if all(map(is_polynomial, terms.below)) else Stacked
                self.terms.append(stacked(terms.below, *deep))
        if terms.quadratic is not None:
            self.terms.append(Quadratic(*terms.quadratic, sides, precision or terms.bias.dtype))
        self._linear = 0 if terms.linear is None else 1
        units = torch.eye(len(sides.item), dtype=terms.bias.dtype)[len(sides.item) - num_crossed :]
        known = [term.item(units) for term in self.terms]
        self.widths = [len(sides.item) - num_crossed, *(one.shape[1] for one in known), self._linear]
        self.of_crossed = torch.cat([units[:, :0], *known], dim=1)  # (Z, Σ F)
        self.kernels = self._find_kernels()

    def item(self, v: Tensor) -> Tensor:
        """The rows of items: (N, I - Z) -> (N, Σ widths). What a linear term makes of each comes after v."""
        v, linear = torch.tensor_split(v, [self.widths[0]], dim=1)
        whole = F.pad(v, (0, self.num_crossed))
        return torch.cat([v, *(term.item(whole) for term in self.terms), linear], dim=1)

    @cached_property
    def _first(self) -> list[Array]:
        """What each term multiplies contexts with before all else, (K, C); no rows where what it does first is another
        thing.
        """
        nothing = np.empty((0, len(self.sides.context)), self.bias.numpy().dtype)
        return [getattr(term, "of_c", nothing) for term in self.terms]

    @property
    def of_c(self) -> Array:
        """These matrices, one below the other."""
        return np.concatenate(self._first)

    def request(self, c: Tensor, found: Array | None = None) -> Shared:
        """What is known of B requests, (B, C), after which is what a linear term makes of them.

        Args:
            found: ``c @ of_c.T`` where it is known, (B, K).
        """
        constant = self.bias.expand(len(c), 1)
        if self._linear:
            c, linear = torch.tensor_split(c, [len(self.sides.context)], dim=1)
            constant = constant + linear
        if found is None:
            states = [term.request(c) for term in self.terms]
        else:
            parts = np.split(found, np.cumsum([len(one) for one in self._first])[:-1], axis=1)
            each = zip(self.terms, parts, strict=True)
            states = [term.request(c, *([part] if part.size else [])) for term, part in each]
        if not self.inner_products:
            return Shared(constant, states)
        for state in states:
            constant = constant + state.constant[:, None]
        if len(states) + self._linear == 1:
            return Shared(constant, states, states[0].phi)
        of_v, of_known = zip(*(state.phi.tensor_split([self.widths[0]], dim=1) for state in states), strict=True)
        phi = torch.cat([torch.stack(of_v).sum(dim=0), *of_known, c.new_ones(len(c), self._linear)], dim=1)
        return Shared(constant, states, phi)

    def logits(self, request: Shared, items: Tensor, crossed: Tensor | None = None) -> Tensor:
        """B requests, the rows of items, (N, Σ widths), and z where there is any, (B, N, Z) -> (B, N)"""
        if request.phi is not None:
            own, *rest, _ = torch.split(items, self.widths, dim=1)
            whole = self.flat(request, items)
            for product, state, part in zip(self.inner_products, request.states, rest, strict=True):
                whole += product.cubic(state.middle, own, part)
            return whole
        v, known, linear = torch.split(items[None], [self.widths[0], sum(self.widths[1:-1]), self._linear], dim=2)
        if crossed is not None:
            known = known + crossed @ self.of_crossed
            v = torch.cat([v.expand(len(crossed), -1, -1), crossed], dim=2)
        parts = torch.split(known, self.widths[1:-1], dim=2)
        logits = request.constant + (linear[..., 0] if self._linear else 0)
        for term, state, part in zip(self.terms, request.states, parts, strict=True):
            logits = logits + term.logits(state, v, part)
        return logits

    def _find_kernels(self) -> Kernels | None:
        """What finds one request's logits at some places in one pass over the rows; None where nothing does."""
        kinds, fits = [type(term) for term in self.terms], not (self._linear or self.num_crossed)
        deep = self.terms[1].deep if kinds == [Polynomial, Deep] else None  # type: ignore[attr-defined]
        fits &= kinds == [Polynomial] or (deep is not None and deep.by_relu and not deep.is_last)
        return kernels() if fits and self.bias.dtype == torch.float32 else None

    @property
    def num_products(self) -> int:
        """How many more numbers of an item spare :meth:`logits_at` M(c); 0 where they would save nothing."""
        term = self.terms[0]
        return term.num_products if self.kernels is not None and isinstance(term, Polynomial) else 0

    def products(self, rows: Tensor) -> Tensor:
        """These numbers: (N, Σ widths) -> (N, C)."""
        v, known, *_ = torch.split(rows, self.widths, dim=1)
        return self.terms[0].products(v, known)  # type: ignore[attr-defined, no-any-return]

    def logits_at(
        self, request: Shared, rows: Tensor, places: Positions, products: Tensor | None = None, *, member: int = 0
    ) -> Tensor:
        """``logits(request, rows[places])`` by the kernels, (B, N); without :meth:`products` of one request.

        Args:
            member: of the models of one make whose rows and products stand side by side, the number of this one.
        """
        assert self.kernels is not None
        polynomial, *deep = self.terms
        assert isinstance(polynomial, Polynomial)
        state, num_own, spared = request.states[0], self.widths[0], products is not None
        logits = request.constant if request.phi is not None else request.constant + state.constant[:, None]
        c, read = (state.c[:, :0], rows[:0]) if products is None else (state.c, products)
        shared = request.states[1] if deep else c[:, :0]
        num_kept = 0 if spared else num_own if polynomial.is_full else num_own + self.widths[1]
        kept, flat = rows.new_empty(len(places), num_kept), rows.new_empty(len(c), len(places))
        hidden = rows.new_empty(*flat.shape, shared.shape[1])
        for phi, *others, found, activated in zip(state.phi, c, shared, flat, hidden, strict=True):
            arrays = (rows, read, phi, *others, kept, found, activated)
            self.kernels.gather(member, places, *(one.numpy() for one in arrays))
        logits = logits + flat
        if not spared:
            logits += polynomial.cubic(state.middle, *kept.tensor_split([num_own], dim=1))
        for term in deep:
            logits += term.deep.after_first(hidden)  # type: ignore[attr-defined]
        return logits

    def flat(self, request: Shared, items: Tensor) -> Tensor:
        """Where all terms are inner products, the logits less each tᵀ M(c) s: (N, Σ widths) -> (B, N)."""
        assert request.phi is not None
        return request.constant + dots_of_each(items[None], request.phi)

    def reach(self, items: Tensor) -> Tensor:
        """‖s‖ ‖t‖ of each of these terms; |tᵀ M(c) s| is at most ‖M(c)‖ times that: (N, Σ widths) -> (N, terms)."""
        v, *parts, _ = torch.split(items, self.widths, dim=1)
        each = [term.s_and_t(v, part) for term, part in zip(self.inner_products, parts, strict=True)]
        return torch.stack([s.norm(dim=1) * t.norm(dim=1) for s, t in each], dim=1)

    @cached_property
    def work(self) -> int:
        """The multiply-adds of an item with a request; 0 where those of the request alone are the larger ones."""
        terms = [term for term in self.terms if isinstance(term, (Polynomial, Deep, Separable, SeparableStacked))]
        return READ * sum(self.widths) + sum(term.work for term in terms) if len(terms) == len(self.terms) else 0

    @cached_property
    def inner_products(self) -> list[Polynomial]:
        """The terms, where every one is an inner product of a request's and an item's vector; else none."""
        found = [term for term in self.terms if type(term) is Polynomial]
        return found if len(found) == len(self.terms) else []


def _cross_term(network: CrossNetwork, head: Tensor, sides: Sides, num_crossed: int) -> Term:
    if is_polynomial(network):
        return (Unexpanded if num_crossed else Polynomial)(network, head, sides)
    return (Separable if is_separable(network, sides) else Crossed)(network, head, sides)


def can_split(terms: Terms, *, crossed: bool = False) -> bool:
    """Whether every cross layer says how it is taken apart, and products of fields have no third block to multiply."""
    networks = [*(network for network, _ in terms.crosses), *terms.below]
    layers = [layer for network in networks for layer in network.layers]
    return all(getattr(layer, "can_split", False) for layer in layers) and not (crossed and terms.quadratic)
