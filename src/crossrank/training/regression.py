"""How a label that is a number is learned: at its own scale and from its mean.

A network learns the label less its mean, divided by its deviation, whatever it is measured in; its answers are turned
back (:meth:`crossrank.models.Model.in_units`). It begins by answering the mean to every row. Cross layers multiply the
numbers of a row, which are about as large as the label, so they begin near the identity; otherwise the first answers
would be hundreds of deviations off, and Adam would remember these gradients for thousands of steps.
"""

from __future__ import annotations

import copy
import dataclasses

import numpy as np
import torch
from torch import nn

from crossrank.data import EncodedDataset, Split
from crossrank.models import Model
from crossrank.nn import OutputLayer

FIRST_CROSSES = 0.1  # of their usual size


def is_number(dataset: EncodedDataset) -> bool:
    return dataset.schema.label.kind == "real"


@torch.no_grad()
def start_at_mean(model: Model, dataset: EncodedDataset) -> None:
    """Tell a new model the mean, deviation and range of a label that is a number, and let it answer the mean.

    Of grades it answers 0 to every row.
    """
    if dataset.schema.label.kind not in ("real", "grade"):
        return
    if is_number(dataset):
        labels, weights = np.asarray(dataset.train.labels, np.float64), dataset.train.weights
        mean = np.average(labels, weights=weights)
        model.label_low.fill_(labels.min())
        model.label_high.fill_(labels.max())
        model.label_mean.fill_(mean)
        model.label_deviation.fill_(np.sqrt(np.average((labels - mean) ** 2, weights=weights)) or 1.0)
    for layer in model.modules():
        if isinstance(layer, OutputLayer):
            nn.init.zeros_(layer.weight)
    for network in model.cross_networks():
        for name, kernel in network.named_parameters():
            if name.endswith((".weight", ".up")) and ".gate." not in name:
                kernel.mul_(FIRST_CROSSES)


def as_learned(dataset: EncodedDataset, model: Model, loss: str = "auto") -> EncodedDataset:
    """The dataset with the labels of its training rows, where they are numbers, in units of the model.

    For the log loss, a grade is its share of the highest one.
    """
    shares = dataset.schema.label.kind == "grade" and loss in ("logloss", "logloss+pairwise")
    if not is_number(dataset) and not shares:
        return dataset
    split, learned = dataset.train, copy.copy(dataset)
    labels = (np.asarray(split.labels, np.float64) - model.label_mean.item()) / model.label_deviation.item()
    labels = labels / labels.max() if shares else labels
    rows = dataclasses.replace(split.rows, labels=labels.astype(np.float32))
    learned.train = Split(rows, window_bytes=split.window_bytes)
    return learned
