"""What is found out about a model, and how a run folder keeps it."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any


@dataclasses.dataclass(frozen=True, kw_only=True)
class Cross:
    """A learned cross of two features or more, as :func:`crossrank.explain` lists it.

    ``cross["left"]`` is short for ``cross.to_dict()["left"]``.

    Attributes:
        features: their names; two equal ones for what a feature does with itself.
        strength: how far the cross moves the logit, the root mean square over rows.
        norm: of its blocks of the matrix W.
        layer, network: where it is made, counted from 1.
        strengths, norms: of a pair's blocks alone, (left, right) and (right, left), as a run keeps them.
    """

    features: tuple[str, ...]
    strength: float
    norm: float
    layer: int = 1
    network: int = 1
    strengths: tuple[float, ...] = dataclasses.field(default=(), repr=False)
    norms: tuple[float, ...] = dataclasses.field(default=(), repr=False)

    @property
    def name(self) -> str:
        """As people write it.

        >>> Cross(features=("country", "hour"), strength=0.4, norm=1.2).name
        'country × hour'
        """
        return " × ".join(self.features)

    @property
    def of_itself(self) -> bool:
        return len(set(self.features)) == 1

    def to_dict(self) -> dict[str, Any]:
        """As JSON has it: a pair's features are ``left`` and ``right``, more of them ``features``.

        >>> Cross(features=("country", "hour"), strength=0.4, norm=1.2).to_dict()
        {'left': 'country', 'right': 'hour', 'strength': 0.4, 'norm': 1.2, 'layer': 1, 'network': 1}
        """
        pair = len(self.features) == 2
        names = dict(zip(("left", "right"), self.features, strict=True)) if pair else {"features": list(self.features)}
        numbers = {key: getattr(self, key) for key in ("strength", "norm", "layer", "network")}
        return names | numbers | {key: list(each) for key in ("strengths", "norms") if (each := getattr(self, key))}

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> Cross:
        names = {} if "features" in values else {"features": (values["left"], values["right"])}
        return cls(**_fields(cls, {**values, **names}))

    def __getitem__(self, key: str) -> Any:
        return self.to_dict()[key]


@dataclasses.dataclass(frozen=True, kw_only=True)
class Spectrum:
    """The singular values of a cross layer's matrix, falling.

    Attributes:
        network, layer: where it stands, counted from 1.
        values: of W.
        used: of W as the data uses it.
        initial: of W before the first step; empty where nobody looked.
    """

    network: int
    layer: int
    values: tuple[float, ...]
    used: tuple[float, ...]
    initial: tuple[float, ...] = ()

    def to_dict(self) -> dict[str, Any]:
        return {key: list(each) if isinstance(each, tuple) else each for key, each in vars(self).items()}

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> Spectrum:
        return cls(**_fields(cls, values))


def _fields(cls: type[Cross] | type[Spectrum], values: Mapping[str, Any]) -> dict[str, Any]:
    """What a class knows of some values; JSON has lists where a frozen object has tuples."""
    known = {field.name: values[field.name] for field in dataclasses.fields(cls) if field.name in values}
    return {key: tuple(each) if isinstance(each, list) else each for key, each in known.items()}
