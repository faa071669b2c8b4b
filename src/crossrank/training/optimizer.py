"""One training step's arithmetic: gradient, clip, Adam, moving average.

::

    g   <- ∇ loss,                     g <- g min(1, clip / ||g||)
    m   <- β1 m + (1 - β1) g           v <- β2 v + (1 - β2) g²
    w   <- w - η m̂ / (sqrt(v̂) + ε)     (Adam, with the usual corrections of m and v)
    w̄   <- w̄ + (1 - d_t) (w - w̄)       d_t = min(decay, (1 + t) / (10 + t))

The average's decay d_t starts small, as in TensorFlow's moving average that the paper used: otherwise a run of a few
thousand steps would be judged by its initial weights.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping

import torch
from torch import Tensor, nn

from crossrank.training.settings import TrainingSettings


class Optimizer:
    """Applies steps to a model; the training loop knows nothing of parameters.

    Args:
        model: whose parameters are trained, in place.
        settings: learning rate, clip and average.
    """

    def __init__(self, model: nn.Module, settings: TrainingSettings) -> None:
        self.settings = settings
        self.names = [name for name, _ in model.named_parameters()]
        self.parameters = [parameter for _, parameter in model.named_parameters()]
        self.adam = torch.optim.Adam(self.parameters, lr=settings.learning_rate, fused=True)
        self.averages = [p.detach().clone() for p in self.parameters] if settings.average_decay else []
        self.steps = 0

    def step(self, loss: Tensor) -> None:
        """Move the weights once against the gradient of the loss."""
        self.adam.zero_grad()
        loss.backward()  # type: ignore[no-untyped-call]
        if self.settings.clip_norm:
            nn.utils.clip_grad_norm_(self.parameters, self.settings.clip_norm)
        self.adam.step()
        self.steps += 1
        if self.averages:
            decay = min(self.settings.average_decay, (1 + self.steps) / (10 + self.steps))
            weights = [parameter.detach() for parameter in self.parameters]
            torch._foreach_lerp_(self.averages, weights, 1 - decay)

    @contextlib.contextmanager
    def using(self, *, averaged: bool) -> Iterator[None]:
        """Inside, the model has its averaged or its raw weights, and any change to them is undone at the end."""
        raw = [parameter.detach().clone() for parameter in self.parameters]
        if averaged and self.averages:
            self._set(self.averages)
        try:
            yield
        finally:
            self._set(raw)

    @torch.no_grad()
    def _set(self, values: list[Tensor]) -> None:
        for parameter, value in zip(self.parameters, values, strict=True):
            parameter.copy_(value)

    def state(self) -> dict[str, Tensor]:
        """Everything that a resumed training needs, as named tensors."""
        state = {"steps": torch.tensor(self.steps)}
        for i, (name, parameter) in enumerate(zip(self.names, self.parameters, strict=True)):
            state[f"weight.{name}"] = parameter.detach()
            for key, value in self.adam.state[parameter].items():
                state[f"{key}.{name}"] = value
            if self.averages:
                state[f"average.{name}"] = self.averages[i]
        return state

    @torch.no_grad()
    def restore(self, state: Mapping[str, Tensor]) -> None:
        """Take back what :meth:`state` gave."""
        self.steps = int(state["steps"])
        for i, (name, parameter) in enumerate(zip(self.names, self.parameters, strict=True)):
            parameter.copy_(state[f"weight.{name}"])
            keys = ("step", "exp_avg", "exp_avg_sq")
            self.adam.state[parameter] = {k: state[f"{k}.{name}"].clone() for k in keys if f"{k}.{name}" in state}
            if self.averages:
                self.averages[i].copy_(state[f"average.{name}"])
