"""Section 4.2 of the DCN-V2 paper: attention and cross layers, both read block by block."""

from __future__ import annotations

import torch

from crossrank.nn import CrossLayer, InteractingLayer

F, E = 4, 3  # fields, their width


def attention_weights(layer: InteractingLayer, fields: torch.Tensor) -> torch.Tensor:
    """softmax_j(x_iᵀ W̃ x_j) with the single matrix W̃ = W_queryᵀ W_key: (B, F, F)"""
    return torch.einsum("bie,ef,bjf->bij", fields, layer.query.weight.T @ layer.key.weight, fields).softmax(dim=2)


def test_one_head_sees_query_and_key_only_as_their_product():
    torch.manual_seed(0)
    layer = InteractingLayer(E, num_heads=1, head_dim=5, residual=False).double()
    fields = torch.randn(7, F, E, dtype=torch.float64)
    values = torch.einsum("bij,ae,bje->bia", attention_weights(layer, fields), layer.value.weight, fields)
    torch.testing.assert_close(layer(fields), values.relu())


def test_attention_is_a_cross_layers_matrix_with_blocks_that_depend_on_the_row():
    """DCN-V2 has x_i ⊙ Σ_j W_ij x_j with fixed blocks; AutoInt has ReLU(Σ_j W_ij x_j) with W_ij = α_ij(x) W_value."""
    torch.manual_seed(0)
    attention = InteractingLayer(E, num_heads=1, head_dim=E, residual=False).double()
    fields = torch.randn(7, F, E, dtype=torch.float64)
    cross = CrossLayer(F * E, bias=False, residual=False).double()
    for row, weights in zip(fields, attention_weights(attention, fields), strict=True):
        with torch.no_grad():
            cross.weight.copy_(torch.kron(weights, attention.value.weight))  # block (i, j) is α_ij W_value
        inner = cross(torch.ones(F * E, dtype=torch.float64), row.flatten())  # the map alone: 1 ⊙ (W x)
        torch.testing.assert_close(attention(row[None])[0], inner.view(F, E).relu())
        torch.testing.assert_close(cross(row.flatten(), row.flatten()).view(F, E), row * inner.view(F, E))


def test_several_heads_are_single_heads_side_by_side():
    torch.manual_seed(0)
    layer = InteractingLayer(E, num_heads=3, head_dim=2).double()
    fields = torch.randn(7, F, E, dtype=torch.float64)
    heads = []
    for h in range(3):
        head = InteractingLayer(E, num_heads=1, head_dim=2).double()
        head.load_state_dict({name: kernel[2 * h : 2 * h + 2] for name, kernel in layer.state_dict().items()})
        heads.append(head(fields))
    torch.testing.assert_close(layer(fields), torch.cat(heads, dim=2))
