"""Table 1: polynomials of the second order, of increasing difficulty."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from crossrank.experiments.paper.fitting import (
    TEST_ROWS,
    cross_model,
    dcn_model,
    deep_model,
    fit_exactly,
    fit_fresh,
    model_size,
    sample,
    spread,
)
from crossrank.experiments.paper.page import Page

RUNS = 5
ROWS_PER_PARAMETER, FEWEST_ROWS = 1.2, 1000


class Printed(NamedTuple):
    """A cell of the paper's table."""

    rmse: float
    size: str


PAPER = {
    "f1": {
        "DCN": Printed(8.9e-13, "12"),
        "DCN-V2": Printed(5.1e-13, "24"),
        "DNN": Printed(2.7e-2, "24"),
        "DNN (large)": Printed(4.7e-3, "41K"),
    },
    "f2": {
        "DCN": Printed(1.0e-1, "9"),
        "DCN-V2": Printed(4.5e-15, "15"),
        "DNN": Printed(3.0e-2, "15"),
        "DNN (large)": Printed(1.4e-3, "41K"),
    },
    "f3": {
        "DCN": Printed(2.6e0, "300"),
        "DCN-V2": Printed(6.7e-7, "10K"),
        "DNN": Printed(2.7e-1, "10K"),
        "DNN (large)": Printed(7.8e-2, "758K"),
    },
}
LARGE = {"f1": (200, 200), "f2": (200, 200), "f3": (1024, 512, 256)}
STEPS = {"DNN": 4000, "DNN (large)": 3000}
STEPS_OF_F3 = {"DNN": 2000, "DNN (large)": 600}
LEARNING_RATES = {"DNN": 1e-2, "DNN (large)": 1e-3}


def matrix(name: str, generator: torch.Generator) -> Tensor:
    """A with f(x) = xᵀ A x. Shape: (d, d)."""
    if name == "f1":
        return torch.tensor([[1.0, 1, 1, 1], [0, 0, 0, 0], [0, 0, 0, 0], [0, 0, 0, 0]])
    if name == "f2":
        return torch.tensor([[1.0, 0.1, 0], [0, 0, 1], [0, 0, 0.1]])
    pairs = torch.combinations(torch.arange(100), with_replacement=True)
    i, j = pairs[torch.randperm(len(pairs), generator=generator)[:100]].T
    result = torch.zeros(100, 100)
    result[i, j] = torch.randn(100, generator=generator)
    return result


def quadratic(x: Tensor, matrices: Tensor) -> Tensor:
    """Shape: x (..., B, d), matrices (..., d, d) -> (..., B)."""
    return (x @ matrices * x).sum(dim=-1)


def run(*, quick: bool = False) -> Page:
    """Fit f1, f2 and f3 with every model."""
    generator = torch.Generator().manual_seed(0)
    runs = 2 if quick else RUNS
    values: dict[str, dict[str, Any]] = {}
    for name in PAPER:
        matrices = torch.stack([matrix(name, generator) for _ in range(runs)])  # (R, d, d)
        values[name] = {
            "DCN": _exact(lambda d: dcn_model(d, 1), matrices, generator),
            "DCN (V1 layer)": _exact(lambda d: cross_model(d, 1, layer="vector"), matrices, generator),
            "DCN-V2": _exact(lambda d: cross_model(d, 1), matrices, generator),
        }
        for model in ("DNN", "DNN (large)"):
            values[name][model] = _deep(name, model, matrices, generator, quick=quick)
    return _page(values)


def _exact(make: Callable[[int], nn.Sequential], matrices: Tensor, generator: torch.Generator) -> dict[str, Any]:
    errors, size = [], 0
    for double in matrices.double():  # (d, d)
        dim = len(double)
        model = make(dim).double()
        size = model_size(model)
        # enough rows to fix all products of two variables, of which there are about d² / 2
        x = sample(generator, max(FEWEST_ROWS, int(ROWS_PER_PARAMETER * dim * (dim + 1))), dim, dtype=torch.float64)
        fit_exactly(model, x, quadratic(x, double))
        x = sample(generator, TEST_ROWS, dim, dtype=torch.float64)
        with torch.no_grad():
            errors.append((model(x) - quadratic(x, double)).square().mean().sqrt().item())
    return {"rmse": spread(errors), "size": size}


def _deep(name: str, kind: str, matrices: Tensor, generator: torch.Generator, *, quick: bool) -> dict[str, Any]:
    dim = matrices.shape[-1]
    sizes = LARGE[name] if kind == "DNN (large)" else (dim,)
    steps = (STEPS_OF_F3 if name == "f3" else STEPS)[kind]
    errors = fit_fresh(
        lambda: deep_model(dim, sizes),
        lambda x: quadratic(x, matrices),
        input_dim=dim,
        runs=len(matrices),
        steps=steps // 20 if quick else steps,
        learning_rate=LEARNING_RATES[kind],
        generator=generator,
        batch_size=256,
    )
    return {"rmse": spread(errors), "size": model_size(deep_model(dim, sizes))}
