"""What is to be predicted: one column of a table, or several."""

from __future__ import annotations

import dataclasses
from typing import Literal, TypeAlias

from crossrank.errors import SchemaError, listing

LabelKind: TypeAlias = Literal["binary", "real", "classes", "grade", "tasks"]
MAX_GRADE = 50  # 2^grade is still exact


@dataclasses.dataclass(frozen=True, kw_only=True)
class Label:
    """The column to predict: ``binary`` (0 or 1, trained with log loss), ``real`` (a number, squared error),
    ``classes`` (one of several, which are named; log loss of the softmax over a logit for each) or ``grade`` (0, 1, 2,
    …: how good a row is among those of its group; a loss of their order).

    Several ``columns`` are ``tasks``: each is a binary label of its own, 0 or 1, or empty where it is not known, with a
    logit and a log loss of its own.

    ``classes`` are the two values of a binary label that are not 0 and 1, or true and false: the first counts as 0, the
    second as 1. Their case does not matter, unless they differ in nothing else. ``negatives_kept`` is for tables in
    which negative rows are a sample: each was kept with this probability.

    Example:
        >>> both = Label(columns=("click", "like"))
        >>> both.name, both.kind, both.num_outputs
        ('click, like', 'tasks', 2)
    """

    name: str = ""
    kind: LabelKind = "binary"
    classes: tuple[str, ...] = ()
    negatives_kept: float | None = None
    columns: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        if self.columns:
            object.__setattr__(self, "columns", tuple(self.columns))
            object.__setattr__(self, "name", self.name or ", ".join(self.columns))
            object.__setattr__(self, "kind", "tasks" if self.kind == "binary" else self.kind)
        if not self.name:
            raise SchemaError("'label.name' must be given, or 'label.columns' for several; got neither.")
        if (self.kind == "tasks") != (len(set(self.columns)) == max(2, len(self.columns))):
            raise SchemaError(
                "The columns of a label must be two or more different ones, each 0 or 1, which are tasks; got "
                f"{listing(self.columns) or 'none'} for the kind {self.kind}.",
                hint='For example {"columns": ["click", "like"]}.',
            )
        kept = self.negatives_kept
        if kept is not None and (self.kind != "binary" or not 0 < kept <= 1):
            raise SchemaError(
                f"negatives_kept of label '{self.name}' must be above 0 and at most 1, and the label binary; got "
                f"{kept} for a {self.kind} one."
            )
        several = self.kind == "classes"
        right = len(self.classes) >= 2 if several else not self.classes or len(self.classes) == 2
        named = bool(self.classes) and self.kind in ("real", "grade", "tasks")
        if not right or len(set(self.classes)) != len(self.classes) or named:
            raise SchemaError(
                f"The classes of label '{self.name}' must be two different values of a binary label, or the values of "
                f"one with several classes; got {listing(self.classes)} for the kind {self.kind}."
            )

    @property
    def num_outputs(self) -> int:
        """How many logits answer it."""
        return len(self.classes) if self.kind == "classes" else max(1, len(self.columns))

    @property
    def inputs(self) -> tuple[str, ...]:
        """The columns of the table that it is read from."""
        return self.columns or (self.name,)
