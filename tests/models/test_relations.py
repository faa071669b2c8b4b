"""Section 4.2 of the DCN-V2 paper: other models' crosses as one cross layer with a structured matrix."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from crossrank.models import build_model, parse_model_settings
from crossrank.nn import (
    CompressedInteractionNetwork,
    CrossLayer,
    CrossNetwork,
    FactorizationMachine,
    Features,
    InnerProducts,
    OuterProducts,
    VectorCrossLayer,
)
from crossrank.schema import Feature

F, E, D = 4, 3, 12  # fields, their width, the width of x0
PAIRS = [(i, j) for i in range(F) for j in range(i + 1, F)]


@pytest.fixture(autouse=True)
def seed():
    torch.manual_seed(0)


@pytest.fixture
def x() -> Tensor:
    return torch.randn(7, D, dtype=torch.float64)


def cross(x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """x ⊙ (W x + b): Eq. 1 without the residual term."""
    layer = CrossLayer(D, bias=bias is not None, residual=False).double()
    layer.load_state_dict({"weight": weight} | ({} if bias is None else {"bias": bias}))
    return layer(x, x)


def block_matrix(blocks: dict[tuple[int, int], Tensor]) -> Tensor:
    weight = torch.zeros(D, D, dtype=torch.float64)
    for (i, j), block in blocks.items():
        weight[i * E : (i + 1) * E, j * E : (j + 1) * E] = block
    return weight


def pairs_of_elements(x: Tensor) -> Tensor:
    """x_pairs, all x_i x_j: (B, D²)"""
    return torch.einsum("bi,bj->bij", x, x).flatten(1)


def test_fm_is_one_cross_layer_with_multiples_of_the_identity_as_blocks(x):
    weights, beta = torch.randn(len(PAIRS), dtype=torch.float64), torch.randn(D, dtype=torch.float64)
    blocks = {pair: w * torch.eye(E) for pair, w in zip(PAIRS, weights, strict=True)}
    products = OuterProducts(F, width=E, kernel="number").double()
    products.load_state_dict({"weight": weights[:, None]})
    fm = x @ beta + products(x.unflatten(1, (F, E))).sum(dim=1)
    torch.testing.assert_close(cross(x, block_matrix(blocks), beta).sum(dim=1), fm)


def test_the_factorization_machine_has_the_identity_in_each_block(x):
    weight = block_matrix(dict.fromkeys(PAIRS, torch.eye(E)))
    fields = x.unflatten(1, (F, E))
    torch.testing.assert_close(cross(x, weight).sum(dim=1), FactorizationMachine()(fields))
    torch.testing.assert_close(cross(x, weight).sum(dim=1), InnerProducts(F).double()(fields).sum(dim=1))


def test_the_first_feature_maps_of_cin_are_cross_layers_summed_over_the_blocks(x):
    network = CompressedInteractionNetwork(F, sizes=[2]).double()
    fields = x.unflatten(1, (F, E))
    # A map's element e depends on the fields' elements e alone, so with all others zero, pooling gives it.
    maps = torch.stack([network(fields * torch.eye(E)[e]) for e in range(E)], dim=2)  # (B, 2, E)
    for h, weight in enumerate(network.layers[0].weight.detach().unflatten(1, (F, F))):
        blocks = {(j, i): weight[i, j] * torch.eye(E) for i in range(F) for j in range(F)}
        summed = cross(x, block_matrix(blocks)).unflatten(1, (F, E)).sum(dim=1)  # [I, …, I] (x ⊙ W x)
        torch.testing.assert_close(maps[:, h], summed)


def test_dcn_v2_with_equal_rows_is_dcn():
    features = [Feature("a", "categorical", 9), Feature("b", "categorical", 8), Feature("n", "numeric")]
    rows = Features(torch.randint(8, (7, 2)), torch.randn(7, 1, dtype=torch.float64))
    options = {"structure": "cross-only", "cross": {"num_layers": 3}}
    dcn, dcn_v2 = (
        build_model(parse_model_settings({"name": name, **options}), features).double() for name in ("dcn", "dcn-v2")
    )
    dcn_v2.embedding.load_state_dict(dcn.embedding.state_dict())
    dcn_v2.output.load_state_dict(dcn.output.state_dict())
    vectors = [layer for layer in dcn.modules() if isinstance(layer, VectorCrossLayer)]
    matrices = [layer for layer in dcn_v2.modules() if isinstance(layer, CrossLayer)]
    with torch.no_grad():
        for vector, matrix in zip(vectors, matrices, strict=True):
            matrix.weight.copy_(vector.weight.expand_as(matrix.weight))  # W = 1 wᵀ; biases are zero at the start
    torch.testing.assert_close(dcn_v2(rows), dcn(rows))


@pytest.mark.parametrize("layer", ["vector", "full"])
def test_cross_layers_project_all_pairs_of_elements_by_a_block_diagonal_matrix(layer, x):
    network = CrossNetwork(D, num_layers=1, layer=layer, residual=False).double()
    weight = network.layers[0].weight.detach()
    columns = [weight] * D if layer == "vector" else list(weight)
    projection = torch.block_diag(*(column[:, None] for column in columns))  # (D², D)
    torch.testing.assert_close(network(x), pairs_of_elements(x) @ projection)


def test_opnn_projects_all_pairs_of_elements_by_one_row_for_each_pair_of_fields(x):
    products = OuterProducts(F, width=E).double()
    rows = [
        block_matrix({pair: kernel}).flatten() for pair, kernel in zip(PAIRS, products.weight.detach(), strict=True)
    ]
    torch.testing.assert_close(products(x.unflatten(1, (F, E))), pairs_of_elements(x) @ torch.stack(rows).T)


def test_opnn_sums_what_the_blocks_of_a_cross_layer_make(x):
    products = OuterProducts(F, width=E).double()
    for pair, (position, kernel) in zip(PAIRS, enumerate(products.weight.detach()), strict=True):
        crossed = cross(x, block_matrix({pair: kernel}))
        torch.testing.assert_close(products(x.unflatten(1, (F, E)))[:, position], crossed.sum(dim=1))
