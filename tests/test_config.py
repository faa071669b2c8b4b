"""Settings: every written value is read as its type or refused by name."""

from __future__ import annotations

import dataclasses
import json
import math
import tomllib
from collections.abc import Mapping
from typing import Literal

import pytest

from crossrank.config import check_keys, load_toml, override, parse, setting, template, to_dict
from crossrank.errors import ConfigError


@dataclasses.dataclass(frozen=True, kw_only=True)
class Cross:
    layer: Literal["full", "low_rank", "mixture"] = setting("full", "kind of layer")
    num_layers: int = setting(2, "how many")
    rank: int | None = setting(None, "rank; left out, none")


@dataclasses.dataclass(frozen=True, kw_only=True)
class Model:
    name: str = setting("dcn", "which model")
    dim: int | Literal["rule", "average"] = setting(16, "width")
    dims: Mapping[str, int] = setting({}, "widths by name")
    sizes: tuple[int, ...] = setting((64, 64), "layer sizes")
    dropout: float = setting(0.0, "share dropped")
    bias: bool = setting(True, "with bias")
    cross: Cross = setting(Cross(), "")


@dataclasses.dataclass(frozen=True, kw_only=True)
class Mixture(Model):
    cross: Cross = setting(Cross(layer="mixture", num_layers=3), "")


@dataclasses.dataclass(frozen=True, kw_only=True)
class Named:
    name: str
    size: int = 1


def test_nothing_written_gives_the_defaults():
    assert parse(Model, {}) == Model()


def test_a_key_is_refused_with_the_nearest_in_any_part():
    parts = {"model": Model(), "other": Cross()}
    check_keys({"model": {"cross": {"rank": 3}, "dims": {"user": 8}}, "other": {"rank": 3}}, parts)
    for written, nearest in (
        ({"dropout": 1}, "model.dropout"),
        ({"modle": {"dropout": 1}}, "model.dropout"),
        ({"other": {"dropuot": 1}}, "model.dropout"),
        ({"model": {"num_layers": 1}}, "model.cross.num_layers"),
        ({"oter": {"rank": 1}}, "other.rank"),
    ):
        with pytest.raises(ConfigError, match=f"is not a setting; known .* Did you mean '{nearest}'"):
            check_keys(written, parts)
    with pytest.raises(ConfigError, match=r"'model\.cross\.zzz' is not a setting; known in 'model\.cross' are 'layer'"):
        check_keys({"model": {"cross": {"zzz": 1}}}, parts)


def test_a_template_lists_the_choices_of_a_setting():
    lines = template({"cross": Cross()}).splitlines()
    assert lines[1].endswith('# kind of layer ("full" | "low_rank" | "mixture")')
    assert lines[2].endswith("# how many")


def test_every_type_is_read():
    written = {
        "name": "x",
        "dim": "rule",
        "dims": {"user": 8},
        "sizes": [],
        "dropout": 1,
        "bias": False,
        "cross": {"layer": "low_rank", "rank": 4},
    }
    read = parse(Model, written)
    assert read == Model(
        name="x",
        dim="rule",
        dims={"user": 8},
        sizes=(),
        dropout=1.0,
        bias=False,
        cross=Cross(layer="low_rank", rank=4),
    )
    assert isinstance(read.dropout, float)


@pytest.mark.parametrize("settings", [Model(), Mixture(), Model(dims={"a": 3}, sizes=(8,), cross=Cross(rank=2))])
def test_settings_survive_json(settings):
    assert parse(type(settings), json.loads(json.dumps(to_dict(settings)))) == settings


@pytest.mark.parametrize(
    ("written", "message"),
    [
        ({"naem": "x"}, "'model.naem' is not a setting; known here are 'name', .* Did you mean 'name'"),
        ({"cross": {"layers": 3}}, "'model.cross.layers' is not a setting"),
        (
            {"cross": {"layer": "low-rank"}},
            "'model.cross.layer' must be one of .*; got 'low-rank'. Did you mean 'low_rank'",
        ),
        ({"cross": 3}, "'model.cross' must be a table of settings; got 3"),
        ({"cross": {"num_layers": 2.0}}, "'model.cross.num_layers' must be a whole number; got 2.0"),
        ({"cross": {"num_layers": True}}, "'model.cross.num_layers' must be a whole number; got True"),
        ({"cross": {"num_layers": None}}, "'model.cross.num_layers' must be a whole number; got None"),
        ({"cross": {"rank": "4"}}, "'model.cross.rank' must be a whole number; got '4'"),
        ({"dim": "rul"}, "'model.dim' must be a whole number or 'rule', 'average'; got 'rul'"),
        ({"dims": {"user": "8"}}, "'model.dims.user' must be a whole number; got '8'"),
        ({"dims": [1]}, r"'model.dims' must be a table of settings; got \[1\]"),
        ({"sizes": [64, "64"]}, r"'model.sizes\[1\]' must be a whole number; got '64'"),
        ({"sizes": 64}, "'model.sizes' must be a list, each of it a whole number; got 64"),
        ({"sizes": "64"}, "'model.sizes' must be a list"),
        ({"dropout": "0.1"}, "'model.dropout' must be a number; got '0.1'"),
        ({"dropout": True}, "'model.dropout' must be a number; got True"),
        ({"dropout": math.nan}, "'model.dropout' must be a number; got nan"),
        ({"dropout": math.inf}, "'model.dropout' must be a number; got inf"),
        ({"bias": 1}, "'model.bias' must be true or false; got 1"),
        ({"name": 3}, "'model.name' must be text; got 3"),
    ],
)
def test_a_wrong_value_is_refused_by_its_key(written, message):
    with pytest.raises(ConfigError, match=message):
        parse(Model, written, path="model")


def test_a_key_without_default_must_be_given():
    with pytest.raises(ConfigError, match=r"'thing\.name' must be given; got 'size' only"):
        parse(Named, {"size": 2}, path="thing")
    assert parse(Named, {"name": "a"}) == Named(name="a")


def test_a_part_that_is_written_keeps_the_rest_of_its_parents_default():
    assert parse(Mixture, {"cross": {"rank": 8}}).cross == Cross(layer="mixture", num_layers=3, rank=8)
    assert parse(Mixture, {"cross": {}}) == Mixture()


def test_a_mapping_as_default_is_not_shared():
    assert Model().dims is not Model().dims


def test_words_lie_over_what_a_file_says_and_leave_it_alone():
    file = {"model": {"name": "dnn", "cross": {"rank": 3}}}
    words = [
        "model.cross.num_layers=3",
        "model.dropout = 1e-3",
        "model.bias=false",
        "model.sizes=[8, 4]",
        "model.name=dcn-v2",
        'run.note="a = b"',
        "run.equation=a=b",
        "run.day=2024-01-01",
        "run.empty=",
        "model.cross.num_layers=4",
    ]
    assert override(file, words) == {
        "model": {
            "name": "dcn-v2",
            "cross": {"rank": 3, "num_layers": 4},
            "dropout": 1e-3,
            "bias": False,
            "sizes": [8, 4],
        },
        "run": {"note": "a = b", "equation": "a=b", "day": "2024-01-01", "empty": ""},
    }
    assert file == {"model": {"name": "dnn", "cross": {"rank": 3}}}


@pytest.mark.parametrize(
    ("word", "message"),
    [
        ("model.name", "must read key=value; got 'model.name'. Example"),
        ("=3", "must read key=value"),
        ("model.name.first=3", "'model.name.first' reaches into 'name', which is a single value"),
    ],
)
def test_a_word_that_cannot_be_laid_is_refused(word, message):
    with pytest.raises(ConfigError, match=message):
        override({"model": {"name": "dnn"}}, [word])


def test_a_toml_file_is_read_and_its_faults_are_named(tmp_path):
    path = tmp_path / "config.toml"
    with pytest.raises(ConfigError, match="does not exist"):
        load_toml(path)
    path.write_text("[model.cross]\nrank = 4\n", encoding="utf-8")
    assert load_toml(path) == {"model": {"cross": {"rank": 4}}}
    for content in (b"rank = ", b"\xff"):
        path.write_bytes(content)
        with pytest.raises(ConfigError, match=r"config\.toml must be TOML; "):
            load_toml(path)


def test_a_template_is_toml_that_reads_back_as_the_same_settings():
    settings = Mixture(name='a "ä" 🙂', dims={"user id": 8, "b": 2}, sizes=(8,), dropout=1e-7)
    text = template({"model": settings, "other": Named(name="n")})
    values = tomllib.loads(text)
    assert parse(Mixture, values["model"]) == settings
    assert parse(Named, values["other"]) == Named(name="n")
    assert "# how many" in text
