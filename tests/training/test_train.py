"""Training from beginning to end, stopped, resumed, repeated."""

from __future__ import annotations

import json
import math
import sys

import numpy as np
import pytest
import torch

from crossrank.errors import ConfigError, CrossRankError, RunError
from crossrank.evaluation.spectrum import measure_spectra
from crossrank.models import build_model
from crossrank.runs import Run
from crossrank.runs.lifecycle import has_checkpoint
from crossrank.training import Config, train, train_seeds
from crossrank.training.processor import ProcessorEngine
from crossrank.training.profile import StepClock

SMALL = {
    "model": {"embedding": {"dim": 4, "dropout": 0.1}, "deep": {"sizes": [8], "dropout": 0.1}},
    "training": {"batch_size": 128, "epochs": 2, "log_every": 5, "learning_rate": 0.01, "eval_every": 6, "patience": 0},
}


def weights(run: Run) -> dict[str, torch.Tensor]:
    return run.model.state_dict()


def test_the_same_seed_gives_the_same_weights_and_another_does_not(dataset, tmp_path) -> None:
    first, again, other = (
        train(dataset, into=tmp_path / name, config=SMALL, seed=seed) for name, seed in [("a", 1), ("b", 1), ("c", 2)]
    )
    for name, tensor in weights(first).items():
        assert torch.equal(tensor, weights(again)[name])
    assert not torch.equal(weights(first)["output.weight"], weights(other)["output.weight"])


def test_training_does_not_touch_the_callers_random_numbers(dataset, tmp_path) -> None:
    torch.manual_seed(5)
    expected = torch.rand(3)
    torch.manual_seed(5)
    train(dataset, into=tmp_path / "run", config=SMALL)
    assert torch.equal(torch.rand(3), expected)


def test_a_killed_training_resumes_to_the_same_weights(dataset, tmp_path, monkeypatch, kill_at_step) -> None:
    whole = train(dataset, into=tmp_path / "whole", config=SMALL)
    kill_at_step(9)
    with pytest.raises(KeyboardInterrupt):
        train(dataset, into=tmp_path / "cut", config=SMALL)
    monkeypatch.undo()
    assert not (tmp_path / "cut").exists()
    with pytest.raises(RunError, match=r"unfinished training.*--resume"):
        train(dataset, into=tmp_path / "cut", config=SMALL)
    with pytest.raises(RunError, match="--resume"):
        Run.open(tmp_path / "cut")
    resumed = train(dataset, into=tmp_path / "cut", config=SMALL, resume=True)
    for name, tensor in weights(whole).items():
        assert torch.equal(tensor, weights(resumed)[name])
    assert resumed.spectrum == whole.spectrum
    losses = [[line.get("loss") for line in run.metrics] for run in (whole, resumed)]
    steps = [[line["step"] for line in run.metrics] for run in (whole, resumed)]
    assert steps[0] == steps[1]
    assert losses[0][-1] == pytest.approx(losses[1][-1])


@pytest.mark.parametrize("layer", ["full", "mixture"])
def test_the_initial_spectrum_is_that_of_the_model_before_its_first_step(layer, dataset, tmp_path, monkeypatch) -> None:
    built, module = [], sys.modules["crossrank.training.finish"]
    monkeypatch.setattr(
        module, "build_model", lambda *made, **how: built.append(build_model(*made, **how)) or built[-1]
    )
    config = Config.parse(SMALL | {"model": {**SMALL["model"], "cross": {"layer": layer}}})
    run = train(dataset, into=tmp_path / "run", config=config, seed=3)
    assert len(built) == 1  # none is built to look at afterwards
    torch.manual_seed(3)
    untrained = measure_spectra(build_model(config.model, dataset.features), dataset.valid)
    assert [one.initial for one in run.spectrum] == [one.values for one in untrained]
    assert all(one.initial != one.values for one in run.spectrum)


def test_a_resumed_training_must_be_the_same_training(dataset, tmp_path, monkeypatch, kill_at_step) -> None:
    kill_at_step(4)
    config = {**SMALL, "training": {**SMALL["training"], "eval_every": 2}}
    with pytest.raises(KeyboardInterrupt):
        train(dataset, into=tmp_path / "run", config=config)
    monkeypatch.undo()
    with pytest.raises(ConfigError, match=r"training\.eval_every was 2 and is 6"):
        train(dataset, into=tmp_path / "run", config=SMALL, resume=True)


def test_a_failure_before_the_first_checkpoint_leaves_nothing(dataset, tmp_path, monkeypatch) -> None:
    monkeypatch.setattr(ProcessorEngine, "step", lambda *_: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        train(dataset, into=tmp_path / "run", config=SMALL)
    assert list(tmp_path.iterdir()) == []


def test_an_existing_run_is_not_replaced_unless_asked(dataset, tmp_path) -> None:
    train(dataset, into=tmp_path / "run", config=SMALL)
    with pytest.raises(RunError, match="must not exist yet"):
        train(dataset, into=tmp_path / "run", config=SMALL)
    train(dataset, into=tmp_path / "run", config=SMALL, seed=9, overwrite=True)
    assert Run.open(tmp_path / "run").info["seed"] == 9
    assert [path.name for path in tmp_path.iterdir()] == ["run"]


def test_a_folder_that_is_no_run_is_never_replaced(dataset, tmp_path) -> None:
    (tmp_path / "thesis").mkdir()
    with pytest.raises(RunError, match="not a run folder"):
        train(dataset, into=tmp_path / "thesis", config=SMALL, overwrite=True)
    assert (tmp_path / "thesis").is_dir()


def test_a_file_where_the_folder_should_be_is_a_clear_error(dataset, tmp_path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(CrossRankError, match="file"):
        train(dataset, into=tmp_path / "file" / "run", config=SMALL)


def test_the_best_weights_are_kept_not_the_last(dataset, tmp_path) -> None:
    rough = {"training": {**SMALL["training"], "learning_rate": 0.3, "epochs": 6, "average_decay": 0.0}}
    run = train(dataset, into=tmp_path / "run", config={**SMALL, **rough})
    losses = {line["step"]: line["valid"]["logloss"] for line in run.metrics if "valid" in line}
    best = min(losses, key=losses.__getitem__)
    assert run.report["training"]["best_step"] == best
    assert run.report["valid"]["logloss"] == pytest.approx(losses[best], abs=1e-12)
    assert losses[max(losses)] > losses[best]


def test_patience_stops_a_training_that_no_longer_improves(dataset, tmp_path) -> None:
    rough = {"training": {**SMALL["training"], "learning_rate": 0.3, "epochs": 50, "patience": 2}}
    run = train(dataset, into=tmp_path / "run", config={**SMALL, **rough})
    evaluations = [line["step"] for line in run.metrics if "valid" in line]
    assert len(evaluations) < 50
    assert evaluations.index(run.report["training"]["best_step"]) == len(evaluations) - 3


def test_steps_bound_a_training(dataset, tmp_path) -> None:
    run = train(dataset, into=tmp_path / "run", config={**SMALL, "training": {"max_steps": 3, "batch_size": 100}})
    assert run.report["training"]["steps"] == 3


@pytest.mark.parametrize(("eval_every", "what"), [(3, "training loss"), (1, "model's answers")])
def test_a_training_that_diverges_is_reported_with_a_way_out(dataset, tmp_path, eval_every, what) -> None:
    wild = {"training": {"learning_rate": 1e30, "clip_norm": 0.0, "eval_every": eval_every}}
    with pytest.raises(ConfigError, match=rf"{what}.*finite.*learning_rate"):
        train(dataset, into=tmp_path / "run", config={**SMALL, **wild})


def test_the_test_rows_are_not_read_where_a_search_still_chooses(dataset, tmp_path) -> None:
    assert "test" not in train(dataset, into=tmp_path / "run", config=SMALL, test=False).report


def test_several_seeds_report_mean_and_deviation(dataset, tmp_path) -> None:
    summary = train_seeds(dataset, into=tmp_path / "runs", seeds=3, config=SMALL)
    values = [Run.open(tmp_path / "runs" / f"seed-{i}").report["test"]["auc"] for i in range(3)]
    assert summary["test"]["auc"]["mean"] == pytest.approx(np.mean(values))
    assert summary["test"]["auc"]["deviation"] == pytest.approx(np.std(values, ddof=1))
    assert json.loads((tmp_path / "runs" / "seeds.json").read_text()) == summary


def test_several_seeds_go_on_where_they_were_interrupted(dataset, tmp_path, monkeypatch, kill_at_step) -> None:
    whole = train_seeds(dataset, into=tmp_path / "whole", seeds=2, config=SMALL)
    steps = Run.open(tmp_path / "whole" / "seed-0").report["training"]["steps"]
    kill_at_step(steps + 9)
    with pytest.raises(KeyboardInterrupt):
        train_seeds(dataset, into=tmp_path / "cut", seeds=2, config=SMALL)
    monkeypatch.undo()
    assert (tmp_path / "cut" / "seed-0" / "run.json").is_file()
    assert has_checkpoint(tmp_path / "cut" / "seed-1.partial")
    assert train_seeds(dataset, into=tmp_path / "cut", seeds=2, config=SMALL) == whole


def test_an_untrained_special_id_gets_the_mean_vector_of_its_feature(dataset) -> None:
    config = Config.parse(SMALL)
    model = build_model(config.model, dataset.features)
    position = [slot.name for slot in model.layout.embedded].index("hour")
    table = model.embedding.table(position)
    counts = dataset.encoder.counts("hour")
    assert counts[0] == counts[1] == 0
    before = table.detach().clone()
    expected = (torch.as_tensor(counts, dtype=torch.float32)[:, None] * before).sum(0) / counts.sum()
    model.fill_untrained_rows({slot.name: dataset.encoder.counts(slot.name) for slot in model.layout.embedded})
    torch.testing.assert_close(table[0], expected)
    torch.testing.assert_close(table[1], expected)
    assert torch.equal(table[2:], before[2:])


def test_a_trained_special_id_keeps_its_vector(dataset) -> None:
    model = build_model(Config.parse(SMALL).model, dataset.features)
    position = [slot.name for slot in model.layout.embedded].index("user")
    counts = {slot.name: dataset.encoder.counts(slot.name) for slot in model.layout.embedded}
    assert counts["user"][1] > 0
    before = model.embedding.table(position)[1].detach().clone()
    model.fill_untrained_rows(counts)
    assert torch.equal(model.embedding.table(position)[1], before)


def test_every_unseen_value_gets_one_and_the_same_sensible_answer(run, clicks) -> None:
    rows = clicks.head(50).drop("click").to_dicts()
    strange = [{**row, "hour": "never seen"} for row in rows]
    stranger = [{**row, "hour": 99} for row in rows]
    np.testing.assert_array_equal(run.predict(strange), run.predict(stranger))
    assert np.abs(np.log(run.predict(strange) / run.predict(rows))).mean() < 1


def test_a_number_can_be_learned_too(clicks, tmp_path) -> None:
    import polars as pl

    from crossrank.schema import Categorical, Label, Schema

    frame = clicks.with_columns(score=pl.col("hour") * 0.5 + 1.0)
    schema = Schema([Categorical(name="hour"), Categorical(name="device")], Label(name="score", kind="real"))
    config = {**SMALL, "training": {"learning_rate": 0.02, "epochs": 8, "batch_size": 64}}
    run = train(frame, into=tmp_path / "run", schema=schema, config=config)
    assert run.report["test"]["rmse"] < frame["score"].std() / 3
    assert math.isclose(run.predict(frame.head(5)).mean(), frame["score"].head(5).mean(), rel_tol=0.5)


def test_sample_weights_change_what_is_learned(clicks, tmp_path) -> None:
    import polars as pl

    from crossrank.schema import Categorical, Label, Schema

    frame = clicks.with_columns(weight=pl.when(pl.col("click") == 1).then(10.0).otherwise(1.0))
    features = [Categorical(name="hour"), Categorical(name="device")]
    plain = train(frame, into=tmp_path / "plain", schema=Schema(features, Label(name="click")), config=SMALL)
    heavy = train(
        frame, into=tmp_path / "heavy", schema=Schema(features, Label(name="click"), weight="weight"), config=SMALL
    )
    assert heavy.predict(frame).mean() > plain.predict(frame).mean() + 0.2


def test_a_profile_gives_each_part_of_a_step_one_stretch_and_evaluations_to_the_log(dataset, tmp_path) -> None:
    marks: list[str] = []

    class Noting(StepClock):
        def mark(self, part: str) -> None:
            marks.append(part)
            super().mark(part)

    clock = Noting()
    train(dataset, into=tmp_path / "run", config={"training": {"max_steps": 4, "eval_every": 2}}, clock=clock)
    step = ["load", "gather", "forward", "backward", "update", "average", "log"]
    assert marks == 4 * step
    assert clock.steps == 3  # without the first


def test_a_short_training_logs_its_loss_and_counts_its_time(dataset, tmp_path) -> None:
    """Also where evaluations come more often than lines of the journal."""
    config = {**SMALL, "training": {"batch_size": 128, "max_steps": 9, "eval_every": 4}}
    run = train(dataset, into=tmp_path / "run", config=config)
    assert [line["step"] for line in run.metrics if "loss" in line] == [4, 8, 9]
    told = run.report["training"]
    assert told["seconds"] > 0
    assert told["rows_per_second"] * told["seconds"] == pytest.approx(9 * 128)


@pytest.mark.parametrize("schedule", ["constant", "linear", "cosine", "plateau"])
@pytest.mark.parametrize("tables", ["dense", "lazy"])
def test_a_killed_training_resumes_within_its_schedule(schedule, tables, dataset, tmp_path, monkeypatch, kill_at_step):
    training = {**SMALL["training"], "schedule": schedule, "warmup_steps": 4, "tables": tables, "learning_rate": 0.1}
    config = {**SMALL, "training": {**training, "eval_every": 3, "table_decay": 0.0001}}
    whole = train(dataset, into=tmp_path / "whole", config=config)
    kill_at_step(17)
    with pytest.raises(KeyboardInterrupt):
        train(dataset, into=tmp_path / "cut", config=config)
    monkeypatch.undo()
    resumed = train(dataset, into=tmp_path / "cut", config=config, resume=True)
    for name, tensor in weights(whole).items():
        assert torch.equal(tensor, weights(resumed)[name])


def test_a_plateau_is_torchs(dataset, tmp_path) -> None:
    """The learning rate drops where ReduceLROnPlateau drops it."""
    training = {"schedule": "plateau", "learning_rate": 0.3, "average_decay": 0.0, "max_steps": 60}
    config = {**SMALL, "training": {**SMALL["training"], **training, "epochs": 10, "eval_every": 4}}
    rates: list[float] = []
    drop = ProcessorEngine.drop

    def noted(self, factor) -> None:
        drop(self, factor)
        rates.append(self.optimizer.rule.rates[0])

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(ProcessorEngine, "drop", noted)
        run = train(dataset, into=tmp_path / "run", config=config)
    adam = torch.optim.Adam([torch.zeros(1, requires_grad=True)], lr=0.3)
    scheduler = torch.optim.lr_scheduler.ReduceLROnPlateau(adam, factor=0.1, patience=0, threshold=0.0, eps=0.0)
    expected = []
    for line in run.metrics:
        if "valid" in line:
            before = adam.param_groups[0]["lr"]
            scheduler.step(line["valid"]["logloss"])
            if adam.param_groups[0]["lr"] < before:
                expected.append(adam.param_groups[0]["lr"])
    assert expected and rates == pytest.approx(expected)
