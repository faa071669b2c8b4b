"""Known public sets, as small copies of their formats and, where the folder CROSSRANK_DATA is given, for real."""

from __future__ import annotations

import gzip
import os
import zipfile
from pathlib import Path

import numpy as np
import polars as pl
import pytest

from crossrank.data.prepare import prepare
from crossrank.data.sources import SOURCES, avazu, criteo, movielens, open_source
from crossrank.data.splits import SplitSettings
from crossrank.data.table import Table, open_table
from crossrank.errors import ConfigError, CrossRankError, DataError, SchemaError

RATINGS = "1::10::5::978300760\n1::11::3::978300761\n2::10::1::978300762\n2::12::4::978300763\n"
USERS = "1::F::1::10::48067\n2::M::56::16::70072-1\n"
MOVIES = "10::Père (1995)::Drama|War\n11::B (1996)::Comedy\n12::C: part::Action\n"
AVAZU_ROW = {name: f"{name}-value" for name in avazu.COLUMNS} | {"click": "1", "hour": "14102923"}


def real(name: str) -> Path:
    folder = os.environ.get("CROSSRANK_DATA")
    if not folder:
        pytest.skip("needs the folder CROSSRANK_DATA")
    return Path(folder) / name


def every_row(table: Table, columns: list[str] | None = None) -> pl.DataFrame:
    return pl.concat([chunk.frame for chunk in table.chunks(columns)])


def criteo_line(label: int, seed: int) -> str:
    return "\t".join(
        [str(label), *(str(seed + i) if i % 3 else "" for i in range(13)), *(f"{seed * i:08x}" for i in range(26))]
    )


@pytest.fixture
def small_movielens(tmp_path, monkeypatch):
    monkeypatch.setattr(movielens, "PUBLISHED_ROWS", {"ratings.dat": 4, "users.dat": 2, "movies.dat": 3})
    folder = tmp_path / "ml-1m"
    folder.mkdir()
    for name, text in (("ratings.dat", RATINGS), ("users.dat", USERS), ("movies.dat", MOVIES)):
        (folder / name).write_bytes(text.encode("latin-1"))
    return folder


def test_criteo_is_opened_from_the_file_its_gzip_or_its_folder(tmp_path):
    text = "".join(criteo_line(row % 2, row) + "\n" for row in range(20)).encode()
    (tmp_path / "train.txt").write_bytes(text)
    (tmp_path / "test.txt").write_bytes(b"other rows without label\n")
    (tmp_path / "day.gz").write_bytes(gzip.compress(text))
    tables = [open_source("criteo", [tmp_path / name])[0] for name in ("train.txt", "day.gz", "")]
    for table in tables:
        assert table.columns == criteo.COLUMNS and len(table.columns) == 40
        assert every_row(table).equals(every_row(tables[0]))
    assert every_row(tables[0]).height == 20
    assert every_row(tables[0])["I1"].null_count() == 20


def test_criteo_is_normalised_as_in_the_paper():
    shifts = {column.name: column.log_shift for column in criteo.schema().numeric}
    assert shifts == {f"I{index}": 4.0 if index == 2 else 1.0 for index in range(1, 14)}
    assert not any(column.standardize for column in criteo.schema().numeric)
    assert len(criteo.schema().categorical) == 26
    assert {column.min_count for column in criteo.schema(min_count=3).categorical} == {3}


def test_the_richer_criteo_differs_from_the_papers_in_its_numbers_alone(tmp_path):
    lines = [criteo_line(row % 2, row).split("\t") for row in range(2_100)]
    for row, cells in enumerate(lines):
        cells[1] = str(row % 50) if row % 3 else ""
    (tmp_path / "train.txt").write_text("".join("\t".join(cells) + "\n" for cells in lines))
    (table, paper, split), (same, rich, divided) = (open_source(name, [tmp_path]) for name in ("criteo", "criteo-auto"))
    assert every_row(same).equals(every_row(table)) and divided == split
    assert (rich.categorical, rich.label) == (paper.categorical, paper.label)
    assert [one.log_shift for one in rich.numeric] == [one.log_shift for one in paper.numeric]
    encoder = prepare(same, rich, tmp_path / "rich", split=divided, progress=False).encoder
    assert encoder.schema.numeric[0].encoding == "scalar+values+pieces"
    missing, zero = encoder.encode_rows([dict.fromkeys(criteo.COLUMNS, cell) for cell in (None, "0")]).categorical
    assert missing[26] == 0 != zero[26]  # an id of its own, after those of the 26 categories


def test_criteo_trains_on_the_first_six_sevenths_and_halves_the_rest_by_chance():
    table = open_table({"row": range(14_000)})
    parts = np.concatenate(list(map(criteo.SPLIT.assigner(table), table.chunks(rows=999))))
    assert (parts[:12_000] == 0).all()
    assert set(parts[12_000:]) == {1, 2}
    assert abs((parts == 1).sum() - 1000) < 100  # 4.5 deviations of a fair coin
    changes = np.flatnonzero(np.diff(parts[12_000:]))
    assert 800 < len(changes) < 1200  # mixed, not one after the other


def test_time_then_random_also_goes_by_a_column_and_by_the_ratio_of_the_later_fractions():
    times = np.random.default_rng(0).permutation(10_000)
    split = SplitSettings(method="time-then-random", column="time", fractions=(0.5, 0.4, 0.1))
    table = open_table({"time": times})
    parts = np.concatenate(list(map(split.assigner(table), table.chunks(rows=999))))
    assert ((parts == 0) == (times < 5_000)).all()
    assert (parts == 2).sum() == pytest.approx(1_000, abs=130)  # 4.6 deviations
    only_train = SplitSettings(method="time-then-random", fractions=(1.0,)).assigner(table)
    assert (only_train(next(table.chunks())) == 0).all()


def test_movielens_joins_its_files_and_leaves_threes_out(small_movielens, tmp_path):
    with zipfile.ZipFile(tmp_path / "ml-1m.zip", "w") as archive:
        for name in movielens.FILES:
            archive.write(small_movielens / name, f"ml-1m/{name}")
    expected = [
        (1, "1", "10", "F", "1", "10", "48067", "Drama|War", 978300760),
        (0, "2", "10", "M", "56", "16", "70072-1", "Drama|War", 978300762),
        (1, "2", "12", "M", "56", "16", "70072-1", "Action", 978300763),
    ]
    for path in (small_movielens, tmp_path, tmp_path / "ml-1m.zip"):
        table, schema, split = open_source("movielens-1m", [path])
        assert every_row(table).rows() == expected
        assert set(schema.required) <= set(table.columns)
        assert (schema.group, split.fractions) == ("user", (0.8, 0.1, 0.1))
    assert schema.names == ("user", "movie", "gender", "age", "occupation", "zip")
    assert movielens.schema(genres=True).names[-1] == "genres"


@pytest.mark.parametrize(
    ("name", "text", "message"),
    [
        ("ratings.dat", RATINGS + "1::12::5::1\n", r"ratings\.dat of MovieLens-1M has 4 lines; got 5"),
        ("users.dat", "1::F::1::10::48067\n", r"users\.dat of MovieLens-1M has 2 lines; got 1"),
        ("movies.dat", "", r"Line 1 of movies\.dat must have 3 fields"),
        ("ratings.dat", RATINGS.replace("2::12::4", "2::12"), r"Line 4 of ratings\.dat must have 4 fields"),
        ("ratings.dat", RATINGS.replace("::5::", "::6::"), "must be 1 to 5 .* 1 are not"),
        ("ratings.dat", RATINGS.replace("2::12", "2::99"), "known user and film; 1 are not"),
    ],
)
def test_a_movielens_that_is_not_whole_is_refused(small_movielens, name, text, message):
    (small_movielens / name).write_bytes(text.encode("latin-1"))
    with pytest.raises(DataError, match=f"{message}.*GroupLens"):
        movielens.open_set(small_movielens)


def test_a_movielens_archive_must_be_one(small_movielens, tmp_path):
    (tmp_path / "text.zip").write_text("no zip")
    with zipfile.ZipFile(tmp_path / "other.zip", "w") as archive:
        archive.writestr("readme", "x")
    with pytest.raises(DataError, match="cannot be read: File is not a zip file"):
        movielens.open_set(tmp_path / "text.zip")
    with pytest.raises(DataError, match=r"holds no ml-1m/ratings\.dat"):
        movielens.open_set(tmp_path / "other.zip")
    (small_movielens / "users.dat").unlink()
    with pytest.raises(DataError, match=r"'users\.dat'.*GroupLens"):
        movielens.open_set(small_movielens)


def test_avazu_gets_time_of_day_and_weekday(tmp_path):
    pl.DataFrame([AVAZU_ROW, AVAZU_ROW | {"hour": "14110100"}]).write_csv(tmp_path / "train.csv")
    table, schema, _ = open_source("avazu", [tmp_path])
    assert set(schema.required) <= set(table.columns)
    assert {"id", "hour"} & set(schema.names) == set()
    assert len(schema.names) == 23
    wednesday_saturday = [("3", "14102923", "23"), ("6", "14110100", "00")]
    assert every_row(table, ["weekday", "hour", "hour_of_day"]).rows() == wednesday_saturday
    assert every_row(table, ["hour_of_day"]).columns == ["hour_of_day"]
    assert every_row(table, ["click"]).rows() == [("1",), ("1",)]


@pytest.mark.parametrize("hour", ["14102924", "1410292", "", "14133101", "hour", "2014102923"])
def test_an_hour_that_avazu_does_not_write_is_refused_with_its_line(tmp_path, hour):
    pl.DataFrame([AVAZU_ROW, AVAZU_ROW | {"hour": hour}]).write_csv(tmp_path / "train.csv")
    with pytest.raises(DataError, match=r"'hour' must read YYMMDDHH; got .* in line 3 of train\.csv"):
        every_row(avazu.open_set(tmp_path))


def test_a_file_that_is_another_set_is_refused(tmp_path):
    (tmp_path / "train.csv").write_text("id,hour\n1,14102100\n")
    (tmp_path / "train.txt").write_text("1,2,3\n")
    with pytest.raises(SchemaError, match=r"train\.csv lacks 'click'"):
        avazu.open_set(tmp_path)
    with pytest.raises(DataError, match=r"cut at '\\t'.*cut at ','"):
        criteo.open_set(tmp_path)


@pytest.mark.parametrize("name", SOURCES)
def test_where_nothing_is_the_message_says_who_offers_the_set(tmp_path, name):
    with pytest.raises(DataError, match=r"GroupLens|Criteo|Kaggle"):
        open_source(name, [tmp_path / "nothing"])
    with pytest.raises(DataError, match=r"GroupLens|Criteo|Kaggle"):
        open_source(name, [tmp_path])


def test_an_unknown_set_and_several_paths_are_refused(tmp_path):
    with pytest.raises(ConfigError, match="Did you mean 'criteo'"):
        open_source("crieto", [tmp_path])
    with pytest.raises(ConfigError, match="one file or folder; got 2"):
        open_source("criteo", [tmp_path, tmp_path])
    (tmp_path / "dac.tar.gz").write_bytes(b"")
    with pytest.raises(CrossRankError, match="Unpack it first"):
        criteo.open_set(tmp_path / "dac.tar.gz")


@pytest.mark.parametrize(
    ("name", "file", "rows"), [("criteo", "criteo_sample.tsv.gz", 14_866), ("avazu", "avazu_sample.csv.gz", 9_999)]
)
def test_every_row_of_the_real_samples_is_accounted_for(name, file, rows):
    path = real(file)
    table, schema, _ = open_source(name, [path])
    frame = every_row(table, list(schema.required))
    assert frame.height == rows
    assert not table.skipped
    assert frame[schema.label.name].is_in(["0", "1"]).all()
    with gzip.open(path, "rt", encoding="utf-8") as stream:
        separator = "\t" if name == "criteo" else ","
        raw = [line.rstrip("\n").split(separator) for line in stream][0 if name == "criteo" else 1 :]
    for column, values in zip(table.columns, zip(*raw, strict=True), strict=False):
        if column in frame.columns:
            assert frame[column].to_list() == [value or None for value in values]


def test_the_real_movielens_has_the_published_numbers():
    frame = every_row(movielens.open_set(real("ml-1m.zip")))
    assert frame.height == 739_012
    assert frame["user"].n_unique() <= 6_040
    assert frame["timestamp"].min() == 956_703_932
    assert frame.null_count().sum_horizontal().item() == 0


@pytest.mark.parametrize(
    ("name", "file", "rows"),
    [
        ("criteo", "criteo_sample.tsv.gz", 14_866),
        ("avazu", "avazu_sample.csv.gz", 9_999),
        ("movielens-1m", "ml-1m.zip", 739_012),
    ],
)
def test_the_real_sets_can_be_prepared(tmp_path, name, file, rows):
    table, schema, split = open_source(name, [real(file)])
    dataset = prepare(table, schema, tmp_path / "dataset", split=split, progress=False)
    counts = [dataset.split(part).num_rows for part in ("train", "valid", "test")]
    assert sum(counts) == rows
    assert counts[0] == pytest.approx(rows * split.fractions[0], rel=0.02)
