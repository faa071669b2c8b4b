"""What a training on several processes refuses, and what it says; most of it without any process."""

from __future__ import annotations

import polars as pl
import pytest
from torchrun import WITHOUT

from crossrank.data.prepare import prepare
from crossrank.errors import ConfigError, CrossRankError
from crossrank.schema import Categorical, Label, Schema
from crossrank.training import Config, train
from crossrank.training.distributed.launch import run_workers
from crossrank.training.distributed.world import joined

DISTRIBUTED = {"training": {"distributed": True}}


def test_it_needs_processes_that_know_of_each_other(monkeypatch):
    monkeypatch.delenv("RANK", raising=False)
    with pytest.raises(ConfigError, match=r"RANK and WORLD_SIZE are not set.*--workers 2"), joined("cpu"):
        pass


@pytest.mark.skipif(not WITHOUT, reason="TorchRec is installed")
def test_it_says_where_to_read_how_torchrec_is_installed(tmp_path):
    with pytest.raises(CrossRankError, match=r"needs TorchRec.*many-machines"):
        run_workers(["train"], workers=2, into=tmp_path)
    with pytest.raises(CrossRankError, match=r"needs TorchRec.*many-machines"):
        train("anything", into=tmp_path / "run", config=DISTRIBUTED)


@pytest.mark.skipif(WITHOUT, reason="TorchRec is installed by `make test-distributed`")
@pytest.mark.parametrize(
    ("config", "message"),
    [
        ({"model": {"ensemble": 2}}, "model.ensemble=2"),
        ({"training": {"memory": "auto"}}, "training.memory=auto"),
        ({"training": {"heads": "own"}}, "training.heads=own"),
    ],
)
@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_it_trains_one_model_with_one_loss(dataset, tmp_path, config, message):
    config = {**config, "training": {**config.get("training", {}), "distributed": True}}
    with pytest.raises(ConfigError, match=message):
        train(dataset, into=tmp_path / "run", config=config)


@pytest.mark.skipif(WITHOUT, reason="TorchRec is installed by `make test-distributed`")
@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_it_trains_one_label(tmp_path):
    table = pl.DataFrame({"item": ["a", "b", "c", "d"] * 50, "click": [0, 1] * 100, "like": [1, 0, 0, 1] * 50})
    tasks = prepare(table, Schema([Categorical(name="item")], Label(columns=("click", "like"))), tmp_path / "tasks")
    with pytest.raises(ConfigError, match="has one label; got the tasks click, like"):
        train(tasks, into=tmp_path / "run", config=DISTRIBUTED)


@pytest.mark.skipif(WITHOUT, reason="TorchRec is installed by `make test-distributed`")
@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_it_wants_a_prepared_dataset(clicks, tmp_path):
    with pytest.raises(ConfigError, match=r"must have a prepared dataset.*crossrank prepare"):
        train(clicks, into=tmp_path / "run", config=DISTRIBUTED)


def test_a_placement_has_a_known_name():
    with pytest.raises(ConfigError, match=r"'training.placement.item' must be one of 'table-wise'"):
        Config.parse({"training": {"placement": {"item": "tablewise"}}})


@pytest.mark.skipif(WITHOUT, reason="TorchRec is installed by `make test-distributed`")
@pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::FutureWarning")
def test_a_placement_is_that_of_a_feature():
    from crossrank.training.distributed.placement import asked_for

    names = {"0_0": "item", "0_1": "hour", "1_0": "item"}
    assert asked_for({"all": "row-wise", "item": "table-wise"}, names) == {
        "0_0": "table-wise", "0_1": "row-wise", "1_0": "table-wise"
    }  # fmt: skip
    with pytest.raises(ConfigError, match="Did you mean 'item'"):
        asked_for({"itme": "row-wise"}, names)
