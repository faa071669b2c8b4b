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
import tomllib
import types
import typing
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal, get_args, get_origin

from crossrank.errors import ConfigError, listing
from crossrank.shapes import checked, join
from crossrank.shapes import parse as parse  # of settings


def setting(default: Any, about: str) -> Any:
    """One field of a settings class: its default and the text that ``--help`` shows.

    Where the default is itself settings, a key below it that is not written keeps the value it has there. A mapping as
    default is copied for each instance.
    """
    if dataclasses.is_dataclass(default) or isinstance(default, dict):
        return dataclasses.field(default_factory=lambda: copy.deepcopy(default), metadata={"about": about})
    return dataclasses.field(default=default, metadata={"about": about})


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
        result |= flatten(value, join(path, key)) if nested else {join(path, key): value}
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
        return dict(checked(dict[str, Any], tomllib.loads(path.read_text(encoding="utf-8"))))
    except FileNotFoundError:
        raise ConfigError(f"The config file {path} does not exist.", hint="Check the path given to --config.") from None
    except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError, RecursionError) as error:
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
        *parents, last = key.strip().split(".", 8)  # no setting lies so deep
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


def _copy(values: Mapping[str, Any]) -> dict[str, Any]:
    return {key: _copy(value) if isinstance(value, Mapping) else value for key, value in values.items()}


def _toml_value(text: str) -> Any:
    try:
        value = tomllib.loads(f"value = {text}")["value"]
    except (tomllib.TOMLDecodeError, RecursionError):
        return text
    return text if isinstance(value, datetime.date | datetime.time) else value  # no setting is a date, a name may be
