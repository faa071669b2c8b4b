"""Experiment trackers are told what metrics.jsonl and report.json say."""

from __future__ import annotations

import sys

import pytest

from crossrank.cli import main
from crossrank.errors import ConfigError, MissingExtraError
from crossrank.training import train, train_seeds
from crossrank.training.trackers import Tracker, find_tracker

SMALL = {
    "model": {"embedding": {"dim": 4}, "deep": {"sizes": [8]}},
    "training": {"batch_size": 128, "epochs": 2, "log_every": 5, "eval_every": 6, "patience": 0},
}


class Remembered(Tracker):
    def __init__(self):
        self.told = []

    def start(self, name, folder, config, step):
        self.told.append(("start", name, config["training"]["epochs"], step))

    def line(self, line):
        self.told.append(line)

    def finish(self, report):
        self.told.append(("finish", report))


def test_a_tracker_is_told_the_settings_every_line_and_the_report(dataset, tmp_path) -> None:
    tracker = Remembered()
    run = train(dataset, into=tmp_path / "run", config=SMALL, track=tracker)
    first, *lines, last = tracker.told
    assert first == ("start", "run", 2, 0)
    assert lines == run.metrics
    assert last == ("finish", run.report)


def test_a_tracker_is_told_of_a_training_that_breaks_off_and_goes_on(
    dataset, tmp_path, monkeypatch, kill_at_step
) -> None:
    tracker = Remembered()
    kill_at_step(9)
    with pytest.raises(KeyboardInterrupt):
        train(dataset, into=tmp_path / "run", config=SMALL, track=tracker)
    assert tracker.told[-1] == ("finish", None)
    monkeypatch.undo()
    train(dataset, into=tmp_path / "run", config=SMALL, track=tracker, resume=True)
    assert ("start", "run", 2, 6) in tracker.told


def test_each_seed_is_told(dataset, tmp_path) -> None:
    tracker = Remembered()
    train_seeds(dataset, into=tmp_path / "runs", seeds=2, config=SMALL, track=tracker)
    starts = [told[1] for told in tracker.told if isinstance(told, tuple) and told[0] == "start"]
    assert starts == ["seed-0", "seed-1"]


def test_tensorboard_reads_back_what_the_run_says(dataset, tmp_path, monkeypatch, kill_at_step) -> None:
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    kill_at_step(10)
    with pytest.raises(KeyboardInterrupt):
        train(dataset, into=tmp_path / "run", config=SMALL, track="tensorboard")
    monkeypatch.undo()
    run = train(dataset, into=tmp_path / "run", config=SMALL, track="tensorboard", resume=True)
    events = EventAccumulator(str(run.path)).Reload()

    def written(tag):
        return [(event.step, pytest.approx(event.value)) for event in events.Scalars(tag)]

    lines = run.metrics
    assert written("train/loss") == [(line["step"], line["loss"]) for line in lines if "loss" in line]
    for split in ("valid", "valid_raw"):
        expected = [(line["step"], line[split]["logloss"]) for line in lines if split in line]
        assert written(f"{split}/logloss") == expected
    assert written("test/auc") == [(run.report["training"]["steps"], run.report["test"]["auc"])]
    assert written("best_valid/auc")[0][1] == run.report["valid"]["auc"]
    settings = events.SummaryMetadata("_hparams_/session_start_info").plugin_data.content
    assert b"training.learning_rate" in settings


def test_the_command_line_tracks_too(dataset, tmp_path, monkeypatch, kill_at_step) -> None:
    words = [
        "train",
        dataset.path,
        "--into",
        tmp_path / "run",
        "--track",
        "tensorboard",
        "--set",
        "training.max_steps=2",
    ]
    monkeypatch.setattr("sys.argv", ["crossrank", *map(str, words)])
    with pytest.raises(SystemExit) as stop:
        main()
    assert not stop.value.code
    assert list((tmp_path / "run").glob("events.out.tfevents.*"))


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:The ``noload`` loader strategy")  # of MLflow's own tables, with a new SQLAlchemy
def test_mlflow_reads_back_what_the_run_says(dataset, tmp_path, monkeypatch, kill_at_step) -> None:
    monkeypatch.setenv("MLFLOW_DISABLE_TELEMETRY", "true")
    import mlflow

    monkeypatch.setenv("MLFLOW_TRACKING_URI", f"sqlite:///{tmp_path}/mlflow.db")
    run = train(dataset, into=tmp_path / "first", config=SMALL, track="mlflow")
    assert mlflow.active_run() is None
    kill_at_step(4)
    with pytest.raises(KeyboardInterrupt):
        train(dataset, into=tmp_path / "second", config=SMALL, track="mlflow")
    client = mlflow.MlflowClient()
    found = {one.info.run_name: one for one in client.search_runs(["0"])}
    assert {name: one.info.status for name, one in found.items()} == {"first": "FINISHED", "second": "FAILED"}
    first = found["first"].data
    assert first.params["model.deep.sizes"] == "[8]" and first.params["training.epochs"] == "2"
    assert first.metrics["test/logloss"] == pytest.approx(run.report["test"]["logloss"])
    history = client.get_metric_history(found["first"].info.run_id, "valid/logloss")
    assert [(one.step, one.value) for one in history] == [
        (line["step"], pytest.approx(line["valid"]["logloss"])) for line in run.metrics if "valid" in line
    ]


def test_a_tracker_that_is_not_installed_or_not_known_says_what_to_do(
    dataset, tmp_path, monkeypatch, kill_at_step
) -> None:
    for name, module in {"tensorboard": "torch.utils.tensorboard", "mlflow": "mlflow"}.items():
        monkeypatch.setitem(sys.modules, module, None)
        with pytest.raises(MissingExtraError, match=rf"pip install 'crossrank\[{name}\]'"):
            train(dataset, into=tmp_path / "run", track=name)
    with pytest.raises(ConfigError, match="Did you mean 'tensorboard'"):
        find_tracker("tensorbord")
    assert list(tmp_path.iterdir()) == []


def test_names_that_mlflow_refuses_are_spelled_out(monkeypatch, kill_at_step) -> None:
    import mlflow

    logged = {}
    monkeypatch.setattr(mlflow, "log_metrics", lambda values, step: logged.update(values))
    find_tracker("mlflow").line({"step": 1, "valid": {"ndcg@10": 0.5}})
    assert logged == {"valid/ndcg_at_10": 0.5}
