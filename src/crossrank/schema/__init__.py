"""What each column of a table means, and which slice of x0 it fills."""

from crossrank.schema.columns import Categorical, Column, Multivalent, Numeric
from crossrank.schema.cross_column import Cross
from crossrank.schema.dates import Date
from crossrank.schema.label import Label, LabelKind
from crossrank.schema.layout import Feature, InputLayout, Slot
from crossrank.schema.schema import Schema

__all__ = [
    "Categorical",
    "Column",
    "Cross",
    "Date",
    "Feature",
    "InputLayout",
    "Label",
    "LabelKind",
    "Multivalent",
    "Numeric",
    "Schema",
    "Slot",
]
