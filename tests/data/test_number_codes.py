"""Numbers as ids of their values and as pieces, against plain loops and from end to end."""

from __future__ import annotations

import json
from itertools import pairwise

import numpy as np
import polars as pl
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from crossrank.data import EncodedDataset, Encoder, distinct
from crossrank.data.distinct import DistinctNumbers
from crossrank.data.number_codes import bins_of, edges_of, num_pieced, pieces_of
from crossrank.data.prepare import prepare
from crossrank.data.vocabulary import FIRST_ID, MISSING_ID
from crossrank.errors import SchemaError
from crossrank.schema import Categorical, Label, Numeric, Schema

ALL = "scalar+values+pieces"
NUMBERS = st.floats(-1e6, 1e6) | st.integers(-5, 5).map(float)


def encoder_of(values, encoding=ALL, **more):
    frame = pl.DataFrame({"x": values}, schema={"x": pl.Float64})
    return Encoder.fit(frame, Schema([Numeric(name="x", encoding=encoding, **more)], Label(name="y")))


def encoded(encoder, values):
    return encoder.encode_rows([{"x": value} for value in values])


@settings(deadline=None, max_examples=60)
@given(st.lists(st.none() | NUMBERS, min_size=1, max_size=40), st.lists(st.none() | NUMBERS, min_size=1, max_size=8))
def test_pieces_are_what_a_plain_loop_makes_of_the_distinct_numbers(training, asked):
    present = sorted({value + 0.0 for value in training if value is not None})
    encoder = encoder_of(training, "pieces")
    edges = encoder.statistics["x"].edges
    if len(present) > 1:
        size = min(16, len(present) - 1)
        steps = [k * (len(present) - 1) / size for k in range(size + 1)]
        assert edges == [present[round(step)] for step in steps]  # halves to even, as numpy has it
    some_missing = None in training
    for value, found in zip(asked, encoded(encoder, asked).numeric.astype(float), strict=True):
        if value is None and some_missing:
            expected = [0.0] * (len(edges) - 1) + [1.0]
        else:
            numbers = [value] if value is not None else [number for number in training if number is not None] or [0.0]
            rows = [[_piece(x, low, high) for low, high in pairwise(edges)] for x in numbers]
            expected = [sum(column) / len(rows) for column in zip(*rows, strict=True)] + [0.0] * some_missing
        np.testing.assert_allclose(found, expected, rtol=1e-6, atol=1e-6)


def _piece(x, low, high):
    return min(max((x - low) / (high - low), 0.0), 1.0)


@settings(deadline=None, max_examples=60)
@given(st.lists(NUMBERS.map(lambda number: round(number, 3)), min_size=2, max_size=40), NUMBERS, NUMBERS)
def test_pieces_rise_with_the_number_and_are_linear_between_edges(training, one, other):
    edges = edges_of(np.unique(training))
    low, high = sorted((one, other))
    first, last = pieces_of(np.array([low, high]), edges)
    assert (first <= last).all() and (first >= 0).all() and (last <= 1).all()
    middle = pieces_of((edges[:-1] + edges[1:]) / 2, edges)
    ends = pieces_of(edges, edges)
    np.testing.assert_allclose(middle, (ends[:-1] + ends[1:]) / 2, atol=1e-6)  # 10⁻³ among 10⁶ in float64


@settings(deadline=None, max_examples=60)
@given(st.lists(st.none() | st.integers(-4, 4).map(float), min_size=1, max_size=60), st.lists(NUMBERS, max_size=8))
def test_each_number_seen_three_times_has_an_id_and_others_that_of_the_nearest(training, asked):
    counts = {value: training.count(value) for value in {*training} - {None}}
    often = sorted(value for value, count in counts.items() if count >= 3)
    total = max(sum(counts.values()), 1)
    if sum(counts[value] / total + 1 / len(counts) for value in often) / 2 < 0.75 + 1e-9:
        return
    encoder = encoder_of(training, "values")
    ids = encoded(encoder, [*often, *asked, None]).categorical[:, 0].tolist()
    assert ids[: len(often)] == list(range(FIRST_ID, FIRST_ID + len(often)))
    assert ids[-1] == MISSING_ID
    for value, id_ in zip(asked, ids[len(often) : -1], strict=True):
        nearest = min(abs(value - one) for one in often)
        assert abs(value - often[id_ - FIRST_ID]) == pytest.approx(nearest)
    by_id = np.bincount(encoded(encoder, training).categorical[:, 0], minlength=FIRST_ID + len(often))
    assert encoder.counts("x (value)").tolist() == by_id.tolist()


@settings(deadline=None, max_examples=60)
@given(st.lists(st.floats(-1e6, 1e6), min_size=1, max_size=300), NUMBERS, NUMBERS)
def test_bins_are_in_order_cover_every_training_number_and_ids_rise_with_the_number(training, one, other):
    values, counts = np.unique(np.array(training) + 0.0, return_counts=True)
    lows, highs = bins_of(values, counts)
    assert (lows <= highs).all() and (highs[:-1] < lows[1:]).all() and len(lows) <= 256
    encoder = encoder_of(training, "values")
    ids = encoded(encoder, sorted([one, other])).categorical[:, 0]
    assert FIRST_ID <= ids[0] <= ids[1] < FIRST_ID + len(lows)
    assert set(encoded(encoder, training).categorical[:, 0]) == set(range(FIRST_ID, FIRST_ID + len(lows)))


def test_a_column_of_nine_tenths_zeros_resolves_its_tail_and_keeps_zero_apart():
    tail = np.random.default_rng(0).lognormal(size=1_000) + 1
    encoder = encoder_of([0.0] * 9_000 + tail.tolist())
    ids = encoded(encoder, [0.0, *tail]).categorical[:, 0]
    assert ids[0] not in ids[1:]
    assert len(set(ids.tolist())) > 100
    inner = encoder.statistics["x"].edges[1:-1]
    assert len(inner) == 15 and min(inner) > 0


def test_a_missing_number_is_told_from_the_mean():
    encoder = encoder_of([1.0, 2.0, 3.0, None] * 5)
    mean, missing = encoded(encoder, [2.0, None]).features().numeric
    assert encoder.features[-1].name == "x (missing)"
    assert mean[0] == missing[0] == 0 and missing[-1] == 1 and mean[-1] == 0
    assert not missing[1:-1].any() and mean[1:-1].any()
    assert encoded(encoder, [2.0, None]).categorical[1, 0] == MISSING_ID
    assert encoder.decode(encoded(encoder, [2.0, None]))["x"] == [pytest.approx(2.0), None]


def test_a_number_missing_only_later_counts_as_the_mean_of_the_pieces():
    encoder = encoder_of([0.0, 1.0, 4.0, 4.0], "pieces")
    (missing,) = encoded(encoder, [None]).numeric
    np.testing.assert_allclose(missing, encoded(encoder, [0.0, 1.0, 4.0, 4.0]).numeric.mean(axis=0))


def test_numbers_beyond_the_range_count_as_the_ends_and_an_outlier_costs_one_piece():
    training = [*np.arange(100.0).repeat(3), 1e30]
    encoder = encoder_of(training)
    inside, below, above = encoded(encoder, [0.0, -1e9, 1e38]).numeric[:, 1:]
    assert (inside == below).all() and (above == 1).all()
    edges = np.array(encoder.statistics["x"].edges)
    assert (edges[:-1] < 100).all() and edges[-1] == 1e30
    ids = encoded(encoder, [-1e9, 0.0, 99.0, 1e38]).categorical[:, 0]
    assert ids[0] == ids[1] and ids[2] == ids[3]


@pytest.mark.parametrize("values", [[], [None, None], [7.0], [7.0, 7.0, 7.0, None]])
def test_a_column_with_one_number_or_none_has_finite_slots(values):
    encoder = encoder_of([*values, None])
    rows = encoded(encoder, [None, 7.0, 8.0])
    assert np.isfinite(rows.numeric).all() and (rows.categorical < encoder.features[0].vocab_size).all()


@settings(deadline=None, max_examples=30)
@given(st.lists(st.integers(0, 3_000).map(float), min_size=1, max_size=400), st.integers(1, 100))
def test_distinct_numbers_do_not_depend_on_the_chunks(numbers, size):
    whole, parts = DistinctNumbers(), DistinctNumbers()
    whole.add(np.array(numbers))
    for start in range(0, len(numbers), size):
        parts.add(np.array(numbers[start : start + size]))
    for one, other in zip(whole.finish(), parts.finish(), strict=True):
        assert np.array_equal(one, other)
    values, counts = np.unique(numbers, return_counts=True)
    assert np.array_equal(whole.finish()[0], values) and np.array_equal(whole.finish()[1], counts)


def test_of_too_many_distinct_numbers_an_even_sample_and_the_frequent_ones_are_kept(monkeypatch):
    monkeypatch.setattr(distinct, "MOST_DISTINCT", 1_000)
    tail = np.arange(1.0, 100_001)
    numbers = np.random.default_rng(0).permutation(np.concatenate([tail, np.zeros(50_000)]))
    kept = DistinctNumbers()
    for part in np.array_split(numbers, 37):
        kept.add(part)
    values, counts = kept.finish()
    assert 1_000 <= len(values) <= 1_001 and values[0] == 0 and counts[0] == 50_000
    assert counts.sum() == pytest.approx(150_000, rel=0.01)
    quarters = np.quantile(values[1:], [0.25, 0.5, 0.75])
    np.testing.assert_allclose(quarters, [25_000, 50_000, 75_000], atol=5_000)  # three deviations of a sample of 1,000


@pytest.fixture
def table(tmp_path):
    random = np.random.default_rng(1)
    size = 6_000
    frame = pl.DataFrame(
        {
            "who": random.choice(["a", "b", "c"], size),
            "age": [None if random.random() < 0.1 else int(x) for x in random.integers(17, 90, size)],
            "gain": np.where(random.random(size) < 0.9, 0.0, random.lognormal(8, 1, size)),
            "free": random.standard_normal(size),
            "y": random.integers(0, 2, size),
        }
    )
    frame.write_csv(tmp_path / "table.csv")
    frame.write_parquet(tmp_path / "table.parquet")
    schema = Schema(
        [
            Categorical(name="who"),
            Numeric(name="age", encoding=ALL),
            Numeric(name="gain", encoding="values+pieces", log_shift=1.0),
            Numeric(name="free", encoding="scalar"),
        ],
        Label(name="y"),
    )
    return tmp_path, frame, schema


@pytest.mark.parametrize("kind", ["csv", "parquet"])
def test_every_way_to_encode_gives_the_same_bits_and_the_folder_keeps_it(table, kind):
    folder, frame, schema = table
    dataset = prepare(folder / f"table.{kind}", schema, folder / "data", progress=False)
    encoder = EncodedDataset.open(folder / "data").encoder
    names = [feature.name for feature in encoder.features]
    assert names == [
        *("who", "age (value)", "gain (value)"),
        *("age", "age (pieces)", "age (missing)", "gain (pieces)", "free"),
    ]
    assert [feature.column for feature in encoder.features][1:3] == ["age", "gain"]
    every = encoder.encode(frame)
    rows = encoder.encode_rows(frame.to_dicts())
    assert np.array_equal(every.categorical, rows.categorical) and np.array_equal(every.numeric, rows.numeric)
    prepared = np.concatenate([dataset.split(name).numeric for name in ("train", "valid", "test")])
    ids = np.concatenate([dataset.split(name).categorical for name in ("train", "valid", "test")])
    order, other = (np.lexsort(np.hstack([a, b]).T) for a, b in ((ids, prepared), (every.categorical, every.numeric)))
    assert np.array_equal(prepared[order], every.numeric[other])
    assert np.array_equal(ids[order], every.categorical[other])
    assert {about["name"]: about.get("width") for about in dataset.manifest["features"]}["gain (pieces)"] == 16
    assert dataset.encoder.fingerprint == Encoder.load(folder / "data" / "encoder").fingerprint
    train = dataset.train
    by_id = np.bincount(train.categorical[:, 1], minlength=encoder.features[1].vocab_size)
    assert encoder.counts("age (value)").tolist() == by_id.tolist()
    means = np.concatenate([slots.means() for slots in encoder.numbers.values()])
    np.testing.assert_allclose(means[1:], train.numeric.mean(axis=0, dtype=np.float64)[1:], atol=1e-5)


def test_an_encoder_from_before_there_were_encodings_has_scalars(tmp_path):
    encoder = encoder_of([1.0, 2.0, 3.0, None], "scalar")
    encoder.save(tmp_path)
    content = json.loads((tmp_path / "encoder.json").read_text())
    del content["schema"]["features"][0]["encoding"]
    for key in ("lows", "highs", "counts", "edges", "piece_means"):
        del content["numeric"]["x"][key]
    (tmp_path / "encoder.json").write_text(json.dumps(content))
    opened = Encoder.load(tmp_path)
    assert opened.features == encoder.features and opened.fingerprint == encoder.fingerprint
    assert np.array_equal(encoded(opened, [2.5, None]).numeric, encoded(encoder, [2.5, None]).numeric)


@pytest.mark.parametrize("encoding", ["", "value", "scalar+scalar", "auto+pieces", "missing"])
def test_an_unknown_encoding_is_refused_with_the_known_ones(encoding):
    with pytest.raises(
        SchemaError, match="must be 'auto', or one or several of 'scalar', 'values', 'pieces', 'missing'"
    ):
        Numeric(name="x", encoding=encoding)


def test_auto_looks_at_rows_distinct_numbers_columns_and_what_is_missing():
    many, some = [float(k % 50) for k in range(1_000)], [float(k % 2) for k in range(1_000)]
    cases = {
        "scalar+values+pieces": [many, [*many, None]],
        "scalar": [many[:999], some, [1.0, None] * 499],
        "scalar+missing": [[*some, None], [1.0, None] * 500],
    }
    for encoding, columns in cases.items():
        for values in columns:
            (column,) = encoder_of(values, "auto").schema.numeric
            assert column.encoding == encoding
    wide = pl.DataFrame({f"x{k}": many for k in range(33)})
    encoder = Encoder.fit(wide, Schema([Numeric(name=name) for name in wide.columns], Label(name="y")))
    assert {column.encoding for column in encoder.schema.numeric} == {"scalar"}
    twice = pl.concat([wide, wide])
    for columns, kind, encoding in ((33, "binary", "scalar+pieces"), (33, "real", "scalar"), (129, "binary", "scalar")):
        wide_schema = Schema(
            [Numeric(name=f"x{k}", source=f"x{k % 33}") for k in range(columns)], Label(name="y", kind=kind)
        )
        assert {column.encoding for column in Encoder.fit(twice, wide_schema).schema.numeric} == {encoding}
    labels = {"scalar": Label(name="y", kind="grade"), "scalar+values+pieces": Label(name="y", kind="real")}
    for encoding, label in labels.items():
        schema = Schema([Numeric(name="x0")], label, group="g" if label.kind == "grade" else None)
        assert Encoder.fit(wide, schema).schema.numeric[0].encoding == encoding


@pytest.mark.parametrize(
    ("distinct", "kind", "num_bins"), [(50, "binary", 50), (51, "binary", 10), (51, "real", 51), (4000, "real", 256)]
)
def test_auto_has_enough_rows_for_each_vector_where_the_label_is_binary(distinct, kind, num_bins):
    frame = pl.DataFrame({"x": [float(k % distinct) for k in range(5_000)]})
    encoder = Encoder.fit(frame, Schema([Numeric(name="x")], Label(name="y", kind=kind)))
    assert encoder.schema.numeric[0].encoding == "scalar+values+pieces"
    assert len(set(encoded(encoder, frame["x"].to_list()).categorical[:, 0])) == num_bins
    asked = Encoder.fit(frame, Schema([Numeric(name="x", encoding="values")], Label(name="y", kind=kind)))
    assert len(set(encoded(asked, frame["x"].to_list()).categorical[:, 0])) == min(distinct, 256)


def test_a_scalar_beside_a_slot_for_missing_tells_it_from_the_mean():
    encoder = encoder_of([1.0, 2.0, 3.0, None], "scalar+missing")
    assert [feature.name for feature in encoder.features] == ["x", "x (missing)"]
    assert encoded(encoder, [2.0, None]).numeric.tolist() == [[0.0, 0.0], [0.0, 1.0]]


def test_columns_encoded_together_are_what_each_is_alone():
    draw = np.random.default_rng(0)
    frame = pl.DataFrame({name: draw.lognormal(size=3_000) for name in "abcd"})
    frame = frame.with_columns(pl.when(pl.col("b") < 2).then("b"), pl.when(pl.col("c") < 2).then("c"))
    columns = [
        Numeric(name="a", encoding="pieces"),
        Numeric(name="b", encoding=ALL, log_shift=1.0),
        Numeric(name="c", encoding="scalar+missing"),
        Numeric(name="d", encoding="values"),
    ]
    together = Encoder.fit(frame, Schema(columns, Label(name="y"))).encode(frame)
    alone = [Encoder.fit(frame, Schema([column], Label(name="y"))).encode(frame) for column in columns]
    np.testing.assert_array_equal(together.numeric, np.concatenate([one.numeric for one in alone], axis=1))
    np.testing.assert_array_equal(together.categorical, np.concatenate([one.categorical for one in alone], axis=1))


@pytest.mark.parametrize(
    ("columns", "kind", "pieces"), [(3, "binary", 16), (8, "binary", 10), (20, "binary", 8), (20, "real", 16)]
)
def test_many_columns_have_fewer_pieces_each_where_nothing_is_said(columns, kind, pieces, tmp_path):
    draw = np.random.default_rng(0)
    frame = pl.DataFrame({f"n{i}": draw.normal(size=2000) for i in range(columns)} | {"y": draw.integers(0, 2, 2000)})
    schema = Schema([Numeric(name=f"n{i}") for i in range(columns)], Label(name="y", kind=kind))
    dataset = prepare(frame, schema, tmp_path / "data", progress=False)
    assert {one.width for one in dataset.features if "pieces" in one.name} == {pieces}


def test_whole_numbers_drafted_as_ids_in_order_do_not_count_among_many_columns():
    numbers, codes = (
        [Numeric(name=f"n{i}") for i in range(3)],
        [Numeric(name=f"c{i}", encoding="scalar+values") for i in range(50)],
    )
    assert num_pieced(Schema([*numbers, *codes], Label(name="y"))) == 3
    assert num_pieced(Schema([Numeric(name="n", encoding="scalar+pieces"), *codes], Label(name="y"))) == 1
