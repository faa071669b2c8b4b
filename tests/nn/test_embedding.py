"""The one flat weight against one table for each feature."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from crossrank.errors import ConfigError, ShapeError
from crossrank.nn import Bag, FeatureEmbedding, Features
from crossrank.nn.embedding import weights_in


def bag_of(lists: list[list[int]], dtype: torch.dtype = torch.int64) -> Bag:
    ends = torch.tensor([0, *(len(ids) for ids in lists)]).cumsum(0)
    return Bag(torch.tensor([i for ids in lists for i in ids], dtype=dtype), ends.to(dtype))


def reference(embedding: FeatureEmbedding, features: Features) -> Tensor:
    """Row by row, feature by feature."""
    rows = []
    for b in range(features.categorical.shape[0]):
        parts = [embedding.table(f)[features.categorical[b, f]] for f in range(features.categorical.shape[1])]
        for m, bag in enumerate(features.bags):
            table = embedding.table(features.categorical.shape[1] + m)
            ids = bag.ids[bag.offsets[b] : bag.offsets[b + 1]].tolist()
            parts.append(table[ids].sum(dim=0) / max(len(ids), 1))
        rows.append(torch.cat([*parts, features.numeric[b]]))
    return torch.stack(rows)


@st.composite
def cases(draw: st.DrawFn) -> tuple[FeatureEmbedding, Features]:
    count, num_single, num_bags = draw(st.integers(1, 4)), draw(st.integers(0, 4)), draw(st.integers(0, 3))
    num_numeric = draw(st.integers(0, 2))
    sizes = draw(st.lists(st.integers(1, 6), min_size=num_single + num_bags, max_size=num_single + num_bags))
    dims = [draw(st.sampled_from([1, 2, 3])) for _ in sizes]
    dtype = draw(st.sampled_from([torch.int32, torch.int64]))
    ids = [[draw(st.integers(0, size - 1)) for size in sizes[:num_single]] for _ in range(count)]
    bags = [
        bag_of([draw(st.lists(st.integers(0, size - 1), max_size=3)) for _ in range(count)], dtype)
        for size in sizes[num_single:]
    ]
    torch.manual_seed(draw(st.integers(0, 10**6)))
    embedding = FeatureEmbedding(sizes, dims, num_multivalent=num_bags, num_numeric=num_numeric).double()
    categorical = torch.tensor(ids, dtype=dtype).reshape(count, num_single)
    return embedding, Features(categorical, torch.randn(count, num_numeric, dtype=torch.float64), tuple(bags))


@settings(deadline=None, max_examples=100)
@given(cases())
def test_x0_holds_each_features_vector_in_order(case):
    embedding, features = case
    out = embedding(features)
    assert out.shape == (features.categorical.shape[0], embedding.output_dim)
    torch.testing.assert_close(out, reference(embedding, features), rtol=1e-12, atol=1e-12)


@settings(deadline=None, max_examples=50)
@given(cases())
def test_gradients_land_in_the_rows_that_were_read(case):
    embedding, features = case
    out = embedding(features)
    if embedding.num_rows == 0:
        assert not out.requires_grad
        return
    upstream = torch.randn_like(out)
    (gradient,) = torch.autograd.grad(out, embedding.weight, upstream)
    (expected,) = torch.autograd.grad(reference(embedding, features), embedding.weight, upstream)
    torch.testing.assert_close(gradient, expected, rtol=1e-12, atol=1e-12)


def test_the_tables_are_views_that_fill_the_weight_without_overlap():
    embedding = FeatureEmbedding([3, 4, 5, 6], [2, 1, 2, 1], num_multivalent=2)
    with torch.no_grad():
        embedding.weight.zero_()
        for i in range(4):
            embedding.table(i).add_(1)
    assert torch.equal(embedding.weight, torch.ones(3 * 2 + 4 + 5 * 2 + 6))
    assert [tuple(embedding.table(i).shape) for i in range(4)] == [(3, 2), (4, 1), (5, 2), (6, 1)]
    assert embedding.num_rows == 18


def test_the_only_saved_tensor_is_one_flat_contiguous_weight():
    state = FeatureEmbedding([3, 4], [2, 1]).state_dict()
    assert set(state) == {"weight"}
    assert state["weight"].dim() == 1 and state["weight"].is_contiguous()


@pytest.mark.parametrize(("dims", "expected"), [([2, 2, 2], 1), ([2, 3, 2], 2)])
def test_one_lookup_serves_all_features_of_a_width(dims, expected):
    embedding = FeatureEmbedding([3, 4, 5], dims, num_multivalent=1)
    features = Features(torch.zeros(2, 2, dtype=torch.int32), torch.zeros(2, 0), (bag_of([[1], [2, 3]]),))
    reads = []

    def read(number, rows):
        reads.append(number)
        return embedding.tables[number][rows]

    embedding.read = read
    embedding(features)
    assert len(reads) == expected


def test_every_table_starts_small_and_alike():
    torch.manual_seed(0)
    embedding = FeatureEmbedding([3000, 2000, 3000], [4, 16, 4], num_multivalent=1)
    for i in range(3):
        assert math.isclose(embedding.table(i).std().item(), 0.05, rel_tol=0.05)


def test_dropout_touches_the_vectors_and_not_the_numbers():
    torch.manual_seed(0)
    embedding = FeatureEmbedding([5, 5], [50, 50], num_multivalent=1, num_numeric=50, dropout=0.5)
    ids = torch.zeros(20, 1, dtype=torch.int64)
    features = Features(ids, torch.ones(20, 50), (bag_of([[1, 2]] * 20),))
    out, still = embedding.train()(features), embedding.eval()(features)
    dropped = out[:, :100] == 0
    for part in (dropped[:, :50], dropped[:, 50:]):
        assert abs(part.float().mean().item() - 0.5) < 0.06
    torch.testing.assert_close(out[:, :100][~dropped], 2 * still[:, :100][~dropped])
    assert torch.equal(out[:, 100:], features.numeric)
    assert torch.equal(still, reference(embedding, features))


def test_numbers_take_the_precision_of_the_weights():
    embedding = FeatureEmbedding([3], [2], num_numeric=1).to(torch.bfloat16)
    out = embedding(Features(torch.zeros(2, 1, dtype=torch.int64), torch.ones(2, 1)))
    assert out.dtype == torch.bfloat16


def test_no_rows_give_no_rows():
    embedding = FeatureEmbedding([3, 4, 5], [2, 3, 2], num_multivalent=1, num_numeric=1)
    out = embedding(Features(torch.zeros(0, 2, dtype=torch.int32), torch.zeros(0, 1), (bag_of([]),)))
    assert out.shape == (0, 8)


IDS, NUMBERS, BAGS = torch.zeros(2, 2, dtype=torch.int64), torch.zeros(2, 1), (bag_of([[0], [1]]),)


@pytest.mark.parametrize(
    ("features", "message"),
    [
        (Features(IDS[:, :1], NUMBERS, BAGS), "categorical must have shape (B, 2); got (2, 1)."),
        (Features(IDS[0], NUMBERS, BAGS), "categorical must have shape (B, 2); got (2,)."),
        (Features(IDS, torch.zeros(2, 3), BAGS), "numeric must have shape (2, 1); got (2, 3)."),
        (Features(IDS, NUMBERS[:1], BAGS), "numeric must have shape (2, 1); got (1, 1)."),
        (Features(IDS, NUMBERS), "bags must be 1, one for each multivalent feature; got 0."),
        (Features(IDS, NUMBERS, (bag_of([[0]]),)), "The offsets of a bag must have shape (3,); got (2,)."),
    ],
)
def test_features_of_another_shape_are_refused(features, message):
    embedding = FeatureEmbedding([3, 4, 5], [2, 2, 2], num_multivalent=1, num_numeric=1)
    with pytest.raises(ShapeError) as error:
        embedding(features)
    assert message in str(error.value)


@pytest.mark.parametrize(
    ("arguments", "options", "message"),
    [
        (([3, 4], [2]), {}, "Each vocabulary needs one embedding width; got 2 vocab_sizes and 1 embedding_dims."),
        (([3, 0], [2, 2]), {}, "vocab_sizes[1] must be at least 1"),
        (([3], [0]), {}, "embedding_dims[0] must be at least 1"),
        (([3], [2]), {"num_multivalent": 2}, "num_multivalent must be between 0 and 1"),
        (([3], [2]), {"num_numeric": -1}, "num_numeric must be at least 0; got -1."),
        (([3], [2]), {"dropout": 1.5}, "dropout must be at least 0 and below 1"),
    ],
)
def test_sizes_that_contradict_each_other_are_refused(arguments, options, message):
    with pytest.raises(ConfigError) as error:
        FeatureEmbedding(*arguments, **options)
    assert message in str(error.value)


def test_weights_that_lie_in_a_file_are_those_that_would_lie_in_memory(tmp_path):
    torch.manual_seed(0)
    usual = FeatureEmbedding([10, 24], [4, 2])
    torch.manual_seed(0)
    token = weights_in.set(str(tmp_path))
    try:
        mapped = FeatureEmbedding([10, 24], [4, 2])
    finally:
        weights_in.reset(token)
    assert torch.equal(mapped.weight, usual.weight)
    assert [path.stat().st_size for path in tmp_path.iterdir()] == [4 * (10 * 4 + 24 * 2)]
