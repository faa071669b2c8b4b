"""Table 2: a polynomial of combined orders with a sine and noise."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from torch import Tensor

from crossrank.experiments.figures import lines
from crossrank.experiments.paper.fitting import RandomPolynomials, fit_fresh, shown, spread
from crossrank.experiments.paper.homogeneous import models
from crossrank.experiments.paper.page import Page
from crossrank.experiments.processes import workers

if TYPE_CHECKING:
    from matplotlib.figure import Figure

INPUT_DIM, DEPTHS = 50, (1, 2, 3, 4, 5)
RUNS, STEPS = 5, 8000
NUM_TERMS = {1: INPUT_DIM, 2: 20, 3: 10, 4: 5}
SCALE, SINE_NORM, NOISE = 0.2, 0.3, 0.01
PAPER = {
    "DCN-V2": [1.43e-1, 2.89e-2, 9.82e-3, 9.87e-3, 9.92e-3],
    "DNN": [1.32e-1, 1.03e-1, 1.03e-1, 1.09e-1, 1.05e-1],
}
TEXT = [
    "f(x) = x·w + 20, 10 and 5 random monomials of order 2, 3 and 4 + 0.1 sin(2 x·w_s + 0.1) + 0.01 ε. The paper "
    f"leaves open how many variables there are and how large the weights: here {INPUT_DIM} variables, uniform in "
    f"[-1, 1], normal weights of deviation {SCALE}, a w_s of length {SINE_NORM}, new ones for each run. The noise "
    "alone makes an RMSE of 1e-2, so no model can be expected below.",
    "Adam in float32 on rows drawn anew for every step, {steps:,} steps of 512 rows; measured on 10,000 rows that were "
    "never trained on. For the first half of the steps, every other row of DCN-V2 is a corner of the cube, where high "
    "orders weigh more; without that, it settles where a few monomials of order 4 are missing. The DNN, which it does "
    "not help, has layers as wide as the input.",
]


class CombinedFunction:
    """One function for each run. Shape: x (R, B, d) -> (R, B)."""

    def __init__(self, *, runs: int, generator: torch.Generator) -> None:
        self.polynomials = RandomPolynomials(INPUT_DIM, NUM_TERMS, runs=runs, generator=generator, scale=SCALE)
        direction = torch.randn(runs, INPUT_DIM, 1, generator=generator)
        self.sine = SINE_NORM * direction / direction.norm(dim=1, keepdim=True)  # (R, d, 1)
        self.generator = generator

    def __call__(self, x: Tensor) -> Tensor:
        sine = 0.1 * torch.sin(2 * (x @ self.sine)[..., 0] + 0.1)
        return self.polynomials(x) + sine + NOISE * torch.randn(x.shape[:2], generator=self.generator)


class Cell(NamedTuple):
    """A model at a depth."""

    depth: int
    model: str
    runs: int
    steps: int


def fit(cell: Cell) -> dict[str, Any]:
    """Fit one cell, on the same functions as every other."""
    torch.manual_seed(0)
    generator = torch.Generator().manual_seed(0)
    training = models(INPUT_DIM, cell.depth)[cell.model]
    errors = fit_fresh(
        training.make,
        CombinedFunction(runs=cell.runs, generator=generator),
        input_dim=INPUT_DIM,
        runs=cell.runs,
        steps=cell.steps,
        learning_rate=training.learning_rate,
        corners=training.corners,
        generator=generator,
    )
    return spread(errors)


def run(*, quick: bool = False) -> Page:
    """Fit DCN-V2 and a DNN at every depth."""
    runs, steps = (2, 100) if quick else (RUNS, STEPS)
    cells = [Cell(depth, name, runs, steps) for depth in DEPTHS[::-1] for name in PAPER]
    with workers(1 if quick else None) as each:  # the deepest, which take longest, first
        found = dict(zip(cells, each(fit, cells), strict=True))
    return _page({name: [found[Cell(depth, name, runs, steps)] for depth in DEPTHS] for name in PAPER}, steps)


def _page(values: dict[str, list[dict[str, Any]]], steps: int) -> Page:
    table = [["model", *(f"{depth} layer{'s' * (depth > 1)}" for depth in DEPTHS)]]
    for name, found in values.items():
        table.append([name, *map(shown, found)])
        table.append([f"{name}, paper", *(f"{value:.2e}" for value in PAPER[name])])

    def draw(figure: Figure) -> None:
        figure.set_size_inches(6.4, 4.2)
        axes = figure.subplots()
        lines(axes, DEPTHS, values, paper=PAPER, x_label="layers", y_label="RMSE on new rows")
        axes.axhline(NOISE, color="black", linewidth=0.8)
        axes.annotate("noise", (DEPTHS[0], NOISE), textcoords="offset points", xytext=(0, 3), fontsize="small")
        axes.legend()

    return Page(
        title="Combined orders 1 to 4 with a sine and noise (Table 2)",
        text=[paragraph.format(steps=steps) for paragraph in TEXT],
        tables={"RMSE, mean ± standard deviation over the runs:": table},
        notes=[],
        values={"depths": DEPTHS, "models": values},
        draw=draw,
    )
