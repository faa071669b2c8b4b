"""Everything that can be set about a training, with the paper's values as defaults."""

from __future__ import annotations

import dataclasses
import math
import re
from collections.abc import Mapping
from typing import Any, Literal, overload

from crossrank.config import check_keys, parse, setting, to_dict
from crossrank.data.splits import SplitSettings
from crossrank.errors import ConfigError, did_you_mean, listing
from crossrank.evaluation.metrics import CRITERIA
from crossrank.models import Model, ModelSettings, parse_model_settings
from crossrank.models.settings import check_share
from crossrank.schema import Label, LabelKind
from crossrank.training.heads import HeadsName
from crossrank.training.loss import Loss, LossName, find_loss, is_order
from crossrank.training.schedule import ScheduleName

Placement = Literal["table-wise", "row-wise", "column-wise", "data-parallel"]
LARGEST_PAIRED_BATCH = 8192
PAIRED = ("pairwise", "lambdarank", "logloss+pairwise")
MONITORS = ("auto", "logloss", "rmse", "r2", "auc", "accuracy", "macro_auc", "grouped_auc", "mrr")
NDCG = re.compile(r"ndcg@[1-9]\d*")
LARGEST_DENSE_TABLE = 2_000_000  # weights: a pass over all of them is faster than finding the few to change


def most_table_decay(average_decay: float, learning_rate: float) -> float:
    """Embedding rows that shrink faster leave their average behind."""
    return (1 - average_decay) / (2 * learning_rate) if average_decay else math.inf


@dataclasses.dataclass(frozen=True, kw_only=True)
class TrainingSettings:
    batch_size: int = setting(512, "rows in a step")
    learning_rate: float = setting(1e-3, "Adam's learning rate")
    table_learning_rate: float | None = setting(None, "of embedding rows; left out, the learning rate")
    clip_norm: float = setting(10.0, "scale the gradient down to this norm when it is longer; 0 for never")
    average_decay: float = setting(0.9999, "decay of the moving average of the weights, used and saved; 0 for none")
    device: Literal["auto", "cpu", "cuda"] = setting("auto", "where to train; auto: on a GPU where there is one")
    tables: Literal["auto", "dense", "lazy"] = setting(
        "auto",
        "Adam and average of embedding rows: every row at every step (dense), or each when a batch reads it (lazy); "
        "both end the same. auto: lazy, on a processor from 2 million weights on",
    )
    precision: Literal["auto", "float32", "bfloat16"] = setting(
        "auto",
        "of matrix products; weights and sums stay float32. auto: bfloat16 where the processor has it and it pays",
    )
    loss: LossName = setting(
        "auto",
        "what is made small: logloss, squared, softmax (of several classes), or the order inside a group: pairwise, "
        "lambdarank (pairs weighted by what they change of NDCG), listwise (softmax over the group), logloss+pairwise; "
        "auto: logloss for a binary label, squared for a number, softmax for classes, listwise for grades",
    )
    pair_weight: float = setting(1.0, "of the pairwise term in logloss+pairwise")
    monitor: str = setting(
        "auto",
        "the metric of the validation rows that decides which weights are the best and when to stop: logloss, auc, "
        "rmse, r2, or by group grouped_auc, mrr, ndcg@10 or another k; auto: logloss, rmse for a number, ndcg@10 for "
        "a loss of the order (grouped_auc for pairwise)",
    )
    heads: HeadsName = setting(
        "none",
        "losses for the paths of a model that has several: own, each learns the labels; distil, their mean learns the "
        "labels and each path the mean's answer; weighted, the mean learns the labels, and each path by as much as it "
        "is worse than the mean. Answers are the mean's all the same",
    )
    positive_weight: float | Literal["balanced"] = setting(
        1.0,
        "how many times a row of class 1 counts; balanced: as much as makes both classes weigh the same. Answers are "
        "corrected for it",
    )
    task_weights: Mapping[str, float] = setting(
        {}, "of a label with several columns: how much the loss of each counts, by column; left out, 1"
    )
    variants: Literal["none", "auto"] = setting(
        "none",
        "auto: numbers in one bin, and the stacked structure, if they do better on the validation rows",
    )
    memory: Literal["none", "auto"] = setting(
        "none", "auto: statistics of pairs of columns and of single ones, if they do better on the validation rows"
    )
    l2: float = setting(0.0, "λ of λ Σ ||W||² over the cross and deep kernels")
    table_decay: float = setting(0.0, "ρ: at each step every embedding row shrinks by 1 - ρ times the learning rate")
    schedule: ScheduleName = setting(
        "constant",
        "of the learning rate: constant, linear or cosine (down to 0 at the last step), or plateau (times 0.1 after "
        "each evaluation that is not the best so far)",
    )
    warmup_steps: int = setting(0, "steps in which the learning rate rises to its full value")
    ramp: float = setting(
        0.0, "share of the first epoch in which steps grow from 4,096 rows to a whole batch, where that has more"
    )
    distributed: bool = setting(False, "one of several processes that train one model, under torchrun or --workers")
    placement: Mapping[str, Placement] = setting(
        {},
        "where the table of a feature lies in a distributed training, by feature, or 'all': table-wise, row-wise, "
        "column-wise or data-parallel; left out, TorchRec's planner decides",
    )
    epochs: int = setting(10, "passes over the training rows, at most")
    max_steps: int | None = setting(None, "steps, at most; left out, only epochs count")
    eval_every: int | None = setting(None, "steps between two evaluations on the validation rows; left out, an epoch")
    patience: int = setting(2, "stop after this many evaluations in a row without a better one; 0 for never")
    log_every: int = setting(100, "steps between two lines of metrics.jsonl")

    def __post_init__(self) -> None:
        for key in ("batch_size", "epochs", "log_every", "max_steps", "eval_every"):
            value = getattr(self, key)
            if value is not None and value < 1:
                raise ConfigError(f"training.{key} must be at least 1; got {value}.")
        for key in ("clip_norm", "l2", "pair_weight", "patience", "table_decay", "warmup_steps"):
            if getattr(self, key) < 0:
                raise ConfigError(f"training.{key} must not be negative; got {getattr(self, key)}.")
        if self.positive_weight != "balanced" and not self.positive_weight > 0:
            raise ConfigError(f"training.positive_weight must be positive; got {self.positive_weight}.")
        for key in ("learning_rate", "table_learning_rate"):
            value = getattr(self, key)
            if value is not None and not value > 0:
                raise ConfigError(f"training.{key} must be positive; got {value}.")
        if not all(weight > 0 for weight in self.task_weights.values()):
            raise ConfigError(f"training.task_weights must be positive; got {dict(self.task_weights)}.")
        if self.loss in PAIRED and self.batch_size > LARGEST_PAIRED_BATCH:
            raise ConfigError(
                f"training.loss={self.loss} compares the rows of a group; training.batch_size may be "
                f"{LARGEST_PAIRED_BATCH:,} at most, got {self.batch_size:,}."
            )
        if self.monitor not in MONITORS and not NDCG.fullmatch(self.monitor):
            raise ConfigError(
                f"training.monitor must be one of {listing([*MONITORS, 'ndcg@10'], most=10)}; got '{self.monitor}'.",
                hint=did_you_mean(self.monitor, [*MONITORS, "ndcg@10"]),
            )
        for key in ("average_decay", "ramp"):
            check_share(f"training.{key}", getattr(self, key))
        if self.ramp and self.schedule in ("linear", "cosine"):
            raise ConfigError(
                f"training.ramp goes with a learning rate that is constant, or plateau; got schedule={self.schedule}.",
                hint="Leave one of them out.",
            )
        most = most_table_decay(self.average_decay, self.table_learning_rate or self.learning_rate)
        if self.table_decay > most:
            raise ConfigError(
                "Embedding rows must not shrink faster than their average can follow: training.table_decay may be "
                f"(1 - average_decay) / (2 learning_rate) = {most:.3g} at most; got {self.table_decay}.",
                hint="Lower training.table_decay, or set training.average_decay=0.",
            )

    def criterion(self, label_kind: LabelKind) -> str:
        """The metric of the validation rows that decides."""
        if self.monitor != "auto":
            return self.monitor
        if self.loss == "pairwise":
            return "grouped_auc"
        return "ndcg@10" if is_order(self.loss, label_kind) else CRITERIA[label_kind]

    def find_loss(self, label: Label) -> Loss:
        """The loss of a label.

        Raises:
            ConfigError: for a loss that does not go with the label, or the weight of a task that it does not have.
        """
        for name in self.task_weights:
            if name not in label.columns:
                raise ConfigError(
                    f"training.task_weights must be of tasks, {listing(label.columns) or 'none'}; got '{name}'.",
                    hint=did_you_mean(name, label.columns),
                )
        weights = [self.task_weights.get(name, 1.0) for name in label.columns]
        return find_loss(self.loss, label.kind, pair_weight=self.pair_weight, task_weights=weights)

    def total_steps(self, batches_per_epoch: int) -> int:
        """How many steps there are at most."""
        return min(self.epochs * batches_per_epoch, self.max_steps or 2**62)

    def for_model(self, model: Model, device: str) -> TrainingSettings:
        """The same with ``tables`` decided by what is faster on a device, "cpu" or "cuda".

        Raises:
            ConfigError: for a penalty that this model has no weights for, or tables that cannot be updated as asked.
        """
        if self.l2 and not any(True for _ in model.kernels()):
            raise ConfigError(
                f"training.l2 counts the kernels of cross and deep layers; {type(model).__name__} has none, "
                f"got l2={self.l2}.",
                hint="Leave training.l2 out; training.table_decay shrinks embedding rows.",
            )
        if device == "cuda" and self.tables == "dense" and self.table_learning_rate is not None:
            raise ConfigError(
                "On a GPU, embedding rows have a learning rate of their own where tables are lazy; got "
                f"tables=dense and table_learning_rate={self.table_learning_rate}.",
                hint="Leave training.tables out: lazy tables end the same, and are faster there.",
            )
        if self.tables != "auto":
            return self
        weights = sum(table.weight.numel() for table in model.tables())
        dense = device == "cpu" and weights <= LARGEST_DENSE_TABLE
        return dataclasses.replace(self, tables="dense" if dense else "lazy")


@dataclasses.dataclass(frozen=True, kw_only=True)
class Config:
    """A whole configuration: which model, how it is trained, how a raw table is split before.

    Example:
        >>> config = Config.parse({"model": {"name": "dnn"}, "training": {"learning_rate": 0.01}})
        >>> config.model.name, config.training.learning_rate, config.training.batch_size
        ('dnn', 0.01, 512)
    """

    model: ModelSettings
    training: TrainingSettings
    split: SplitSettings

    @classmethod
    def parse(cls, values: Mapping[str, Any]) -> Config:
        named = values.get("model", {})
        name = {"name": named["name"]} if isinstance(named, Mapping) and "name" in named else {}
        check_keys(values, cls.defaults(name))
        for key, part in values.items():
            if not isinstance(part, Mapping):
                raise ConfigError(f"'{key}' must be a table of settings; got {part!r}.")
        return cls(
            model=parse_model_settings(values.get("model", {})),
            training=parse(TrainingSettings, values.get("training", {}), path="training"),
            split=parse(SplitSettings, values.get("split", {}), path="split"),
        )

    @staticmethod
    def defaults(model: Mapping[str, Any]) -> dict[str, Any]:
        """The parts of a config, each with its defaults."""
        return {"model": parse_model_settings(model), "training": TrainingSettings(), "split": SplitSettings()}

    def to_dict(self) -> dict[str, Any]:
        return to_dict(self)


@overload
def without_tries(config: Config, **model: Any) -> Config: ...
@overload
def without_tries(config: Mapping[str, Any], **model: Any) -> dict[str, Any]: ...
def without_tries(config: Config | Mapping[str, Any], **model: Any) -> Config | dict[str, Any]:
    """The same settings for one training, after what is to be tried was decided."""
    if isinstance(config, Config):
        training = dataclasses.replace(config.training, variants="none", memory="none")
        return dataclasses.replace(config, model=dataclasses.replace(config.model, **model), training=training)
    parts = {"model": model, "training": {"variants": "none", "memory": "none"}}
    return {**config, **{key: {**config.get(key, {}), **own} for key, own in parts.items()}}
