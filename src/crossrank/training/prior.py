"""What class weights and sampled negatives do to a logit, and what undoes it.

Where each positive row weighs w and each negative row was kept with probability q, the log loss is least at

    odds' = (w / q) odds,   so   logit = logit' + log q - log w,

odds being those of the whole table with equal weights. A model learns logit'; its answers are shifted by log q - log w
(:meth:`crossrank.models.Model.in_units`), in all that is measured, chosen by, explained and predicted. So probabilities
stay calibrated, and the order of rows, and with it the AUC, is as learned. The valid and test rows of a dataset whose
negatives are a sample are measured with 1 / q as the weight of each negative, which stands for so many.

No answer is surer than N training rows can teach: of more than 2 N rows, about one may be of the other class, so
|logit'| is log(2 N + 1) at most. One row that is answered wrongly with certainty would outweigh all others.
"""

from __future__ import annotations

import copy
import dataclasses
import math

import numpy as np
import torch

from crossrank.data import EncodedDataset, Split
from crossrank.errors import ConfigError
from crossrank.models import Model
from crossrank.training.loss import is_order
from crossrank.training.regression import as_learned
from crossrank.training.settings import TrainingSettings


def prior_shift(*, positive_weight: float = 1.0, negatives_kept: float = 1.0) -> float:
    """``log q - log w``.

    >>> round(prior_shift(positive_weight=1.0, negatives_kept=0.1), 4)
    -2.3026
    """
    return math.log(negatives_kept) - math.log(positive_weight)


def positive_weight(settings: TrainingSettings, dataset: EncodedDataset) -> float:
    """w; ``balanced`` is the number of negative training rows over that of positive ones, by their weights.

    Raises:
        ConfigError: where there are no classes to weigh, or no probabilities to keep calibrated.
    """
    asked = settings.positive_weight
    if asked == 1:
        return 1.0
    label = dataset.schema.label
    if label.kind != "binary" or settings.loss not in ("auto", "logloss"):
        raise ConfigError(
            "training.positive_weight weighs the log loss of a binary label; got "
            f"training.loss={settings.loss} for the {label.kind} label '{label.name}'."
        )
    if asked != "balanced":
        return float(asked)
    share = float(np.average(dataset.train.labels, weights=dataset.train.weights))
    return (1 - share) / share


@torch.no_grad()
def correct_prior(model: Model, dataset: EncodedDataset, settings: TrainingSettings) -> None:
    """Shift the answers of a new model by what weights and sampling will do to its logits, and bound them."""
    weight, kept = positive_weight(settings, dataset), dataset.schema.label.negatives_kept or 1.0
    if dataset.schema.label.kind == "binary" and not is_order(settings.loss, "binary"):
        shift, surest = prior_shift(positive_weight=weight, negatives_kept=kept), math.log(2 * len(dataset.train) + 1)
        for unit, value in ((model.label_mean, 0.0), (model.label_low, -surest), (model.label_high, surest)):
            unit.fill_(value + shift)


def rows_to_learn(dataset: EncodedDataset, model: Model, settings: TrainingSettings) -> EncodedDataset:
    """The dataset with its training rows as the loss sees them: in units of the model, and positive ones weighed."""
    dataset, weight = as_learned(dataset, model, settings.loss), positive_weight(settings, dataset)
    if weight == 1:
        return dataset
    split, weighed = dataset.train, copy.copy(dataset)
    weights = np.where(split.labels == 1, np.float32(weight), np.float32(1))
    weights = weights if split.weights is None else weights * split.weights
    weighed.train = Split(dataclasses.replace(split.rows, weights=weights), window_bytes=split.window_bytes)
    return weighed
