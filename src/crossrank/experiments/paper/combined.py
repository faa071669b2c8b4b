"""Table 2: a polynomial of combined orders with a sine and noise."""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch import Tensor

from crossrank.experiments.figures import Figure, lines
from crossrank.experiments.paper.fitting import RandomPolynomials, chosen, fit_fresh, shown
from crossrank.experiments.paper.homogeneous import models
from crossrank.experiments.paper.page import Page
from crossrank.experiments.processes import workers

INPUT_DIM, DEPTHS = 50, (1, 2, 3, 4, 5)
RUNS, STEPS = 5, 8000
BATCH_SIZES, STARTS = (512, 512, 1024, 512, 512), (1, 1, 2, 1, 1)  # for each depth
LEARNING_RATES = {"DCN-V2": (0.015, 0.015, 0.02, 0.015, 0.015), "DNN": (0.05, 0.01, 0.01, 0.01, 0.01)}
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
    "Adam in float32 on rows drawn anew for every step, {steps:,} steps of 512 rows. With three layers, where the "
    "start decides which monomials of order 4 are found, a step has 1,024 rows, and of two starts that counts which is "
    "better on 10,000 rows held out; this for both models. All are measured on 10,000 further rows that were never "
    "trained on. The DNN has layers as wide as the input.",
    "The learning rate grows for a tenth of the steps and falls along a cosine to zero. Its height, from one layer to "
    "five: "
    + "; ".join(f"{name} {', '.join(f'{rate:g}' for rate in rates)}" for name, rates in LEARNING_RATES.items())
    + ". In trials on the same functions these were the best, or less than 1% behind it: of 0.005 to 0.03 for DCN-V2 "
    "(with three layers 0.01 to 0.04), of 0.003 to 0.2 for a DNN of one layer, of 0.01 to 0.03 for one of two, of "
    "0.003 to 0.03 for one of three or five. With four the DNN has the rate of five.",
]
NOTES = [
    "What three layers leave over the noise are whole monomials of order 4 that a start has not found: in a trial of "
    "4,000 steps the residual held each of them either to at most 6% of its weight or to more than 95%.",
    "It is a matter of rows and starts. In trials with three layers and 20 to 30 starts, one start of 8,000 steps "
    "ended at 1.3e-2 in the mean with 512 rows and at 1.1e-2 to 1.2e-2 with 1,024, the better of two starts at "
    "1.05e-2, the best of six at 1.03e-2. At the same number of rows, sign updates (Lion), orthogonalised updates "
    "(Muon), smaller initial weights and a larger ε of Adam were no better; L-BFGS was at 0.11 on new rows after 400 "
    "iterations on 20,000 rows.",
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
    place = cell.depth - 1
    errors = fit_fresh(
        models(INPUT_DIM, cell.depth)[cell.model].make,
        CombinedFunction(runs=cell.runs, generator=generator),
        input_dim=INPUT_DIM,
        runs=cell.runs,
        steps=cell.steps,
        learning_rate=LEARNING_RATES[cell.model][place],
        batch_size=BATCH_SIZES[place],
        starts=STARTS[place],
        generator=generator,
    )
    return chosen(errors)


def run(*, quick: bool = False) -> Page:
    """Fit DCN-V2 and a DNN at every depth."""
    runs, steps = (2, 100) if quick else (RUNS, STEPS)
    order = sorted(DEPTHS, key=lambda depth: (STARTS[depth - 1], depth), reverse=True)
    cells = [Cell(depth, name, runs, steps) for depth in order for name in PAPER]
    with workers(1 if quick else None) as each:  # what takes longest first
        found = dict(zip(cells, each(fit, cells), strict=True))
    return _page({name: [found[Cell(depth, name, runs, steps)] for depth in DEPTHS] for name in PAPER}, steps)


def _run_by_run(found: dict[str, Any]) -> str:
    counted, left = ([f"{starts[place]:.2e}" for starts in found["starts"]] for place in (0, -1))
    listed = f"{', '.join(counted)}; from the start that does not count: {', '.join(left)}"
    return f"All rows are uniform. DCN-V2 with three layers, run by run: {listed}."


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
        notes=[_run_by_run(values["DCN-V2"][2]), *NOTES],
        values={"depths": DEPTHS, "models": values},
        draw=draw,
    )
