"""Labels with several classes, from the loss to the table of answers."""

from __future__ import annotations

import math

import numpy as np
import polars as pl
import pytest
import torch
from sklearn.metrics import accuracy_score, log_loss, roc_auc_score

import crossrank as cr
from crossrank.data import EncodedDataset, Encoder
from crossrank.data.labels import labels_of_chunk
from crossrank.data.table import open_table
from crossrank.errors import ConfigError, DataError, SchemaError
from crossrank.evaluation.classes import log_softmax, measure_classes
from crossrank.evaluation.metrics import measure
from crossrank.models import MODELS, build_model, parse_model_settings
from crossrank.nn import Features
from crossrank.reports import write_report
from crossrank.schema import Categorical, Feature, Label, Numeric, Schema
from crossrank.schema.draft import draft_schema
from crossrank.serving.scored_tables import predict_table
from crossrank.sklearn import CrossRankClassifier
from crossrank.training.engines import make_engine
from crossrank.training.loss import SoftmaxLogLoss, find_loss
from crossrank.training.settings import TrainingSettings

NAMES = ("dark blue", "green", "red")
SCHEMA = Schema(
    [Categorical(name="a"), Categorical(name="b"), Numeric(name="z")], Label(name="y", kind="classes", classes=NAMES)
)
CONFIG = {
    "model": {"embedding": {"dim": 4}, "deep": {"sizes": [16]}},
    "training": {"learning_rate": 0.02, "epochs": 8, "batch_size": 128, "average_decay": 0.98},
}


def colours(rows: int, seed: int) -> tuple[pl.DataFrame, np.ndarray]:
    """A table, and the true logits of its classes."""
    source = np.random.default_rng(seed)
    a, b, z = source.integers(0, 6, rows), source.integers(0, 4, rows), source.normal(size=rows)
    logits = np.stack([np.sin(a) + z, 2 * np.cos(a * b), (b == 3) - z], axis=1)
    drawn = (logits + source.gumbel(size=logits.shape)).argmax(axis=1)
    cells = {"a": [f"a{i}" for i in a], "b": [f"b{i}" for i in b], "z": z, "y": np.array(NAMES)[drawn]}
    return pl.DataFrame(cells), logits


@pytest.fixture(scope="module")
def run(tmp_path_factory) -> cr.Run:
    folder = tmp_path_factory.mktemp("classes")
    return cr.train(colours(6000, 0)[0], into=folder / "run", schema=SCHEMA, config=CONFIG, progress=False)


@pytest.mark.parametrize("weighted", [False, True])
def test_the_loss_is_the_log_of_the_softmax_of_the_true_class(weighted: bool) -> None:
    draw = torch.Generator().manual_seed(0)
    logits = torch.randn(7, 4, generator=draw, dtype=torch.float64)
    labels = torch.randint(0, 4, (7,), generator=draw).double()
    weights = torch.rand(7, generator=draw, dtype=torch.float64) if weighted else torch.ones(7, dtype=torch.float64)
    total = 0.0
    for row, label, weight in zip(logits.tolist(), labels.tolist(), weights.tolist(), strict=True):
        total -= weight * (row[int(label)] - math.log(sum(math.exp(x) for x in row)))
    loss = SoftmaxLogLoss()(logits, labels, weights if weighted else None)
    assert loss.item() == pytest.approx(total / weights.sum().item(), rel=1e-12)
    assert torch.autograd.gradcheck(lambda x: SoftmaxLogLoss()(x, labels, weights), [logits.requires_grad_()])


def test_of_two_classes_it_is_the_log_loss_of_the_difference_of_their_logits() -> None:
    logits, labels = torch.randn(9, 2, dtype=torch.float64), torch.tensor([0.0, 1, 1] * 3, dtype=torch.float64)
    expected = find_loss("auto", "binary")(logits[:, 1] - logits[:, 0], labels)
    torch.testing.assert_close(find_loss("auto", "classes")(logits, labels), expected)


@pytest.mark.parametrize(("name", "kind"), [("softmax", "binary"), ("logloss", "classes"), ("pairwise", "classes")])
def test_the_loss_of_classes_is_for_classes_alone(name, kind) -> None:
    with pytest.raises(ConfigError, match=rf"of the kind {kind} is learned by training\.loss=.*; got {name}"):
        find_loss(name, kind)


@pytest.mark.parametrize("weighted", [False, True])
def test_metrics_agree_with_those_of_scikit_learn(weighted: bool) -> None:
    source = np.random.default_rng(0)
    labels, logits = source.integers(0, 4, 200), source.normal(size=(200, 4))
    weights = source.random(200) if weighted else None
    found = measure(labels, logits, label_kind="classes", weights=weights)
    chances = np.exp(log_softmax(logits))
    expected = {
        "logloss": log_loss(labels, chances, sample_weight=weights),
        "accuracy": accuracy_score(labels, logits.argmax(axis=1), sample_weight=weights),
        "macro_auc": np.mean([roc_auc_score(labels == k, chances[:, k], sample_weight=weights) for k in range(4)]),
    }
    assert {key: found[key] for key in expected} == pytest.approx(expected)


def test_metrics_that_rows_do_not_define_are_absent_and_those_of_knowing_nothing_are_one() -> None:
    assert measure([1, 1], np.zeros((2, 3)), label_kind="classes")["macro_auc"] is None
    assert measure_classes([0, 0, 1, 2], np.log([[0.5, 0.25, 0.25]] * 4))["normalized_entropy"] == pytest.approx(1)
    with pytest.raises(DataError, match=r"must be finite, \(rows, classes\); got \(2,\)"):
        measure([1, 0], [0.5, 0.5], label_kind="classes")


@pytest.mark.parametrize("name", MODELS)
def test_a_model_answers_a_logit_for_each_class_or_refuses(name) -> None:
    features = [Feature("u", "categorical", 5), Feature("i", "categorical", 7), Feature("n", "numeric")]
    settings = parse_model_settings({"name": name})
    if not MODELS[name].model.takes_classes:
        with pytest.raises(ConfigError, match=f"needs a model that ends in an output layer; got {name}"):
            build_model(settings, features, num_outputs=3)
        return
    model = build_model(settings, features, num_outputs=3)
    for rows in (0, 1, 3, 7):
        batch = Features(torch.ones(rows, 2, dtype=torch.int64), torch.randn(rows, 1))
        assert model(batch).shape == (rows, 3)
    with torch.no_grad():
        before = model(batch)
        model.output.bias[1] += 1
        torch.testing.assert_close(model(batch) - before, torch.tensor([0.0, 1.0, 0.0]).expand(7, 3))


def test_training_comes_near_the_true_probabilities(run) -> None:
    later, logits = colours(4000, 1)
    found = cr.evaluate(run, later)
    best = measure([NAMES.index(name) for name in later["y"]], logits, label_kind="classes")
    assert found["logloss"] < best["logloss"] + 0.03 and found["accuracy"] > best["accuracy"] - 0.03
    assert found["normalized_entropy"] < 0.9
    answers = run.predict(later)
    assert answers.shape == (4000, 3)
    np.testing.assert_allclose(answers.sum(axis=1), 1, atol=1e-5)
    np.testing.assert_allclose(answers.mean(axis=0), np.exp(log_softmax(logits)).mean(axis=0), atol=0.03)


def test_a_table_of_answers_has_a_column_for_each_class_and_the_most_probable_one(run, tmp_path) -> None:
    later, _ = colours(50, 1)
    predict_table(run, later.drop("y"), tmp_path / "answers.parquet")
    written = pl.read_parquet(tmp_path / "answers.parquet")
    chances = written.select("probability_dark blue", "probability_green", "probability_red").to_numpy()
    np.testing.assert_allclose(chances, run.predict(later), atol=1e-6)
    assert written["prediction"].to_list() == [NAMES[i] for i in chances.argmax(axis=1)]
    with pytest.raises(DataError, match="already has a column 'prediction'"):
        predict_table(run, written.drop("^probability.*$"), tmp_path / "again.csv")


def test_a_run_of_classes_is_reported_and_says_what_is_not_told(run) -> None:
    page = write_report(run.path).read_text(encoding="utf-8")
    assert "macro AUC" in page and 'data-block="classes"' in page
    assert cr.explain(run) == [] and "several classes" in run.unexplained[0]
    assert {one["feature"] for one in run.importance} == {"a", "b", "z"}
    with pytest.raises(ConfigError, match="one logit; got a label with several classes"):
        cr.evaluation.explain_row(run, {"a": "a1", "b": "b1", "z": 0.0})


def test_several_texts_are_drafted_as_classes_and_read_in_any_case() -> None:
    table = {"y": ["Red", "green", "blue", "red"] * 3, "x": ["u", "v"] * 6}
    assert draft_schema({**table, "y": ["red", "green", "blue"] * 4}).label == Label(
        name="y", kind="classes", classes=("blue", "green", "red")
    )
    label = Label(name="y", kind="classes", classes=("blue", "green", "red"))
    (chunk,) = open_table(table).chunks()
    assert labels_of_chunk(chunk, label).tolist() == [2, 1, 0, 2] * 3
    (chunk,) = open_table({"y": ["3", "1.0", "2"]}).chunks()
    assert labels_of_chunk(chunk, Label(name="y", kind="classes", classes=("1", "2", "3"))).tolist() == [2, 0, 1]
    (chunk,) = open_table({"y": ["red", "pink"]}).chunks()
    with pytest.raises(DataError, match="must be blue or green or red; got pink in row 2"):
        labels_of_chunk(chunk, label)
    with pytest.raises(SchemaError, match="got 'a' for the kind classes"):
        Label(name="y", kind="classes", classes=("a",))


def test_a_gpu_is_refused_by_name_and_otherwise_left_aside(run) -> None:
    empty = EncodedDataset.__new__(EncodedDataset)
    empty.encoder = Encoder(SCHEMA, {}, {})
    with pytest.raises(ConfigError, match=r"trained on a processor; got training\.device=cuda for 3 logits"):
        make_engine(run.model, empty, TrainingSettings(device="cuda"), seed=0)


def test_the_estimator_of_scikit_learn_takes_several_classes() -> None:
    table, _ = colours(2000, 0)
    model = CrossRankClassifier(settings={"training.epochs": 4}).fit(table.drop("y"), table["y"].to_numpy())
    chances = model.predict_proba(table.drop("y"))
    assert chances.shape == model.decision_function(table.drop("y")).shape == (2000, 3)
    assert list(model.classes_) == list(NAMES)
    assert np.array_equal(model.predict(table.drop("y")), np.array(NAMES)[chances.argmax(axis=1)])
    assert model.score(table.drop("y"), table["y"].to_numpy()) > 0.5
