"""scikit-learn's own checks, and what people do with its estimators."""

from __future__ import annotations

import copy
import os
import pickle
import shutil
import subprocess
import sys

os.environ.setdefault("SCIPY_ARRAY_API", "1")  # read when scipy is first imported; one of the checks asks for it

import numpy as np
import pandas as pd
import polars as pl
import pytest
from sklearn.base import clone
from sklearn.compose import ColumnTransformer
from sklearn.exceptions import NotFittedError
from sklearn.impute import SimpleImputer
from sklearn.model_selection import GridSearchCV
from sklearn.pipeline import make_pipeline
from sklearn.utils.estimator_checks import parametrize_with_checks

import crossrank as cr
from crossrank.errors import ConfigError
from crossrank.runs import Run
from crossrank.schema import Categorical, Numeric
from crossrank.sklearn import CrossRankClassifier, CrossRankRegressor

pytestmark = pytest.mark.filterwarnings("ignore:On the validation rows the model does worse")  # tiny tables, few steps
QUICK = {"model.embedding.dim": 4, "model.deep.sizes": [8], "training.max_steps": 20, "training.batch_size": 128}
EXPECTED_FAILURES = {
    "check_sample_weight_equivalence_on_dense_data": "a row of weight two is one row of a step and of the rows that "
    "decide; the same row twice is two, in steps of their own. Both learn the same only on average, as with every "
    "estimator that takes random steps.",
}


@pytest.mark.slow
@parametrize_with_checks(
    [CrossRankClassifier(), CrossRankRegressor()],
    expected_failed_checks=lambda _: EXPECTED_FAILURES,
    xfail_strict=True,
)
def test_scikit_learn_finds_nothing_unexpected(estimator, check) -> None:
    check(estimator)


@pytest.fixture(scope="module")
def features(clicks):
    return clicks.drop("click")


@pytest.fixture(scope="module")
def fitted(clicks, features):
    return CrossRankClassifier(settings=QUICK).fit(features, clicks["click"])


def test_pandas_and_polars_give_the_same_answers(clicks, features, fitted) -> None:
    frame = pd.DataFrame({column.name: column.to_list() for column in features})
    other = clone(fitted).fit(frame, clicks["click"].to_numpy())
    expected = fitted.predict_proba(features)
    assert expected.shape == (2000, 2) and expected.dtype == np.float64
    np.testing.assert_array_equal(other.predict_proba(frame), expected)
    np.testing.assert_array_equal(other.predict_proba(features), expected)
    assert list(other.feature_names_in_) == list(fitted.feature_names_in_) == features.columns
    assert fitted.n_features_in_ == features.width


def test_a_data_frame_means_what_it_means_to_train(fitted, clicks) -> None:
    drafted = {column.name: column.kind for column in cr.Schema.infer(clicks).features}
    assert {column.name: column.kind for column in fitted.run_.schema.features} == drafted


def test_numbers_of_an_array_are_numbers_and_its_text_is_drafted(clicks) -> None:
    y = clicks["click"].to_numpy()
    array = np.column_stack([clicks["country"].to_numpy().astype(object), clicks["hour"].to_numpy().astype(object)])
    model = CrossRankClassifier(settings=QUICK).fit(array, y)
    assert [(column.name, column.kind) for column in model.run_.schema.features] == [
        ("x0", "categorical"),
        ("x1", "numeric"),
    ]
    frame = clicks.select(x0="country", x1="hour")
    np.testing.assert_allclose(model.predict_proba(array)[:, 1], model.run_.predict(frame), rtol=1e-6)
    told = [Categorical(name="x1"), Numeric(name="x0", encoding="scalar")]
    model = CrossRankClassifier(settings=QUICK, features=told).fit(clicks.select("price", "hour").to_numpy(), y)
    assert list(model.run_.schema.features) == told


def test_every_column_is_a_feature_whatever_its_name() -> None:
    rng = np.random.default_rng(0)
    frame = pl.DataFrame({name: rng.normal(size=60) for name in ("label", "weight", "group", "y")})
    y = frame["weight"].to_numpy() * 3 + 100
    model = CrossRankRegressor().fit(frame, y, sample_weight=rng.uniform(size=60))
    assert model.run_.schema.names == ("label", "weight", "group", "y")
    assert model.score(frame, y) > 0.8


def test_missing_values_are_welcome_and_unseen_ones_too(fitted, features) -> None:
    holes = features.head(3).with_columns(price=pl.lit(None, pl.Float64), country=pl.lit("nowhere"))
    assert np.isfinite(fitted.decision_function(holes)).all()
    table = np.random.default_rng(0).normal(size=(50, 3))
    y = table[:, 0] > 0
    table[::7, 1] = np.nan
    assert np.isfinite(CrossRankClassifier(settings=QUICK).fit(table, y).predict_proba(table)).all()


def test_answers_agree_with_the_run(fitted, features) -> None:
    probabilities = fitted.predict_proba(features)
    np.testing.assert_allclose(probabilities[:, 1], fitted.run_.predict(features), rtol=1e-6)
    np.testing.assert_allclose(probabilities.sum(axis=1), 1, rtol=1e-15)
    np.testing.assert_array_equal(fitted.predict(features), probabilities.argmax(axis=1))
    np.testing.assert_array_equal(fitted.decision_function(features) > 0, probabilities[:, 1] > 0.5)


def test_a_pickle_holds_the_run_folder_and_nothing_else_of_the_model(fitted, features) -> None:
    state = fitted.__getstate__()
    assert {"run.json", "config.json", "model.safetensors", "encoder/encoder.json"} <= set(state["run_"])
    assert all(isinstance(content, bytes) for content in state["run_"].values())
    assert not any(name.startswith("checkpoint") for name in state["run_"])
    content = pickle.dumps(fitted)
    assert b"torch" not in content.replace(state["run_"]["run.json"], b"")
    for other in (pickle.loads(content), copy.deepcopy(fitted)):
        assert other.run_.path != fitted.run_.path
        np.testing.assert_array_equal(other.predict_proba(features), fitted.predict_proba(features))


def test_a_damaged_pickle_is_noticed(fitted) -> None:
    state = fitted.__getstate__()
    state["run_"]["model.safetensors"] = state["run_"]["model.safetensors"][:-1] + b"\x01"
    with pytest.raises(cr.errors.RunError, match="damaged"):
        CrossRankClassifier().__setstate__(state)


def test_the_run_can_be_kept_and_explained(fitted, features, tmp_path) -> None:
    assert cr.explain(fitted.run_, top=3)
    shutil.copytree(fitted.run_.path, tmp_path / "kept")
    np.testing.assert_allclose(Run.open(tmp_path / "kept").predict(features), fitted.run_.predict(features), rtol=1e-5)


def test_feature_importances_are_shares_in_the_order_of_the_columns(fitted, features, clicks) -> None:
    rises = {one["feature"]: one["importance"] for one in fitted.run_.importance}
    expected = np.array([max(rises[name], 0) for name in features.columns])
    np.testing.assert_allclose(fitted.feature_importances_, expected / expected.sum())
    assert fitted.feature_importances_.sum() == pytest.approx(1)
    chosen = [Categorical(name="country")]
    model = CrossRankClassifier(settings=QUICK, features=chosen).fit(features, clicks["click"])
    assert len(model.feature_importances_) == len(features.columns)
    assert set(np.flatnonzero(model.feature_importances_)) <= {features.columns.index("country")}
    with pytest.raises(NotFittedError):
        _ = CrossRankClassifier().feature_importances_


def test_the_column_that_decides_is_the_most_important() -> None:
    table = np.random.default_rng(0).normal(size=(600, 3))
    settings = {"training.learning_rate": 0.02, "training.epochs": 10}
    model = CrossRankRegressor(settings=settings).fit(table, 5 * table[:, 1])
    assert model.feature_importances_.argmax() == 1
    assert model.feature_importances_[1] > 0.8


def test_the_temporary_folder_goes_with_the_run(clicks, features, tmp_path, monkeypatch) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    model = CrossRankClassifier(settings=QUICK).fit(features, clicks["click"])
    run, path = model.run_, model.run_.path
    model.fit(features, clicks["click"])
    assert path.is_dir() and model.run_.path.is_dir()  # somebody still holds the first run
    del run, model
    with pytest.raises(ConfigError):
        CrossRankClassifier(settings={"training.epoch": 1}).fit(features, clicks["click"])
    assert list(tmp_path.iterdir()) == []


def test_a_search_sets_settings_by_their_dotted_names(clicks, features) -> None:
    columns = [("numbers", SimpleImputer(), ["price", "hour"]), ("text", "passthrough", ["country", "device"])]
    pipeline = make_pipeline(ColumnTransformer(columns), CrossRankClassifier(settings=QUICK))
    grid = {
        "crossrankclassifier__training.learning_rate": np.array([1e-6, 1e-2]),
        "crossrankclassifier__model": ["dnn", "logistic-regression"],
    }
    with pytest.raises(ConfigError, match=r"model\.deep"):
        clone(pipeline).set_params(crossrankclassifier__model="logistic-regression").fit(features, clicks["click"])
    grid["crossrankclassifier__model"].pop()
    search = GridSearchCV(pipeline, grid, cv=2, scoring="neg_log_loss", error_score="raise")
    search.fit(features, clicks["click"])
    best = search.best_estimator_[-1]
    assert best.settings["training.learning_rate"] == best.run_.config["training"]["learning_rate"] == 1e-2
    assert best.run_.config["model"]["name"] == "dnn" and best.run_.config["model"]["deep"]["sizes"] == [8]
    assert clone(best).get_params() == best.get_params()


def test_settings_may_be_nested_and_decide_the_split_too(clicks, features) -> None:
    settings = {"training": {"epochs": 1}, "training.batch_size": 256, "split": {"fractions": [0.5, 0.5]}}
    run = CrossRankClassifier("fm", settings=settings).fit(features, clicks["click"]).run_
    assert run.config["training"]["epochs"] == 1 and run.config["training"]["batch_size"] == 256
    assert run.config["model"]["name"] == "fm"
    assert 900 < run.report["valid"]["rows"] < 1100


def test_the_same_state_gives_the_same_model_and_another_does_not(clicks, features) -> None:
    def answers(state):
        model = CrossRankClassifier(settings=QUICK, random_state=state)
        return model.fit(features, clicks["click"]).predict_proba(features.head(9))

    np.testing.assert_array_equal(answers(1), answers(1))
    np.testing.assert_array_equal(answers(np.random.RandomState(1)), answers(np.random.RandomState(1)))
    assert (answers(1) != answers(2)).all()


def test_weights_count_and_rows_without_weight_do_not(clicks, features) -> None:
    y = clicks["click"].to_numpy()
    model = CrossRankClassifier(settings=QUICK)
    plain = model.fit(features, y).predict_proba(features)[:, 1].mean()
    heavy = model.fit(features, y, sample_weight=np.where(y == 1, 20.0, 1.0)).predict_proba(features)[:, 1].mean()
    assert heavy > plain + 0.1
    kept = np.arange(len(y)) % 2 == 0
    halved = model.fit(features, np.where(kept, y, 1 - y), sample_weight=kept.astype(float)).predict_proba(features)
    half = model.fit(features.filter(kept), y[kept], sample_weight=np.ones(kept.sum())).predict_proba(features)
    np.testing.assert_array_equal(halved, half)


def test_classes_may_be_any_two_values(clicks, features) -> None:
    names = np.where(clicks["click"].to_numpy() == 1, "yes", "no")
    model = CrossRankClassifier(settings=QUICK).fit(features, names)
    assert model.classes_.tolist() == ["no", "yes"]
    assert set(model.predict(features)) <= {"no", "yes"}


@pytest.mark.parametrize(
    ("y", "message"),
    [
        ([1, 1, 1], "got one class, 1"),
        ([0.5, 1.5, 2.5], "Unknown label type: continuous"),
        ([0, 1], "inconsistent numbers of samples"),
    ],
    ids=["one", "numbers", "too few"],
)
def test_a_target_without_classes_is_refused(y, message) -> None:
    y = (y * 20)[:60] if len(y) == 3 else y
    with pytest.raises(ValueError, match=message):
        CrossRankClassifier().fit(np.random.default_rng(0).normal(size=(60, 2)), y)


def test_weights_that_are_none_are_refused() -> None:
    table, y = np.random.default_rng(0).normal(size=(8, 2)), np.arange(8) % 2
    for weights in (-np.ones(8), np.ones(7), np.zeros(8)):
        with pytest.raises(ValueError, match=r"sample_weight must have shape \(8,\)"):
            CrossRankClassifier().fit(table, y, sample_weight=weights)


def test_a_regressor_answers_in_the_units_of_its_target(features) -> None:
    features = features.drop_nulls("price")
    y = 1e6 + 1e3 * features["price"].to_numpy()
    model = CrossRankRegressor().fit(features, y)
    assert model.score(features, y) > 0.95
    np.testing.assert_allclose(model.predict(features).mean(), y.mean(), rtol=1e-3)


def test_columns_must_be_those_of_fit(fitted, features) -> None:
    with pytest.raises(ValueError, match="feature names should match"):
        fitted.predict(features.rename({"country": "land"}))
    with pytest.raises(NotFittedError):
        CrossRankClassifier().predict(features)


def test_without_scikit_learn_the_error_says_what_to_install() -> None:
    program = "import sys; sys.modules['sklearn'] = None; import crossrank.sklearn"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    assert "pip install 'crossrank[sklearn]'" in done.stderr
