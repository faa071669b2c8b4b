"""Fitting small networks to known functions."""

from __future__ import annotations

import math
from collections import Counter
from functools import partial

import pytest
import torch
from torch import nn

from crossrank.experiments.figures import spread
from crossrank.experiments.paper import fitting, polynomials
from crossrank.experiments.paper.fitting import (
    RandomPolynomials,
    chosen,
    cross_model,
    dcn_model,
    fit_exactly,
    fit_fresh,
    lbfgs,
    levenberg_marquardt,
    model_size,
    sample,
    shown,
)


@pytest.fixture(autouse=True)
def seeded():
    torch.manual_seed(0)


@pytest.mark.parametrize(("function", "dim"), [("f1", 4), ("f2", 3), ("f3", 100)])
def test_sizes_are_the_papers(function, dim):
    printed = {model: cell.size for model, cell in polynomials.PAPER[function].items()}
    large = polynomials.MODELS["DNN (large)"](dim)
    sizes = {
        **{model: model_size(polynomials.MODELS[model](dim)) for model in ("DCN", "DCN-V2", "DNN")},
        "DNN (large)": sum(p.numel() for p in large.parameters() if p.dim() == 2),  # kernels only
    }
    for model, size in sizes.items():
        assert printed[model] in (str(size), f"{size / 1000:.0f}K"), model


def test_dcn_is_the_cross_layer_with_one_vector():
    model = dcn_model(5, 2)
    layers = model[0].layers
    with torch.no_grad():
        for layer in layers:
            layer.bias.normal_()
    x = torch.randn(7, 5)
    xl = x
    for layer in layers:
        xl = x * ((xl @ layer.down[0])[:, None] + layer.bias) + xl
    torch.testing.assert_close(model[0](x), xl)
    model(x).sum().backward()
    assert all(layer.up.grad is None for layer in layers)


def test_random_polynomials_are_sums_of_monomials():
    generator = torch.Generator().manual_seed(1)
    polynomials_ = RandomPolynomials(5, {1: 5, 3: 4}, runs=2, generator=generator, scale=2.0)
    x = sample(generator, 2, 3, 5)
    for run in range(2):
        for row in range(3):
            expected = sum(
                weight.item() * math.prod(x[run, row, i].item() for i in term.tolist())
                for order in (1, 3)
                for term, weight in zip(polynomials_.terms[order][run], polynomials_.weights[order][run], strict=True)
            )
            assert polynomials_(x)[run, row].item() == pytest.approx(expected, abs=1e-5)
    terms = Counter(tuple(term.tolist()) for term in polynomials_.terms[3][0])
    assert len(terms) == 4, "no monomial twice"
    assert sorted(polynomials_.terms[1][0][:, 0].tolist()) == [0, 1, 2, 3, 4]
    assert not torch.equal(polynomials_.terms[3][0], polynomials_.terms[3][1])


OPTIMIZERS = pytest.mark.parametrize("optimizer", [lbfgs, levenberg_marquardt])


def ends(make, function: str, *, optimizer, starts: int) -> list[tuple[float, float]]:
    generator = torch.Generator().manual_seed(0)
    matrix = polynomials.matrix(function, generator).double()
    x, new = (sample(generator, rows, len(matrix), dtype=torch.float64) for rows in (500, 1000))
    rows, others = (x, polynomials.quadratic(x, matrix)), (new, polynomials.quadratic(new, matrix))
    return list(fit_exactly(partial(make, len(matrix), 1), rows, others, optimizer=optimizer, starts=starts))


@OPTIMIZERS
@pytest.mark.parametrize("function", ["f1", "f2"])
def test_one_cross_layer_fits_the_easy_functions_to_rounding_from_its_first_start(optimizer, function):
    ((left, error),) = ends(cross_model, function, optimizer=optimizer, starts=3)
    assert max(left, error) < 1e-13


@OPTIMIZERS
def test_dcn_is_exact_on_f1_and_ends_in_several_minima_on_f2(optimizer):
    assert ends(dcn_model, "f1", optimizer=optimizer, starts=1)[0][1] < 1e-12
    errors = sorted(error for _, error in ends(dcn_model, "f2", optimizer=optimizer, starts=6))
    assert errors[0] == pytest.approx(0.25, abs=0.01)
    assert errors[-1] == pytest.approx(0.35, abs=0.01)


def test_a_weight_reaches_as_far_as_its_column_of_the_jacobian():
    weights = torch.tensor([0.5, -2.0], dtype=torch.float64)
    x = torch.tensor([[1.0, 0.0], [0.0, 3.0]], dtype=torch.float64)  # one row for each weight, so that signs cancel
    found = fitting._reach(lambda vector, rows: rows @ vector, weights, x)
    torch.testing.assert_close(found, torch.tensor([1.0, 3.0], dtype=torch.float64) / math.sqrt(2))


def test_the_matrices_are_the_papers_functions():
    x = sample(torch.Generator().manual_seed(2), 6, 4, dtype=torch.float64)
    a, b, c, d = x.T
    f1 = polynomials.quadratic(x, polynomials.matrix("f1", torch.Generator()).double())
    torch.testing.assert_close(f1, a * a + a * b + c * a + d * a)
    f2 = polynomials.quadratic(x[:, :3], polynomials.matrix("f2", torch.Generator()).double())
    torch.testing.assert_close(f2, a * a + 0.1 * a * b + b * c + 0.1 * c * c, rtol=1e-6, atol=1e-7)
    f3 = polynomials.matrix("f3", torch.Generator())
    assert f3.count_nonzero() == 100 and torch.equal(f3, f3.triu())


@OPTIMIZERS
def test_exact_fitting_stops_where_a_model_cannot_follow(optimizer):
    generator = torch.Generator().manual_seed(0)
    x = sample(generator, 200, 3, dtype=torch.float64)
    y = x.prod(dim=1)  # of order 3, and one layer reaches 2
    model = cross_model(3, 1).double()
    optimizer(model, x, y)
    assert 0.1 < (model(x) - y).square().mean().sqrt() < y.square().mean().sqrt()


def test_runs_side_by_side_fit_each_its_own_function():
    generator = torch.Generator().manual_seed(0)
    weights = torch.tensor([[1.0, 0.0], [0.0, -2.0]])  # (R, d)

    def function(x: torch.Tensor) -> torch.Tensor:
        return (x * weights[:, None]).sum(dim=-1) + x.prod(dim=-1)

    options = {"input_dim": 2, "runs": 2, "learning_rate": 0.1, "generator": generator, "batch_size": 64}
    fitted = fit_fresh(lambda: cross_model(2, 1), function, steps=300, **options)
    assert max(fitted) < [0.01]
    assert min(fit_fresh(lambda: cross_model(2, 1), function, steps=1, **options)) > [0.1]


def test_of_several_starts_the_best_comes_first():
    starts = iter([3.0, 0.0, 1.0])

    def make() -> nn.Sequential:
        model = cross_model(2, 1)
        for weights in model.parameters():
            nn.init.zeros_(weights)
        nn.init.constant_(model.get_parameter("1.weight"), next(starts))  # the model is then w times the sum of x
        return model

    generator = torch.Generator().manual_seed(0)
    options = {"input_dim": 2, "runs": 1, "learning_rate": 0.0, "generator": generator, "batch_size": 8}
    ((first, second, third),) = fit_fresh(make, lambda x: x.sum(dim=-1), steps=1, starts=3, **options)
    assert first == 0
    assert third == pytest.approx(2 * second) and second == pytest.approx(math.sqrt(2 / 3), rel=0.05)
    assert chosen([[first, second], [2.0, 9.0]]) == spread([0.0, 2.0]) | {"starts": [[first, second], [2.0, 9.0]]}


def test_a_spread_is_mean_and_sample_deviation():
    assert spread([1.0, 3.0]) == {"mean": 2.0, "deviation": pytest.approx(math.sqrt(2)), "values": [1.0, 3.0]}
    assert shown(spread([1.0, 3.0])) == "2.00e+00 ± 1e+00"
    assert spread([1.0])["deviation"] == 0
