"""A logit taken apart: what a request costs once, what an item costs once, and what is left for each pair of them.

A row is x0 = [c; v], c the context's slots, v the item's. ``W[:, C]`` are the columns that multiply c, ``W[C]`` the
rows that c multiplies; w is the head over a network, β = b + 1 a layer's bias and its residual::

    first layer    W x0 + b = p + q                     p = W[:, C] c + b of the request, q = W[:, I] v of the item
    last layer     w·x_L = u·x_{L-1} + (w ⊙ b)·x0       u = Wᵀ (w ⊙ x0) + w, which is G + h in the same way
    second layer   P x1 = P[:, C] (c ⊙ (p + 1)) + M(c) v + P[:, I] x1[I]        M(c) = P[:, C] diag(c) W[C, I]

Deep networks: :mod:`crossrank.serving.deep_terms`. Two affine layers need no vector as wide as x0:
:mod:`crossrank.serving.polynomial`. Where the context never sees the item, no layer does:
:mod:`crossrank.serving.separable`. All of it is exact; only the order of the sums differs from the plain model's. A
layer says how it is taken apart by ``project``, ``mix`` and ``spread`` (:class:`crossrank.nn.BaseCrossLayer`). What is
known of an item is one row: v, then the columns of each term.

What is only known of a context and an item together, z, counts among the item's elements: what a term keeps of an item
is linear in them, so that of [v; z] is that of [v; 0], known before, and z times a matrix. Only ``Polynomial`` and
``Quadratic`` keep products of an item's elements; in place of the first there is ``Unexpanded``.
"""

from __future__ import annotations

import copy
from collections.abc import Sequence
from functools import cached_property
from typing import Any, NamedTuple, Protocol

import torch
import torch.nn.functional as F
from torch import Tensor

from crossrank.models.base import Terms
from crossrank.nn import CrossNetwork, DeepNetwork
from crossrank.serving.deep_terms import Deep
from crossrank.serving.polynomial import Affine, Polynomial, Sides, Unexpanded, thin
from crossrank.serving.products import dots_of_each
from crossrank.serving.quadratic import Quadratic
from crossrank.serving.separable import Separable, SeparableStacked, is_separable


class Term(Protocol):
    """A summand of the logit."""

    def item(self, v: Tensor) -> Tensor:
        """(N, I) -> (N, F), what is known of items before any request."""

    def request(self, c: Tensor) -> Any:
        """(B, C) -> what is known of B requests before any item."""

    def logits(self, request: Any, v: Tensor, known: Tensor) -> Tensor:
        """B requests, v (B or 1, N, I), known (B or 1, N, F) -> (B, N); rows that are given once are for all."""


class _Shared(NamedTuple):
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
                self.terms.append(Stacked(terms.below, *deep))
        if terms.quadratic is not None:
            self.terms.append(Quadratic(*terms.quadratic, sides, precision or terms.bias.dtype))
        self._linear = 0 if terms.linear is None else 1
        units = torch.eye(len(sides.item), dtype=terms.bias.dtype)[len(sides.item) - num_crossed :]
        known = [term.item(units) for term in self.terms]
        self.widths = [len(sides.item) - num_crossed, *(one.shape[1] for one in known), self._linear]
        self.of_crossed = torch.cat([units[:, :0], *known], dim=1)  # (Z, Σ F)

    def item(self, v: Tensor) -> Tensor:
        """The rows of items: (N, I - Z) -> (N, Σ widths). What a linear term makes of each comes after v."""
        v, linear = torch.tensor_split(v, [self.widths[0]], dim=1)
        whole = F.pad(v, (0, self.num_crossed))
        return torch.cat([v, *(term.item(whole) for term in self.terms), linear], dim=1)

    def request(self, c: Tensor) -> _Shared:
        """What is known of B requests, (B, C), after which is what a linear term makes of them."""
        constant = self.bias.expand(len(c), 1)
        if self._linear:
            c, linear = torch.tensor_split(c, [len(self.sides.context)], dim=1)
            constant = constant + linear
        states = [term.request(c) for term in self.terms]
        if not self.inner_products:
            return _Shared(constant, states)
        for state in states:
            constant = constant + state.constant[:, None]
        if len(states) + self._linear == 1:
            return _Shared(constant, states, states[0].phi)
        of_v, of_known = zip(*(state.phi.tensor_split([self.widths[0]], dim=1) for state in states), strict=True)
        phi = torch.cat([torch.stack(of_v).sum(dim=0), *of_known, c.new_ones(len(c), self._linear)], dim=1)
        return _Shared(constant, states, phi)

    def logits(self, request: _Shared, items: Tensor, crossed: Tensor | None = None) -> Tensor:
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

    def flat(self, request: _Shared, items: Tensor) -> Tensor:
        """Where all terms are inner products, the logits less each tᵀ M(c) s: (N, Σ widths) -> (B, N)."""
        assert request.phi is not None
        return request.constant + dots_of_each(items[None], request.phi)

    def reach(self, items: Tensor) -> Tensor:
        """‖s‖ ‖t‖ of each of these terms; |tᵀ M(c) s| is at most ‖M(c)‖ times that: (N, Σ widths) -> (N, terms)."""
        v, *parts, _ = torch.split(items, self.widths, dim=1)
        each = [term.s_and_t(v, part) for term, part in zip(self.inner_products, parts, strict=True)]
        return torch.stack([s.norm(dim=1) * t.norm(dim=1) for s, t in each], dim=1)

    @cached_property
    def by_numpy(self) -> bool:
        """Whether one request's products are found by numpy, in no threads but the caller's."""
        products = self.inner_products
        return bool(products) and all(term.is_narrow for term in products)

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


def is_polynomial(network: CrossNetwork) -> bool:
    """Whether a network is one or two layers ``x0 ⊙ (W xl + b) + xl``."""
    layers: list[Any] = list(network.layers)
    return len(layers) <= 2 and all(layer.is_affine for layer in layers)


class _Request(NamedTuple):
    c: Tensor  # (B, C)
    projected: Tensor  # (B, Z), p without the bias
    pulled: Tensor  # (B, D) or (B, M), G


class Crossed:
    """A cross network of any depth: the first layer and, under a head, the last one are taken apart.

    A layer with gates or activations cannot let go of x_{L-1}; under a head it is spared the way back, ``spread``.
    """

    def __init__(self, network: CrossNetwork, head: Tensor | None, sides: Sides) -> None:
        self.layers: list[Any] = list(network.layers)
        self.sides, self.head = sides, head
        self.second: _Second | None = None
        if len(self.layers) > 1 and self.layers[0].is_affine:
            self.second = _Second(self.layers[0], self.layers[1], sides)
        if head is not None:
            last = Affine.of(self.layers[-1])
            self.bias = last.bias
            self.pull = last.up @ last.down if self.layers[-1].is_affine else last.up  # (D, D) or (D, M)

    def item(self, v: Tensor) -> Tensor:
        known = [self.layers[0].project(self.sides.spaced(v, self.sides.item))]  # (N, Z), q
        if self.head is not None:
            known.append(v * self.head[self.sides.item] @ self.pull[self.sides.item])  # (N, D) or (N, M), h
        return torch.cat(known, dim=1)

    def request(self, c: Tensor) -> _Request:
        context = self.sides.context
        projected = self.layers[0].project(self.sides.spaced(c, context))
        pulled = c[:, :0] if self.head is None else c * self.head[context] @ self.pull[context]
        return _Request(c, projected, pulled)

    def crossed(self, request: _Request, v: Tensor, q: Tensor, num_layers: int) -> tuple[Tensor, Tensor, Tensor | None]:
        """x0, x_l after some layers, (B, N, D) each, and what the next layer reads of x_l where that is known."""
        x0 = self.sides.joined(request.c, v)
        xl = x0
        read: Tensor | None = q + request.projected[:, None]
        for number, layer in enumerate(self.layers[:num_layers]):
            read = layer.project(xl) if read is None else read
            crossed = layer.spread(layer.mix(read))
            xl = torch.addcmul(xl, x0, crossed) if layer.residual else x0 * crossed
            worth_it = number == 0 and self.second is not None and v.shape[1] > self.second.width
            read = self.second.read(request, v, q, xl) if worth_it and self.second else None
        return x0, xl, read

    def logits(self, request: _Request, v: Tensor, known: Tensor) -> Tensor:
        last, head = self.layers[-1], self.head
        assert head is not None  # a network below a deep one has no logits
        q, pulled = torch.split(known, [request.projected.shape[1], request.pulled.shape[1]], dim=2)
        x0, xl, read = self.crossed(request, v, q, len(self.layers) - 1)
        reached = xl
        if not last.is_affine:
            reached = last.mix(last.project(xl) if read is None else read)  # (B, N, M)
        logits: Tensor = ((pulled + request.pulled[:, None]) * reached).sum(dim=2) + x0 @ (head * self.bias)
        return logits + xl @ head if last.residual else logits


class _Second:
    """``P x1``, all that the second layer reads, with fewer products where there are more candidates than ``width``.

    As the head of this file has it, through the rank of the first layer where that is narrower than the item.
    """

    def __init__(self, first: Any, second: Any, sides: Sides) -> None:
        self.first, self.sides = first, sides
        matrix, read = Affine.of(first), Affine.of(second).down  # (Z, D)
        self.residual = matrix.residual
        up, to_known = thin(matrix.up, matrix.down[:, sides.item])
        self.known_is_v, self.width = to_known is None, up.shape[1]
        self.up = up[sides.context].contiguous()  # (C, S)
        self.of_context, self.of_item = read[:, sides.context].contiguous(), read[:, sides.item].T.contiguous()

    def read(self, request: _Request, v: Tensor, q: Tensor, x1: Tensor) -> Tensor:
        """(B, N, D) -> (B, N, Z)"""
        context, item = self.sides
        scaled = self.up * request.c[:, :, None]  # (B, C, S), diag(c) W[C, I]
        p = self.first.spread(request.projected)[:, context] + self.residual
        shared = F.linear(request.c * p, self.of_context)  # (B, Z)
        both = torch.cat(
            [(self.of_context @ scaled).mT, self.of_item.expand(len(shared), -1, -1)], dim=1
        )  # (B, S + I, Z)
        known = (v if self.known_is_v else q).expand(len(shared), -1, -1)
        known = torch.cat([known, x1.index_select(2, item)], dim=2)  # (B, N, S + I)
        return torch.baddbmm(shared[:, None], known, both)


class Stacked:
    """``w·deep(cross(x0))``: the first cross layer is taken apart, and the second one is narrower."""

    def __init__(
        self, networks: Sequence[CrossNetwork], deep: DeepNetwork, head: Tensor, sides: Sides, precision: torch.dtype
    ) -> None:
        self.networks = [Crossed(network, None, sides) for network in networks]
        self.deep, self.head, self.precision = copy.deepcopy(deep).to(precision), head, precision

    def item(self, v: Tensor) -> Tensor:
        return torch.cat([one.item(v) for one in self.networks], dim=1)

    def request(self, c: Tensor) -> list[_Request]:
        return [one.request(c) for one in self.networks]

    def logits(self, request: list[_Request], v: Tensor, known: Tensor) -> Tensor:
        parts = torch.split(known, [one.projected.shape[1] for one in request], dim=2)
        each = zip(self.networks, request, parts, strict=True)
        crossed = [one.crossed(state, v, q, len(one.layers))[1] for one, state, q in each]
        hidden: Tensor = self.deep(torch.cat(crossed, dim=2).to(self.precision))
        return hidden.to(self.head.dtype) @ self.head
