"""Trainings that were killed while finishing, and files that were damaged: gone on with, or named."""

from __future__ import annotations

import json
import shutil

import pytest
import torch

from crossrank.data import EncodedDataset
from crossrank.errors import DataError, RunError
from crossrank.runs.lifecycle import is_interrupted
from crossrank.training import train

CONFIG = {
    "model": {"embedding": {"dim": 2}, "deep": {"sizes": [4]}},
    "training": {"batch_size": 256, "epochs": 2, "learning_rate": 0.01},
}


@pytest.fixture
def copy(dataset, tmp_path):
    shutil.copytree(dataset.path, tmp_path / "dataset")
    return tmp_path / "dataset"


def flip(path, place=None) -> None:
    content = bytearray(path.read_bytes())
    content[len(content) // 2 if place is None else place] ^= 64
    path.write_bytes(content)


@pytest.fixture
def killed(dataset, tmp_path, monkeypatch):
    """A training that ended at a call of a function."""

    def kill(place: str) -> None:
        def die(*_, **__):
            raise KeyboardInterrupt

        with monkeypatch.context() as patch:
            patch.setattr(place, die)
            with pytest.raises(KeyboardInterrupt):
                train(dataset, into=tmp_path / "run", config=CONFIG)

    return kill


@pytest.mark.parametrize(
    "place",
    [
        "crossrank.training.finish.write_findings",
        "crossrank.training.finish.write_run",
        "crossrank.runs.writing.origin",
        "crossrank.runs.lifecycle.publish",
    ],
)
def test_a_training_that_was_killed_while_finishing_is_resumed(dataset, tmp_path, run, killed, place) -> None:
    killed(place)
    assert is_interrupted(tmp_path / "run")
    with pytest.raises(RunError, match=r"unfinished training\. Pass --resume"):
        train(dataset, into=tmp_path / "run", config=CONFIG)
    resumed = train(dataset, into=tmp_path / "run", config=CONFIG, resume=True)
    whole = train(dataset, into=tmp_path / "whole", config=CONFIG)
    for name, tensor in whole.model.state_dict().items():
        assert torch.equal(tensor, resumed.model.state_dict()[name])
    names = [sorted(path.name for path in one.path.iterdir()) for one in (whole, resumed)]
    assert names[0] == names[1] and "plan.json" not in names[0]


@pytest.mark.parametrize(
    "name", ["plan.json", "metrics.jsonl", "checkpoint/position.json", "checkpoint/state-14.safetensors"]
)
def test_a_damaged_checkpoint_is_named(dataset, tmp_path, killed, name) -> None:
    killed("crossrank.training.finish.write_run")
    flip(tmp_path / "run.partial" / name)
    with pytest.raises(RunError, match=rf"{name.rpartition('/')[2]} (is not what was written|must be readable JSON)"):
        train(dataset, into=tmp_path / "run", config=CONFIG, resume=True)
    train(dataset, into=tmp_path / "run", config=CONFIG, overwrite=True)


def test_a_plan_and_a_position_that_are_none_are_named(dataset, tmp_path, killed) -> None:
    killed("crossrank.training.finish.write_run")
    partial = tmp_path / "run.partial"
    for name, wrong, message in (
        ("plan.json", "[]", "the whole must be an object"),
        ("plan.json", '{"seed": 0}', "'config' must be given"),
        ("checkpoint/position.json", "5", "the whole must be an object"),
        ("checkpoint/position.json", '{"step": "one"}', "'step' must be a whole number; got 'one'"),
        (
            "checkpoint/position.json",
            '{"state": "../plan.json"}',
            "'state' must be the name of a file below the folder",
        ),
    ):
        before = (partial / name).read_text()
        (partial / name).write_text(wrong)
        with pytest.raises(RunError, match=rf"{name} .*{message}.* Train anew with --overwrite"):
            train(dataset, into=tmp_path / "run", config=CONFIG, resume=True)
        (partial / name).write_text(before)
    position = json.loads((partial / "checkpoint/position.json").read_text())
    del position["checksum"], position["state_checksum"]
    (partial / "checkpoint/position.json").write_text(json.dumps(position))
    with pytest.raises(RunError, match=r"damaged: state-14\.safetensors is not what was written"):
        train(dataset, into=tmp_path / "run", config=CONFIG, resume=True)


@pytest.mark.parametrize(
    "name", ["train/categorical", "train/numeric", "train/labels", "valid/categorical", "test/labels"]
)
def test_damaged_rows_are_named_and_leave_nothing(copy, tmp_path, name) -> None:
    flip(copy / f"{name}.npy", -1)
    with pytest.raises(DataError, match=f"damaged: {name}.npy is not what was written"):
        train(copy, into=tmp_path / "run", config=CONFIG)
    assert [path.name for path in tmp_path.iterdir()] == ["dataset"]


def test_rows_are_compared_when_they_are_first_read(copy) -> None:
    flip(copy / "valid/labels.npy", -1)
    opened = EncodedDataset.open(copy)
    assert len(opened.test) > 0
    with pytest.raises(DataError, match=r"damaged: valid/labels\.npy"):
        _ = opened.valid


def test_the_vocabulary_of_another_dataset_is_refused(copy, clicks, tmp_path) -> None:
    from crossrank.data.generators.demo import schema
    from crossrank.data.prepare import prepare

    other = prepare(clicks.head(500), schema(), tmp_path / "other")
    shutil.copy(other.path / "encoder/vocabulary.safetensors", copy / "encoder/vocabulary.safetensors")
    with pytest.raises(DataError, match=r"damaged: encoder/vocabulary\.safetensors"):
        EncodedDataset.open(copy)


def test_an_edited_manifest_is_refused(copy) -> None:
    manifest = json.loads((copy / "manifest.json").read_text())
    manifest["fingerprint"] = "0" * 32
    (copy / "manifest.json").write_text(json.dumps(manifest))
    with pytest.raises(DataError, match=r"damaged: manifest\.json"):
        EncodedDataset.open(copy)


def test_two_trainings_do_not_share_a_folder(dataset, tmp_path) -> None:
    told = []

    def another(*_) -> None:
        with pytest.raises(RunError, match="made by one command at a time; process"):
            train(dataset, into=tmp_path / "run", config=CONFIG, overwrite=True)
        told.append(1)

    train(dataset, into=tmp_path / "run", config=CONFIG, on_evaluation=another)
    assert told
