"""Spectra, ranks and low-rank factors against their definitions."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from crossrank.errors import ConfigError
from crossrank.evaluation.advice import advise
from crossrank.evaluation.crosses import sample, trace
from crossrank.evaluation.spectrum import (
    Usage,
    energy_rank,
    low_rank_factors,
    measure_spectra,
    numerical_rank,
    usage,
)
from crossrank.models import build_model, parse_model_settings
from crossrank.results import Spectrum


def model_of(dataset, **cross):
    torch.manual_seed(0)
    values = {"embedding": {"dim": 3}, "cross": {"num_layers": 2, **cross}, "deep": {"sizes": [6]}}
    return build_model(parse_model_settings(values), dataset.features)


def spectrum(used) -> Spectrum:
    return Spectrum(network=1, layer=1, values=(), used=tuple(used))


def test_the_numerical_rank_of_an_exactly_low_rank_matrix_is_its_rank() -> None:
    torch.manual_seed(0)
    matrix = torch.randn(9, 4, dtype=torch.float64) @ torch.randn(4, 9, dtype=torch.float64)
    values = torch.linalg.svdvals(matrix).tolist()
    assert numerical_rank(values, 1e-6) == 4
    assert energy_rank(values, 1 - 1e-9) == 4
    assert energy_rank([1.0, 1e308], 0.9) == 1  # which no training makes, but a stranger's spectrum.json may have


def test_a_looser_tolerance_never_needs_more_rank() -> None:
    values = (0.8 ** np.arange(30)).tolist()
    ranks = [numerical_rank(values, tolerance) for tolerance in (0.5, 0.1, 0.05, 0.01)]
    assert ranks == sorted(ranks)
    assert ranks[2] == sum(value >= 0.05 for value in values)


@pytest.mark.parametrize("share", [0.0, 1.5])
def test_a_share_of_energy_is_a_share(share) -> None:
    with pytest.raises(ConfigError, match="share of energy"):
        energy_rank([1.0], share)


def test_spectra_are_those_of_the_matrices(dataset) -> None:
    model = model_of(dataset)
    found = measure_spectra(model, dataset.valid)
    layers = model.cross_networks()[0].layers
    assert [(one.network, one.layer) for one in found] == [(1, 1), (1, 2)]
    for one, layer in zip(found, layers, strict=True):
        expected = np.linalg.svd(layer.weight.detach().double().numpy(), compute_uv=False)
        np.testing.assert_allclose(one.values, expected, rtol=1e-4, atol=1e-5)


def test_the_energy_of_a_matrix_as_used_multiplies_the_mean_squares_of_both_factors(dataset) -> None:
    model = model_of(dataset)
    x0, xl, gradient, _ = trace(model, sample(dataset.valid))[layer := model.cross_networks()[0].layers[0]]
    expected = 0.0
    for a in range(len(layer.weight)):
        moved = (xl @ layer.weight[a]).detach().double()
        expected += ((gradient[:, a] * x0[:, a]).double().square().mean() * moved.square().mean()).item()
    assert usage(layer.weight, x0, xl, gradient).weight.square().sum().item() == pytest.approx(expected, rel=1e-3)


@pytest.mark.parametrize("cross", [{"layer": "low_rank", "rank": 3}, {"layer": "mixture", "rank": 1, "num_experts": 3}])
def test_a_narrow_layer_has_no_more_singular_values_than_its_rank(dataset, cross) -> None:
    for layer in measure_spectra(model_of(dataset, **cross), dataset.valid):
        assert numerical_rank(layer.values, 1e-4) == 3
        assert numerical_rank(layer.used, 1e-3) <= 3


def test_the_energy_of_a_used_matrix_is_what_it_does_to_the_logit(dataset) -> None:
    model = model_of(dataset)
    layer = model.cross_networks()[0].layers[0]
    x0, xl, gradient = (part.double().numpy() for part in trace(model, sample(dataset.valid))[layer][:3])
    weight = layer.weight.detach().double().numpy()
    expected = (((gradient * x0) ** 2).mean(axis=0) * ((xl @ weight.T) ** 2).mean(axis=0)).sum()
    energy = sum(value**2 for value in measure_spectra(model, dataset.valid)[0].used)
    assert energy == pytest.approx(expected, rel=1e-3)


def test_a_used_matrix_can_be_taken_back(dataset) -> None:
    model = model_of(dataset)
    layer = model.cross_networks()[0].layers[1]
    seen = trace(model, sample(dataset.valid))[layer][:3]
    weight = layer.matrix(seen[1]).detach()
    left, middle, right = usage(weight, *seen)
    torch.testing.assert_close((left @ middle @ right).float(), weight, rtol=1e-4, atol=1e-5)


def test_rows_that_use_nothing_still_have_a_usage() -> None:
    nothing = torch.zeros(5, 3)
    left, middle, right = usage(torch.eye(3), nothing, nothing, nothing)
    torch.testing.assert_close(left @ middle @ right, torch.eye(3, dtype=torch.float64))


def test_plain_factors_leave_the_energy_of_the_dropped_values() -> None:
    torch.manual_seed(0)
    weight, eye = torch.randn(7, 7, dtype=torch.float64), torch.eye(7, dtype=torch.float64)
    values = torch.linalg.svdvals(weight)
    for rank in (1, 3, 7):
        up, down = low_rank_factors(Usage(eye, weight, eye), rank)
        assert (up.shape, down.shape) == ((7, rank), (rank, 7))
        left = (weight - up @ down).square().sum()
        torch.testing.assert_close(left, values[rank:].square().sum())


def test_no_matrix_of_that_rank_serves_the_data_better(dataset) -> None:
    model = model_of(dataset)
    layer = model.cross_networks()[0].layers[0]
    x0, xl, gradient, _ = trace(model, sample(dataset.valid))[layer]
    weight = layer.weight.detach().double()
    effect = (gradient * x0).double().square().mean(dim=0)
    moment = xl.double().T @ xl.double() / len(xl)

    def loss(matrix: torch.Tensor) -> float:
        gap = weight - matrix
        return float((effect[:, None] * (gap @ moment) * gap).sum())

    up, down = low_rank_factors(usage(weight, x0, xl, gradient), 5)
    best = loss(up @ down)
    u, values, vt = torch.linalg.svd(weight)
    assert best < loss((u[:, :5] * values[:5]) @ vt[:5])
    for seed in range(5):
        generator = torch.Generator().manual_seed(seed)
        noise = [1e-3 * torch.randn(part.shape, generator=generator, dtype=torch.float64) for part in (up, down)]
        assert best < loss((up + noise[0]) @ (down + noise[1]))


def test_advice_says_the_rank_and_what_it_saves(dataset) -> None:
    settings = parse_model_settings({"name": "cross-net", "embedding": {"dim": 4}})
    width = settings.layout(dataset.features).input_dim
    used = [1.0] * 3 + [1e-6] * (width - 3)
    found = advise([spectrum(used), spectrum(used)], settings, dataset.features)
    full, low = 2 * (width**2 + width), 2 * (2 * width * 3 + width)
    output = width + 1
    assert (found.rank, found.most) == (3, width)
    assert found.saved == pytest.approx(1 - (low + output) / (full + output))
    assert f"Rank 3 of {width} keeps 99%" in found.text
    assert f"save {found.saved:.0%} of the parameters" in found.text


def test_advice_against_a_rank_that_saves_nothing(dataset) -> None:
    settings = parse_model_settings({"embedding": {"dim": 4}})
    width = settings.layout(dataset.features).input_dim
    found = advise([spectrum([1.0] * width)], settings, dataset.features)
    assert found.saved < 0
    assert "keep the full" in found.text


@pytest.mark.parametrize(("needed", "words"), [(2, "smaller rank would do"), (8, "larger model.cross.rank")])
def test_advice_for_layers_that_have_a_rank_already(dataset, needed, words) -> None:
    settings = parse_model_settings({"cross": {"layer": "low_rank", "rank": 8}})
    width = settings.layout(dataset.features).input_dim
    found = advise([spectrum([1.0] * needed + [0.0] * (width - needed))], settings, dataset.features)
    assert (found.rank, found.most) == (needed, 8)
    assert words in found.text


def test_models_without_such_layers_get_no_spectra_and_no_advice(dataset) -> None:
    for name in ("dnn", "dcn"):
        settings = parse_model_settings({"name": name})
        layers = measure_spectra(build_model(settings, dataset.features), dataset.valid)
        assert bool(layers) is (name == "dcn")
        assert advise(layers, settings, dataset.features) is None
