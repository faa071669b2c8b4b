"""What each column of a table means, and which slice of x0 it fills."""

from crossrank.schema.columns import Categorical, Column, Label, LabelKind, Multivalent, Numeric, Schema
from crossrank.schema.cross import Cross
from crossrank.schema.dates import Date
from crossrank.schema.layout import Feature, InputLayout, Slot

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
