"""A drafted schema, with what was decided on the way and what a person should check.

A column becomes

- the label: the given name, or the first of label, click, clicked, is_click, target, y that is there. It is binary
  where it has two values (0 and 1, true and false, or two texts or whole numbers, of which the positive one counts as
  1: the given one; the other one of no, not …, false, negative or off; else the second in their order), classes where
  it has more texts, at most 100 that repeat, and none is missing or it was named, and a number otherwise;
- the weight: sample_weight, if most rows have a number that is not negative; weight may be that of a person or a car;
- the group: query_id, qid, session_id, request_id or group, if some value repeats; it is then not a feature;
- nothing, where it names each row's split: the given name, or ``split`` if it says train, valid or test in every row;
- a feature, or nothing, as :mod:`crossrank.schema.infer` says.
"""

from __future__ import annotations

import dataclasses
import re
import warnings
from collections.abc import Iterable, Iterator, Mapping
from itertools import islice
from typing import Any

from crossrank.errors import SchemaError, did_you_mean, listing
from crossrank.schema.codes import few
from crossrank.schema.columns import Numeric, TableFeature
from crossrank.schema.dates import Date, TimeRange, readable_times
from crossrank.schema.infer import (
    WRITTEN_NUMBER,
    as_names,
    date_note,
    draft_column,
    in_order,
    is_marker,
    number_note,
    numbers_of,
    read_columns,
)
from crossrank.schema.label import Label
from crossrank.schema.reasons import details
from crossrank.schema.schema import Schema
from crossrank.schema.split_names import find_split

LABEL_NAMES = ("label", "click", "clicked", "is_click", "target", "y")
WEIGHT_NAME = "sample_weight"
GROUP_NAMES = ("query_id", "qid", "session_id", "request_id", "group")
MOST_CLASSES = 100
BOOLEANS = {"true": 1, "false": 0}
NEGATIVE = re.compile(r"(n|no|not|non|f|false|neg|negative|off)([ _-].*)?", re.IGNORECASE)  # no, not clicked


@dataclasses.dataclass(frozen=True, kw_only=True)
class Draft:
    """What the columns of a table seem to mean.

    Attributes:
        left_out: the columns that are no features, and why.
        notes: what a person should check.
    """

    features: list[TableFeature]
    left_out: Mapping[str, str]
    notes: list[str]
    label: Label | None = None
    weight: str | None = None
    group: str | None = None

    @property
    def schema(self) -> Schema:
        if self.label is None:
            raise SchemaError("A schema needs a label; the draft was made without one.")
        return Schema(self.features, self.label, self.weight, self.group)

    def lines(self) -> Iterator[str]:
        """What a person is told of the draft: its features by kind, other columns, what to check."""
        kinds: dict[str, list[str]] = {}
        for column in self.features:
            more = details(column)
            kinds.setdefault(column.kind, []).append(f"{column.name} ({'; '.join(more)})" if more else column.name)
        others = {"weight of each row": self.weight, "group": self.group}
        kinds |= {meaning: [name] for meaning, name in others.items() if name is not None}
        kinds |= {"left out": [f"{name or repr(name)} ({reason})" for name, reason in self.left_out.items()]}
        yield from (f"  {meaning}: {', '.join(names)}" for meaning, names in kinds.items() if names)
        yield from (f"note: {note}" for note in self.notes)

    def warned(self) -> Draft:
        """The same, after a Python warning for each note."""
        for note in self.notes:
            warnings.warn(note, stacklevel=3)
        return self


def draft_schema(
    table: Any, *, label: str | None = None, positive: str | None = None, split: str | None = None
) -> Draft:
    """Draft the meaning of a table's columns by looking at its first 10,000 rows.

    Args:
        table: a polars or pandas data frame, or a mapping from names to lists of values.
        label: the name of the label, where it is not one of the usual names; several, with commas between, are tasks.
        positive: which of the label's two values counts as 1.
        split: the name of the column that names each row's split, where it is not called so.

    Raises:
        SchemaError: for a table without rows or columns, no label, a label that is neither binary nor a number, or no
            column that could be a feature.

    Example:
        >>> table = {"age": [31.5, 40.0, 22.5], "tags": ["a|b", "b", "a|c"], "click": ["no", "yes", "no"]}
        >>> draft = draft_schema(table)
        >>> [(column.kind, column.name) for column in draft.features]
        [('numeric', 'age'), ('multivalent', 'tags')]
        >>> draft.label.classes
        ('no', 'yes')
    """
    columns = read_columns(table)
    target, note = _target(columns, label, positive)
    others = {name: cells for name, cells in columns.items() if name not in target.inputs}
    weight = next((name for name in _named(others, [WEIGHT_NAME]) if _is_weight(others[name])), None)
    group = next((name for name in _named(others, GROUP_NAMES) if _repeats(others[name])), None)
    split = split or find_split(others)
    features = {name: cells for name, cells in others.items() if name not in (weight, group, split)}
    draft = _features(features, table, ordered=target.kind in ("binary", "real"))
    notes = [one for one in (note, *draft.notes, *map(_weight_note, draft.features)) if one]
    left_out = ({split: "names the split"} if split in others else {}) | dict(draft.left_out)
    return dataclasses.replace(draft, label=target, weight=weight, group=group, notes=notes, left_out=left_out)


def draft_features(table: Any, *, ordered: bool = False) -> Draft:
    """The same of features alone, for a label that is ``ordered``, binary or a number, or not."""
    return _features(read_columns(table), table, ordered=ordered)


def _features(columns: Mapping[str, list[Any]], table: Any, *, ordered: bool) -> Draft:
    drafts = {name: draft_column(name, cells) for name, cells in columns.items()}
    drafts |= {name: _in_range(draft, table[name]) for name, draft in drafts.items() if isinstance(draft, Date)}
    drafts |= as_names(drafts, columns)
    features = [one for one in drafts.values() if not isinstance(one, str)]
    features = [in_order(one, columns[one.name]) or one for one in features] if ordered else features
    left_out = {name: draft for name, draft in drafts.items() if isinstance(draft, str)}
    if not features:
        reasons = ", ".join(f"'{name}' ({reason})" for name, reason in islice(left_out.items(), 6))
        raise SchemaError(
            f"A table needs a column that can be a feature; got {reasons or 'no others'}.",
            hint="To use one of them anyway, write the schema by hand.",
        )
    notes = [note(name, columns[name], draft) for name, draft in drafts.items() for note in (number_note, date_note)]
    return Draft(features=features, left_out=left_out, notes=[note for note in notes if note])


def _in_range(date: Date, values: Any) -> TableFeature | str:
    """The parts that all rows support: those of a table in order of time differ from its first ones."""
    distinct = values.unique() if hasattr(values, "unique") else values
    return TimeRange().add(readable_times(distinct, date)).decide(date)


def _named(columns: Iterable[str], usual: Iterable[str]) -> Iterator[str]:
    return (name for wanted in usual for name in columns if name.lower() == wanted)


def _label_name(columns: Mapping[str, list[Any]], label: str | None) -> str:
    if label is not None and label not in columns:
        raise SchemaError(
            f"Label '{label}' must be a column of the table; its columns are {listing(columns)}.",
            hint=did_you_mean(label, columns),
        )
    name = label if label is not None else next(_named(columns, LABEL_NAMES), None)
    if name is None:
        raise SchemaError(
            f"A label is named {', '.join(LABEL_NAMES[:-1])} or {LABEL_NAMES[-1]}; got the columns {listing(columns)}.",
            hint="Say which column is the label: --label NAME, in Python Schema.infer(table, label=NAME).",
        )
    return name


def _target(columns: Mapping[str, list[Any]], label: str | None, positive: str | None) -> tuple[Label, str]:
    """The label, or several, and what to check about it."""
    if label is None or label in columns or "," not in label:
        return _label(_label_name(columns, label), columns, positive, named=label is not None)
    for name in (names := tuple(part.strip() for part in label.split(","))):
        one, _ = _label(_label_name(columns, name), columns, positive, named=True)
        if one != Label(name=name):
            raise SchemaError(f"Each of several labels must be 0 or 1; got '{name}', which is {one.kind}.")
    return Label(columns=names), ""


def _label(name: str, columns: Mapping[str, list[Any]], positive: str | None, *, named: bool) -> tuple[Label, str]:
    """The label, and what to check about it."""
    values = [cell for cell in columns[name] if cell is not None and not is_marker(cell)]
    numbers = numbers_of([BOOLEANS.get(str(value).strip().lower(), value) for value in values])
    whole, distinct = all(number.is_integer() for number in numbers), sorted(set(numbers))
    if numbers and set(distinct) <= {0, 1} and positive is None:
        return Label(name=name), ""
    if numbers and len(distinct) > 1 and not (whole and len(distinct) == 2):
        note = (
            f"label '{name}' is taken for a number, to be predicted as such: it has the {len(distinct)} values "
            f"{_shown(distinct)}. If they are classes, make two of them, such as 0 and 1, "
            "or name them in the schema as those of a label of the kind classes."
        )
        if positive is not None:
            raise _not_positive(name, positive, f"the {len(distinct)} values {_shown(distinct)}")
        return Label(name=name, kind="real"), note if whole and few(len(distinct), len(values)) else ""
    texts = _texts(values) if not numbers else []
    classes = [str(int(number)) for number in distinct] if whole and numbers else texts
    texts_only = not numbers and all(isinstance(value, str) for value in values)
    several = texts_only and 2 < len(texts) <= min(MOST_CLASSES, len(values) // 2)
    if several and positive is None and (named or len(values) == len(columns[name])):
        return Label(name=name, kind="classes", classes=tuple(texts)), ""
    if len(classes) != 2 or not (numbers or texts_only):
        raise _not_a_label(name, values, classes)
    negative, guessed = classes[0], len(negatives := [text for text in classes if NEGATIVE.fullmatch(text)]) == 1
    if positive is not None:
        others = [text for text in classes if text.lower() != positive.strip().lower()]
        if len(others) != 1:
            raise _not_positive(name, positive, listing(classes))
        negative = others[0]
    elif guessed:
        negative = negatives[0]
    (one,) = (text for text in classes if text != negative)
    note = (
        f"label '{name}' has the two values '{classes[0]}' and '{classes[1]}': '{one}' counts as 1, and its "
        f"probability is learned. To turn them round: --positive {negative}, or "
        f'"classes": ["{one}", "{negative}"] in the label of the schema.'
    )
    return Label(name=name, classes=(negative, one)), "" if guessed or positive is not None else note


def _texts(values: list[Any]) -> list[str]:
    """The different texts of a label; whatever their case, where they are two then."""
    texts = {value.strip() for value in values if isinstance(value, str)}
    lower = {text.lower() for text in texts}
    return sorted(lower if len(lower) == 2 < len(texts) else texts)


def _not_positive(name: str, positive: str, got: str) -> SchemaError:
    return SchemaError(
        f"The positive value must be one of the two values of label '{name}'; got '{positive}' for a label with {got}."
    )


def _not_a_label(name: str, values: list[Any], classes: list[str]) -> SchemaError:
    if len(classes) == 1:
        got = f"'{classes[0]}' in all {len(values):,} rows that were looked at"
    elif classes:
        got = f"the {len(classes):,} values {listing(classes, most=3)}"
    else:
        got = repr(values[0]) if values else "missing values only"
    written = len(classes) > 2 and all(WRITTEN_NUMBER.fullmatch(value) for value in classes)
    return SchemaError(
        f"Label '{name}' must be 0 or 1, true or false, two other values, or numbers that are no classes; got {got}.",
        hint="Write them as 1234.5 in the table."
        if written
        else "Map it to 0 and 1 first, or name another column as the label.",
    )


def _shown(numbers: list[float]) -> str:
    shown = ", ".join(f"{number:g}" for number in numbers[:5])
    return f"{shown}, …" if len(numbers) > 5 else shown


def _is_weight(cells: list[Any]) -> bool:
    """Whether most cells may be weights; the others are refused, with their places, when the table is read."""
    return 2 * sum(min(numbers_of([cell]), default=-1) >= 0 for cell in cells if cell is not None) > len(cells)


def _weight_note(column: TableFeature) -> str:
    if column.name.lower() != "weight" or not isinstance(column, Numeric):
        return ""
    return (
        f"'{column.name}' is a feature. If it says how much each row counts, call it {WEIGHT_NAME}, or write "
        f'"weight": "{column.name}" into the schema and take it out of the features.'
    )


def _repeats(cells: list[Any]) -> bool:
    values = [str(cell) for cell in cells if cell is not None]
    return len(set(values)) < len(values)
