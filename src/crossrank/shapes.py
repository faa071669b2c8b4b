"""Values of JSON and TOML against the shape that they must have, so that a wrong one is named by its place.

A shape is a type: ``int``, ``float``, ``str``, ``bool``, ``None``, a ``Literal``, a union, ``list[...]``,
``tuple[..., ...]``, ``dict[str, ...]``, a ``TypedDict``, which may hold more than it names, a dataclass, which may not,
or ``Any``. What was read by one is safe to compute with: whole numbers have 64 bits, others are finite, texts are whole
characters, and nothing is nested deeper than 32 levels.
"""

from __future__ import annotations

import dataclasses
import math
import types
import typing
from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import PurePosixPath
from typing import Any, Literal, NewType, NotRequired, TypeVar, get_args, get_origin

from crossrank.errors import ConfigError, did_you_mean, listing

T = TypeVar("T")
DEEPEST = 32
FileName = NewType("FileName", str)  # of a file below a folder


def parse(cls: type[T], values: Mapping[str, Any], *, path: str = "") -> T:
    """Read a settings class from nested mappings; what they leave out keeps its default, in nested classes too.

    Args:
        cls: a dataclass whose fields are annotated with plain types, ``Literal``, unions, tuples, mappings or other
            settings classes.
        values: what was written, for example the content of a TOML file.
        path: the dotted prefix for error messages.

    Raises:
        ConfigError: for an unknown key (with the nearest known one), a value of the wrong type, or an absent key that
            has no default.

    Example:
        >>> @dataclasses.dataclass(frozen=True, kw_only=True)
        ... class Deep:
        ...     sizes: tuple[int, ...] = (64,)
        >>> parse(Deep, {"sizes": [32, 16]})
        Deep(sizes=(32, 16))
    """
    if not isinstance(values, Mapping):
        raise ConfigError(f"{_named(path)} must be a table of settings; got {_evidence(values)}.")
    fields = {field.name: field for field in dataclasses.fields(typing.cast(Any, cls))}
    hints = _hints(typing.cast(Any, cls))
    for key in values:
        if key not in fields:
            raise ConfigError(
                f"'{join(path, key)}' is not a setting; known here are {listing(fields, most=20)}.",
                hint=did_you_mean(key, fields),
            )
    defaults = {key: _default(field) for key, field in fields.items()}
    for key, default in defaults.items():
        if default is dataclasses.MISSING and key not in values:
            raise ConfigError(f"'{join(path, key)}' must be given; got {listing(values)} only.")
    written = {key: _over(defaults[key], value) for key, value in values.items()}
    return cls(**{key: checked(hints[key], value, join(path, key)) for key, value in written.items()})


def _default(field: dataclasses.Field[Any]) -> Any:
    return field.default if field.default_factory is dataclasses.MISSING else field.default_factory()


def _over(default: Any, value: Any) -> Any:
    """A nested settings class starts from the default that its parent gave it, not from its own."""
    if dataclasses.is_dataclass(default) and isinstance(value, Mapping):
        return {field.name: getattr(default, field.name) for field in dataclasses.fields(default)} | dict(value)
    return value


def join(path: str, key: str) -> str:
    return f"{path}.{key}" if path else key


def checked(kind: Any, value: Any, path: str = "") -> Any:
    """A value as the annotated type.

    Raises:
        ConfigError: which names the first key whose value is not of it.

    Example:
        >>> checked(dict[str, list[int]], {"rows": [3, "4"]})
        Traceback (most recent call last):
        crossrank.errors.ConfigError: 'rows[1]' must be a whole number; got '4'.
    """
    origin, args = get_origin(kind), get_args(kind)
    if kind is Any:
        return _plain(value, path)
    if typing.is_typeddict(kind) and isinstance(value, Mapping):
        return _read_named(kind, value, path)
    if dataclasses.is_dataclass(kind) and isinstance(kind, type) and isinstance(value, Mapping):
        return parse(kind, value, path=path)
    if origin is Literal:
        if value in args and type(value) is type(args[args.index(value)]):
            return value
        hint = did_you_mean(str(value), [str(arg) for arg in args])
        raise ConfigError(f"'{path}' must be one of {listing(map(str, args), most=30)}; got {value!r}.", hint=hint)
    if origin in (typing.Union, types.UnionType):
        return _read_union(args, value, path)
    if origin in (tuple, list, Sequence) and isinstance(value, Sequence) and not isinstance(value, str):
        return (tuple if origin is tuple else list)(
            checked(args[0], item, f"{path}[{i}]") for i, item in enumerate(value)
        )
    if origin is not None and issubclass(origin, Mapping) and isinstance(value, Mapping):
        return {
            checked(args[0], str(key), path): checked(args[1], item, join(path, str(key)))
            for key, item in value.items()
        }
    if kind is float and isinstance(value, int | float) and not isinstance(value, bool) and _is_finite(value):
        return float(value)
    if kind is int and type(value) is int and -(2**63) <= value < 2**63:
        return value
    if kind is str and type(value) is str:
        return _text(value, path)
    if kind is FileName and type(value) is str and _is_inside(value):
        return _text(value, path)
    if (kind in (bool, type(None)) or dataclasses.is_dataclass(kind)) and type(value) is kind:
        return value
    raise ConfigError(f"{_named(path)} must be {_spoken(kind)}; got {_evidence(value)}.")


def _read_named(kind: Any, value: Mapping[str, Any], path: str) -> dict[str, Any]:
    """A TypedDict; what it does not name has the type of ``__extra_items__``, if it names that, or any."""
    hints = _hints(kind)
    others = hints.get("__extra_items__", Any)
    for key, hint in hints.items():
        if key not in value and get_origin(hint) is not NotRequired:
            raise ConfigError(f"'{join(path, key)}' must be given; it is missing.")
    read = {}
    for key, item in value.items():
        hint = hints.get(key, others)
        read[key] = checked(get_args(hint)[0] if get_origin(hint) is NotRequired else hint, item, join(path, key))
    return read


def _plain(value: Any, path: str) -> Any:
    """Any value, after a look into whatever it holds."""
    level, inside = 0, [value]
    while inside:
        level, now, inside = level + 1, inside, []
        if level > DEEPEST:
            raise ConfigError(f"{_named(path)} must not be nested deeper than {DEEPEST} levels; it is.")
        for one in now:
            if isinstance(one, Mapping):
                inside += [*one, *one.values()]
            elif isinstance(one, list | tuple):
                inside += one
            elif isinstance(one, int | float | str) and not isinstance(one, bool):
                checked(type(one), one, path)
    return value


@cache
def _hints(cls: Any) -> dict[str, Any]:
    return typing.get_type_hints(cls, include_extras=True)


def _text(value: str, path: str) -> str:
    """Half characters, which JSON can write, can be neither saved nor printed."""
    if not value.isascii() and any("\ud800" <= letter <= "\udfff" for letter in value):
        raise ConfigError(f"{_named(path)} must be text of whole characters; got {_evidence(value)}.")
    return value


def _is_inside(name: str) -> bool:
    parts = PurePosixPath(name)
    return bool(parts.parts) and not parts.is_absolute() and ".." not in parts.parts and not {*name} & {*"\\:\0"}


def _is_finite(value: float) -> bool:
    try:
        return math.isfinite(value)
    except OverflowError:  # a whole number of more than 300 digits
        return False


def _named(path: str) -> str:
    return f"'{path}'" if path else "the whole"


def _evidence(value: Any) -> str:
    """A value for a message, cut where it is long."""
    shown = ascii(value) if isinstance(value, str) and not value.isprintable() else repr(value)
    return shown if len(shown) <= 80 else f"{shown[:77]}…"


def _read_union(kinds: Sequence[Any], value: Any, path: str) -> Any:
    if value is None and type(None) in kinds:
        return None
    problems = []
    for kind in (kind for kind in kinds if kind is not type(None)):
        try:
            return checked(kind, value, path)
        except ConfigError as problem:
            problems.append(problem)
    if len(problems) == 1 or isinstance(value, Mapping):
        raise problems[0]
    raise ConfigError(f"{_named(path)} must be {' or '.join(_spoken(kind) for kind in kinds)}; got {_evidence(value)}.")


def _spoken(kind: Any) -> str:
    names: dict[Any, str] = {FileName: "the name of a file below the folder"}
    names |= {int: "a whole number", float: "a number", bool: "true or false", str: "text", type(None): "left out"}
    if kind in names:
        return names[kind]
    if get_origin(kind) is Literal:
        return listing(map(str, get_args(kind)), most=30)
    if get_origin(kind) in (tuple, list, Sequence):
        return f"a list, each of it {_spoken(get_args(kind)[0])}"
    return "an object" if typing.is_typeddict(kind) or get_origin(kind) is dict else "a table of settings"
