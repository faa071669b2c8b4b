"""Dates and times, on every way from a cell to ids and numbers."""

from __future__ import annotations

import calendar
import datetime
import subprocess
import sys

import numpy as np
import pandas as pd
import polars as pl
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from crossrank.data.derived import NAMES, parse_dates, part_of_times
from crossrank.data.drafting import draft_table
from crossrank.data.encoder import Encoder
from crossrank.data.prepare import encode_table, prepare
from crossrank.data.splits import SplitSettings
from crossrank.data.table import open_table
from crossrank.errors import DataError
from crossrank.schema import Categorical, Date, Label, Schema
from crossrank.schema.dates import EPOCH, time_of_value

ALL = SplitSettings(fractions=(1.0,))
PARTS = ("hour", "minute", "weekday", "month", "day_of_year", "age")
WHEN = Date(name="when", parts=PARTS, reference="2026-02-01")
SCHEMA = Schema([WHEN, Categorical(name="user")], Label(name="click"))
moments = st.datetimes(datetime.datetime(1901, 1, 1), datetime.datetime(2199, 1, 1))


def by_the_calendar(moment: datetime.datetime) -> list[object]:
    """The parts as Python's calendar has them."""
    age = (datetime.datetime(2026, 2, 1) - moment).total_seconds() / 86_400
    weekday, month = calendar.day_abbr[moment.weekday()], calendar.month_abbr[moment.month]
    return [str(moment.hour), 60 * moment.hour + moment.minute, weekday, month, f"{moment:%m-%d}", age]


@settings(max_examples=100, deadline=None)
@given(st.lists(moments, min_size=1, max_size=9))
def test_parts_are_those_of_the_calendar(some):
    times = np.array([(moment - EPOCH) // datetime.timedelta(microseconds=1) for moment in some])
    found = [part_of_times(times, part, WHEN.reference_time).tolist() for part in PARTS]
    named = [[NAMES[p][v] for v in values] if p in NAMES else values for p, values in zip(PARTS, found, strict=True)]
    for row, moment in zip(zip(*named, strict=True), some, strict=True):
        expected = by_the_calendar(moment)
        assert list(row[:5]) == expected[:5]
        assert row[5] == pytest.approx(expected[5], rel=1e-12, abs=1e-9)


def table_of(rows: int = 60) -> list[datetime.datetime | None]:
    start = datetime.datetime(2026, 1, 1, 0, 30)
    return [None if i % 7 == 3 else start + datetime.timedelta(hours=17 * i, minutes=i) for i in range(rows)]


SPELLINGS = {
    "iso": lambda moment: moment.isoformat(),
    "iso with a blank": lambda moment: moment.isoformat(" "),
    "iso in UTC": lambda moment: f"{moment.isoformat()}Z",
    "iso with a zone": lambda moment: f"{moment.isoformat()}+02:00",
    "%d/%m/%Y %H:%M": lambda moment: f"{moment.day}/{moment.month}/{moment.year} {moment:%H:%M}",
    "%m/%d/%Y %H:%M": lambda moment: f"{moment:%m/%d/%Y %H:%M}",
    "%d %b %Y %H:%M": lambda moment: f"{moment:%d %b %Y %H:%M}",
    "%b %d, %Y %I:%M %p": lambda moment: f"{moment:%b %d, %Y %I:%M %p}",
    "unix": lambda moment: calendar.timegm(moment.timetuple()),
    "unix-ms": lambda moment: 1000 * calendar.timegm(moment.timetuple()),
    "unix-us": lambda moment: str(1_000_000 * calendar.timegm(moment.timetuple())),
    "unix-ns": lambda moment: 1_000_000_000 * calendar.timegm(moment.timetuple()),
    "unix as a float": lambda moment: float(calendar.timegm(moment.timetuple())),
    "python": lambda moment: moment,
}


def schema_of(spelling: str) -> Schema:
    form = spelling.partition(" ")[0]
    form = spelling if "%" in spelling else form if form.startswith("unix") else "iso"
    return Schema([Date(name="when", format=form, parts=PARTS, reference="2026-02-01")], Label(name="click"))


@pytest.mark.parametrize("spelling", SPELLINGS)
def test_each_spelling_is_encoded_alike_from_frames_files_and_dictionaries(tmp_path, spelling):
    moments = table_of()
    click = [i % 2 for i in range(len(moments))]
    truth = {WHEN.feature(part): [] for part in PARTS}
    for moment in moments:
        for part, value in zip(PARTS, by_the_calendar(moment) if moment else [None] * 6, strict=True):
            truth[WHEN.feature(part)].append(value)
    expected = Encoder.fit(pl.DataFrame({**truth, "click": click}), _plain(schema_of("iso")))
    plain = expected.encode(pl.DataFrame(truth))
    schema = schema_of(spelling)
    cells = [None if moment is None else SPELLINGS[spelling](moment) for moment in moments]
    frame = pl.DataFrame({"when": cells, "click": click})
    encoder = Encoder.fit(frame, schema)
    ways = [encoder.encode(frame), encoder.encode_rows([{"when": cell} for cell in cells])]
    if spelling != "python":
        frame.write_csv(tmp_path / "a.csv")
        dataset = prepare(tmp_path / "a.csv", schema, tmp_path / "one", split=ALL, progress=False)
        assert dataset.encoder.fingerprint == encoder.fingerprint
        ways += [dataset.train.rows.encoded, encode_table(encoder, tmp_path / "a.csv").rows.encoded]
    for rows in ways:
        assert np.array_equal(rows.categorical, plain.categorical)
        assert np.array_equal(rows.numeric, ways[0].numeric)
        assert np.abs(rows.numeric - plain.numeric).max() < 1e-5
    assert (ways[0].categorical[3] == 0).all()  # missing has an id of its own


def _plain(schema: Schema) -> Schema:
    """The same features as columns of their own."""
    return Schema([type(c)(name=c.name) for c in (*schema.categorical, *schema.numeric)], schema.label)


@pytest.mark.parametrize("unit", ["ms", "us", "ns"])
@pytest.mark.parametrize("zone", [None, "UTC", "America/New_York"])
def test_dates_of_polars_pandas_and_numpy_are_read_by_the_clock_they_show(unit, zone):
    moments = table_of()
    column = pl.Series("when", moments, pl.Datetime(unit)).dt.replace_time_zone(zone)
    expected = Encoder.fit(pl.DataFrame({"when": moments}), schema_of("python"))
    rows = expected.encode(pl.DataFrame({"when": moments}))
    cells = {
        "polars": column.to_frame(),
        "pandas": open_table(pd.DataFrame({"when": pd.Series(moments).dt.tz_localize(zone)})).head(),
    }
    for frame in cells.values():
        found = expected.encode(frame)
        assert np.array_equal(found.categorical, rows.categorical) and np.array_equal(found.numeric, rows.numeric)
    stamps = [np.datetime64("NaT") if m is None else np.datetime64(m).astype(f"datetime64[{unit}]") for m in moments]
    for values in (stamps, [pd.NaT if m is None else pd.Timestamp(m) for m in moments], column.to_list()):
        found = expected.encode_rows([{"when": value} for value in values])
        assert np.array_equal(found.categorical, rows.categorical) and np.array_equal(found.numeric, rows.numeric)


def test_days_are_read_from_dates_and_from_numbers():
    days = [datetime.date(2014, 10, 1 + i % 28) for i in range(40)]
    schema = Schema([Date(name="day", format="%Y%m%d", parts=("weekday", "day_of_year"))], Label(name="click"))
    encoder = Encoder.fit(pl.DataFrame({"day": days}), schema)
    numbers = [int(f"{day:%Y%m%d}") for day in days]
    for cells in (numbers, [float(n) for n in numbers], [str(n) for n in numbers]):
        assert np.array_equal(
            encoder.encode(pl.DataFrame({"day": cells})).categorical[:, 0],
            encoder.encode_rows([{"day": day} for day in days]).categorical[:, 0],
        )


BAD = ["2026-13-01", "yesterday", "1512120012", "01/02/2026", "2026-01-01Tten", True, 3.5, [1], 10**30]


@pytest.mark.parametrize("cell", BAD, ids=repr)
def test_what_is_no_date_is_refused_with_its_place_and_a_way_out(tmp_path, cell):
    encoder = Encoder.fit(pl.DataFrame({"when": ["2026-01-01", "2026-01-02"], "user": ["a", "b"]}), SCHEMA)
    with pytest.raises(
        DataError, match=r"Column 'when' must hold dates or times in the format iso; got .* in row 2"
    ) as caught:
        encoder.encode_rows([{"when": None, "user": "a"}, {"when": cell, "user": "b"}])
    assert '"missing"' in caught.value.hint and '"format"' in caught.value.hint
    if isinstance(cell, str):
        (tmp_path / "a.csv").write_text(f"click,user,when\n0,a,2026-01-01\n1,b,{cell}\n")
        with pytest.raises(DataError, match=r"in line 3 of a\.csv"):
            prepare(tmp_path / "a.csv", SCHEMA, tmp_path / "one", progress=False)


near_iso = st.from_regex(
    r"[0-2][0-9]{3}-[01][0-9]-[0-3][0-9]"
    r"([T ][0-2][0-9]:[0-6][0-9]:[0-6][0-9](\.[0-9]{1,6})?(Z|[+-][0-2][0-9]:[0-7][0-9])?)?",
    fullmatch=True,
)
numbers = st.one_of(st.integers(-(10**17), 10**17), st.integers(0, 3 * 10**9), st.integers(-(10**6), 3 * 10**12))


@settings(max_examples=200, deadline=None)
@given(st.data(), st.sampled_from(["iso", "unix", "unix-ms", "unix-us", "unix-ns"]))
def test_columns_and_single_values_are_read_alike_whatever_they_hold(data, form):
    date = Date(name="when", format=form)
    values = data.draw(st.lists(st.none() | (near_iso if form == "iso" else numbers), min_size=1, max_size=8))
    texts = [None if value is None else str(value) for value in values]
    columns = [pl.Series("when", texts, pl.String)]
    columns += [pl.Series("when", values, pl.Int64)] if form != "iso" else []
    for column in columns:
        times, missing, bad = parse_dates(column, date)
        for row, value in enumerate(column.to_list()):
            try:
                expected = time_of_value(value, date)
            except (ValueError, OverflowError):
                assert bad[row]
                continue
            assert not bad[row] and missing[row] == (expected is None) and times[row] == (expected or 0)


def test_rows_with_a_bad_date_are_left_out_and_counted_where_asked(tmp_path):
    lines = [f"{i % 2},u{i % 3},2026-01-{1 + i % 28:02d}" for i in range(60)]
    (tmp_path / "a.csv").write_text("\n".join(["click,user,when", *lines, "1,u1,soon"]) + "\n")
    made = prepare(tmp_path / "a.csv", SCHEMA, tmp_path / "one", split=ALL, progress=False, on_error="skip")
    assert made.manifest["source"]["skipped"] == {"bad date in 'when'": 1} and made.train.num_rows == 60


def test_a_column_of_lists_is_no_column_of_dates():
    with pytest.raises(DataError, match=r"Column 'when' must hold dates or times; got List\(Int64\)"):
        Encoder.fit(pl.DataFrame({"when": [[1], [2]]}), schema_of("iso"))


def test_texts_listed_as_missing_count_as_empty_cells():
    schema = Schema([Date(name="when", missing=("0000-00-00", "never"))], Label(name="click"))
    cells = ["2026-01-01", "0000-00-00", "Never ", None, ""]
    encoder = Encoder.fit(pl.DataFrame({"when": cells}), schema)
    expected = encoder.encode_rows([{"when": cell} for cell in ["2026-01-01", None, None, None, None]])
    for rows in (encoder.encode(pl.DataFrame({"when": cells})), encoder.encode_rows([{"when": c} for c in cells])):
        assert np.array_equal(rows.categorical, expected.categorical)
    assert encoder.counts("when.hour").tolist() == [4, 0, 1]


def test_numbers_among_the_parts_may_fill_several_slots_which_the_schema_keeps(tmp_path):
    when = Date(name="when", parts=PARTS, reference="2026-02-01", encodings={"age": "scalar+values+pieces"})
    frame = pl.DataFrame({"when": table_of(200), "click": [0, 1] * 100})
    made = prepare(frame, Schema([when], Label(name="click")), tmp_path / "one", split=ALL, progress=False)
    encodings = made.encoder.schema.features[0].encodings
    assert encodings["age"] == "scalar+values+pieces" and "auto" not in encodings.values()
    assert "when.age" in {feature.column for feature in made.encoder.features if feature.name != feature.column}
    rows = made.encoder.encode_rows(frame.to_dicts())
    assert np.array_equal(rows.numeric, made.train.numeric) and np.array_equal(rows.categorical, made.train.categorical)
    assert Encoder.load(tmp_path / "one" / "encoder").fingerprint == made.encoder.fingerprint


def test_parts_survive_saving_and_need_no_polars(tmp_path):
    frame = pl.DataFrame({"when": table_of(), "user": ["a", "b"] * 30})
    encoder = Encoder.fit(frame, SCHEMA)
    encoder.save(tmp_path)
    assert Encoder.load(tmp_path).fingerprint == encoder.fingerprint
    program = f"""
import sys
sys.modules["polars"] = None
from crossrank.data import Encoder
rows = Encoder.load({str(tmp_path)!r}).encode_rows([{{"when": "2026-01-01T00:30", "user": "a"}}])
print(rows.categorical.tolist(), rows.numeric.tolist())
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    rows = encoder.encode(frame.head(1))
    assert done.stdout.strip() == f"{rows.categorical.tolist()} {rows.numeric.tolist()}"


def test_the_draft_of_a_table_in_order_of_time_knows_the_range_of_all_rows(tmp_path):
    start = datetime.datetime(2025, 1, 1)
    when = [start + datetime.timedelta(minutes=i) for i in range(10_000)] + [start + datetime.timedelta(days=400)]
    frame = pl.DataFrame({"when": when, "click": [i % 2 for i in range(10_001)]})
    frame.write_csv(tmp_path / "a.csv")
    for table in (frame, tmp_path / "a.csv"):
        (date,) = draft_table(open_table(table)).features
        assert (date.parts, date.reference) == (PARTS, "2026-02-05")
    assert Schema.infer(frame).features[0].parts == PARTS
    assert Schema.infer(frame.head(10_000)).features[0].parts == ("hour", "minute", "age")
