"""What a search may change."""

from __future__ import annotations

import pytest

from crossrank.errors import ConfigError
from crossrank.experiments.paper.table6 import CRITEO
from crossrank.experiments.space import Choice, Range, Space, default_space
from crossrank.training import Config

MAIN_TABLE = ["pnn", "deepfm", "dlrm", "xdeepfm", "autoint-plus", "dcn", "dnn", "dcn-v2", "dcn-mix", "cross-net"]
NEWER = ["final-mlp", "final-net", "mask-net", "fcn", "ecn", "lcn", "qnn-alpha", "edcn", "wukong"]
WITHOUT_DEEP = ["cross-net", "fcn", "ecn", "lcn", "qnn-alpha", "edcn"]


def test_lists_ranges_and_equal_layers_are_read_at_any_depth():
    space = Space.parse(
        {
            "fixed": {"model": {"name": "dnn"}},
            "search": {
                "training": {"learning_rate": {"low": 1e-4, "high": 1e-1, "log": True}, "batch_size": [128, 512]},
                "model.deep.sizes": {"layers": [1, 2], "size": [8, 16]},
            },
        }
    )
    assert space.search == {
        "training.learning_rate": Range(1e-4, 1e-1, log=True),
        "training.batch_size": Choice((128, 512)),
        "model.deep.sizes:layers": Choice((1, 2)),
        "model.deep.sizes:size": Choice((8, 16)),
    }


def test_values_fill_the_open_places_and_left_out_leaves_out():
    fixed = {"model": {"name": "dcn-mix", "cross": {"num_layers": 3}}}
    space = Space.parse({"fixed": fixed, "search": {"model.cross.activation": ["left out", "relu"]}})
    assert space.config({"model.cross.activation": "left out"}) == fixed
    filled = space.config({"model.cross.activation": "relu"})
    assert filled["model"]["cross"] == {"num_layers": 3, "activation": "relu"}
    assert "activation" not in fixed["model"]["cross"], "a trial must not change the space"


def test_a_finer_space_lies_around_the_best_values_on_a_linear_scale():
    space = Space({}, {"rate": Range(1e-4, 1e-1, log=True), "layers": Range(1, 5), "kind": Choice(("a", "b", "c"))})
    finer = space.narrowed([{"rate": 2e-4, "layers": 2, "kind": "c"}, {"rate": 6e-4, "layers": 4, "kind": "a"}])
    assert finer.search["rate"] == Range(pytest.approx(2e-4 / 1.5), pytest.approx(9e-4))
    assert finer.search["layers"] == Range(1, 5)
    assert finer.search["kind"] == Choice(("a", "c"))
    assert finer.holds({"rate": 5e-4, "layers": 2, "kind": "a"})
    assert not finer.holds({"rate": 1e-2, "layers": 2, "kind": "a"})
    assert not finer.holds({"rate": 5e-4, "layers": 2, "kind": "b"})


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"search": {"training": {"learning_rate": 0.1}}}, r"training\.learning_rate.*list of values"),
        ({"search": {"a": {"low": 2, "high": 1}}}, "low below high"),
        ({"search": {"a": {"low": 0.0, "high": 1.0, "log": True}}}, "above 0"),
        ({"search": {"a": {"low": 1, "hihg": 2}}}, "must be a list"),
        ({"search": {}}, "something to search"),
        ({"serach": {}}, "'fixed' and 'search'"),
        ({"search": 5}, "'search' must be an object; got 5"),
        ({"search": {"a": {"low": "x", "high": 3}}}, r"'a\.low' must be a whole number or a number; got 'x'"),
        ({"search": {"a": {"low": 1, "high": 3, "log": "yes"}}}, r"'a\.log' must be true or false; got 'yes'"),
        (
            {"search": {"a": {"layers": 3, "size": [4]}}},
            r"'a\.layers' must be a list, each of it a whole number; got 3",
        ),
        ({"search": {"a": {"layers": [], "size": [4]}}}, "'a' must be a list of values"),
        ({"fixed": [], "search": {"a": [1]}}, "'fixed' must be an object"),
        (
            {"fixed": {"model": 3}, "search": {"model.dim": [1]}},
            "'model' must be a table, since 'model.dim' is searched",
        ),
    ],
)
def test_a_space_that_means_nothing_is_refused(values, message):
    with pytest.raises(ConfigError, match=message):
        Space.parse(values)


@pytest.mark.parametrize("like", ["criteo", "movielens"])
@pytest.mark.parametrize("model", [*MAIN_TABLE, *NEWER])
def test_every_model_of_the_main_table_and_after_it_has_a_space_of_settings_that_can_be_read(model, like):
    space = default_space(model, like=like)
    for pick in (0, -1):
        values = {
            name: parameter.values[pick] if isinstance(parameter, Choice) else parameter.low
            for name, parameter in space.search.items()
        }
        config = Config.parse(space.config(values))
        assert config.model.name == model
        assert config.model.embedding.dim == {"criteo": CRITEO.embedding_dim, "movielens": 30}[like]
    assert any(name.startswith("model.deep.") for name in space.search) == (model not in WITHOUT_DEEP)


def test_an_unknown_model_has_no_space():
    with pytest.raises(ConfigError, match="Did you mean 'dcn-v2'"):
        default_space("dcn-v3")
    with pytest.raises(ConfigError, match="Did you mean 'criteo'"):
        default_space("dcn-v2", like="criteos")
