"""Settings: frozen dataclasses, read from TOML and ``--set`` words, with every unknown key refused.

A settings class is a frozen, keyword-only dataclass whose fields are made by :func:`setting`, so that a key's default
and its help text stand in one place. This module knows how to read such a class, not what any setting means.
"""

from __future__ import annotations

import copy
import dataclasses
import datetime
import difflib
import json
import math
import tomllib
import types
import typing
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal, TypeVar, get_args, get_origin

from crossrank.errors import ConfigError, did_you_mean, listing

T = TypeVar("T")


def setting(default: Any, about: str) -> Any:
    """One field of a settings class: its default and the text that ``--help`` shows.

    Where the default is itself settings, a key below it that is not written keeps the value it has there. A mapping as
    default is copied for each instance.
    """
    if dataclasses.is_dataclass(default) or isinstance(default, dict):
        return dataclasses.field(default_factory=lambda: copy.deepcopy(default), metadata={"about": about})
    return dataclasses.field(default=default, metadata={"about": about})


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
        ...     sizes: tuple[int, ...] = setting((64,), "layer sizes")
        >>> parse(Deep, {"sizes": [32, 16]})
        Deep(sizes=(32, 16))
    """
    fields = {field.name: field for field in dataclasses.fields(typing.cast(Any, cls))}
    hints = typing.get_type_hints(cls)
    for key in values:
        if key not in fields:
            raise ConfigError(
                f"'{_join(path, key)}' is not a setting; known here are {listing(fields, most=20)}.",
                hint=did_you_mean(key, fields),
            )
    defaults = {key: _default(field) for key, field in fields.items()}
    for key, default in defaults.items():
        if default is dataclasses.MISSING and key not in values:
            raise ConfigError(f"'{_join(path, key)}' must be given; got {listing(values)} only.")
    written = {key: _over(defaults[key], value) for key, value in values.items()}
    return cls(**{key: _read(hints[key], value, _join(path, key)) for key, value in written.items()})


def check_keys(values: Mapping[str, Any], parts: Mapping[str, Any]) -> None:
    """Refuse a key that is no setting of some settings objects, with the nearest that is, in whichever part it stands.

    Raises:
        ConfigError: for the first such key.
    """
    known = [path for name, settings in parts.items() for path in _paths(name, settings)]
    for path in flatten(values):
        if not any(path == one or one.startswith(f"{path}.") or path.startswith(f"{one}.") for one in known):
            above = path
            while above and not (here := [one for one in known if one.startswith(f"{above}.")]):
                above = above.rpartition(".")[0]
            names = dict.fromkeys(one.removeprefix(f"{above}.").partition(".")[0] for one in here or known)
            raise ConfigError(
                f"'{path}' is not a setting; known {f'in {above!r}' if above else 'here'} are "
                f"{listing(names, most=20)}.",
                hint=_nearest(path, known),
            )


def flatten(values: Mapping[str, Any], path: str = "") -> dict[str, Any]:
    """Nested mappings as one, by dotted keys.

    >>> flatten({"model": {"name": "dnn", "deep": {"sizes": [8]}}})
    {'model.name': 'dnn', 'model.deep.sizes': [8]}
    """
    result: dict[str, Any] = {}
    for key, value in values.items():
        nested = isinstance(value, Mapping) and value
        result |= flatten(value, _join(path, key)) if nested else {_join(path, key): value}
    return result


def differences(old: Mapping[str, Any], new: Mapping[str, Any]) -> str:
    """What differs between two nested mappings, with both values.

    >>> differences({"training": {"epochs": 5, "l2": 0.0}}, {"training": {"epochs": 10, "l2": 0.0}})
    'training.epochs was 5 and is 10'
    """
    left, right = flatten(old), flatten(new)
    changed = [key for key in left | right if left.get(key) != right.get(key)]
    return ", ".join(f"{key} was {left.get(key)!r} and is {right.get(key)!r}" for key in changed)


def to_dict(settings: Any) -> dict[str, Any]:
    """The settings as plain JSON types, every default written out; the inverse of :func:`parse`."""
    return typing.cast(dict[str, Any], json.loads(json.dumps(dataclasses.asdict(settings))))


def load_toml(path: Path) -> dict[str, Any]:
    """The content of a TOML file as nested dictionaries."""
    try:
        return tomllib.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise ConfigError(f"The config file {path} does not exist.", hint="Check the path given to --config.") from None
    except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
        raise ConfigError(f"The config file {path} must be TOML; {error}.") from None


def override(values: Mapping[str, Any], words: Iterable[str]) -> dict[str, Any]:
    """Lay ``a.b=value`` words over nested mappings.

    The value is read as TOML (``3``, ``1e-3``, ``true``, ``[64, 64]``) and as bare text where that fails.

    >>> override({"model": {"name": "dnn"}}, ["model.deep.sizes=[8]", "model.name=dcn-v2"])
    {'model': {'name': 'dcn-v2', 'deep': {'sizes': [8]}}}
    """
    result = _copy(values)
    for word in words:
        key, equals, text = word.partition("=")
        if not equals or not key.strip():
            raise ConfigError(
                f"A --set word must read key=value; got '{word}'.", hint="Example: --set model.cross.num_layers=3"
            )
        *parents, last = key.strip().split(".")
        place = result
        for parent in parents:
            place = place.setdefault(parent, {})
            if not isinstance(place, dict):
                raise ConfigError(f"'{key}' reaches into '{parent}', which is a single value.")
        place[last] = _toml_value(text.strip())
    return result


def template(parts: Mapping[str, Any]) -> str:
    """A TOML file with every key of some settings objects, its value, its help text and its choices."""
    lines: list[str] = []
    for name, settings in parts.items():
        _write_part(lines, name, settings)
    return "\n".join(lines).lstrip() + "\n"


def _write_part(lines: list[str], name: str, settings: Any) -> None:
    lines += ["", f"[{name}]"]
    nested, hints = [], typing.get_type_hints(type(settings))
    for field in dataclasses.fields(settings):
        value = getattr(settings, field.name)
        if dataclasses.is_dataclass(value):
            nested.append((f"{name}.{field.name}", value))
        else:
            written = f"{field.name} = {_toml_text(value)}" if value is not None else f"# {field.name} ="
            about = field.metadata.get("about", "")
            choices = " | ".join(map(_toml_text, _choices(hints[field.name])))
            lines.append(f"{written:<32} # {about}{f' ({choices})' if choices else ''}")
    for path, value in nested:
        _write_part(lines, path, value)


def _choices(kind: Any) -> tuple[Any, ...]:
    """The values of a Literal, where nothing else is allowed but to leave it out."""
    if get_origin(kind) in (typing.Union, types.UnionType):
        kinds = [one for one in get_args(kind) if one is not type(None)]
        return _choices(kinds[0]) if len(kinds) == 1 else ()
    return get_args(kind) if get_origin(kind) is Literal else ()


def _toml_text(value: Any) -> str:
    if isinstance(value, Mapping):
        return "{" + ", ".join(f"{_toml_text(key)} = {_toml_text(item)}" for key, item in value.items()) + "}"
    return json.dumps(value, ensure_ascii=False)


def _default(field: dataclasses.Field[Any]) -> Any:
    return field.default if field.default_factory is dataclasses.MISSING else field.default_factory()


def _over(default: Any, value: Any) -> Any:
    """A nested settings class starts from the default that its parent gave it, not from its own."""
    if dataclasses.is_dataclass(default) and isinstance(value, Mapping):
        return {field.name: getattr(default, field.name) for field in dataclasses.fields(default)} | dict(value)
    return value


def _paths(path: str, settings: Any) -> Iterator[str]:
    """The dotted key of each setting."""
    if not dataclasses.is_dataclass(settings):
        yield path
        return
    for field in dataclasses.fields(settings):
        yield from _paths(f"{path}.{field.name}", getattr(settings, field.name))


def _nearest(path: str, known: Sequence[str]) -> str:
    """A hint with the known key whose last word is like that of a path, and of several the one most like the path."""
    last = {one: one.rpartition(".")[2] for one in known}
    alike = difflib.get_close_matches(path.rpartition(".")[2], list(last.values()), n=1, cutoff=0.6)
    same = [one for one in known if last[one] in alike]
    near = difflib.get_close_matches(path, same, n=1, cutoff=0.0)
    return f"Did you mean '{near[0]}'?" if near else ""


def _join(path: str, key: str) -> str:
    return f"{path}.{key}" if path else key


def _copy(values: Mapping[str, Any]) -> dict[str, Any]:
    return {key: _copy(value) if isinstance(value, Mapping) else value for key, value in values.items()}


def _toml_value(text: str) -> Any:
    try:
        value = tomllib.loads(f"value = {text}")["value"]
    except tomllib.TOMLDecodeError:
        return text
    return text if isinstance(value, datetime.date | datetime.time) else value  # no setting is a date, a name may be


def _read(kind: Any, value: Any, path: str) -> Any:
    """One value as the annotated type, or a ConfigError that names the key."""
    origin, args = get_origin(kind), get_args(kind)
    if dataclasses.is_dataclass(kind) and isinstance(kind, type) and isinstance(value, Mapping):
        return parse(kind, value, path=path)
    if origin is Literal:
        if value in args and type(value) is type(args[args.index(value)]):
            return value
        hint = did_you_mean(str(value), [str(arg) for arg in args])
        raise ConfigError(f"'{path}' must be one of {listing(map(str, args), most=30)}; got {value!r}.", hint=hint)
    if origin in (typing.Union, types.UnionType):
        return _read_union(args, value, path)
    if origin is tuple and isinstance(value, Sequence) and not isinstance(value, str):
        return tuple(_read(args[0], item, f"{path}[{i}]") for i, item in enumerate(value))
    if origin is not None and issubclass(origin, Mapping) and isinstance(value, Mapping):
        return {str(key): _read(args[1], item, _join(path, str(key))) for key, item in value.items()}
    if kind is float and isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value):
        return float(value)
    if kind is not float and isinstance(kind, type) and origin is None and type(value) is kind:
        return value
    raise ConfigError(f"'{path}' must be {_spoken(kind)}; got {value!r}.")


def _read_union(kinds: Sequence[Any], value: Any, path: str) -> Any:
    if value is None and type(None) in kinds:
        return None
    problems = []
    for kind in (kind for kind in kinds if kind is not type(None)):
        try:
            return _read(kind, value, path)
        except ConfigError as problem:
            problems.append(problem)
    if len(problems) == 1:
        raise problems[0]
    raise ConfigError(f"'{path}' must be {' or '.join(_spoken(kind) for kind in kinds)}; got {value!r}.")


def _spoken(kind: Any) -> str:
    names = {int: "a whole number", float: "a number", bool: "true or false", str: "text", type(None): "left out"}
    if kind in names:
        return names[kind]
    if get_origin(kind) is Literal:
        return listing(map(str, get_args(kind)), most=30)
    if get_origin(kind) is tuple:
        return f"a list, each of it {_spoken(get_args(kind)[0])}"
    return "a table of settings"
