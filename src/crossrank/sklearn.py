"""Training and prediction as scikit-learn does them: data frames and arrays in, pipelines and searches around.

Example::

    from crossrank.sklearn import CrossRankClassifier

    model = CrossRankClassifier("dcn-v2", settings={"model.cross.num_layers": 3, "training.epochs": 20})
    model.fit(clicks.drop("click"), clicks["click"])
    model.predict_proba(later)[:, 1]
    cr.explain(model.run_, top=10)                   # all that works on a run

    search = GridSearchCV(model, {"model": ["dcn-v2", "dnn"], "training.learning_rate": [1e-3, 1e-2]})

A setting's dotted name, as after ``--set`` on the command line, is also a name for ``set_params`` and for a search.
"""

from __future__ import annotations

import dataclasses
import json
import shutil
import warnings
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Self, TypeAlias

import numpy as np
from numpy.typing import NDArray

from crossrank.config import override
from crossrank.data.table import open_table
from crossrank.errors import MissingExtraError
from crossrank.evaluation.classes import log_softmax
from crossrank.evaluation.metrics import sigmoid
from crossrank.runs.in_memory import pack, temporary, unpack
from crossrank.schema import Column, Label, LabelKind, Numeric, Schema
from crossrank.schema.draft import draft_features
from crossrank.training import train

try:
    from sklearn.base import BaseEstimator, ClassifierMixin, RegressorMixin
    from sklearn.utils import Tags, check_array, check_consistent_length, check_random_state, column_or_1d
    from sklearn.utils.multiclass import type_of_target
    from sklearn.utils.validation import check_is_fitted, validate_data
except ImportError:
    raise MissingExtraError("crossrank.sklearn", "sklearn") from None

if TYPE_CHECKING:
    import polars as pl

Doubles: TypeAlias = NDArray[np.float64]
VALID_SHARE = 0.1


@dataclasses.dataclass(frozen=True)
class _Rows:
    """What ``fit`` was given, checked."""

    frame: pl.DataFrame
    features: Sequence[Column]
    target: NDArray[Any]
    weights: Doubles | None


class _Estimator(BaseEstimator):
    """What the classifier and the regressor share."""

    def __init__(
        self,
        model: str = "dcn-v2",
        *,
        settings: Mapping[str, Any] | None = None,
        features: Sequence[Column] | None = None,
        random_state: int | np.random.RandomState | None = 0,
    ) -> None:
        self.model = model
        self.settings = settings
        self.features = features
        self.random_state = random_state

    def set_params(self, **params: Any) -> Self:
        """Set parameters; a dotted name sets one of the settings."""
        dotted = {name: params.pop(name) for name in list(params) if "." in name}
        super().set_params(**params)
        if dotted:
            self.settings = {**(self.settings or {}), **dotted}
        return self

    def _read(self, X: Any, y: Any, sample_weight: Any, *, dtype: Any) -> _Rows:
        """Check what ``fit`` was given. Rows that weigh nothing are left out."""
        if y is None:
            raise ValueError(f"{type(self).__name__} requires y to be passed, but the target y is None.")
        frame = self._frame(X, reset=True)
        self._names = frame.columns
        y = column_or_1d(check_array(y, ensure_2d=False, dtype=dtype, input_name="y", estimator=self), warn=True)
        check_consistent_length(X, y)
        ordered = dtype is not None or len(set(y.tolist())) == 2
        features = _drafted(X, frame, ordered) if self.features is None else self.features
        if sample_weight is None:
            return _Rows(frame, features, y, None)
        weights = check_array(sample_weight, ensure_2d=False, dtype=np.float64, input_name="sample_weight")
        if weights.shape != y.shape or weights.min() < 0 or not weights.any():
            raise ValueError(
                f"sample_weight must have shape {y.shape}, nothing negative, and not only zeros; got shape "
                f"{weights.shape} and numbers from {weights.min():g} to {weights.max():g}."
            )
        counted = weights > 0
        return _Rows(frame.filter(counted), features, y[counted], weights[counted])

    def _frame(self, X: Any, *, reset: bool) -> pl.DataFrame:
        """The columns of X as a data frame, like those that ``fit`` saw, or to be remembered as such."""
        if hasattr(X, "columns"):
            validate_data(self, X, reset=reset, skip_check_array=True)
            return open_table(X).head(len(X))
        fewest = 2 if reset else 1
        X = validate_data(self, X, reset=reset, dtype=None, ensure_all_finite="allow-nan", ensure_min_samples=fewest)
        names = [f"x{i}" for i in range(X.shape[1])] if reset else self._names
        return open_table({name: _cells(column) for name, column in zip(names, X.T, strict=True)}).head(len(X))

    def _train(self, rows: _Rows, target: Doubles, *, kind: LabelKind) -> None:
        """Train on the rows in an order of chance, the last of which decide."""
        seed = self.random_state
        if not isinstance(seed, int):
            seed = int(check_random_state(seed).randint(2**31))
        label, weight = (_unlike(rows.frame.columns, name) for name in ("label", "weight"))
        added = {label: target} if rows.weights is None else {label: target, weight: rows.weights}
        classes = tuple(map(str, range(int(target.max()) + 1))) if kind == "classes" else ()
        meaning = Label(name=label, kind=kind, classes=classes)
        schema = Schema(rows.features, meaning, weight=weight if weight in added else None)
        table = rows.frame.with_columns(**added)[np.random.default_rng(seed).permutation(len(target))]
        how: dict[str, Any] = {"config": self._config(len(target)), "schema": schema, "seed": seed}
        self.run_ = temporary(lambda folder: train(table, into=folder, test=False, progress=False, **how))
        trained = self.run_.report["training"]
        if kind == "real" and "warning" in trained:  # classes are often judged by more than their probabilities
            warnings.warn(trained["warning"], stacklevel=3)
        # There is nothing to go on with: it would only weigh in a pickle
        shutil.rmtree(self.run_.path / "checkpoint", ignore_errors=True)

    def _config(self, num_rows: int) -> dict[str, Any]:
        """The settings as :func:`crossrank.train` takes them."""
        given = self.settings or {}
        words = [f"{name}={_toml(value)}" for name, value in given.items() if "." in name]
        config = override({name: value for name, value in given.items() if "." not in name}, words)
        num_valid = max(1, round(VALID_SHARE * num_rows))
        # One model, since scikit-learn averages several by means of its own
        config["model"] = {"ensemble": 1} | config.get("model", {}) | {"name": self.model}
        share = num_valid / num_rows
        config.setdefault("split", {"method": "time", "fractions": [1 - share, share]})
        return config

    def _logits(self, X: Any) -> Doubles:
        """(N,), or (N, K) for several classes"""
        check_is_fitted(self)
        batches = self.run_.encode(self._frame(X, reset=False))
        features = (batch._replace(numeric=batch.numeric.double()) for batch in batches)
        return self.run_.model.predict_logits(features).numpy().astype(np.float64)

    @property
    def feature_importances_(self) -> Doubles:
        """What each column is worth, as shares that sum up to 1: how much the loss of the rows that decide rises when
        its cells are shuffled among them; 0 where it does not rise, and for columns that are not used. Shape: (F,).
        """
        check_is_fitted(self)
        rises = {one["feature"]: max(one["importance"], 0.0) for one in self.run_.importance}
        shares = np.array([rises.get(name, 0.0) for name in self._names])
        return shares / (shares.sum() or 1.0)

    def __getstate__(self) -> dict[str, Any]:
        state = dict(super().__getstate__())
        if "run_" in state:
            state["run_"] = pack(self.run_.path)
        return state

    def __setstate__(self, state: dict[str, Any]) -> None:
        super().__setstate__(state)
        if "run_" in state:
            self.run_ = temporary(lambda folder: unpack(state["run_"], folder))

    def __sklearn_tags__(self) -> Tags:
        tags = super().__sklearn_tags__()
        tags.input_tags.allow_nan = True
        return tags


class CrossRankClassifier(ClassifierMixin, _Estimator):
    """Tells two classes apart, or several.

    Args:
        model: a model's name; ``crossrank models`` lists them.
        settings: any of the settings of :func:`crossrank.train`, under their dotted names or as nested mappings. What
            is left out is as there, except that a tenth of the rows, drawn by chance, decides which weights are kept.
        features: what each column means, as :class:`~crossrank.schema.Categorical`, ``Numeric`` and ``Multivalent``
            objects; other columns are not used. Left out, it is drafted as :meth:`Schema.infer` does, except that the
            numbers of an array are numbers. The columns of an array are called x0, x1, ….
        random_state: of the initial weights, the order of the rows, and which of them decide.

    Attributes:
        classes_: the classes; of two, the second is the one whose logit and probability are learned.
        run_: the trained :class:`~crossrank.runs.Run`. Its folder is temporary and goes with it: copy ``run_.path`` to
            keep it. A pickle holds the files of this folder and the weights in no other form.
        n_features_in_, feature_names_in_: the columns that ``fit`` saw.
        feature_importances_: what each of them is worth.

    Raises:
        ValueError: for what scikit-learn refuses: one class only, infinite numbers, other columns.
        CrossRankError: for what crossrank refuses, such as an unknown setting.

    Example:
        >>> import numpy as np
        >>> X = np.random.default_rng(0).normal(size=(200, 2))
        >>> y = np.where(X[:, 0] * X[:, 1] > 0, "same", "different")  # a cross, which no linear model finds
        >>> model = CrossRankClassifier(settings={"training.learning_rate": 0.01}).fit(X, y)
        >>> model.predict([[1.0, 1.0], [1.0, -1.0]])
        array(['same', 'different'], dtype='<U9')
    """

    def fit(self, X: Any, y: Any, sample_weight: Any = None) -> Self:
        """Train on the rows of X, a pandas or polars data frame or an array, with their classes and weights."""
        rows = self._read(X, y, sample_weight, dtype=None)
        kind = type_of_target(rows.target, input_name="y", raise_unknown=True)
        if kind not in ("binary", "multiclass"):
            raise ValueError(f"Unknown label type: {kind}. The target must be classes, one for each row.")
        self.classes_, codes = np.unique(rows.target, return_inverse=True)
        if len(self.classes_) < 2:
            raise ValueError(f"Two classes are needed; got one class, {self.classes_[0]}, in all rows that count.")
        self._train(rows, codes.astype(np.float64), kind="binary" if len(self.classes_) == 2 else "classes")
        return self

    def decision_function(self, X: Any) -> Doubles:
        """The logit of the second of two classes: (N,); of each where there are more: (N, K)."""
        return self._logits(X)

    def predict_proba(self, X: Any) -> Doubles:
        """The probability of each class: (N, K)."""
        logits = self._logits(X)
        if logits.ndim == 2:
            return np.exp(log_softmax(logits))
        return np.stack([sigmoid(-logits), sigmoid(logits)], axis=1)

    def predict(self, X: Any) -> NDArray[Any]:
        """The most probable class: (N,)."""
        logits = self._logits(X)  # first, so that a model that is not fitted says so
        answers: NDArray[Any] = self.classes_[logits.argmax(axis=1) if logits.ndim == 2 else (logits > 0).astype(int)]
        return answers


class CrossRankRegressor(RegressorMixin, _Estimator):
    """Predicts a number, by least squares.

    Args and attributes are those of :class:`CrossRankClassifier`.

    Example:
        >>> import numpy as np
        >>> X = np.random.default_rng(0).normal(size=(200, 2))
        >>> y = 100 + 10 * X[:, 0] * X[:, 1]
        >>> model = CrossRankRegressor(settings={"training.learning_rate": 0.01}).fit(X, y)
        >>> model.score(X, y) > 0.9
        True
    """

    def fit(self, X: Any, y: Any, sample_weight: Any = None) -> Self:
        """Train on the rows of X, a pandas or polars data frame or an array, with their numbers and weights."""
        rows = self._read(X, y, sample_weight, dtype=np.float64)
        self._train(rows, rows.target, kind="real")
        return self

    def predict(self, X: Any) -> Doubles:
        """The expected number of each row: (N,)."""
        return self._logits(X)


def _drafted(X: Any, frame: pl.DataFrame, ordered: bool) -> list[Column]:
    """What the columns mean, as far as they tell; numbers of an array are numbers."""
    numbers = [] if hasattr(X, "columns") else [column.name for column in frame if column.dtype.is_numeric()]
    others = frame.drop(numbers)
    return [
        *(draft_features(others, ordered=ordered).warned().features if others.width else []),
        *(Numeric(name=name) for name in numbers),
    ]


def _cells(column: NDArray[Any]) -> NDArray[Any] | list[Any]:
    """A column of an array: numbers, or text where there is any."""
    if column.dtype.kind == "O" and not any(isinstance(cell, str) for cell in column):
        column = column.astype(np.float64)
    cells: list[Any] = column.tolist()
    return column if column.dtype.kind in "biuf" else cells


def _toml(value: Any) -> str:
    """A setting's value as it would be written after ``--set``; NumPy's numbers too."""
    return json.dumps(value, ensure_ascii=False, default=lambda number: number.item())


def _unlike(names: Sequence[str], name: str) -> str:
    """A name for a column that is not there yet."""
    while name in names:
        name += "_"
    return name
