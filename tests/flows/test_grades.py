"""A label of grades, from a table to an order in each group."""

from __future__ import annotations

import json

import numpy as np
import polars as pl
import pytest
import torch
from commands import crossrank

import crossrank as cr
from crossrank.data import EncodedDataset
from crossrank.data.prepare import prepare
from crossrank.errors import ConfigError, DataError, RunError, SchemaError
from crossrank.evaluation.evaluate import evaluate
from crossrank.evaluation.metrics import grouped_auc, mrr, ndcg
from crossrank.runs import Run
from crossrank.schema import Categorical, Label, Numeric, Schema
from crossrank.serving.scorer import Scorer

SMALL = {"embedding": {"dim": 4}, "deep": {"sizes": [8]}}
SCHEMA = Schema(
    [Numeric(name="match"), Numeric(name="fresh"), Categorical(name="site")],
    Label(name="grade", kind="grade"),
    group="query",
)


@pytest.fixture(scope="module")
def results() -> pl.DataFrame:
    """Answers to 150 queries, graded by match, freshness and site; a query's own level says nothing about its order."""
    draw, rows = np.random.default_rng(0), 150 * 12
    match, fresh, site = draw.normal(size=rows), draw.normal(size=rows), draw.integers(0, 5, rows)
    query = draw.permutation(np.repeat(np.arange(150), 12))
    worth = 1.2 * match + 0.6 * fresh * (site > 2) + 0.4 * site + 0.5 * draw.normal(size=rows)
    grade = np.digitize(worth, np.quantile(worth, [0.5, 0.8, 0.95]))
    return pl.DataFrame({"query": query, "match": match, "fresh": fresh, "site": site.astype(str), "grade": grade})


@pytest.fixture(scope="module")
def place(results, tmp_path_factory):
    folder = tmp_path_factory.mktemp("grades")
    results.write_csv(folder / "results.csv")
    SCHEMA.save(folder / "schema.json")
    crossrank("prepare", "results.csv", "--schema", "schema.json", "--into", "data", cwd=folder)
    settings = ["--set", "model.embedding.dim=4", "--set", "model.deep.sizes=[8]", "--set", "training.epochs=8"]
    crossrank("train", "data", "--into", "run", *settings, cwd=folder)
    return folder


def test_the_commands_carry_a_grade_to_the_end(place, results) -> None:
    shown, _ = crossrank("evaluate", "run", "--json", cwd=place)
    found = json.loads(shown)
    assert found["ndcg@10"] > 0.85 and found["grouped_auc"] > 0.8 and 0 < found["mrr"] <= 1
    assert set(found) == {"rows", "ndcg@10", "grouped_auc", "mrr"}
    crossrank("predict", "run", "results.csv", "--into", "scored.csv", cwd=place)
    scored = pl.read_csv(place / "scored.csv")
    columns = [scored[name].to_numpy() for name in ("grade", "score", "query")]
    measured = evaluate(Run.open(place / "run"), results)
    assert measured["ndcg@10"] == pytest.approx(ndcg(*columns, k=10), abs=1e-9)
    assert measured["grouped_auc"] == pytest.approx(grouped_auc(*columns), abs=1e-9)
    assert measured["mrr"] == pytest.approx(mrr(*columns), abs=1e-9)
    shown, _ = crossrank("explain", "run", "--features", cwd=place)
    assert "NDCG@10" in shown and shown.index("match") < shown.index("fresh")
    crossrank("report", "run", cwd=place)
    assert "NDCG@10" in next(place.glob("run/*.html")).read_text(encoding="utf-8")
    shown, _ = crossrank("data", "describe", "results.csv", "--schema", "schema.json", cwd=place)
    assert "grade" in shown and "match" in shown


def test_scores_are_turned_into_grades_that_can_be_expected(place, results) -> None:
    run = Run.open(place / "run")
    scores, expected = run.predict(results), run.predict(results, calibrated=True)
    assert expected.min() >= 0 and expected.max() <= 3
    order = np.argsort(scores)
    assert (np.diff(expected[order]) >= 0).all()
    assert abs(expected.mean() - results["grade"].mean()) < 0.1
    assert np.corrcoef(expected, results["grade"])[0, 1] > 0.6
    crossrank("predict", "run", "results.csv", "--into", "expected.csv", "--calibrated", cwd=place)
    np.testing.assert_allclose(pl.read_csv(place / "expected.csv")["score"], expected, atol=1e-5)


def test_the_probabilities_of_a_pairwise_run_are_found_again(results, tmp_path) -> None:
    binary = results.with_columns(good=(pl.col("grade") > 1).cast(pl.Int8)).drop("grade")
    schema = Schema(SCHEMA.features, Label(name="good"), group="query")
    training = {"loss": "pairwise", "epochs": 4, "learning_rate": 0.02}
    run = cr.train(binary, schema=schema, into=tmp_path / "run", config={"model": SMALL, "training": training})
    share = binary["good"].mean()
    assert abs(run.predict(binary, calibrated=True).mean() - share) < 0.05
    plain = {"model": SMALL, "training": {"epochs": 1}}
    other = cr.train(binary, schema=schema, into=tmp_path / "plain", config=plain)
    with pytest.raises(RunError, match=r"whose training\.loss is one of the order; .* has no calibration\.json"):
        other.predict(binary, calibrated=True)


def test_a_score_ranks_and_is_exported(place, results) -> None:
    run, rows = Run.open(place / "run"), results.head(20)
    scores = run.predict(rows)
    assert scores.min() < 0 or scores.max() > 1  # no probabilities
    np.testing.assert_allclose(Scorer.open(run).score(rows), scores, rtol=1e-6)
    crossrank("export", "run", "--into", "bundle", cwd=place)
    np.testing.assert_allclose(Scorer.open(place / "bundle").score(rows), scores, atol=1e-5)


def test_whole_groups_are_divided(place, results) -> None:
    dataset = EncodedDataset.open(place / "data")
    assert {*dataset.num_rows} == {"train", "valid", "test"}
    seen = [{*np.unique(dataset.split(name).groups)} for name in dataset.num_rows]
    assert sum(map(len, seen)) == len(set.union(*seen)) == 150


def test_valid_rows_are_drawn_by_group_where_a_column_leaves_them_out(results, tmp_path) -> None:
    named = results.with_columns(split=pl.when(pl.col("query") < 30).then(pl.lit("test")).otherwise(pl.lit("train")))
    dataset = prepare(named, SCHEMA, tmp_path / "data")
    seen = [{*np.unique(dataset.split(name).groups)} for name in ("train", "valid", "test")]
    assert sum(map(len, seen)) == len(set.union(*seen)) == 150 and len(seen[2]) == 30 and len(seen[1]) > 3


def test_a_group_that_is_a_feature_is_not_kept_out_of_training(results, tmp_path) -> None:
    schema = Schema([*SCHEMA.features, Categorical(name="query")], SCHEMA.label, group="query")
    dataset = prepare(results, schema, tmp_path / "data")
    assert {*np.unique(dataset.test.groups)} <= {*np.unique(dataset.train.groups)}


@pytest.mark.parametrize("loss", ["pairwise", "lambdarank", "listwise", "logloss", "logloss+pairwise", "squared"])
def test_every_loss_learns_the_order(place, tmp_path, loss) -> None:
    training = {"loss": loss, "monitor": "ndcg@5", "epochs": 8, "batch_size": 128, "learning_rate": 0.02}
    run = cr.train(place / "data", into=tmp_path / "run", config={"model": SMALL, "training": training})
    lines = [line["valid"]["ndcg@5"] for line in run.metrics if "valid" in line]
    assert run.report["test"]["ndcg@10"] > 0.8
    assert all("ndcg@10" in line["valid"] for line in run.metrics if "valid" in line)  # what pages and searches read
    best = lines.index(max(lines))
    assert run.report["training"]["best_step"] == [line["step"] for line in run.metrics if "valid" in line][best]


class KilledError(Exception):
    pass


@pytest.mark.parametrize("loss", ["lambdarank", "listwise"])
def test_a_training_that_is_cut_within_an_epoch_goes_on_as_if_it_was_not(place, tmp_path, loss) -> None:
    training = {"loss": loss, "epochs": 3, "batch_size": 128, "eval_every": 7, "device": "cpu"}
    config = {"model": SMALL, "training": training}

    def kill(step, _):
        if step == 14:  # of 12 steps in an epoch
            raise KilledError

    whole = cr.train(place / "data", into=tmp_path / "whole", config=config)
    with pytest.raises(KilledError):
        cr.train(place / "data", into=tmp_path / "cut", config=config, on_evaluation=kill)
    resumed = cr.train(place / "data", into=tmp_path / "cut", config=config, resume=True)
    for name, tensor in whole.model.state_dict().items():
        assert torch.equal(tensor, resumed.model.state_dict()[name]), name


@pytest.mark.parametrize(("bad", "shown"), [(-1, "-1"), (2.5, "2.5"), (51, "51"), (None, "nothing")])
def test_what_is_no_grade_is_refused_with_its_place(results, tmp_path, bad, shown) -> None:
    grades = [*results["grade"].cast(pl.Float64).to_list()[:-1], bad]
    with pytest.raises(DataError, match=rf"whole number from 0 to 50; got {shown} in .*row 1,?800"):
        prepare(results.with_columns(grade=pl.Series(grades)), SCHEMA, tmp_path / "data")


def test_a_grade_needs_a_group() -> None:
    with pytest.raises(SchemaError, match=r"compares the rows of a group; got no group\. Name the column"):
        Schema(SCHEMA.features, SCHEMA.label)
    assert Schema.from_dict(SCHEMA.to_dict()) == SCHEMA


@pytest.mark.parametrize(
    ("training", "message"),
    [
        (
            {"monitor": "ndgc@10"},
            r"monitor must be one of .*'ndcg@10'; got 'ndgc@10'\. Did you mean 'ndcg@10'",
        ),
        ({"monitor": "ndcg@0"}, r"got 'ndcg@0'"),
        ({"monitor": "logloss"}, r"monitor=logloss must be known of the validation rows; got .*ndcg@10.*group column"),
        (
            {"loss": "softmax"},
            r"kind grade is learned by .* or listwise or .*; got softmax\. Leave training\.loss out\.$",
        ),
        ({"loss": "lambdarank", "batch_size": 10_000}, r"lambdarank compares the rows of a group; .* 8,192 at most"),
    ],
)
def test_settings_that_do_not_go_with_grades_are_refused(place, tmp_path, training, message) -> None:
    with pytest.raises(ConfigError, match=message):
        cr.train(place / "data", into=tmp_path / "run", config={"model": SMALL, "training": training})
