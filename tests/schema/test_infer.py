"""What a drafted schema makes of the columns people have."""

from __future__ import annotations

import datetime
import random

import polars as pl
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from crossrank.schema import Categorical, Date, Multivalent, Numeric, Schema
from crossrank.schema.draft import draft_schema

ROWS = 400
GENRES = ["Action", "Comedy", "Drama", "Horror", "Sci-Fi", "War"]


def draw(make, *, rows=ROWS, seed=0):
    source = random.Random(seed)
    return [make(source) for _ in range(rows)]


def infer(column, *, name="thing", beside=True):
    """The one drafted column, or None where it was left out."""
    table = {name: column, "click": [i % 2 for i in range(len(column))]}
    if beside:
        table["other"] = [i / 7 for i in range(len(column))]
    features = {feature.name: feature for feature in draft_schema(table).features}
    return features.get(name)


def test_text_that_repeats_is_categorical():
    assert infer(draw(lambda r: r.choice(["de", "fr", "jp"]))) == Categorical(name="thing")


def test_values_seen_once_train_the_id_of_the_unseen():
    users = draw(lambda r: f"u{int(r.paretovariate(0.5))}")
    assert infer(users) == Categorical(name="thing", min_count=2)
    assert infer(["a", "b", "c"]) == Categorical(name="thing", min_count=1)


def test_numbers_with_fractions_are_numeric_also_as_text():
    prices = draw(lambda r: round(r.uniform(1, 9), 2))
    assert infer(prices) == Numeric(name="thing")
    assert infer([str(price) for price in prices]) == Numeric(name="thing")
    assert infer([f" {price}" for price in prices]) == Numeric(name="thing")
    assert infer([None if i % 5 == 0 else price for i, price in enumerate(prices)]) == Numeric(name="thing")


def test_many_whole_numbers_are_numeric_and_few_are_codes():
    assert infer(draw(lambda r: r.randint(18, 90))) == Numeric(name="thing")
    assert infer([str(n) for n in draw(lambda r: r.randint(18, 90))]) == Numeric(name="thing")
    assert isinstance(infer(draw(lambda r: r.randint(0, 23)), name="hour"), Categorical)
    assert isinstance(infer(draw(lambda r: float(r.randint(0, 1)))), Categorical)


def test_few_whole_numbers_have_an_order_beside_their_ids_where_there_are_enough_rows():
    ordered = Numeric(name="hour", encoding="scalar+values")
    hours = draw(lambda r: r.randint(0, 23), rows=1000)
    assert infer(hours, name="hour") == infer([str(hour) for hour in hours], name="hour") == ordered
    marked = infer(["NA", *map(str, hours)], name="hour")
    assert marked == Numeric(name="hour", encoding="scalar+values", missing=("NA",))


@pytest.mark.parametrize(
    ("make", "name", "rows"),
    [
        (lambda r: r.randint(0, 23), "hour", 999),
        (lambda r: r.randint(0, 3), "hour", 1000),  # too few values for an order to say much
        (lambda r: r.randint(0, 23), "shop_id", 1000),
        (lambda r: f"0{r.randint(0, 9)}", "hour", 1000),
        (lambda r: f"h{r.randint(0, 23)}", "hour", 1000),
    ],
)
def test_other_codes_have_ids_alone(make, name, rows):
    assert infer(draw(make, rows=rows), name=name) == Categorical(name=name)


def test_codes_have_no_order_where_classes_are_learned():
    hours = draw(lambda r: r.randint(0, 23), rows=1000)
    draft = draft_schema({"hour": hours, "kind": [f"k{i % 3}" for i in range(1000)]}, label="kind")
    assert draft.features == [Categorical(name="hour")]


@pytest.mark.parametrize("name", ["user_id", "user", "userId", "MovieID", "zip_code", "ad_type"])
def test_whole_numbers_that_are_named_as_codes_are_categorical(name):
    assert isinstance(infer(draw(lambda r: r.randint(1, 150)), name=name), Categorical)


@pytest.mark.parametrize("name", ["bid", "user_age"])
def test_a_name_that_only_ends_like_an_id_or_begins_so_is_not_one(name):
    assert isinstance(infer(draw(lambda r: r.randint(1, 150)), name=name), Numeric)


def popular(r, *, things=1500):
    """One of many things, a few of which are far more frequent than the others, by a number that says nothing."""
    return int(things ** r.random()) * 7919 % 104_729


def test_whole_numbers_a_few_of_which_are_far_more_frequent_are_codes():
    numbers = draw(popular, rows=5000)
    assert isinstance(infer(numbers), Categorical)
    assert isinstance(infer([str(number) for number in numbers]), Categorical)
    assert isinstance(infer([None if i % 9 == 0 else number for i, number in enumerate(numbers)]), Categorical)


@pytest.mark.parametrize(
    ("number", "kind"),
    [
        (lambda thing: thing * 7919 % 104_729, Categorical),  # far apart
        (lambda thing: thing * 217 % 401, Categorical),  # numbered through
        (lambda thing: thing * 7919 % 2003, Numeric),  # neither
    ],
)
def test_things_about_as_frequent_are_codes_by_where_their_numbers_lie(number, kind):
    numbers = draw(lambda r: number(int(400 * r.random() ** 1.5)), rows=5000)
    assert isinstance(infer(numbers), kind)


@pytest.mark.parametrize(
    "amount",
    [
        lambda r: int(r.gauss(2000, 300)),
        lambda r: int(r.expovariate(1 / 400)),
        lambda r: int(max(r.lognormvariate(6, 1) - 300, 0)),  # many zeros
        lambda r: r.randint(1, 1500),
        lambda r: round(r.lognormvariate(7, 1), -1 if r.random() < 0.5 else 0),  # round ones
        lambda r: popular(r) // 10 * 10 + 9,  # prices
        lambda r: int(r.gauss(300, 70)) ** 2 // 100,
    ],
)
def test_amounts_of_any_shape_are_numeric(amount):
    assert isinstance(infer(draw(amount, rows=5000)), Numeric)


def ids_of(things, *, seed):
    """A name of each of some things from one space of ids, and how often each is: a few far more than others."""
    names = random.Random(seed).sample(range(4_000, 312_000), things)
    return lambda r: names[int(things * r.random() ** 3)]


@pytest.mark.parametrize(
    ("few", "kind"),
    [
        (ids_of(70, seed=1), Categorical),
        (lambda r: int(4 * r.expovariate(1 / 400)) * 900, Numeric),  # round
        (lambda r: 500_000 + 1_811 * r.randint(0, 90), Numeric),  # elsewhere
        (lambda r: 20_000 + r.randint(0, 90), Numeric),  # close together
        (lambda r: 5_000 + int(r.expovariate(1 / 30_000)), Numeric),  # many, and not told by how often each is seen
    ],
)
def test_fewer_whole_numbers_are_codes_among_columns_of_names_from_one_space(few, kind):
    table = {"role": draw(few, rows=5000), "click": [i % 2 for i in range(5000)]}
    others = {name: draw(ids_of(things, seed=things), rows=5000) for name, things in (("who", 900), ("what", 1400))}
    role, *names = draft_schema({**table, **others}).features
    assert isinstance(role, kind) and all(isinstance(one, Categorical) for one in names)
    one_of_them = {"who": others["who"]}
    assert isinstance(draft_schema({**table, **one_of_them}).features[0], Numeric)


def test_padded_whole_numbers_are_codes():
    assert isinstance(infer([f"{n:05d}" for n in draw(lambda r: r.randint(1, 150))]), Categorical)


def test_skewed_counts_take_a_logarithm_and_others_do_not():
    skewed = draw(lambda r: int(r.lognormvariate(3, 1.5)))
    assert infer(skewed) == Numeric(name="thing", log_shift=1.0)
    assert infer([-n for n in skewed]) == Numeric(name="thing")
    assert infer([n / 1e6 for n in skewed]) == Numeric(name="thing")
    assert infer([1e300 * (n + 0.5) for n in skewed]) == Numeric(name="thing", log_shift=1.0)


@pytest.mark.parametrize("separator", ["|", ";", ",", ", "])
def test_joined_text_is_multivalent_with_its_separator(separator):
    cells = draw(lambda r: separator.join(r.sample(GENRES, r.randint(1, 3))))
    assert infer(cells) == Multivalent(name="thing", separator=separator)


def test_lists_are_multivalent_and_vectors_are_left_out():
    lists = draw(lambda r: r.sample(GENRES, r.randint(0, 3)))
    assert infer(lists) == Multivalent(name="thing")
    assert infer([tuple(cell) for cell in lists]) == Multivalent(name="thing")
    assert infer(draw(lambda r: [r.random(), r.random()])) is None


@pytest.mark.parametrize(
    "cells",
    [
        draw(lambda r: r.choice(["Paris, France", "Lyon, France", "Nice, France", "Bonn, Germany", "Ulm, Germany"])),
        draw(lambda r: f"{r.randint(1, 60)},{r.randint(100, 104)}"),
        draw(lambda r: r.choice(["Toy Story, The", "Heat", "Casino", "Net, The", "Rumble; or, War", "Babe"])),
    ],
)
def test_marks_inside_records_numbers_and_titles_do_not_make_text_multivalent(cells):
    assert isinstance(infer(cells), Categorical)


@pytest.mark.parametrize(
    ("name", "cells"),
    [
        ("constant", ["x"] * ROWS),
        ("empty", [None] * ROWS),
        ("key", [f"k{i}" for i in range(ROWS)]),
        ("row_id", [7 * i for i in range(ROWS)]),
        ("counter", list(range(1, ROWS + 1))),
        ("moment", [f"2024-01-01T10:00:{i % 60:02d}Z" for i in range(ROWS)]),
        ("clock", [datetime.time(i % 24) for i in range(ROWS)]),
        ("two ways", [f"2024-01-{1 + i % 28:02d}" if i % 3 else f"{1 + i % 28}/1/2024" for i in range(ROWS)]),
        ("struct", [{"a": i} for i in range(ROWS)]),
        ("blob", [bytes([i % 7]) for i in range(ROWS)]),
    ],
)
def test_columns_that_say_nothing_about_new_rows_are_left_out(name, cells):
    assert infer(cells, name=name) is None


@pytest.mark.parametrize("marker", ["NA", "n/a", "nan", "NULL", "None", "?", " - "])
def test_texts_for_missing_numbers_leave_a_column_numeric_and_are_written_down(marker):
    prices = [marker if i % 9 == 4 else str(price) for i, price in enumerate(draw(lambda r: r.uniform(1, 9)))]
    assert infer(prices) == Numeric(name="thing", missing=(marker.strip(),))
    assert infer([marker if i == 7 else str(n) for i, n in enumerate(draw(lambda r: r.randint(18, 90)))]).missing


def test_markers_are_missing_among_codes_and_dates_and_may_be_values_among_texts():
    assert infer(["NA" if i % 9 == 4 else str(i % 3) for i in range(ROWS)]) == Categorical(
        name="thing", missing=("NA",)
    )
    assert infer(["NA" if i % 9 == 4 else "de" for i in range(ROWS)]) == Categorical(name="thing")
    assert infer(["NA", "-"] * 30) == Categorical(name="thing")
    dates = infer(["NA" if i % 9 == 4 else f"2024-01-{1 + i % 28:02d}" for i in range(ROWS)])
    assert isinstance(dates, Date) and dates.missing == ("NA",)


@pytest.mark.parametrize("marker", ["?", " N/A", "NULL", "\\N"])
def test_markers_that_can_be_nothing_else_are_missing_among_texts_and_sets_too(marker):
    texts = [marker if i % 9 == 4 else "de" if i % 2 else "fr" for i in range(ROWS)]
    assert infer(texts) == Categorical(name="thing", missing=(marker.strip(),))
    sets = draw(lambda r: "|".join(r.sample(GENRES, r.randint(1, 3))))
    assert infer([marker, *sets]) == Multivalent(name="thing", missing=(marker.strip(),))


@pytest.mark.parametrize(
    ("written", "form"),
    [
        ("2024-11-{:02d}", "iso"),
        ("2024-11-{:02d}T10:00:00Z", "iso"),
        ("2024-11-{:02d} 10:00:00.5+02:00", "iso"),
        ("{:02d}/11/2024", "%d/%m/%Y"),
        ("2024/11/{:02d}", "%Y/%m/%d"),
        ("{:d}.11.2024", "%d.%m.%Y"),
        ("11/{:d}/2024 9:30", "%m/%d/%Y %H:%M"),
        ("{:d} Nov 2024", "%d %b %Y"),
        ("{:d}-Nov-2024", "%d-%b-%Y"),
        ("November {:d}, 2024", "%B %d, %Y"),
        ("{:d} Nov 2024 10:00:00", "%d %b %Y %H:%M:%S"),
        ("202411{:02d}", "%Y%m%d"),
    ],
)
def test_dates_are_known_in_the_spellings_people_use(written, form):
    found = infer([written.format(1 + i % 28) for i in range(ROWS)])
    last = found.reference[:10]
    assert found == Date(name="thing", format=form, parts=("weekday", "age"), reference=found.reference)
    assert last == "2024-11-28"


@pytest.mark.parametrize(
    ("name", "cells", "form"),
    [
        ("timestamp", [978300760 * 2 + 31 * (i % 50) for i in range(ROWS)], "unix"),
        ("eventTime", [str(1_700_000_000_000 + 1000 * i * i) for i in range(ROWS)], "unix-ms"),
        ("created_at", [1_700_000_000_000_000 + 10**6 * i * i for i in range(ROWS)], "unix-us"),
        ("day", [20141000 + 1 + i % 28 for i in range(ROWS)], "%Y%m%d"),
        ("moment", [datetime.datetime(2024, 1, 1 + i % 28) for i in range(ROWS)], "iso"),
    ],
)
def test_numbers_and_objects_that_are_times_are_dates(name, cells, form):
    found = infer(cells, name=name)
    assert isinstance(found, Date) and found.format == form


def test_a_month_whose_short_name_is_its_name_is_not_ambiguous():
    assert infer([f"{1 + i % 28} May 2024" for i in range(ROWS)]).format == "%d %b %Y"


def test_whole_numbers_that_are_no_days_of_a_calendar_stay_numbers():
    assert isinstance(infer([20141000 + i % 99 for i in range(ROWS)]), Numeric)
    assert isinstance(infer([1_700_000_000 + i * i for i in range(ROWS)], name="price"), Numeric)


@pytest.mark.parametrize(
    ("step", "count", "parts"),
    [
        (datetime.timedelta(hours=1), 24, ("hour",)),
        (datetime.timedelta(minutes=7), 50, ("hour", "minute")),
        (datetime.timedelta(days=1), 10, ("age",)),
        (datetime.timedelta(days=1), 15, ("weekday", "age")),
        (datetime.timedelta(days=1), 200, ("weekday", "age")),
        (datetime.timedelta(days=1), 365, ("weekday", "month", "day_of_year", "age")),
        (datetime.timedelta(hours=30), 365, ("hour", "weekday", "month", "day_of_year", "age")),
    ],
)
def test_a_date_has_the_parts_that_its_range_supports(step, count, parts):
    assert infer([datetime.datetime(2024, 3, 1) + i * step for i in range(count)]).parts == parts


def test_the_index_that_pandas_writes_is_left_out():
    shuffled = [3 * i for i in range(ROWS)]
    for name in ("__index_level_0__", "Unnamed: 0", ""):
        assert infer(shuffled, name=name) is None
    assert infer(["a", "b"] * 50, name="__index_level_0__") is None
    assert infer(["a", "b"] * 50, name="Unnamed: 3") == Categorical(name="Unnamed: 3")


def test_a_value_that_is_sometimes_missing_is_not_constant():
    assert infer(["x", None, "x", None]) == Categorical(name="thing")
    assert infer([0.5, None, 0.5, None]) == Categorical(name="thing")


def test_uniqueness_proves_nothing_in_a_few_rows():
    assert infer(["a", "b", "c"]) == Categorical(name="thing")


def test_a_column_without_a_name_is_a_feature_like_others():
    assert [feature.name for feature in draft_schema({"": ["x", "y"], "click": [0, 1]}).features] == [""]


def test_a_data_frame_drafts_the_same_schema_as_its_lists():
    table = {
        "user": draw(lambda r: f"u{r.randint(1, 60)}"),
        "tags": draw(lambda r: r.sample(GENRES, r.randint(0, 3))),
        "price": draw(lambda r: r.uniform(1, 9)),
        "age": draw(lambda r: r.choice([None, 31, 47])),
        "day": [datetime.date(2024, 1, 1 + i % 28) for i in range(ROWS)],
        "click": draw(lambda r: r.random() < 0.3),
    }
    frame = pl.DataFrame(table)
    schema = Schema.infer(frame)
    assert schema == Schema.infer(table)
    assert schema.names == ("user", "tags", "price", "age", "day")
    assert Schema.from_dict(schema.to_dict()) == schema
    text = pl.read_csv(frame.drop("tags").write_csv().encode(), infer_schema=False)
    assert Schema.infer(text).features == tuple(feature for feature in schema.features if feature.name != "tags")


def test_numpy_values_are_read_as_plain_ones():
    frame = pl.DataFrame({"a": draw(lambda r: r.randint(18, 90)), "click": [0, 1] * (ROWS // 2)})
    assert draft_schema({name: frame[name].to_numpy() for name in frame.columns}) == draft_schema(frame)


class FarMissing:
    """Stands for pandas.NA, which has no truth value and equals nothing."""

    def __eq__(self, other):
        return self

    def __bool__(self):
        raise TypeError("boolean value of NA is ambiguous")

    __hash__ = object.__hash__


FarMissing.__name__ = "NAType"


def test_missing_values_of_pandas_are_missing():
    assert infer([FarMissing(), "x", float("nan"), "y", "x"]) == Categorical(name="thing")
    assert infer([FarMissing(), 1.5, 2.5, 3.5]) == Numeric(name="thing")


cells = st.one_of(
    st.none(), st.booleans(), st.integers(), st.floats(), st.text(max_size=6), st.dates(), st.lists(st.integers(0, 9))
)


@settings(max_examples=150, deadline=None)
@given(st.lists(cells, min_size=2, max_size=60))
def test_any_column_is_drafted_without_failing(column):
    infer(column)


def test_only_the_first_rows_are_looked_at():
    def endless():
        while True:
            yield from ("a", "b")

    class Endless(dict):
        def __getitem__(self, name):
            return endless() if name == "a" else ([0, 1] * 10)

    assert draft_schema(Endless(a=None, click=None)).features == [Categorical(name="a")]
