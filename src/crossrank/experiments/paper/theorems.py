"""Theorems 1 and 2: the polynomial that the weights spell out is the network, term by term."""

from __future__ import annotations

from itertools import combinations_with_replacement
from typing import Any

import torch
from torch import Tensor

from crossrank.experiments.figures import Figure
from crossrank.experiments.paper.page import Page
from crossrank.nn import CrossNetwork
from crossrank.nn.polynomial import feature_interaction, polynomial_coefficients, theorem_coefficient

NETWORKS = (((1, 1), 1), ((2, 1), 2), ((1, 1, 1), 3), ((1, 2, 1), 3), ((1, 1, 1), 4))  # widths of the features, layers
ROWS = 8

TEXT = [
    "Cross networks without bias, random weights, float64. Theorem 1: every coefficient of 1ᵀ x^l by its closed "
    "formula against the same coefficient by multiplying the layers out, and the sum of all terms against the "
    "network's output. Theorem 2: the interactions of every multiset of features, added up, against x^l itself.",
]
NOTES = [
    "Theorem 2 prints C_p for the layers between the features; the layers are chosen out of all l, C_l, and only then "
    "do the terms add up to the output.",
    "Theorem 1 allows |α| = 0; without biases that coefficient is zero.",
]


def run(*, quick: bool = False) -> Page:
    """Check both theorems for every network; a smaller set of networks if quick."""
    generator = torch.Generator().manual_seed(0)
    chosen = NETWORKS[:3] if quick else NETWORKS
    return _page([_check(widths, num_layers, generator) for widths, num_layers in chosen])


def _check(widths: tuple[int, ...], num_layers: int, generator: torch.Generator) -> dict[str, Any]:
    input_dim = sum(widths)
    network = CrossNetwork(input_dim, num_layers=num_layers, bias=False).double()
    with torch.no_grad():
        for parameter in network.parameters():
            parameter.copy_(torch.randn(parameter.shape, generator=generator, dtype=torch.float64))
    weights = [parameter.detach() for parameter in network.parameters()]
    x = 2 * torch.rand(ROWS, input_dim, generator=generator, dtype=torch.float64) - 1
    output = network(x).detach()  # (B, d)
    multiplied = polynomial_coefficients(weights)
    closed = {exponents: theorem_coefficient(weights, exponents) for exponents in multiplied}
    powers = torch.tensor(list(closed), dtype=torch.float64)  # (T, d)
    terms = torch.tensor(list(closed.values()), dtype=torch.float64) * x.unsqueeze(1).pow(powers).prod(dim=-1)  # (B, T)
    return {
        "input_dim": input_dim,
        "num_layers": num_layers,
        "widths": widths,
        "terms": len(closed),
        "highest_order": max(sum(exponents) for exponents, value in closed.items() if value),
        "coefficients": max(abs(closed[key] - multiplied[key]) for key in closed) / max(map(abs, multiplied.values())),
        "theorem_1": _difference(terms.sum(dim=1), output.sum(dim=1)),
        "theorem_2": _difference(torch.stack([_interactions(row, weights, widths) for row in x]), output),
    }


def _interactions(x: Tensor, weights: list[Tensor], widths: tuple[int, ...]) -> Tensor:
    """All feature interactions up to order l + 1 together. Shape: (d,) -> (d,)."""
    return torch.stack(
        [
            feature_interaction(x, weights, widths, features)
            for order in range(1, len(weights) + 2)
            for features in combinations_with_replacement(range(len(widths)), order)
        ]
    ).sum(dim=0)


def _difference(found: Tensor, expected: Tensor) -> float:
    """The largest, relative to the largest expected value."""
    return ((found - expected).abs().max() / expected.abs().max()).item()


def _page(networks: list[dict[str, Any]]) -> Page:
    table = [["network", "terms", "highest order", "coefficients", "Theorem 1", "Theorem 2"]]
    for found in networks:
        name = f"d = {found['input_dim']}, l = {found['num_layers']}, features {'+'.join(map(str, found['widths']))}"
        measured = (found[key] for key in ("coefficients", "theorem_1", "theorem_2"))
        table.append([name, str(found["terms"]), str(found["highest_order"]), *(f"{value:.0e}" for value in measured)])

    def draw(figure: Figure) -> None:
        figure.set_size_inches(6.4, 3.2)
        axes = figure.subplots()
        for key, label in (
            ("coefficients", "each coefficient"),
            ("theorem_1", "Theorem 1"),
            ("theorem_2", "Theorem 2"),
        ):
            floored = [max(found[key], 1e-17) for found in networks]  # an exact zero has no place on the scale
            axes.plot(range(len(networks)), floored, "o", label=label)
        axes.set_xticks(range(len(networks)), [f"d={n['input_dim']}, l={n['num_layers']}" for n in networks])
        axes.set_yscale("log")
        axes.set_ylabel("largest relative difference")
        axes.axhline(torch.finfo(torch.float64).eps, color="black", linewidth=0.8)
        axes.legend()

    return Page(
        title="Theorems 1 and 2: a cross network is a polynomial",
        text=TEXT,
        tables={"Largest difference, relative to the largest value:": table},
        notes=NOTES,
        values={"networks": networks},
        draw=draw,
    )
