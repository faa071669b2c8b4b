from __future__ import annotations

import errno
import signal
import subprocess
import sys
from pathlib import Path

import numpy as np
import polars as pl
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from crossrank.data import UNSEEN_ID, EncodedDataset, SplitSettings, encode_table, open_table
from crossrank.data.prepare import prepare
from crossrank.errors import DataError, SchemaError
from crossrank.schema import Categorical, Label, Multivalent, Numeric, Schema

SCHEMA = Schema(
    [
        Categorical(name="x"),
        Categorical(name="h", hash_size=9),
        Multivalent(name="t"),
        Multivalent(name="u", hash_size=400),
        Numeric(name="n", log_shift=1.0),
    ],
    Label(name="click"),
    weight="w",
    group="g",
)


def clicks(num_rows, seed=0):
    rng = np.random.default_rng(seed)
    return pl.DataFrame(
        {
            "x": [None if value > 50 else f"v{value}" for value in rng.zipf(1.3, num_rows)],
            "h": [f"h{value}" for value in rng.integers(0, 30, num_rows)],
            "t": ["|".join(f"t{tag}" for tag in rng.integers(0, 9, size)) for size in rng.integers(0, 4, num_rows)],
            "u": ["|".join(f"u{tag}" for tag in rng.integers(0, 99, size)) for size in rng.integers(0, 4, num_rows)],
            "n": [None if value < 1 else float(value) for value in rng.poisson(2, num_rows)],
            "click": rng.integers(0, 2, num_rows),
            "w": rng.integers(0, 3, num_rows) / 2,
            "g": rng.integers(0, 40, num_rows),
        }
    )


def assert_same_rows(left, right):
    for name in ("categorical", "numeric", "labels", "weights", "groups"):
        assert np.array_equal(getattr(left, name), getattr(right, name)), name
    for bag, other in zip(left.bags, right.bags, strict=True):
        assert np.array_equal(bag[0], other[0]) and np.array_equal(bag[1], other[1])


def test_a_dataset_holds_what_its_encoder_makes_of_the_table(tmp_path):
    frame = clicks(5000)
    dataset = prepare(frame, SCHEMA, tmp_path / "d")
    parts = SplitSettings().assigner(open_table(frame))(next(open_table(frame).chunks()))
    whole = encode_table(dataset.encoder, frame)
    for position, name in enumerate(("train", "valid", "test")):
        split = dataset.split(name)
        rows = np.flatnonzero(parts == position)
        taken = whole.rows.take(rows)
        assert np.array_equal(split.categorical, taken.encoded.categorical)
        assert np.array_equal(split.numeric, taken.encoded.numeric)
        for bag, other in zip(split.bags, taken.encoded.bags, strict=True):
            assert np.array_equal(bag[0], other[0]) and np.array_equal(bag[1], other[1])
        assert np.array_equal(split.labels, frame["click"].to_numpy()[rows])
        assert np.array_equal(split.weights, frame["w"].to_numpy()[rows])
    dataset.verify()


@settings(deadline=None, max_examples=10)
@given(st.integers(1, 400), st.integers(0, 99))
def test_many_small_chunks_make_the_same_dataset_as_one(num_rows, seed):
    import tempfile

    frame = clicks(num_rows, seed)
    assume(frame["click"].n_unique() == 2)
    settings = SplitSettings(fractions=(1.0,))
    table = open_table(frame)
    with tempfile.TemporaryDirectory() as folder, pytest.MonkeyPatch.context() as patch:
        one = prepare(table, SCHEMA, Path(folder) / "one", split=settings)
        chunks = table.chunks
        patch.setattr(table, "chunks", lambda columns=None, **options: chunks(columns, rows=17, **options))
        many = prepare(table, SCHEMA, Path(folder) / "many", split=settings)
        assert_same_rows(many.train, one.train)


def test_text_and_frames_and_parquet_give_the_same_dataset(tmp_path):
    frame = clicks(500)
    frame.write_csv(tmp_path / "c.csv")
    frame.write_csv(tmp_path / "c.tsv", separator="\t")
    frame.write_parquet(tmp_path / "c.parquet")
    made = [prepare(frame, SCHEMA, tmp_path / "frame")]
    made += [prepare(tmp_path / f"c.{kind}", SCHEMA, tmp_path / kind) for kind in ("csv", "tsv", "parquet")]
    assert len({dataset.fingerprint for dataset in made}) == 1


@pytest.mark.parametrize("remembered", [0, 5, 1 << 16])
def test_long_values_and_many_numbers_from_text_make_the_same_dataset(tmp_path, monkeypatch, remembered):
    monkeypatch.setattr("crossrank.data.number_reader.MOST_REMEMBERED", remembered)
    monkeypatch.setattr("crossrank.data.table.Table.chunks.__kwdefaults__", {"rows": 97, "as_words": ()})
    rng = np.random.default_rng(1)
    frame = clicks(1000).with_columns(
        x=pl.Series([f"{'long ' * (row % 90 > 70)}v{row % 23}" for row in range(1000)]),
        n=pl.Series(rng.poisson(2, 1000) / np.where(np.arange(1000) % 200 < 150, 4, 3)),
    )
    frame.write_csv(tmp_path / "c.csv")
    from_frame = prepare(frame, SCHEMA, tmp_path / "frame")
    assert prepare(tmp_path / "c.csv", SCHEMA, tmp_path / "text").fingerprint == from_frame.fingerprint


def test_a_bad_number_or_label_is_named_with_the_first_line_that_has_it(tmp_path):
    for column, text, message in (("n", "zz", "Column 'n' must .*got 'zz'"), ("click", "7", "Label 'click' .*got 7")):
        rows = [{"n": "1", "click": "0"} for _ in range(9)]
        rows[4] = rows[7] = rows[4] | {column: text}
        rows[8] = rows[8] | {column: "0x"}
        pl.DataFrame(rows).write_csv(tmp_path / "t.csv")
        with pytest.raises(DataError, match=f"{message} in line 6 of t.csv"):
            prepare(tmp_path / "t.csv", LABEL_SCHEMA, tmp_path / "d")


def test_preparing_needs_no_torch(tmp_path):
    program = f"""
import sys
from crossrank.data.prepare import prepare
from crossrank.schema import Categorical, Label, Schema
schema = Schema([Categorical(name="x")], Label(name="click"))
prepare({{"x": ["a", "b"] * 9, "click": [0, 1] * 9}}, schema, {str(tmp_path / "d")!r})
assert "torch" not in sys.modules
"""
    subprocess.run([sys.executable, "-c", program], check=True)


def test_preparing_twice_gives_the_same_bytes(tmp_path):
    frame = clicks(3000)
    for name in ("a", "b"):
        prepare(frame, SCHEMA, tmp_path / name)
    files = sorted(path.relative_to(tmp_path / "a") for path in (tmp_path / "a").rglob("*") if path.is_file())
    assert files == sorted(path.relative_to(tmp_path / "b") for path in (tmp_path / "b").rglob("*") if path.is_file())
    assert len(files) == 3 * 9 + 3
    for file in files:
        assert (tmp_path / "a" / file).read_bytes() == (tmp_path / "b" / file).read_bytes(), file


def test_the_encoder_learns_from_training_rows_alone(tmp_path):
    frame = pl.DataFrame({"x": ["a"] * 8 + ["late", "later"], "n": [1.0] * 8 + [50.0, 70.0], "click": [0, 1] * 5})
    schema = Schema([Categorical(name="x"), Numeric(name="n")], Label(name="click"))
    dataset = prepare(frame, schema, tmp_path / "d", split=SplitSettings(method="time"))
    assert dataset.features[0].vocab_size == 3
    assert dataset.valid.categorical.tolist() == dataset.test.categorical.tolist() == [[UNSEEN_ID]]
    assert dataset.encoder.statistics["n"].mean == 1.0
    assert dataset.encoder.counts("x").tolist() == [0, 0, 8]


def test_groups_are_numbered_as_they_first_appear(tmp_path):
    frame = clicks(7).with_columns(pl.Series("g", ["b", "a", None, "b", "c", None, "a"]))
    dataset = prepare(frame, SCHEMA, tmp_path / "d", split=SplitSettings(fractions=(1.0,)))
    assert dataset.train.groups.tolist() == [0, 1, 2, 0, 3, 2, 1]


def test_the_manifest_tells_what_was_done(tmp_path):
    manifest = prepare(clicks(300), SCHEMA, tmp_path / "d", split=SplitSettings(seed=4)).manifest
    assert manifest["split"]["seed"] == 4 and manifest["source"]["rows"] == 300
    assert sum(split["rows"] for split in manifest["splits"].values()) == 300
    hashed = {feature["name"]: feature for feature in manifest["features"]}["h"]
    assert hashed["vocab_size"] == 11 and 0.9 < hashed["expected_collisions"] <= 1.0


LABEL_SCHEMA = Schema([Numeric(name="n")], Label(name="click"))


@pytest.mark.parametrize(
    "labels", [[0, 1], ["0", "1"], ["false", "true"], ["False", "True"], [0.0, 1.0], [False, True]]
)
def test_binary_labels_may_be_written_in_these_ways(tmp_path, labels):
    frame = pl.DataFrame({"n": [1, 2], "click": labels})
    dataset = prepare(frame, LABEL_SCHEMA, tmp_path / "d", split=SplitSettings(fractions=(1.0,)))
    assert dataset.train.labels.tolist() == [0.0, 1.0]


@pytest.mark.parametrize(
    ("bad", "shown"), [("2", "2"), ("", "nothing"), ("yes", "yes"), ("nan", "nan"), ("0.5", "0.5"), ("1e300", "1e300")]
)
def test_other_binary_labels_are_refused_with_their_line(tmp_path, bad, shown):
    (tmp_path / "valid.csv").write_text("n,click\n1,0\n2,1\n3," + bad + "\n")
    message = rf"Label 'click' must be 0 or 1; got {shown} in line 4 of valid.csv\. Map it first, or drop those rows\."
    with pytest.raises(DataError, match=message):
        prepare(tmp_path / "valid.csv", LABEL_SCHEMA, tmp_path / "d")
    assert [path.name for path in tmp_path.iterdir()] == ["valid.csv"]


def test_a_bad_row_of_a_frame_is_named_too(tmp_path):
    schema = Schema([Numeric(name="n")], Label(name="y", kind="real"), weight="w")
    good = pl.DataFrame({"n": [1.0, 2.0], "y": [0.5, -3.0], "w": [1.0, 0.0]})
    bad = {
        "y": (None, "Label 'y' must be a finite number in every row; got nothing in row 2"),
        "w": (-1.0, "Weight 'w' must be a finite number, 0 or more; got -1 in row 2"),
        "n": (float("inf"), "Column 'n' must hold finite numbers; got inf in row 2"),
    }
    for name, (value, message) in bad.items():
        frame = good.with_columns(pl.Series(name, [1.0, value]))
        with pytest.raises(DataError, match=message):
            prepare(frame, schema, tmp_path / "d")
    dataset = prepare(good, schema, tmp_path / "d", split=SplitSettings(fractions=(1.0,)))
    assert dataset.train.labels.tolist() == [0.5, -3.0] and dataset.train.weights.tolist() == [1.0, 0.0]


def test_bad_rows_can_be_left_out_and_are_counted(tmp_path):
    lines = ["n,click", "1,0", "2,7", "x,1", "4,1", "5,1,9", ",0"]
    (tmp_path / "t.csv").write_text("\n".join(lines) + "\n")
    table = open_table(tmp_path / "t.csv", on_error="skip")
    dataset = prepare(table, LABEL_SCHEMA, tmp_path / "d", split=SplitSettings(fractions=(1.0,)), on_error="skip")
    assert dataset.train.labels.tolist() == [0.0, 1.0, 0.0]
    skipped = dataset.manifest["source"]["skipped"]
    assert skipped["bad label 'click'"] == skipped["bad number in 'n'"] == 1 and sum(skipped.values()) == 3
    assert table.skipped.total() == 3


def test_a_missing_column_is_found_before_anything_is_written(tmp_path):
    with pytest.raises(
        SchemaError, match=r"Column 'click' of the schema is missing from data frame.*Did you mean 'clic'"
    ):
        prepare(pl.DataFrame({"n": [1], "clic": [0]}), LABEL_SCHEMA, tmp_path / "d")
    assert not list(tmp_path.iterdir())


def test_a_split_without_training_rows_is_refused(tmp_path):
    frame = pl.DataFrame({"n": [1], "click": [0]})
    settings = next(
        s for seed in range(99) if _only_row_tests(frame, s := SplitSettings(fractions=(0.1, 0.9), seed=seed))
    )
    with pytest.raises(DataError, match="Some rows must be left for training; got none of 1"):
        prepare(frame, LABEL_SCHEMA, tmp_path / "d", split=settings)
    assert not list(tmp_path.iterdir())


def _only_row_tests(frame, settings):
    return settings.assigner(open_table(frame))(next(open_table(frame).chunks()))[0] > 0


def test_a_disk_that_fills_up_while_reading_leaves_nothing(tmp_path, monkeypatch):
    def full(*args, **options):
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr("crossrank.data.spool.Spool.write", full)
    with pytest.raises(DataError, match="The disk is full"):
        prepare(clicks(50), SCHEMA, tmp_path / "d")
    assert not list(tmp_path.iterdir())


def test_progress_is_silent_where_stderr_is_no_terminal(tmp_path, capsys):
    prepare(clicks(50), SCHEMA, tmp_path / "d", progress=True)
    assert capsys.readouterr() == ("", "")


def test_a_killed_run_leaves_nothing_that_opens_and_the_next_one_cleans_up(tmp_path):
    clicks(200).write_csv(tmp_path / "t.csv")
    SCHEMA.save(tmp_path / "schema.json")
    program = f"""
import os, signal
from crossrank.data.prepare import prepare
from crossrank.data.spool import Spool
from crossrank.schema import Schema
write = Spool.write
Spool.write = lambda *chunk: (write(*chunk), os.kill(os.getpid(), signal.SIGKILL))
prepare({str(tmp_path / "t.csv")!r}, Schema.load({str(tmp_path / "schema.json")!r}), {str(tmp_path / "d")!r})
"""
    assert subprocess.run([sys.executable, "-c", program]).returncode == -signal.SIGKILL
    assert not (tmp_path / "d").exists() and list(tmp_path.glob("d.partial/spool/0"))
    prepare(tmp_path / "t.csv", SCHEMA, tmp_path / "d")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["d", "schema.json", "t.csv"]
    EncodedDataset.open(tmp_path / "d").verify()
