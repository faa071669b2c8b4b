"""The meaning of a table: its features, the label, and the columns that weigh, group and divide its rows."""

from __future__ import annotations

import dataclasses
import json
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import cached_property
from itertools import chain
from pathlib import Path
from typing import Any

from crossrank.config import parse
from crossrank.errors import ConfigError, SchemaError, did_you_mean, listing
from crossrank.files import read_json
from crossrank.schema.columns import (
    COLUMN_KINDS,
    Categorical,
    Column,
    Encoded,
    Multivalent,
    Numeric,
    TableFeature,
    as_encoded,
)
from crossrank.schema.cross_column import Cross
from crossrank.schema.dates import NUMBERS, Date
from crossrank.schema.label import Label

FORMAT_VERSION = 1
MOST_HASHED = 1 << 30


@dataclasses.dataclass(frozen=True)
class Schema:
    """The meaning of a table.

    Args:
        features: the columns a model may look at, in any order.
        label: the column to predict, or several.
        weight: a column with a weight for each row's loss, if any.
        group: a column whose equal values belong together, such as a query or a user, for grouped metrics; if any.
        time: a column that says when a row happened, if any; the rows are then split by it. It may also be a feature.

    Raises:
        SchemaError: for no features, a name used twice, or a feature or group that is also the label or the weight.

    Example:
        >>> schema = Schema([Categorical(name="country"), Numeric(name="age")], Label(name="click"))
        >>> schema.names
        ('country', 'age')
        >>> Schema.from_dict(schema.to_dict()) == schema
        True
    """

    features: Sequence[Column]
    label: Label
    weight: str | None = None
    group: str | None = None
    time: str | None = None

    def __post_init__(self) -> None:
        object.__setattr__(self, "features", tuple(self.features))
        if not self.names:
            raise SchemaError("A schema needs at least one feature; got none.")
        made = [part.name for date in self.dates for part in as_encoded(date)]
        named = [column.name for column in self.features]
        targets = [*self.label.inputs, *([self.weight] if self.weight else [])]
        again = {self.group, *(column.source for column in self.in_table)}
        taken = [*named, *made, *targets, *(name for name in targets if name in again)]
        known = [column.name for column in self.encoded if isinstance(column, Categorical | Numeric)]
        if self.label.kind == "grade" and self.group is None:
            raise SchemaError(
                f"A grade, as of the label '{self.label.name}', compares the rows of a group; got no group.",
                hint='Name the column of queries or users: "group": "query".',
            )
        for cross in self.crosses:
            if cross.statistics and self.label.kind == "classes":
                raise SchemaError(
                    f"Statistics, as of '{cross.name}', are of a binary label or a number; got several classes.",
                    hint='Set "statistics": false.',
                )
            if self.label.kind == "tasks":
                raise SchemaError(
                    f"A cross, as of '{cross.name}', remembers one label; got the tasks {listing(self.label.columns)}.",
                    hint="Leave the cross out.",
                )
            for name in cross.of:
                if name not in known:
                    raise SchemaError(
                        f"A cross is of columns with one value in each row, {listing(known)}; got '{name}'.",
                        hint=did_you_mean(name, known),
                    )
        for name, meanings in Counter(taken).items():
            if meanings > 1:
                raise SchemaError(
                    f"Each column may have one meaning; '{name}' has {meanings}.",
                    hint="A group column may also be a feature; a label or weight may not.",
                )
        hashed = sum(getattr(column, "hash_size", None) or 0 for column in self.features)
        if hashed > MOST_HASHED:
            raise SchemaError(
                f"All hash_size together may be {MOST_HASHED:,}, whose counts take {MOST_HASHED * 8 >> 30} GiB; got "
                f"{hashed:,}.",
                hint="A few times the number of different values is enough.",
            )

    @property
    def names(self) -> tuple[str, ...]:
        """The names of the features that are read from a table."""
        return tuple(column.name for column in self.in_table)

    @cached_property
    def in_table(self) -> tuple[TableFeature, ...]:
        """The features that are read from a table: all but crosses."""
        return tuple(column for column in self.features if not isinstance(column, Cross))

    @cached_property
    def inputs(self) -> tuple[str, ...]:
        """The columns of the table that the features are read from, each once."""
        return tuple(dict.fromkeys(column.input for column in self.in_table))

    @property
    def dates(self) -> list[Date]:
        return [column for column in self.features if isinstance(column, Date)]

    @cached_property
    def categorical(self) -> list[Categorical]:
        """What is encoded as one id, parts of dates included."""
        return [column for column in self.encoded if isinstance(column, Categorical)]

    @cached_property
    def multivalent(self) -> list[Multivalent]:
        return [column for column in self.encoded if isinstance(column, Multivalent)]

    @cached_property
    def numeric(self) -> list[Numeric]:
        """What is encoded as a number, parts of dates included."""
        return [column for column in self.encoded if isinstance(column, Numeric)]

    @cached_property
    def encoded(self) -> tuple[Encoded, ...]:
        """What is encoded, in the order of the features: a date is its parts."""
        return tuple(chain.from_iterable(map(as_encoded, self.in_table)))

    def with_numeric(self, columns: Iterable[Numeric]) -> Schema:
        """The same with other numeric columns of the same names; of parts of dates, with their encodings."""
        new, features = {column.name: column for column in columns}, list[Column]()
        for column in self.features:
            if isinstance(column, Cross):
                features.append(column)
            elif isinstance(column, Date):
                numbers = {str(part): new[column.feature(part)].encoding for part in column.parts if part in NUMBERS}
                features.append(dataclasses.replace(column, encodings=numbers))
            else:
                features.append(new.get(column.name, column))
        return dataclasses.replace(self, features=features)

    @cached_property
    def derived(self) -> tuple[TableFeature, ...]:
        """The features that are not just a column of the table: parts of dates, another name, cells to blank out."""
        return tuple(
            column
            for column in self.in_table
            if isinstance(column, Date) or column.input != column.name or (column.missing and column.kind != "numeric")
        )

    @property
    def crosses(self) -> list[Cross]:
        return [column for column in self.features if isinstance(column, Cross)]

    def with_crosses(self, crosses: Sequence[Cross]) -> Schema:
        """The same columns with these crosses in place of those it has."""
        return dataclasses.replace(self, features=[*self.in_table, *crosses])

    @property
    def ranked_group(self) -> str | None:
        """The group of a grade, where the model does not know it: a split divides such groups as a whole."""
        return self.group if self.label.kind == "grade" and self.group not in self.inputs else None

    @property
    def required(self) -> Iterator[str]:
        """Every column of the table that training needs."""
        yield from dict.fromkeys([*self.inputs, *self.label.inputs, *filter(None, (self.weight, self.group))])

    def to_dict(self) -> dict[str, Any]:
        return {
            "format_version": FORMAT_VERSION,
            "label": _written(self.label),
            "weight": self.weight,
            "group": self.group,
            **({"time": self.time} if self.time else {}),
            "features": [{"kind": column.kind, **_written(column)} for column in self.features],
        }

    @classmethod
    def from_dict(cls, values: Mapping[str, Any], *, source: str = "the schema") -> Schema:
        """Read what :meth:`to_dict` wrote, or what a person wrote in its manner."""
        if not isinstance(values, Mapping):
            raise SchemaError(f"{source} must be an object with a 'label' and 'features'; got {values!r:.80}.")
        if values.get("format_version", FORMAT_VERSION) != FORMAT_VERSION:
            raise SchemaError(
                f"{source} must have format version {FORMAT_VERSION}; got {values['format_version']!r}.",
                hint="It was written by another version of crossrank.",
            )
        known = {"format_version", "label", "weight", "group", "time", "features"}
        for key in values:
            if key not in known:
                raise SchemaError(f"{source} has the unknown key '{key}'.", hint=did_you_mean(key, known))
        if not isinstance(values.get("label"), Mapping) or not isinstance(values.get("features"), list):
            raise SchemaError(f"{source} needs a 'label' object and a 'features' list.")
        for key in ("weight", "group", "time"):
            if not isinstance(values.get(key), str | None):
                raise SchemaError(f"'{key}' of {source} must be the name of a column or null; got {values[key]!r}.")
        try:
            label = parse(Label, values["label"], path="label")
            others = {key: values.get(key) for key in ("weight", "group", "time")}
            return cls([_column(item) for item in values["features"]], label, **others)
        except ConfigError as error:
            raise SchemaError(f"{source} cannot be read: {error}") from None

    def save(self, path: Path | str) -> None:
        Path(path).write_text(json.dumps(self.to_dict(), indent=2, ensure_ascii=False) + "\n", encoding="utf-8")

    @classmethod
    def load(cls, path: Path | str) -> Schema:
        path = Path(path)
        if not path.exists():
            raise SchemaError(f"The schema file {path} does not exist.")
        hint = "Draft one from a table with: crossrank schema TABLE --into schema.json"
        return cls.from_dict(read_json(path, dict[str, Any], error=SchemaError, hint=hint), source=str(path))

    @classmethod
    def infer(cls, table: Any, *, label: str | None = None, split: str | None = None) -> Schema:
        """Draft a schema by looking at a table; the person corrects what it got wrong.

        What may be wrong is warned of; :func:`crossrank.schema.draft.draft_schema` tells more, and does not warn.

        Args:
            table: a polars or pandas data frame, or a mapping from names to lists of values; some thousand rows do.
            label: the name of the label, where it is not one of the usual names (label, click, clicked, target, y);
                several, with commas between, are tasks.
            split: the name of the column that names each row's split, where it is not called so; it is no feature.
        """
        from crossrank.schema.draft import draft_schema

        return draft_schema(table, label=label, split=split).warned().schema


def _written(part: Column | Label) -> dict[str, Any]:
    """The fields that say something; as in schemas of before there were others."""
    fields = {key: getattr(part, key) for key in part.__dataclass_fields__}
    return {
        key: list(value) if isinstance(value, tuple) else value
        for key, value in fields.items()
        if value is not None and value != () and value != {}
    }


def _column(values: Any) -> Column:
    named = isinstance(values, Mapping) and (values.get("kind") == Cross.kind or "name" in values)
    if not named or values.get("kind") not in [*COLUMN_KINDS]:
        raise SchemaError(
            f"Each feature needs a 'name' and a 'kind' out of {listing(COLUMN_KINDS)}; got {values!r:.200}."
        )
    fields = {key: value for key, value in values.items() if key != "kind"}
    return parse(COLUMN_KINDS[values["kind"]], fields, path=f"features.{values.get('name', Cross.kind)}")
