"""A network from outside crossrank, trained, evaluated, saved and reopened like ours."""

from __future__ import annotations

import dataclasses
import textwrap

import numpy as np
import pytest
import torch
from torch import nn

import crossrank as cr
from crossrank.config import setting
from crossrank.errors import ConfigError, RunError, ShapeError
from crossrank.models import MODELS, Model, ModelSettings, own, register_model
from crossrank.nn import CrossNetwork, FeatureEmbedding, OutputLayer
from crossrank.reports import write_report
from crossrank.runs import Run

TRAINING = {"batch_size": 128, "epochs": 2, "log_every": 5, "learning_rate": 0.01, "patience": 0, "eval_every": 13}


@pytest.fixture(autouse=True)
def known_models():
    """Leave the models as they were."""
    before = dict(MODELS)
    yield
    MODELS.clear()
    MODELS.update(before)


@dataclasses.dataclass(frozen=True, kw_only=True)
class BentSettings(ModelSettings):
    width: int = setting(8, "of the crossed projection")


class Bent(Model):
    """What a person may do: batch statistics, one weight under two names, cross layers that do not see x0."""

    def __init__(self, layout, settings):
        super().__init__(layout, embedding_dropout=settings.embedding.dropout)
        self.into = nn.Linear(layout.input_dim, settings.width)
        self.again = nn.Linear(layout.input_dim, settings.width)
        self.again.weight = self.into.weight
        self.norm = nn.BatchNorm1d(settings.width)
        self.cross = CrossNetwork(settings.width, num_layers=2)
        self.output = OutputLayer(settings.width)

    def logits(self, x0):
        return self.output(self.cross(self.norm(self.into(x0) + self.again(x0).relu())))


def train_bent(dataset, into, **options):
    register_model("bent", settings=BentSettings)(Bent)
    config = {"model": {"name": "bent", "width": 6, "embedding": {"dim": 4}}, "training": TRAINING}
    return cr.train(dataset, into=into, config=config, **options)


def test_it_learns_and_comes_back_bit_for_bit(dataset, clicks, tmp_path, held) -> None:
    run = train_bent(dataset, tmp_path / "run")
    assert isinstance(run.model, Bent) and run.model.norm.num_features == 6
    losses = [line["valid"]["logloss"] for line in run.metrics if "valid" in line]
    assert losses[1] < losses[0] < 0.69
    features = [batch.features for batch in dataset.test.batches(8192)]
    assert torch.equal(held["model"].predict_logits(features), Run.open(run.path).model.predict_logits(features))
    assert cr.evaluate(run, dataset) == run.report["test"]
    assert run.model.norm.running_mean.any()
    assert len(run.predict(clicks.head(3))) == 3


def test_cross_layers_that_do_not_see_x0_are_left_out_of_explanations(dataset, tmp_path) -> None:
    run = train_bent(dataset, tmp_path / "run")
    assert cr.explain(run) == []
    assert "a model from outside crossrank" in write_report(run).read_text(encoding="utf-8")


def test_a_killed_training_goes_on_with_its_batch_statistics(dataset, tmp_path, monkeypatch, kill_at_step) -> None:
    whole = train_bent(dataset, tmp_path / "whole")
    kill_at_step(15)  # of 13 in an epoch
    with pytest.raises(KeyboardInterrupt):
        train_bent(dataset, tmp_path / "cut")
    monkeypatch.undo()
    resumed = train_bent(dataset, tmp_path / "cut", resume=True)
    for name, tensor in whole.model.state_dict().items():
        assert torch.equal(tensor, resumed.model.state_dict()[name]), name


def test_opening_a_run_needs_its_class(dataset, tmp_path) -> None:
    run = train_bent(dataset, tmp_path / "run")
    del MODELS["bent"]
    with pytest.raises(RunError, match=r"'bent'.*Import the module that registers it"):
        _ = Run.open(run.path).model


def test_it_may_embed_the_features_itself(dataset, tmp_path) -> None:
    class Summed(nn.Module):
        def __init__(self, layout):
            super().__init__()
            self.tables = nn.ModuleList(
                nn.Embedding(slot.vocab_size, layout.input_dim) for slot in layout.of_kind("categorical")
            )
            for table in self.tables:
                nn.init.normal_(table.weight, std=0.01)

        def forward(self, features):
            columns = zip(self.tables, features.categorical.unbind(dim=1), strict=True)
            return sum(table(ids.long()) for table, ids in columns)

    @register_model("summed")
    class OwnEmbedding(Model):
        def __init__(self, layout, settings):
            super().__init__(layout)
            self.embedding = Summed(layout)
            self.output = OutputLayer(layout.input_dim)

        def logits(self, x0):
            return self.output(x0)

    run = cr.train(dataset, into=tmp_path / "run", config={"model": {"name": "summed"}, "training": TRAINING})
    assert not [part for part in run.model.modules() if isinstance(part, FeatureEmbedding)]
    assert run.report["test"]["normalized_entropy"] < 1


ANSWERS = {
    "a column": (
        lambda x0, w: (x0 @ w)[:, None],
        r"7 rows .* \(7,\); got torch.float32 of shape \(7, 1\).*logits\[:, 0",
    ),
    "no axis for one row": (lambda x0, w: (x0 @ w).squeeze(), r"1 rows .* \(1,\); got torch.float32 of shape \(\)"),
    "whole numbers": (lambda x0, w: (x0 @ w).long(), "floating-point .* got torch.int64"),
    "a tuple": (lambda x0, w: (x0 @ w, None), r"got \(tensor"),
    "no gradient": (lambda x0, w: (x0 @ w).detach(), "without a gradient"),
}


@pytest.mark.parametrize("answer", ANSWERS)
def test_an_answer_of_another_kind_is_refused_before_training(dataset, tmp_path, answer) -> None:
    function, message = ANSWERS[answer]

    @register_model("wrong")
    class Wrong(Model):
        def __init__(self, layout, settings):
            super().__init__(layout)
            self.weight = nn.Parameter(torch.ones(layout.input_dim))

        def logits(self, x0):
            return function(x0, self.weight)

    with pytest.raises(ShapeError, match=f"Wrong.*{message}" if "gradient" not in message else message):
        cr.train(dataset, into=tmp_path / "run", config={"model": {"name": "wrong"}})
    assert list(tmp_path.iterdir()) == []


def test_a_name_of_ours_and_a_class_of_another_kind_are_refused() -> None:
    with pytest.raises(ConfigError, match="'dnn', which is one of crossrank's"):
        register_model("dnn")
    with pytest.raises(ConfigError, match=r"crossrank\.models\.Model; got Linear"):
        register_model("linear")(nn.Linear)
    with pytest.raises(ConfigError, match=r"'model\.widht'.*'width'"):
        register_model("bent", settings=BentSettings)(Bent)
        cr.train("nothing.csv", into="nowhere", config={"model": {"name": "bent", "widht": 3}})


def test_the_documented_example_runs(clicks, tmp_path, monkeypatch) -> None:
    monkeypatch.chdir(tmp_path)
    clicks.write_csv("clicks.csv")
    block = own.__doc__.split("::\n", 1)[1].split("From then on")[0]
    scope = {"__name__": __name__}
    exec(compile(textwrap.dedent(block), "example", "exec", dont_inherit=True), scope)
    run = Run.open("runs/tower")
    assert [member.hidden.weight.shape[0] for member in run.model.members] == 4 * [32]
    np.testing.assert_array_equal(run.predict(clicks), scope["run"].predict(clicks))
