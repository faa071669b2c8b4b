"""Figure 3: homogeneous polynomials, and what bias and residual are for."""

from __future__ import annotations

from functools import partial
from typing import Any, NamedTuple

import torch

from crossrank.experiments.figures import Figure, lines, spread
from crossrank.experiments.paper.fitting import (
    MakeModel,
    RandomPolynomials,
    cross_model,
    dcn_model,
    deep_model,
    fit_fresh,
    shown,
)
from crossrank.experiments.paper.page import Page
from crossrank.experiments.processes import workers

INPUT_DIM, NUM_TERMS = 50, 20
ORDERS = (3, 4)
DEPTHS = (1, 2, 3, 4)
RUNS, STEPS = 5, 4000

TEXT = [
    "Sums of 20 random monomials of order 3 or 4 in 50 variables with normal weights, other ones for each run; x is "
    "uniform in [-1, 1]. All models are trained by Adam in float32 on rows drawn anew for every step, {steps:,} steps "
    "of 512 rows, and measured on 10,000 rows that were never trained on. For the first half of the steps, every other "
    "row of DCN-V2, with and without bias, is a corner of the cube, where high orders weigh more. The other networks "
    "see no corners: in trials, these made DCN with three layers no better at either order, nor the network without "
    "bias and residual at order 4, nor the DNN with two layers at order 3. The DNN's layers are as wide as the input.",
    "The paper shows a figure without numbers; what it says of it: x0 ⊙ (W x) alone models order n at layer n - 1 and "
    "degrades elsewhere, bias and residual close the gap between the layers, DCN fails.",
]
NOTES = [
    "What is left at order 4 are whole monomials, those with the smallest weights, that DCN-V2, with and without "
    "bias, has not found in these steps: in a trial, twice the steps brought DCN-V2 with three layers from 0.11 to "
    "0.09.",
]


class Training(NamedTuple):
    """How a model is made and trained; see :func:`fit_fresh`."""

    make: MakeModel
    learning_rate: float
    corners: bool = False


def models(input_dim: int, num_layers: int) -> dict[str, Training]:
    """Every model with what trains it best."""
    cross = partial(cross_model, input_dim, num_layers)
    return {
        "DCN-V2": Training(cross, 0.015, corners=True),
        "DCN-V2 without bias": Training(partial(cross, bias=False), 0.015, corners=True),
        "DCN-V2 without bias and residual": Training(partial(cross, bias=False, residual=False), 0.03),
        "DCN": Training(partial(dcn_model, input_dim, num_layers), 0.03),
        "DNN": Training(partial(deep_model, input_dim, [input_dim] * num_layers), 0.01),
    }


class Cell(NamedTuple):
    """A model at a depth."""

    order: int
    depth: int
    model: str
    runs: int
    steps: int


def fit(cell: Cell) -> dict[str, Any]:
    """Fit one cell, on the same polynomials as every other of its order."""
    torch.manual_seed(0)
    generator = torch.Generator().manual_seed(cell.order)
    training = models(INPUT_DIM, cell.depth)[cell.model]
    errors = fit_fresh(
        training.make,
        RandomPolynomials(INPUT_DIM, {cell.order: NUM_TERMS}, runs=cell.runs, generator=generator),
        input_dim=INPUT_DIM,
        runs=cell.runs,
        steps=cell.steps,
        learning_rate=training.learning_rate,
        fall=0.5,
        corners=training.corners,
        generator=generator,
    )
    return spread([run[0] for run in errors])


def run(*, quick: bool = False) -> Page:
    """Fit every model at every depth."""
    runs, steps = (2, 100) if quick else (RUNS, STEPS)
    names = list(models(INPUT_DIM, 1))
    cells = [Cell(order, depth, name, runs, steps) for depth in DEPTHS[::-1] for order in ORDERS for name in names]
    with workers(1 if quick else None) as each:  # the deepest, which take longest, first
        found = dict(zip(cells, each(fit, cells), strict=True))
    values = {
        f"order {order}": {name: [found[Cell(order, depth, name, runs, steps)] for depth in DEPTHS] for name in names}
        for order in ORDERS
    }
    return _page(values, steps)


def _page(values: dict[str, dict[str, list[dict[str, Any]]]], steps: int) -> Page:
    tables = {}
    for order, found in values.items():
        header = ["model", *(f"{depth} layer{'s' * (depth > 1)}" for depth in DEPTHS)]
        tables[f"RMSE, {order}:"] = [header, *([name, *map(shown, cells)] for name, cells in found.items())]

    def draw(figure: Figure) -> None:
        figure.set_size_inches(11, 4.6)
        for axes, (order, found) in zip(figure.subplots(1, 2), values.items(), strict=True):
            lines(axes, DEPTHS, found, x_label="layers", y_label="RMSE on new rows")
            axes.set_title(order)
        handles, labels = figure.axes[0].get_legend_handles_labels()
        figure.legend(handles, labels, loc="outside lower center", ncols=5, fontsize="small")

    return Page(
        title="Homogeneous polynomials of order 3 and 4 (Figure 3)",
        text=[paragraph.format(steps=steps) for paragraph in TEXT],
        tables=tables,
        notes=NOTES,
        values={"depths": DEPTHS, **values},
        draw=draw,
    )
