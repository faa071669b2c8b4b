"""The products of a ranking against plain ones, and the threads that they take."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from untrained import Untrained

from crossrank.nn import FeatureEmbedding
from crossrank.serving import multiplying
from crossrank.serving.lookup import Lookup
from crossrank.serving.multiplying import Dense, bilinear, dots_of_each, matvecs
from crossrank.serving.pairing import KnownItems
from crossrank.serving.ranker import FEW, _best
from crossrank.serving.threads import SMALL, threads_for


def test_few_products_take_the_caller_s_thread_and_many_take_all(two_threads) -> None:
    with threads_for(SMALL):
        assert torch.get_num_threads() == 1
        with threads_for(SMALL + 1):
            assert torch.get_num_threads() == 1  # within others that are few
    assert torch.get_num_threads() == 2
    with threads_for(SMALL + 1):
        assert torch.get_num_threads() == 2
    with pytest.raises(ZeroDivisionError), threads_for(1):
        1 / 0  # noqa: B018
    assert torch.get_num_threads() == 2


@pytest.mark.parametrize("few", [True, False])
@pytest.mark.parametrize("shape", [(0, 5), (1, 5), (7, 5), (3, 7, 5)], ids=str)
@pytest.mark.parametrize("with_bias", [True, False])
@pytest.mark.parametrize(("dtype", "most"), [("float64", 1e-12), ("float32", 1e-5), ("bfloat16", 0.1)])
@torch.no_grad()
def test_a_dense_layer_is_the_plain_product(shape, with_bias, dtype, most, few, monkeypatch) -> None:
    if not few:
        monkeypatch.setattr(multiplying, "FEW", -1)
    torch.manual_seed(0)
    rows, weight, bias = (torch.randn(size).to(getattr(torch, dtype)) for size in (shape, (4, 5), (4,)))
    expected = rows.double() @ weight.double().T + (bias.double() if with_bias else 0)
    found = Dense(weight)(rows, bias if with_bias else None)
    assert found.dtype == weight.dtype
    torch.testing.assert_close(found.double(), expected, rtol=most, atol=most)


@pytest.mark.parametrize("count", [1, 3])
def test_vectors_meet_each_row_of_a_matrix(count) -> None:
    generator = np.random.default_rng(0)
    matrix, vectors = generator.normal(size=(6, 5)), generator.normal(size=(count, 5))
    expected = [[sum(a * b for a, b in zip(row, one, strict=True)) for row in matrix] for one in vectors]
    np.testing.assert_allclose(matvecs(matrix, vectors), expected, rtol=1e-12)
    rows, others = torch.from_numpy(matrix)[None], torch.from_numpy(vectors)
    np.testing.assert_allclose(dots_of_each(rows, others), expected, rtol=1e-12)
    np.testing.assert_allclose(dots_of_each(rows.expand(count, -1, -1), others), expected, rtol=1e-12)


@pytest.mark.parametrize("width", [3, 70])  # of M(c), narrow or not
@pytest.mark.parametrize("count", [1, 3])
@pytest.mark.parametrize("num_rows", [0, 1, 600])
def test_bilinear_forms_are_sums_over_both_vectors(num_rows, count, width) -> None:
    torch.manual_seed(0)
    t, s, middle = (torch.randn(size).double() for size in ((num_rows, width), (num_rows, 2), (count, width, 2)))
    middle = middle if width == 3 else torch.randn(count, width, width).double()
    s = s if width == 3 else torch.randn(num_rows, width).double()
    expected = torch.einsum("nt,bts,ns->bn", t, middle, s)
    torch.testing.assert_close(bilinear(t, middle, s), expected)
    each = (one.expand(count, -1, -1) for one in (t, s))
    torch.testing.assert_close(bilinear(next(each), middle, next(each)), expected)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float64])
@pytest.mark.parametrize("places", [[], [4], [3, 0, 3]], ids=str)
def test_rows_are_taken_and_joined_as_they_are(dtype, places) -> None:
    rows, cells = torch.randn(5, 3).to(dtype), np.arange(10, dtype=np.uint32).reshape(5, 2)
    known = KnownItems.joined([KnownItems(rows[:2], cells[:2]), KnownItems(rows[2:], cells[2:])])
    assert known.rows.dtype == dtype and torch.equal(known.rows, rows)
    assert known.bytes_each == 3 * rows.element_size() + 2 * 4
    taken = known.take(np.array(places, np.int64))
    assert torch.equal(taken.rows, rows[places])
    np.testing.assert_array_equal(taken.cells, cells[places])


@pytest.mark.parametrize("widths", [8, "rule"])
@pytest.mark.parametrize("double", [True, False])
@torch.no_grad()
def test_elements_that_are_looked_up_by_numpy_are_the_embedding_s(dataset, clicks, widths, double) -> None:
    run = Untrained(dataset.encoder, embedding={"dim": widths}, double=double)
    rows, layout = dataset.encoder.encode(clicks.head(7)), run.model.layout
    whole, bag = run.model.embedding(rows.features()), layout["tags"]
    places = torch.tensor([i for i in range(layout.input_dim) if i % 3 and not bag.start <= i < bag.stop])
    lookup = Lookup.of(run.model, places)
    assert lookup is not None
    assert torch.equal(lookup.elements(rows), whole[:, places])
    assert Lookup.of(run.model, torch.tensor([bag.start])) is None

    class Another(FeatureEmbedding):
        pass

    run.model.embedding.__class__ = Another
    assert Lookup.of(run.model, places) is None


@pytest.mark.parametrize("count", [0, 3, FEW, FEW + 1, 5 * FEW])
@pytest.mark.parametrize("masked", [True, False])
def test_the_best_of_many_are_those_of_a_whole_sort_with_ties_in_order(count, masked) -> None:
    generator = np.random.default_rng(0)
    logits = generator.integers(50, size=count).astype(np.float32)
    allowed = generator.random(count) < 0.7 if masked else None
    places = np.flatnonzero(allowed) if masked else np.arange(count)
    for k in (1, 20, 10 * FEW):
        expected = sorted(places, key=lambda place: (-logits[place], place))[:k]
        np.testing.assert_array_equal(_best(logits, k, allowed), expected)
