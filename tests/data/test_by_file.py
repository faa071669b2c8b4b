"""What a cluster makes of the files of a table, by tasks that run in this process; tests/distributed has Ray itself."""

from __future__ import annotations

import gzip

import numpy as np
import polars as pl
import pytest

from crossrank.data import (
    EncodedDataset,
    SplitSettings,
    distinct,
    number_reader,
    open_splits,
    open_table,
    scaling,
)
from crossrank.data.by_file import Job, prepare_by_file, read_file
from crossrank.data.prepare import prepare
from crossrank.data.progress import Phases
from crossrank.data.writer import DatasetWriter
from crossrank.errors import DataError
from crossrank.schema import Categorical, Date, Label, Multivalent, Numeric, Schema

FEATURES = [
    Categorical(name="country"),
    Categorical(name="page", min_count=2, max_size=900),
    Categorical(name="agent", hash_size=50),
    Multivalent(name="tags"),
    Numeric(name="price"),
    Numeric(name="clicks", log_shift=1.0, encoding="scalar"),
    Numeric(name="size", encoding="values"),
    Numeric(name="depth", encoding="pieces"),
    Numeric(name="few"),
    Date(name="when", parts=("hour", "age"), reference="2026-02-01"),
]
CLICK = Schema(FEATURES, Label(name="click"), weight="weight", group="user")


class InThisProcess:
    """Tasks that are done at once."""

    width = 2

    def put(self, value):
        return value

    def get(self, made):
        return made

    def start(self, work, *args, parts=None):
        return work(*args)


def rows(count, seed):
    rng = np.random.default_rng(seed)
    price = rng.gamma(2.0, 30.0, count).round(4)
    return pl.DataFrame(
        {
            "click": rng.integers(0, 2, count),
            "like": [None if value == 2 else value for value in rng.integers(0, 3, count)],
            "paid": rng.normal(3.0, 1.0, count).round(3),
            "country": [None if value > 30 else f"c{value}" for value in rng.zipf(1.4, count)],
            "page": [f"/a long path/{value}" for value in rng.zipf(1.2, count) % 2000],
            "agent": [f"agent {value}" for value in rng.integers(0, 300, count)],
            "tags": ["|".join(f"t{tag}" for tag in rng.integers(0, 9, size)) for size in rng.integers(0, 4, count)],
            "price": [None if value < 3 else value for value in price],
            "clicks": rng.poisson(4, count),
            "size": rng.lognormal(0, 2, count),  # seventeen digits: no words
            "depth": rng.integers(-50, 50, count),
            "few": [None if value == 0 else value for value in rng.integers(0, 3, count)],
            "when": [f"2026-01-{1 + value // 24:02d} {value % 24:02d}:00:00" for value in rng.integers(0, 700, count)],
            "weight": rng.integers(0, 3, count) / 2,
            "user": [None if value == 0 else f"u{value}" for value in rng.integers(0, 400, count)],
            "split": np.array(["train", "valid", "test"])[rng.choice(3, count, p=[0.8, 0.1, 0.1])],
        }
    )


@pytest.fixture(scope="session")
def files(tmp_path_factory):
    """A folder of files: of several chunks, of a few rows, of none, packed, quoted."""
    folder = tmp_path_factory.mktemp("clicks")
    rows(67_000, 1).write_csv(folder / "1.csv")
    rows(3, 2).write_csv(folder / "2.csv")
    rows(0, 3).write_csv(folder / "3.csv")
    (folder / "4.csv.gz").write_bytes(gzip.compress(rows(5_000, 4).write_csv().encode()))
    rows(9_000, 5).write_csv(folder / "5.csv", quote_style="always")
    return folder


def assert_same(made, expected):
    """Every file of two datasets, byte for byte."""
    names = {path.relative_to(made) for path in made.rglob("*")}
    assert names == {path.relative_to(expected) for path in expected.rglob("*")}
    for name in names:
        if (made / name).is_file():
            assert (made / name).read_bytes() == (expected / name).read_bytes(), name


def prepare_here(source, schema, into, *, split=None, skip=False):
    table = open_table(source, on_error="skip" if skip else "raise")
    settings, _ = (split or SplitSettings()).decided(table, schema)
    with DatasetWriter(into, schema) as writer, Phases(shown=False) as phases:
        prepare_by_file(Job(table, schema, settings, skip), writer, phases, InThisProcess())
    return EncodedDataset.open(into), table


SPLITS = {
    "random": SplitSettings(method="random", seed=3),
    "time": SplitSettings(method="time", column="when"),
    "time-then-random": SplitSettings(method="time-then-random", fractions=(0.7, 0.2, 0.1)),
    "group": SplitSettings(method="group", column="user"),
    "column": SplitSettings(method="column", column="split"),
}


@pytest.mark.parametrize("split", SPLITS)
def test_files_read_apart_make_the_dataset_of_one_process_byte_for_byte(files, tmp_path, split):
    source = files if split == "random" else sorted(files.iterdir())[1:]  # the largest once
    prepare(source, CLICK, tmp_path / "one", split=SPLITS[split])
    prepare_here(source, CLICK, tmp_path / "apart", split=SPLITS[split])
    assert_same(tmp_path / "apart", tmp_path / "one")


def test_so_do_numbers_of_which_samples_are_kept_and_texts_that_are_too_many_to_remember(files, tmp_path, monkeypatch):
    monkeypatch.setattr(number_reader, "MOST_REMEMBERED", 500)
    monkeypatch.setattr(distinct, "MOST_DISTINCT", 2000)
    monkeypatch.setattr(scaling, "MOST_KEPT", 3000)
    schema = Schema(FEATURES, Label(name="paid", kind="real"))
    prepare(files, schema, tmp_path / "one")
    prepare_here(files, schema, tmp_path / "apart")
    assert_same(tmp_path / "apart", tmp_path / "one")


def test_so_do_files_that_are_splits(files, tmp_path):
    table = open_splits(train=[files / "1.csv", files / "2.csv"], test=files / "5.csv")
    prepare(table, CLICK, tmp_path / "one")
    prepare_here(table, CLICK, tmp_path / "apart")
    assert_same(tmp_path / "apart", tmp_path / "one")


def test_so_do_several_labels(files, tmp_path):
    schema = Schema(FEATURES[:5], Label(columns=("click", "like")))
    source = sorted(files.iterdir())[1:]
    prepare(source, schema, tmp_path / "one")
    prepare_here(source, schema, tmp_path / "apart")
    assert_same(tmp_path / "apart", tmp_path / "one")


def test_so_do_parquet_files(tmp_path):
    (tmp_path / "files").mkdir()
    for number in range(3):
        rows(2_000, number).write_parquet(tmp_path / "files" / f"{number}.parquet")
    prepare(tmp_path / "files", CLICK, tmp_path / "one")
    prepare_here(tmp_path / "files", CLICK, tmp_path / "apart")
    assert_same(tmp_path / "apart", tmp_path / "one")


def test_so_do_files_of_which_rows_are_left_out_and_all_are_counted(files, tmp_path):
    (tmp_path / "files").mkdir()
    for number, path in enumerate([files / "2.csv", files / "5.csv"] * 2):
        lines = path.read_text().splitlines()
        lines[2:2] = ["a,short,line", lines[1].replace(lines[1].split(",")[0], "7", 1)]
        (tmp_path / "files" / f"{number}.csv").write_text("\n".join(lines) + "\n")
    table = open_table(tmp_path / "files", on_error="skip")
    prepare(table, CLICK, tmp_path / "one", on_error="skip")
    _, found = prepare_here(tmp_path / "files", CLICK, tmp_path / "apart", skip=True)
    assert_same(tmp_path / "apart", tmp_path / "one")
    assert found.skipped == table.skipped
    assert sorted(table.skipped.values()) == [4, 4]


def test_a_file_that_is_read_again_has_the_same_codes(files):
    """So a task that is lost can be done again while others go on with what it had made."""
    table = open_table(files)
    job = Job(table, CLICK, SPLITS["group"], skip=False)
    assign = job.settings.assigner(table)
    first, second = (read_file(job, assign, 0, 0) for _ in range(2))
    for (values, counts), (others, again) in zip(first[4:8], second[4:8], strict=True):
        assert np.array_equal(counts, again)
        assert list(values) == list(others)
    for one, other in zip(first[8:], second[8:], strict=True):
        assert np.array_equal(one[0], other[0])


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda lines: lines[:1], "must have at least one row; got none"),
        (lambda lines: [*lines[:5], f"x{lines[5]}"], "Label 'click' must be 0 or 1; got x. in line 6 of 0.csv"),
    ],
)
def test_what_one_process_refuses_is_refused_in_the_same_words(files, tmp_path, change, words):
    lines = (files / "1.csv").read_text().splitlines()[:9]
    (tmp_path / "files").mkdir()
    for number in range(2):
        (tmp_path / "files" / f"{number}.csv").write_text("\n".join(change(lines)) + "\n")
    with pytest.raises(DataError, match=words) as one:
        prepare(tmp_path / "files", CLICK, tmp_path / "one")
    with pytest.raises(DataError) as apart:
        prepare_here(tmp_path / "files", CLICK, tmp_path / "apart")
    assert str(apart.value) == str(one.value)
    assert not (tmp_path / "apart").exists()


def test_rows_that_are_in_no_file_are_refused(tmp_path):
    with pytest.raises(DataError, match="reads files"):
        prepare_here(rows(50, 1), CLICK, tmp_path / "apart")
