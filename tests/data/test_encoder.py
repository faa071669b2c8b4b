from __future__ import annotations

import math
import subprocess
import sys
from collections import Counter
from pathlib import Path

import numpy as np
import polars as pl
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from crossrank.data import MISSING_ID, UNSEEN_ID, Encoder
from crossrank.data.scaling import Moments
from crossrank.data.text import stable_hash, text_of_value
from crossrank.errors import DataError, SchemaError
from crossrank.schema import Categorical, Label, Multivalent, Numeric, Schema

LABEL = Label(name="click")
WORDS = st.text("ab é,;\"'\n", max_size=3)
PIECES = st.text("abé ", max_size=2)


def schema_of(*columns):
    return Schema(columns, LABEL)


def fit(values, *columns, **options):
    return Encoder.fit(pl.DataFrame(values, strict=False), schema_of(*columns), **options)


def same(left, right):
    assert np.array_equal(left.categorical, right.categorical)
    assert np.array_equal(left.numeric, right.numeric)
    assert len(left.bags) == len(right.bags)
    for (ids, offsets), (other_ids, other_offsets) in zip(left.bags, right.bags, strict=True):
        assert np.array_equal(ids, other_ids) and np.array_equal(offsets, other_offsets)


@st.composite
def tables(draw):
    """A random schema and a table for it, as columns of plain values with their polars types."""
    num_rows = draw(st.integers(1, 6))
    columns, data, types = [], {}, {}
    for position in range(draw(st.integers(1, 5))):
        name = f"{draw(st.sampled_from('xyz é.'))}{position}"
        kind, cells, dtype = draw(
            st.sampled_from(
                [
                    ("categorical", WORDS, pl.String),
                    ("categorical", st.integers(-3, 3), pl.Int64),
                    ("categorical", st.booleans(), pl.Boolean),
                    ("multivalent", st.lists(PIECES, max_size=4).map("|".join), pl.String),
                    ("numeric", st.integers(-1000, 1000), pl.Int64),
                    ("numeric", st.floats(-1e6, 1e6), pl.Float64),
                ]
            )
        )
        if kind == "numeric":
            log_shift = draw(st.sampled_from([None, 1.0]))
            columns.append(Numeric(name=name, log_shift=log_shift, standardize=draw(st.booleans())))
        else:
            cls = Categorical if kind == "categorical" else Multivalent
            columns.append(cls(name=name, **draw(st.sampled_from([{}, {"min_count": 2}, {"max_size": 2}]))))
        data[name] = draw(st.lists(st.none() | cells, min_size=num_rows, max_size=num_rows))
        types[name] = dtype
    data["click"], types["click"] = [0] * num_rows, pl.Int64
    return schema_of(*columns), pl.DataFrame(data, schema=types)


@settings(deadline=None, max_examples=60)
@given(tables())
def test_a_frame_its_rows_and_its_csv_file_are_encoded_alike(table):
    schema, frame = table
    encoder = Encoder.fit(frame, schema)
    encoded = encoder.encode(frame)
    same(encoder.encode_rows(frame.to_dicts()), encoded)
    same(encoder.encode(pl.read_csv(frame.write_csv().encode(), infer_schema=False)), encoded)
    assert encoded.categorical.dtype == np.uint32 and encoded.numeric.dtype == np.float32
    assert encoded.categorical.flags.c_contiguous and encoded.numeric.flags.c_contiguous


@settings(deadline=None, max_examples=60)
@given(tables())
def test_decoding_gives_back_what_was_encoded(table):
    schema, frame = table
    encoder = Encoder.fit(frame, schema)
    decoded = encoder.decode(encoder.encode(frame))
    assert set(decoded) == set(schema.names)
    for column in schema.features:
        given = frame[column.name].to_list()
        if isinstance(column, Numeric):
            expected = [_expected_number(column, given, value) for value in given]
            np.testing.assert_allclose(decoded[column.name], expected, rtol=1e-4, atol=_resolution(column, given))
        elif isinstance(column, Multivalent):
            kept = _kept(column, [piece for cell in given for piece in _pieces(cell)])
            cells = [[piece if piece in kept else "<unseen>" for piece in _pieces(cell)] for cell in given]
            expected = [None if not cell else pieces for cell, pieces in zip(given, cells, strict=True)]
            assert decoded[column.name] == expected
        else:
            texts = [text_of_value(value) for value in given]
            kept = _kept(column, texts)
            assert decoded[column.name] == [text if text is None or text in kept else "<unseen>" for text in texts]


def _pieces(cell):
    return [piece for piece in (cell or "").split("|") if piece]


def _kept(column, texts):
    """The vocabulary, from the definition: often enough, most frequent first, ties by text, the first max_size."""
    counts = Counter(text for text in texts if text is not None)
    ranked = sorted((-count, text) for text, count in counts.items() if count >= column.min_count)
    return [text for _, text in ranked[: column.max_size]]


def _expected_number(column, given, value):
    """What a number decodes to: itself, clamped where the logarithm clamps it; the mean where it is missing."""
    logged = [x if column.log_shift is None else math.log(max(x + column.log_shift, 1)) for x in given if x is not None]
    mean = sum(logged) / len(logged) if logged else 0.0
    if value is None:
        return mean if column.log_shift is None else math.exp(mean) - column.log_shift
    return value if column.log_shift is None else max(value, 1 - column.log_shift)


def _resolution(column, given):
    """A few steps of float32 at the size of the column."""
    return 1e-6 * max([1.0, *(abs(value) for value in given if value is not None)])


def test_ids_follow_frequency_then_text_and_counts_follow_ids():
    values = ["b", "a", "c", "c", None, "a", "b", "d"]
    encoder = fit({"x": values}, Categorical(name="x", min_count=2, max_size=2))
    assert encoder.encode_rows([{"x": v} for v in ("a", "b", "c", "d", None, "new")]).categorical[:, 0].tolist() == [
        2,
        3,
        UNSEEN_ID,
        UNSEEN_ID,
        MISSING_ID,
        UNSEEN_ID,
    ]
    assert encoder.counts("x").tolist() == [1, 3, 2, 2]
    assert encoder.features[0].vocab_size == 4


def test_a_value_outside_the_training_rows_is_unseen():
    table = pl.DataFrame({"x": ["a", "b", "a"], "n": [1.0, 100.0, 3.0]})
    schema = schema_of(Categorical(name="x"), Numeric(name="n"))
    encoder = Encoder.fit(table, schema, assign=lambda frame, first_row: np.array([True, False, True]))
    assert encoder.encode(table).categorical[:, 0].tolist() == [2, UNSEEN_ID, 2]
    assert encoder.counts("x").tolist() == [0, 0, 2]
    assert encoder.encode(table).numeric[:, 0].tolist() == [-1.0, 1.0, 1.0]  # it counts as the largest of them


def test_multivalent_cells_may_be_missing_empty_or_full():
    column = Multivalent(name="tags", separator=",")
    encoder = fit({"tags": ["a,b", "a", None, ",,", "b,,c"]}, column)
    (bag,) = encoder.encode_rows([{"tags": cell} for cell in ("b,new", None, ",", ["a", None, "a"], 7)]).bags
    assert bag[0].tolist() == [3, UNSEEN_ID, MISSING_ID, 2, 2, UNSEEN_ID]
    assert bag[1].tolist() == [0, 2, 3, 3, 5, 6]
    assert encoder.counts("tags").tolist() == [1, 0, 2, 2, 1]


def test_list_columns_are_multivalent_without_a_separator():
    frame = pl.DataFrame({"tags": [[3, 1], [], None, [1, None]]}, schema={"tags": pl.List(pl.Int64)})
    encoder = Encoder.fit(frame, schema_of(Multivalent(name="tags")))
    assert encoder.decode(encoder.encode(frame)) == {"tags": [["3", "1"], [], None, ["1"]]}
    same(encoder.encode_rows(frame.to_dicts()), encoder.encode(frame))
    same(encoder.encode(frame.with_columns(pl.Series("tags", ["3|1", "|", None, "1"]))), encoder.encode(frame))


@pytest.mark.parametrize("cls", [Categorical, Multivalent])
def test_a_hashed_column_needs_no_vocabulary(cls):
    encoder = fit({"x": ["a", "b", "a", None]}, cls(name="x", hash_size=50))
    ids = [2 + stable_hash(text) % 50 for text in ("a", "b", "zzz")]
    rows = encoder.encode_rows([{"x": value} for value in ("a", "b", "zzz", None)])
    found = rows.categorical[:, 0] if cls is Categorical else rows.bags[0][0]
    assert found.tolist() == [*ids, MISSING_ID]
    same(encoder.encode(pl.DataFrame({"x": ["a", "b", "zzz", None]})), rows)
    assert encoder.features[0].vocab_size == 52
    assert encoder.counts("x")[[*ids[:2], MISSING_ID]].tolist() == [2, 1, 1]


def test_the_expected_collision_rate_is_near_the_true_one():
    texts = [f"value {i}" for i in range(3000)]
    encoder = fit({"x": texts}, Categorical(name="x", hash_size=4000))
    buckets = Counter(stable_hash(text) % 4000 for text in texts)
    true_share = sum(count for count in buckets.values() if count > 1) / len(texts)
    assert encoder.vocabularies["x"].expected_collisions == pytest.approx(true_share, abs=0.03)
    assert fit({"x": ["a"]}, Categorical(name="x", hash_size=9)).vocabularies["x"].expected_collisions < 0.02
    assert fit({"x": texts}, Categorical(name="x", hash_size=1)).vocabularies["x"].expected_collisions == 1.0


def test_numbers_are_standardized_over_chunks_as_over_the_whole():
    values = np.random.default_rng(0).normal(1e8, 3.0, 200_000)
    encoder = fit({"n": values}, Numeric(name="n"))
    statistics = encoder.statistics["n"]
    assert statistics.mean == pytest.approx(values.mean(), abs=1e-6)
    assert statistics.deviation == pytest.approx(values.std(), rel=1e-9)


@settings(deadline=None)
@given(st.lists(st.tuples(st.sampled_from([math.nan, -3.0, 0.1, 7.5, 1e9]), st.integers(0, 4)), max_size=8))
def test_a_number_that_is_counted_counts_as_often_as_it_is_there(pairs):
    numbers, counts = np.array([x for x, _ in pairs]), np.array([n for _, n in pairs], np.int64)
    counted, repeated = Moments(), Moments()
    for moments in (counted, repeated):
        moments.add(np.array([2.0, 4.0]))  # as of a chunk before
    counted.add(numbers, counts)
    repeated.add(np.repeat(numbers, counts))
    found, expected = counted.finish(), repeated.finish()
    assert (found.count, found.missing) == (expected.count, expected.missing)
    assert (found.mean, found.deviation) == pytest.approx((expected.mean, expected.deviation), rel=1e-12)


def test_a_constant_or_empty_number_column_is_not_divided_by_zero():
    encoder = fit({"n": [0.1] * 7, "m": [None] * 7}, Numeric(name="n"), Numeric(name="m"))
    assert encoder.encode_rows([{"n": 0.1, "m": None}, {"n": 1.1, "m": 2}]).numeric.tolist() == [[0, 0], [0, 0]]


def test_what_is_too_far_off_stays_finite():
    encoder = fit({"n": [0.0, 1e-30]}, Numeric(name="n"))
    assert np.isfinite(encoder.encode_rows([{"n": 1e38}]).numeric).all()


@pytest.mark.parametrize("value", ["abc", "1_000", "inf", "-Infinity", "1e400", "1e39"])
def test_text_that_is_no_finite_number_is_refused_with_its_place(value):
    encoder = fit({"n": [1, 2]}, Numeric(name="n"))
    with pytest.raises(DataError, match=r"Column 'n' must hold finite numbers; got '.*' in row 2 of the data frame\."):
        encoder.encode(pl.DataFrame({"n": ["1", value]}))
    with pytest.raises(DataError, match=r"Column 'n' must hold finite numbers; got '.*' in row 2\."):
        encoder.encode_rows([{"n": "1"}, {"n": value}])


@pytest.mark.parametrize("column", [{}, {"hash_size": 7}], ids=["kept", "hashed"])
def test_a_row_is_encoded_alike_whatever_kinds_of_values_it_and_its_neighbours_have(column):
    columns = Categorical(name="x", **column), Categorical(name="y", **column), Numeric(name="n"), Numeric(name="m")
    encoder = fit({"x": ["1", "a"], "y": ["2.5", "true"], "n": [1.0, 2.0], "m": [1.0, 5.0]}, *columns)
    texts = ["1", "", None, 1, 1.0, True, 2.5, float("nan"), "new"]
    numbers = [1.5, 2, None, " 2 ", True, float("nan"), 2**70, np.float32(3), ""]
    rows = [
        {"x": x, "y": y, "n": n, "m": m}
        for x, y, n, m in zip(texts, texts[::-1], numbers, numbers[3:] + numbers[:3], strict=True)
    ]
    together = encoder.encode_rows(rows)
    for place, row in enumerate(rows):
        alone = [encoder.encode_rows([{**rows[-1], name: row[name]}]) for name in ("x", "y", "n", "m")]
        assert together.categorical[place].tolist() == [alone[0].categorical[0, 0], alone[1].categorical[0, 1]]
        assert together.numeric[place].tolist() == [alone[2].numeric[0, 0], alone[3].numeric[0, 1]]


def test_the_first_row_that_cannot_be_read_is_named_whatever_is_wrong_with_the_next():
    encoder = fit({"n": [1, 2], "m": [1, 2]}, Numeric(name="n"), Numeric(name="m"))
    good = {"n": 1.0, "m": 2.0}
    for bad in (1e39, -1e300, 10**400, float("inf"), "x"):
        with pytest.raises(DataError, match=r"Column 'm' must .* in row 2\."):
            encoder.encode_rows([good, {"n": 1.0, "m": bad}, {"n": "abc", "m": 1e39}])


def test_numbers_may_be_written_in_any_usual_way():
    encoder = fit({"n": [0.0, 2.0]}, Numeric(name="n", standardize=False))
    texts = [" 5 ", "+5", "5.", "5e0", "٥", "nan", " ", None]
    expected = [5, 5, 5, 5, 5, 1, 1, 1]
    assert encoder.encode(pl.DataFrame({"n": texts})).numeric[:, 0].tolist() == expected
    assert encoder.encode_rows([{"n": text} for text in texts]).numeric[:, 0].tolist() == expected
    for values in ([True, False], [5, 7], np.array([5, 7], np.uint8)):
        frame = pl.DataFrame({"n": values})
        same(encoder.encode(frame), encoder.encode_rows([{"n": value} for value in values]))


def test_dates_are_not_numbers():
    encoder = fit({"n": [1]}, Numeric(name="n"))
    dates = pl.DataFrame({"n": ["2026-01-01"]}).select(pl.col("n").str.to_date())
    with pytest.raises(DataError, match="Column 'n' must hold numbers; got Date"):
        encoder.encode(dates)
    with pytest.raises(DataError, match="Column 'n' must hold finite numbers"):
        encoder.encode_rows(dates.to_dicts())


def test_shuffled_and_extra_columns_do_not_matter():
    frame = pl.DataFrame({"x": ["a", "b"], "n": [1, 2], "other": [0, 0]})
    encoder = Encoder.fit(frame, schema_of(Categorical(name="x"), Numeric(name="n")))
    same(encoder.encode(frame.select("other", "n", "x")), encoder.encode(frame))


def test_a_missing_column_is_named_with_a_suggestion():
    encoder = fit({"device_type": ["a"]}, Categorical(name="device_type"))
    message = r"Column 'device_type' of the schema is missing from .*'device_tpye'.* Did you mean 'device_tpye'\?"
    with pytest.raises(SchemaError, match=message):
        encoder.encode(pl.DataFrame({"device_tpye": ["a"]}))
    with pytest.raises(SchemaError, match=message):
        encoder.encode_rows([{"device_tpye": "a"}])
    with pytest.raises(SchemaError, match=message):
        Encoder.fit(pl.DataFrame({"device_tpye": ["a"]}), encoder.schema)


def test_no_rows_give_empty_arrays():
    encoder = fit({"x": ["a"], "t": ["a"], "n": [1]}, Categorical(name="x"), Multivalent(name="t"), Numeric(name="n"))
    empty = encoder.encode(pl.DataFrame(schema={"x": pl.String, "t": pl.String, "n": pl.Float64}))
    same(encoder.encode_rows([]), empty)
    assert empty.features().categorical.shape == (0, 1) and empty.features().bags[0].offsets.tolist() == [0]


def test_features_share_memory_and_read_ids_as_int32():
    rows = fit({"x": ["a", "b"]}, Categorical(name="x")).encode_rows([{"x": "b"}])
    features = rows.features()
    rows.categorical[0, 0] = 7
    assert str(features.categorical.dtype) == "torch.int32" and features.categorical.tolist() == [[7]]


@settings(deadline=None, max_examples=20)
@given(tables())
def test_a_saved_encoder_is_the_same_encoder(table):
    import tempfile

    schema, frame = table
    encoder = Encoder.fit(frame, schema)
    with tempfile.TemporaryDirectory() as folder:
        encoder.save(Path(folder))
        loaded = Encoder.load(folder)
    same(loaded.encode(frame), encoder.encode(frame))
    assert loaded.features == encoder.features and loaded.fingerprint == encoder.fingerprint


def test_different_vocabularies_have_different_fingerprints():
    first, second = (fit({"x": values}, Categorical(name="x")) for values in (["a", "b"], ["a", "c"]))
    assert first.fingerprint != second.fingerprint


def test_a_damaged_encoder_is_refused(tmp_path):
    fit({"x": ["a"]}, Categorical(name="x")).save(tmp_path)
    (tmp_path / "encoder.json").write_text("{}")
    with pytest.raises(DataError, match="must have format version 1; got None"):
        Encoder.load(tmp_path)
    fit({"x": ["a"]}, Categorical(name="x")).save(tmp_path)
    (tmp_path / "vocabulary.safetensors").unlink()
    with pytest.raises(DataError, match="cannot be read"):
        Encoder.load(tmp_path)


def test_dictionaries_are_encoded_where_polars_is_not_installed(tmp_path):
    fit({"x": ["a", "b"], "n": [1, 3]}, Categorical(name="x"), Numeric(name="n")).save(tmp_path)
    program = f"""
import sys
sys.modules["polars"] = None
from crossrank.data import Encoder
rows = Encoder.load({str(tmp_path)!r}).encode_rows([{{"x": "b", "n": "3"}}])
assert rows.categorical.tolist() == [[3]] and rows.numeric.tolist() == [[1.0]]
"""
    subprocess.run([sys.executable, "-c", program], check=True)
