"""Which slice of x0 belongs to which feature.

x0 = [x_embed,1; …; x_embed,n; x_dense]: the embedded single-valued features first, then the multivalent ones, then the
numbers, each kind in the order of the schema. A column of the schema may make several features, such as a number and
the id of its value; each has a name of its own.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from functools import cached_property
from typing import Literal

from crossrank.errors import ConfigError, did_you_mean, listing

Kind = Literal["categorical", "multivalent", "numeric"]
KINDS: tuple[Kind, ...] = ("categorical", "multivalent", "numeric")


@dataclasses.dataclass(frozen=True)
class Feature:
    """A feature after encoding: a table of ``vocab_size`` rows, or, where it is numeric, ``width`` numbers.

    ``column`` is the column of the schema that it is made of: the one of its own name, if not given. ``embedding_dim``
    is the width of its vectors where it has one of its own, whatever a model gives to others.
    """

    name: str
    kind: Kind
    vocab_size: int = 0
    width: int = 1
    column: str = ""
    embedding_dim: int | None = None

    def __post_init__(self) -> None:
        object.__setattr__(self, "column", self.column or self.name)


@dataclasses.dataclass(frozen=True)
class Slot:
    """A feature's place in x0: ``width`` numbers from ``start`` on."""

    name: str
    kind: Kind
    vocab_size: int
    start: int
    width: int
    column: str

    @property
    def stop(self) -> int:
        return self.start + self.width

    @property
    def slice(self) -> slice:
        return slice(self.start, self.stop)


@dataclasses.dataclass(frozen=True)
class InputLayout:
    """The slots of x0, in order.

    Example:
        >>> user, hour = Feature("user", "categorical", 16), Feature("hour", "categorical", 24)
        >>> features = [Feature("age", "numeric"), user, hour]
        >>> layout = InputLayout.plan(features, embedding_dim=4)
        >>> [(slot.name, slot.start, slot.stop) for slot in layout.slots]
        [('user', 0, 4), ('hour', 4, 8), ('age', 8, 9)]
        >>> [slot.width for slot in InputLayout.plan(features, embedding_dim="rule").slots]
        [12, 13, 1]
    """

    slots: tuple[Slot, ...]

    @classmethod
    def plan(
        cls,
        features: Sequence[Feature],
        *,
        embedding_dim: int | Literal["rule", "average"] = 16,
        given: Mapping[str, int] | None = None,
    ) -> InputLayout:
        """Give each feature its width.

        Args:
            features: what the encoder made.
            embedding_dim: one width for all; ``"rule"`` for the paper's 6 v^(1/4) of each vocabulary size v; or
                ``"average"`` for the mean of that rule over all embedded features, one width for all.
            given: widths for single features, by name; they win over ``embedding_dim``.
        """
        given = given or {}
        embedded = [feature for feature in features if feature.kind != "numeric"]
        for name in given:
            names = [feature.name for feature in embedded]
            if name not in names:
                hint = did_you_mean(name, names)
                raise ConfigError(f"Widths can be given to {listing(names)}; got '{name}'.", hint=hint)
        own = {feature.name: feature.embedding_dim for feature in embedded if feature.embedding_dim is not None}
        embedded = [feature for feature in embedded if feature.name not in own]
        rule = [6 * feature.vocab_size**0.25 for feature in embedded]
        if embedding_dim == "rule":
            widths = {feature.name: round(width) for feature, width in zip(embedded, rule, strict=True)}
        else:
            fixed = round(sum(rule) / max(len(rule), 1)) if embedding_dim == "average" else embedding_dim
            widths = dict.fromkeys((feature.name for feature in embedded), fixed)
        widths |= {**own, **given}
        for name, width in widths.items():
            if width < 1:
                raise ConfigError(f"An embedding width must be at least 1; got {width} for '{name}'.")
        slots: list[Slot] = []
        for feature in sorted(features, key=lambda feature: KINDS.index(feature.kind)):
            start = slots[-1].stop if slots else 0
            width = widths.get(feature.name, feature.width)
            slots.append(Slot(feature.name, feature.kind, feature.vocab_size, start, width, feature.column))
        return cls(tuple(slots))

    @property
    def input_dim(self) -> int:
        """d, the width of x0."""
        return self.slots[-1].stop if self.slots else 0

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(slot.name for slot in self.slots)

    @cached_property
    def embedded(self) -> tuple[Slot, ...]:
        """The slots that come out of embedding tables: single-valued first, then multivalent."""
        return tuple(slot for slot in self.slots if slot.kind != "numeric")

    @property
    def num_numbers(self) -> int:
        """How many numbers of x0 come from no table; a numeric slot may have several."""
        return sum(slot.width for slot in self.slots if slot.kind == "numeric")

    def of_kind(self, kind: Kind) -> tuple[Slot, ...]:
        return tuple(slot for slot in self.slots if slot.kind == kind)

    def __getitem__(self, name: str) -> Slot:
        for slot in self.slots:
            if slot.name == name:
                return slot
        raise KeyError(name)

    def with_width(self, width: int) -> InputLayout:
        """The same features, every embedded one of this width."""
        features = [Feature(slot.name, slot.kind, slot.vocab_size, slot.width, slot.column) for slot in self.slots]
        return InputLayout.plan(features, embedding_dim=width)

    def equal_width(self, *, needed_by: str) -> int:
        """The one width that all embedded features share, or an error with a way out."""
        widths = {slot.name: slot.width for slot in self.embedded}
        if len(set(widths.values())) > 1:
            narrow, wide = min(widths, key=widths.__getitem__), max(widths, key=widths.__getitem__)
            raise ConfigError(
                f"{needed_by} needs one embedding width for all features; got {widths[narrow]} for '{narrow}' and "
                f"{widths[wide]} for '{wide}'.",
                hint="Set model.embedding.dim to a number or 'average', or pick dcn-v2, dcn, dnn or deep-crossing.",
            )
        if not widths:
            raise ConfigError(f"{needed_by} needs at least one categorical or multivalent feature; got none.")
        return next(iter(widths.values()))
