"""Sources of one's own: whatever has the methods of a part, and streams that can be read only once."""

from __future__ import annotations

import contextlib
import sqlite3
import threading

import numpy as np
import pandas as pd
import polars as pl
import pytest

import crossrank as cr
from crossrank.data import Part, Piece, SplitSettings, open_table
from crossrank.data.prepare import prepare
from crossrank.errors import DataError, SchemaError
from crossrank.schema import Categorical, Label, Numeric, Schema

SCHEMA = Schema([Categorical(name="x"), Numeric(name="n")], Label(name="click"))
FRAME = pl.DataFrame({"x": [f"v{i % 7}" for i in range(300)], "n": range(300), "click": [i % 2 for i in range(300)]})
QUICK = {"training": {"max_steps": 2, "batch_size": 64}, "model": {"embedding": {"dim": 2}, "deep": {"sizes": [4]}}}


class Query:
    """The rows of a database, asked anew for each pass."""

    name, unit, columns = "clicks.db", "row", ("x", "n", "click")

    def __init__(self, path):
        self.path = path

    def num_rows(self):
        return None

    def chunks(self, columns, rows, skipped):
        with contextlib.closing(sqlite3.connect(self.path)) as database:
            cursor, first = database.execute(f"select {', '.join(columns)} from clicks order by rowid"), 1
            while some := cursor.fetchmany(rows):
                numbers = range(first, first + len(some))
                yield Piece(pl.DataFrame(some, schema=list(columns), orient="row"), numbers, numbers[-1] / 300)
                first += len(some)


@pytest.fixture
def query(tmp_path):
    with contextlib.closing(sqlite3.connect(tmp_path / "clicks.db")) as database:
        database.execute("create table clicks (x text, n integer, click integer)")
        database.executemany("insert into clicks values (?, ?, ?)", FRAME.rows())
        database.commit()
    return Query(tmp_path / "clicks.db")


def pieces(size=70):
    """The frame in pieces, once, from whichever thread asks."""
    yield from FRAME.iter_slices(size)


def test_rows_of_a_database_go_the_way_of_a_data_frame(query, tmp_path):
    assert isinstance(query, Part)
    runs = [
        cr.train(source, into=tmp_path / f"{i}", schema=SCHEMA, config=QUICK) for i, source in enumerate((FRAME, query))
    ]
    assert runs[0].info["data_fingerprint"] == runs[1].info["data_fingerprint"]
    assert runs[1].predict(query).tolist() == runs[0].predict(FRAME).tolist()
    assert cr.evaluate(runs[1], query) == cr.evaluate(runs[0], FRAME)


@pytest.mark.parametrize(
    "split", [SplitSettings(), SplitSettings(method="time", column="n"), SplitSettings(method="time")]
)
def test_a_stream_that_can_be_read_only_once_is_prepared_like_its_rows(split, tmp_path):
    whole = prepare(FRAME, SCHEMA, tmp_path / "whole", split=split)
    table = open_table(pieces())
    assert table.head(5).rows() == FRAME.head(5).rows()
    streamed = prepare(table, SCHEMA, tmp_path / "streamed", split=split)
    assert streamed.num_rows == whole.num_rows
    for name in whole.num_rows:
        assert np.array_equal(streamed.split(name).categorical, whole.split(name).categorical)
        assert np.array_equal(streamed.split(name).labels, whole.split(name).labels)
        assert np.allclose(streamed.split(name).numeric, whole.split(name).numeric, rtol=0, atol=1e-6)


def test_a_stream_goes_through_training_evaluation_and_prediction(tmp_path):
    run = cr.train(pieces(), into=tmp_path / "run", config=QUICK, schema=SCHEMA)
    np.testing.assert_allclose(run.predict(pieces()), run.predict(FRAME), rtol=1e-6)  # products of other sizes
    assert cr.evaluate(run, pieces()) == pytest.approx(cr.evaluate(run, FRAME), rel=1e-6)


def test_a_second_pass_over_a_stream_gives_the_same_chunks_also_while_the_first_goes_on():
    table = open_table(pieces())
    first = table.chunks(["n"], rows=50)
    early = [next(first).frame for _ in range(2)]
    second = [(chunk.first_row, chunk.frame["n"].to_list()) for chunk in table.chunks(["n"], rows=50)]
    rest = [chunk.frame for chunk in first]
    assert pl.concat([*early, *rest])["n"].to_list() == FRAME["n"].to_list()
    assert [row for _, rows in second for row in rows] == FRAME["n"].to_list()
    assert second == [(chunk.first_row, chunk.frame["n"].to_list()) for chunk in table.chunks(["n"], rows=50)]
    assert table.num_rows() == 300


def test_what_a_stream_left_on_disk_goes_with_it():
    table = open_table(pieces())
    folder = table.parts[0].folder
    assert sum(chunk.frame.height for chunk in table.chunks()) == 300 and len(list(folder.iterdir())) == 5
    del table
    assert not folder.exists()


def test_a_stream_that_breaks_off_is_not_taken_for_a_shorter_one():
    def broken():
        yield FRAME.head(10)
        raise ConnectionError("lost")

    table = open_table(broken())
    with pytest.raises(ConnectionError, match="lost"):
        list(table.chunks())
    with pytest.raises(DataError, match=r"stream must go on to its end; it broke off after 10 rows"):
        list(table.chunks())


def test_streams_without_rows_and_of_several_shapes_are_refused():
    with pytest.raises(DataError, match=r"stream must have at least one data frame; got none"):
        open_table(iter(()))
    with pytest.raises(SchemaError, match=r"All frames of a stream must have the columns 'x', 'n', 'click'; got 'x'"):
        list(open_table(iter([FRAME, FRAME.select("x")])).chunks())
    with pytest.raises(DataError, match=r"or a Part; got NoneType"):
        list(open_table(iter([FRAME, None])).chunks())
    assert not [one for one in threading.enumerate() if one.name == "crossrank-prefetch"]


def test_a_pandas_frame_in_pieces_is_a_stream_too():
    frame = pd.DataFrame(FRAME.to_dict(as_series=False))
    assert open_table(frame.iloc[start : start + 100] for start in (0, 100, 200)).head().equals(FRAME)
    assert not isinstance(frame, Part)
