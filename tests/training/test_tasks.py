"""Labels with several columns, from the table to the answers."""

from __future__ import annotations

import json
import math

import numpy as np
import polars as pl
import pytest
import torch
from sklearn.metrics import log_loss, roc_auc_score

import crossrank as cr
from crossrank.data import EncodedDataset
from crossrank.data.describe import describe
from crossrank.data.prepare import prepare
from crossrank.errors import ConfigError, DataError, SchemaError
from crossrank.evaluation.metrics import measure
from crossrank.experiments.compress import compress
from crossrank.experiments.promote import promote
from crossrank.reports import write_report
from crossrank.runs import Run
from crossrank.schema import Categorical, Cross, Label, Numeric, Schema
from crossrank.schema.draft import draft_schema
from crossrank.serving.export import export
from crossrank.serving.scored_tables import predict_table
from crossrank.training.engines import make_engine
from crossrank.training.loss import TaskLogLoss, find_loss
from crossrank.training.settings import TrainingSettings

FEATURES = [Categorical(name="user"), Categorical(name="item"), Numeric(name="z")]
SCHEMA = Schema(FEATURES, Label(columns=("click", "like")))
CONFIG = {
    "model": {
        "name": "mmoe",
        "num_cross_layers": 1,
        "embedding": {"dim": 8},
        "deep": {"sizes": [16]},
        "tower_sizes": [8],
    },
    "training": {"learning_rate": 0.01, "epochs": 12, "batch_size": 128, "average_decay": 0.98},
}


def clicks(rows: int, seed: int) -> tuple[pl.DataFrame, np.ndarray]:
    """Two labels that share a cross of user and item; the second is known where the first is 1. And their logits."""
    draw, truth = np.random.default_rng(seed), np.random.default_rng(7)
    user, item, z = draw.integers(0, 8, rows), draw.integers(0, 6, rows), draw.normal(size=rows)
    both = 1.5 * truth.normal(size=(8, 6))[user, item]
    logits = np.stack([both + z, both - 2 * z - 1], axis=1)
    drawn = (draw.random((rows, 2)) < 1 / (1 + np.exp(-logits))).astype(int)
    cells = {"user": [f"u{i}" for i in user], "item": [f"i{i}" for i in item], "z": z, "click": drawn[:, 0]}
    like = [int(like) if click else None for click, like in drawn]
    return pl.DataFrame({**cells, "like": pl.Series(like, dtype=pl.Int64)}), logits


@pytest.fixture(scope="module")
def run(tmp_path_factory) -> Run:
    folder = tmp_path_factory.mktemp("tasks")
    return cr.train(clicks(6000, 0)[0], into=folder / "run", schema=SCHEMA, config=CONFIG, progress=False)


@pytest.mark.parametrize("weighted", [False, True])
def test_the_loss_is_that_of_each_known_label_and_leaves_out_the_others(weighted: bool) -> None:
    draw = torch.Generator().manual_seed(0)
    logits = torch.randn(7, 3, generator=draw, dtype=torch.float64)
    labels = torch.randint(0, 2, (7, 3), generator=draw).double()
    labels[torch.rand(7, 3, generator=draw) < 0.4] = torch.nan
    weights = torch.rand(7, generator=draw, dtype=torch.float64) if weighted else torch.ones(7, dtype=torch.float64)
    tau = [2.0, 1.0, 0.5]
    total = 0.0
    for row, known, weight in zip(logits.tolist(), labels.tolist(), weights.tolist(), strict=True):
        for logit, label, share in zip(row, known, tau, strict=True):
            if not math.isnan(label):
                chance = 1 / (1 + math.exp(-logit))
                total -= weight * share / sum(tau) * math.log(chance if label == 1 else 1 - chance)
    loss = TaskLogLoss(tau)
    found = loss(logits, labels, weights if weighted else None)
    assert found.item() == pytest.approx(total / weights.sum().item(), rel=1e-12)
    assert torch.autograd.gradcheck(lambda x: loss(x, labels, weights), [logits.requires_grad_()])
    (slope,) = torch.autograd.grad(loss(logits, labels, weights), logits)
    assert torch.equal(slope == 0, labels.isnan())


def test_of_labels_that_are_all_known_it_is_the_mean_log_loss() -> None:
    logits, labels = torch.randn(9, 2, dtype=torch.float64), torch.tensor([[0.0, 1]] * 9, dtype=torch.float64)
    each = [find_loss("auto", "binary")(logits[:, k], labels[:, k]) for k in range(2)]
    torch.testing.assert_close(find_loss("auto", "tasks")(logits, labels), torch.stack(each).mean())
    with pytest.raises(ConfigError, match=r"of the kind tasks is learned by training\.loss=logloss; got listwise"):
        find_loss("listwise", "tasks")


@pytest.mark.parametrize("weighted", [False, True])
def test_metrics_of_each_task_agree_with_those_of_scikit_learn(weighted: bool) -> None:
    draw = np.random.default_rng(0)
    labels, logits = draw.integers(0, 2, (300, 2)).astype(float), draw.normal(size=(300, 2))
    labels[draw.random(300) < 0.5, 1] = np.nan
    weights = draw.random(300) if weighted else None
    found = measure(labels, logits, label_kind="tasks", weights=weights, tasks=("a", "b"))
    for k, name in enumerate("ab"):
        known = ~np.isnan(labels[:, k])
        chances, own = 1 / (1 + np.exp(-logits[known, k])), None if weights is None else weights[known]
        assert found[f"rows_{name}"] == known.sum()
        assert found[f"logloss_{name}"] == pytest.approx(log_loss(labels[known, k], chances, sample_weight=own))
        assert found[f"auc_{name}"] == pytest.approx(roc_auc_score(labels[known, k], chances, sample_weight=own))
    assert found["rows"] == 300
    assert found["logloss"] == pytest.approx((found["logloss_a"] + found["logloss_b"]) / 2)
    assert found["auc"] == pytest.approx((found["auc_a"] + found["auc_b"]) / 2)


def test_a_task_that_no_row_knows_is_left_out_of_the_means() -> None:
    labels = np.array([[0.0, np.nan], [1.0, np.nan]])
    found = measure(labels, np.zeros((2, 2)), label_kind="tasks", tasks=("a", "b"))
    assert found["rows_b"] == 0 and found["logloss_b"] is None
    assert found["logloss"] == found["logloss_a"] == pytest.approx(math.log(2))
    with pytest.raises(DataError, match=r"must be \(rows, 3\); got \(2, 2\) and \(2, 2\)"):
        measure(labels, np.zeros((2, 2)), label_kind="tasks", tasks=("a", "b", "c"))


@pytest.mark.parametrize("model", ["shared-bottom", "ple", "dcn-v2"])
def test_every_model_learns_both_tasks(model, tmp_path) -> None:
    config = {**CONFIG, "model": {"name": model, "embedding": {"dim": 4}, "deep": {"sizes": [16]}}}
    trained = cr.train(clicks(3000, 0)[0], into=tmp_path / "run", schema=SCHEMA, config=config, progress=False)
    found = cr.evaluate(trained, clicks(2000, 1)[0])
    assert found["auc_click"] > 0.75 and found["auc_like"] > 0.75


def test_both_tasks_come_near_the_true_probabilities_also_where_one_is_not_known(run) -> None:
    later, logits = clicks(4000, 1)
    found, answers = cr.evaluate(run, later), run.predict(later)
    labels = later.select("click", "like").cast(pl.Float64).to_numpy()
    best = measure(labels, logits, label_kind="tasks", tasks=("click", "like"))
    for name in ("click", "like"):
        assert found[f"auc_{name}"] > best[f"auc_{name}"] - 0.03 > 0.75
        assert found[f"logloss_{name}"] < best[f"logloss_{name}"] + 0.03
    assert found["rows_click"] == 4000 and found["rows_like"] == later["click"].sum()
    assert answers.shape == (4000, 2)  # also of likes that are not known
    known = ~np.isnan(labels[:, 1])
    assert log_loss(labels[known, 1], answers[known, 1]) == pytest.approx(found["logloss_like"], abs=1e-5)


def test_what_is_stored_reopened_exported_and_written_agrees(run, tmp_path) -> None:
    later, _ = clicks(50, 1)
    rows = later.drop("click", "like")
    expected = run.predict(rows)
    assert np.array_equal(Run.open(run.path).predict(rows), expected)
    assert Run.open(run.path).schema.label == SCHEMA.label
    export(run, tmp_path / "bundle", data=later)
    np.testing.assert_allclose(cr.Scorer.open(tmp_path / "bundle").score(rows), expected, atol=1e-5)
    predict_table(run, later, tmp_path / "answers.parquet")
    written = pl.read_parquet(tmp_path / "answers.parquet")
    assert written.columns == [*later.columns, "probability_click", "probability_like"]
    np.testing.assert_allclose(written.select("^probability.*$").to_numpy(), expected, atol=1e-6)


def test_a_dataset_keeps_labels_that_are_not_known(tmp_path) -> None:
    table, _ = clicks(300, 0)
    table.write_csv(tmp_path / "table.csv")
    made = [prepare(source, SCHEMA, tmp_path / str(i)) for i, source in enumerate((table, tmp_path / "table.csv"))]
    for dataset in (*made, EncodedDataset.open(tmp_path / "0")):
        labels = np.concatenate([dataset.split(name).labels for name in ("train", "valid", "test")])
        assert labels.shape == (300, 2)
        assert int(np.isnan(labels[:, 1]).sum()) == table["like"].null_count()
        assert np.array_equal(np.isnan(labels[:, 1]), labels[:, 0] == 0)
    words = table.with_columns(like=pl.Series(["true", "False", None] * 100))
    assert np.isnan(prepare(words, SCHEMA, tmp_path / "words").train.labels[:, 1]).any()
    assert describe(made[0].path).label_rate is None and describe(table, schema=SCHEMA).label == "click, like"


def test_a_label_that_is_neither_is_refused_with_its_place_or_left_out(tmp_path) -> None:
    table, _ = clicks(200, 0)
    bad = table.with_columns(like=pl.when(pl.int_range(pl.len()) == 6).then(2).otherwise("like"))
    with pytest.raises(DataError, match=r"Label 'like' must be 0 or 1, or empty where it is not known; got 2 in row 7"):
        prepare(bad, SCHEMA, tmp_path / "bad")
    skipped = prepare(bad, SCHEMA, tmp_path / "skipped", on_error="skip")
    assert skipped.manifest["source"]["skipped"] == {"bad label 'like'": 1}
    for value, shown in ((1, "1"), (None, "nothing")):
        with pytest.raises(DataError, match=f"Label 'like' must differ between training rows; got {shown} in all"):
            prepare(table.with_columns(like=pl.lit(value, pl.Int64)), SCHEMA, tmp_path / "same")


def test_names_with_commas_between_are_drafted_as_tasks() -> None:
    table, _ = clicks(100, 0)
    draft = draft_schema(table, label="click, like")
    assert draft.label == SCHEMA.label and [one.name for one in draft.features] == ["user", "item", "z"]
    assert draft_schema(table, label="click").label == Label(name="click")
    with pytest.raises(SchemaError, match="Each of several labels must be 0 or 1; got 'z', which is real"):
        draft_schema(table, label="click,z")
    with pytest.raises(SchemaError, match="Label 'likes' must be a column"):
        draft_schema(table, label="click,likes")


@pytest.mark.parametrize(
    "values",
    [
        {"kind": "tasks", "name": "y"},
        {"columns": ("a",)},
        {"columns": ("a", "a")},
        {"columns": ("a", "b"), "kind": "real"},
    ],
)
def test_tasks_are_two_or_more_different_columns(values) -> None:
    with pytest.raises(SchemaError, match="must be two or more different ones, each 0 or 1"):
        Label(**values)


def test_a_schema_of_tasks_comes_back_and_each_column_has_one_meaning() -> None:
    written = json.loads(json.dumps(SCHEMA.to_dict()))
    assert Schema.from_dict(written) == SCHEMA
    assert Schema.from_dict({**written, "label": {"columns": ["click", "like"]}}) == SCHEMA
    assert list(SCHEMA.required) == ["user", "item", "z", "click", "like"]
    with pytest.raises(SchemaError, match="'like' has 2"):
        Schema([*FEATURES, Categorical(name="like")], SCHEMA.label)
    with pytest.raises(SchemaError, match="remembers one label; got the tasks 'click', 'like'"):
        Schema([*FEATURES, Cross(of=("user", "item"), statistics=False)], SCHEMA.label)
    with pytest.raises(SchemaError, match="The classes of label 'click, like'"):
        Label(columns=("click", "like"), classes=("no", "yes"))


def test_task_weights_decide_which_task_is_learned(tmp_path) -> None:
    table, _ = clicks(2000, 0)
    config = {**CONFIG, "model": {"name": "dnn", "embedding": {"dim": 2}, "deep": {"sizes": [2]}}}
    found = {}
    for name in ("click", "like"):
        weights = {"click": 0.01, "like": 0.01} | {name: 1.0}
        training = {**CONFIG["training"], "task_weights": weights}
        run = cr.train(
            table, into=tmp_path / name, schema=SCHEMA, config={**config, "training": training}, progress=False
        )
        found[name] = cr.evaluate(run, clicks(2000, 1)[0])
    assert found["click"]["auc_click"] > found["like"]["auc_click"]
    assert found["click"]["auc_like"] < found["like"]["auc_like"]


def test_weights_of_tasks_that_are_not_there_are_refused() -> None:
    assert TrainingSettings(task_weights={"like": 3.0}).find_loss(SCHEMA.label).task_weights == [1.0, 3.0]
    with pytest.raises(ConfigError, match="must be of tasks, 'click', 'like'; got 'lik'"):
        TrainingSettings(task_weights={"lik": 3.0}).find_loss(SCHEMA.label)
    with pytest.raises(ConfigError, match="must be of tasks, none; got 'like'"):
        TrainingSettings(task_weights={"like": 3.0}).find_loss(Label(name="like"))
    with pytest.raises(ConfigError, match="must be positive"):
        TrainingSettings(task_weights={"like": 0.0})


def test_a_page_has_the_metrics_of_each_task(run) -> None:
    page = write_report(run.path).read_text(encoding="utf-8")
    assert 'data-block="tasks"' in page and "mean over tasks" in page
    for name in ("click", "like"):
        assert f"{run.report['test'][f'auc_{name}']:.4f}" in page
    assert {one["feature"] for one in run.importance} == {"user", "item", "z"}


def test_what_is_made_for_one_score_refuses_several_tasks(run, tmp_path) -> None:
    dataset = prepare(clicks(400, 0)[0], SCHEMA, tmp_path / "data")
    row = {"user": "u1", "item": "i1", "z": 0.0}
    tries = {
        "A ranking is by one score": lambda: cr.Ranker(run),
        "one logit": lambda: cr.evaluation.explain_row(run, row),
        "got the kind tasks": lambda: compress(run, into=tmp_path / "small", rank=2),
        "is promoted whose label": lambda: promote(run, dataset, into=tmp_path / "promoted"),
        "trained on a processor": lambda: make_engine(run.model, dataset, TrainingSettings(device="cuda"), seed=0),
    }
    for message, attempt in tries.items():
        with pytest.raises(ConfigError, match=message):
            attempt()
    for training, message in [
        ({"memory": "auto"}, "training.memory=auto is of a label with one logit"),
        ({"heads": "own"}, "training.heads=own is for one logit"),
        ({"positive_weight": 2.0}, "training.positive_weight weighs the log loss of a binary label"),
        ({"monitor": "mrr"}, "training.monitor=mrr must be known"),
    ]:
        with pytest.raises(ConfigError, match=message):
            cr.train(dataset, into=tmp_path / "run", config={"training": training}, progress=False)
    assert cr.explain(run) == [] and "classes or tasks" in run.unexplained[0]
