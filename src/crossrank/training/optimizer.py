"""A training step on a processor: gradient, clip, the update rule.

::

    g <- ∇ loss,                       g <- g min(1, clip / ||g||),                  then :mod:`crossrank.training.rule`

Embedding tables are updated in one of two ways, with the same result. ``dense`` is the textbook, every row at every
step. ``lazy`` touches the rows of the batch alone and brings a row up to date when it is read
(:mod:`crossrank.training.lazy`), so that a step costs the same for any vocabulary.
"""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import AbstractContextManager
from typing import Any

import torch
from torch import Tensor, nn

from crossrank.nn import FeatureEmbedding
from crossrank.nn.embedding import embedding_layers
from crossrank.training.idle import BETAS, EPSILON, decay_at
from crossrank.training.lazy import LazyEmbedding, LazyTables, Touched, holding
from crossrank.training.profile import NoClock, StepClock
from crossrank.training.rule import UpdateRule
from crossrank.training.settings import TrainingSettings


class Optimizer:
    """Applies steps to a model; the training loop knows nothing of parameters.

    Args:
        model: whose parameters are trained, in place.
        settings: learning rate, clip, average, and how tables are updated.
        rule: of the update; left out, the one of the settings.
        clock: told when each part of a step ends.
    """

    def __init__(
        self,
        model: nn.Module,
        settings: TrainingSettings,
        *,
        rule: UpdateRule | None = None,
        clock: StepClock | None = None,
    ) -> None:
        self.settings, self.clock, self.rule = settings, clock or NoClock(), rule or UpdateRule(settings)
        lazy = LazyTables(model if settings.tables == "lazy" else nn.Module(), self._lazy_embedding)
        dense = {name: p for name, p in model.named_parameters() if name not in lazy.layers and p.requires_grad}
        tables = [layer.weight for layer in embedding_layers(model)]
        self._hold(lazy, dense, [p for p in dense.values() if any(p is table for table in tables)])

    def _hold(self, lazy: LazyTables[Any], dense: dict[str, nn.Parameter], tables: list[nn.Parameter]) -> None:
        """Note what is trained: lazy tables, and weights that have a gradient at every step, some of them tables."""
        self.lazy, self.dense, self.parameters = lazy, dense, list(dense.values())
        self.shrinking: list[Tensor] = [*tables] if self.settings.table_decay else []
        others = [p for p in self.parameters if not any(p is table for table in tables)]
        groups, rate = [{"params": group} for group in (others, tables)], self.settings.learning_rate
        self.adam = torch.optim.Adam(groups, lr=rate, betas=BETAS, eps=EPSILON, fused=True)
        self.averages = [p.detach().clone() for p in self.parameters] if self.rule.decay else []
        self.steps = 0

    def _lazy_embedding(self, layer: FeatureEmbedding) -> LazyEmbedding:
        return LazyEmbedding(layer, self.rule, now=lambda: self.steps)

    def step(self, loss: Tensor) -> None:
        """Move the weights once against the gradient of the loss."""
        self.adam.zero_grad()
        loss.backward()  # type: ignore[no-untyped-call]
        self.clock.mark("backward")
        self._move(self._touched())

    def _touched(self) -> list[Touched]:
        """The rows of lazy tables that have a gradient now."""
        return [part for embedding in self.lazy.embeddings.values() for part in embedding.reads.take()]

    def _move(self, touched: list[Touched]) -> None:
        """Clip, update, average: the weights that have a gradient, and these rows."""
        gradients = [p.grad for p in self.parameters if p.grad is not None], [part.gradient for part in touched]
        if self.settings.clip_norm:
            scale = self.settings.clip_norm / (self.norm(*gradients) + 1e-6)
            if not scale >= 1:  # also where it is not a number
                torch._foreach_mul_([*gradients[0], *gradients[1]], scale)
        self.steps += 1
        factor = self.rule.factor(self.steps)
        rate, table_rate = self.rule.rates[0] * factor, self.rule.table_rates[0] * factor
        if self.shrinking:
            with torch.no_grad():
                torch._foreach_mul_(self.shrinking, 1 - table_rate * self.settings.table_decay)
        self.adam.param_groups[0]["lr"], self.adam.param_groups[1]["lr"] = rate, table_rate
        self.adam.step()
        for part in touched:
            part.table.update(part, step=self.steps)
        self.clock.mark("update")
        if self.averages:
            weights = [parameter.detach() for parameter in self.parameters]
            torch._foreach_lerp_(self.averages, weights, 1 - float(decay_at(self.steps, self.rule.decay)))
        self.clock.mark("average")

    def norm(self, dense: list[Tensor], rows: list[Tensor]) -> Tensor:
        """||g||, over the gradients of weights and of embedding rows."""
        return nn.utils.get_total_norm([*dense, *rows])

    def using(self, *, averaged: bool) -> AbstractContextManager[None]:
        """Inside, the model has its averaged or its raw weights, and any change to them is undone at the end."""
        self.lazy.catch_up(self.steps)
        tables = self.lazy.tables
        averages = [*self.averages, *(table.average for table in tables)] if averaged and self.rule.decay else None
        return holding([*self.parameters, *(table.weight for table in tables)], averages)

    def state(self) -> dict[str, Tensor]:
        """Everything that a resumed training needs, as named tensors."""
        state = {"steps": torch.tensor(self.steps)}
        for i, (name, parameter) in enumerate(self.dense.items()):
            state[f"weight.{name}"] = parameter.detach()
            for key, value in self.adam.state[parameter].items():
                state[f"{key}.{name}"] = value
            if self.averages:
                state[f"average.{name}"] = self.averages[i]
        return state | self.lazy.state()

    @torch.no_grad()
    def restore(self, state: Mapping[str, Tensor]) -> None:
        """Take back what :meth:`state` gave."""
        self.steps = int(state["steps"])
        for i, (name, parameter) in enumerate(self.dense.items()):
            parameter.copy_(state[f"weight.{name}"])
            keys = ("step", "exp_avg", "exp_avg_sq")
            self.adam.state[parameter] = {k: state[f"{k}.{name}"].clone() for k in keys if f"{k}.{name}" in state}
            if self.averages:
                self.averages[i].copy_(state[f"average.{name}"])
        self.lazy.restore(state)

    def close(self) -> None:
        """Leave an ordinary model."""
        self.lazy.close()
