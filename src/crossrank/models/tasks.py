"""Shared bottom, MMoE and PLE: models with a tower for each of several labels."""

from __future__ import annotations

import abc
import dataclasses
from typing import ClassVar

import torch
from torch import Tensor, nn

from crossrank.config import setting
from crossrank.errors import ConfigError
from crossrank.models.base import Model
from crossrank.models.settings import DeepSettings, ModelSettings
from crossrank.nn import CrossNetwork, GatedExperts, OutputLayer
from crossrank.schema import InputLayout


@dataclasses.dataclass(frozen=True, kw_only=True)
class SharedBottomSettings(ModelSettings):
    name: str = setting("shared-bottom", "which model")
    num_cross_layers: int = setting(0, "full cross layers on x0, below all else; 0, as published, for none")
    deep: DeepSettings = setting(DeepSettings(), "")
    tower_sizes: tuple[int, ...] = setting((64,), "sizes of the layers of each task's tower")

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.num_cross_layers < 0:
            raise ConfigError(f"model.num_cross_layers must not be negative; got {self.num_cross_layers}.")
        if any(size < 1 for size in self.tower_sizes):
            raise ConfigError(f"model.tower_sizes must be positive; got {list(self.tower_sizes)}.")


@dataclasses.dataclass(frozen=True, kw_only=True)
class MMoESettings(SharedBottomSettings):
    name: str = setting("mmoe", "which model")
    num_experts: int = setting(4, "deep networks that each task weighs for itself")

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.num_experts < 1:
            raise ConfigError(f"model.num_experts must be at least 1; got {self.num_experts}.")


@dataclasses.dataclass(frozen=True, kw_only=True)
class PLESettings(SharedBottomSettings):
    name: str = setting("ple", "which model")
    num_levels: int = setting(2, "levels of experts on top of each other")
    num_specific: int = setting(2, "experts of each task in each level")
    num_shared: int = setting(2, "experts of all tasks in each level")

    def __post_init__(self) -> None:
        super().__post_init__()
        for key in ("num_levels", "num_specific", "num_shared"):
            if getattr(self, key) < 1:
                raise ConfigError(f"model.{key} must be at least 1; got {getattr(self, key)}.")


class TaskModel(Model):
    """``logit_k = w_kᵀ tower_k(h_k) + b_k``, a tower for each task k; what h_k is, a subclass says."""

    takes_classes = True  # a tower for each of them
    has_towers: ClassVar[bool] = True

    def __init__(self, layout: InputLayout, settings: SharedBottomSettings, *, num_outputs: int = 1) -> None:
        super().__init__(layout, embedding_dropout=settings.embedding.dropout)
        self.num_outputs, layers = num_outputs, settings.num_cross_layers
        self.cross = CrossNetwork(layout.input_dim, num_layers=layers) if layers else None
        width = [layout.input_dim, *settings.deep.sizes][-1]
        tower = dataclasses.replace(settings.deep, sizes=settings.tower_sizes)
        self.towers = nn.ModuleList(tower.network(width) for _ in range(num_outputs))
        self.output = OutputLayer([width, *settings.tower_sizes][-1], num_outputs=num_outputs)

    @abc.abstractmethod
    def shared(self, x: Tensor) -> Tensor:
        """What each tower reads: (B, D) -> (B, K, H)."""

    def logits(self, x0: Tensor) -> Tensor:
        h = self.shared(x0 if self.cross is None else self.cross(x0))  # (B, K, H)
        tops = [tower(one) for tower, one in zip(self.towers, h.unbind(dim=1), strict=True)]  # K of (B, T)
        logits = (torch.stack(tops, dim=1) * self.output.weight).sum(dim=-1) + self.output.bias  # (B, K)
        return logits if self.num_outputs > 1 else logits[:, 0]


class SharedBottom(TaskModel):
    """``logit_k = w_kᵀ tower_k(deep(x)) + b_k``: one deep network for all tasks, a tower for each (Caruana 1997).

    x is x0, or with ``num_cross_layers`` our own addition, the crosses of x0: ``x = cross(x0)``.

    Shape: features of B rows -> (B, K) for K tasks; (B,) for one.
    Cost: per row D H_1 + Σ H_l H_{l+1} multiply-adds, and for each task those of its tower, from H_L to its sizes to 1.
    Limits: without tower layers a deep network with K logits, as every model with an output layer is on several labels;
    one task, a deeper DNN. Takes any embedding widths.
    """

    def __init__(self, layout: InputLayout, settings: SharedBottomSettings, *, num_outputs: int = 1) -> None:
        super().__init__(layout, settings, num_outputs=num_outputs)
        self.deep = settings.deep.network(layout.input_dim)

    def shared(self, x: Tensor) -> Tensor:
        h: Tensor = self.deep(x)  # (B, H)
        return h[:, None].expand(-1, self.num_outputs, -1)


class _ExpertModel(TaskModel):
    """Towers on levels of experts."""

    def __init__(
        self,
        layout: InputLayout,
        settings: SharedBottomSettings,
        *,
        num_outputs: int,
        num_levels: int,
        num_specific: int,
        num_shared: int,
    ) -> None:
        super().__init__(layout, settings, num_outputs=num_outputs)
        deep = settings.deep
        widths = [layout.input_dim] + [[layout.input_dim, *deep.sizes][-1]] * (num_levels - 1)
        self.levels = nn.ModuleList(
            GatedExperts(
                width,
                num_tasks=num_outputs,
                num_specific=num_specific,
                num_shared=num_shared,
                sizes=deep.sizes,
                activation=deep.activation,
                dropout=deep.dropout,
                is_last=level == num_levels,
            )
            for level, width in enumerate(widths, start=1)
        )

    def shared(self, x: Tensor) -> Tensor:
        h = x[:, None].expand(-1, self.num_outputs + 1, -1)  # of each task, and what they share
        for level in self.levels:
            h = level(h)  # (B, K + 1, H), of the last (B, K, H)
        return h


class MMoE(_ExpertModel):
    """``logit_k = w_kᵀ tower_k(Σ_e softmax(G_k x)_e expert_e(x)) + b_k``, experts for all tasks, a gate for each (Ma et
    al. 2018).

    x is x0, or with ``num_cross_layers`` our own addition, the crosses of x0: ``x = cross(x0)``. An expert is a deep
    network of ``model.deep``.

    Shape: features of B rows -> (B, K) for K tasks; (B,) for one.
    Cost: per row that of num_experts deep networks, and for each task num_experts (D + H) multiply-adds and its tower.
    Limits: one expert, a shared bottom. Takes any embedding widths.
    """

    def __init__(self, layout: InputLayout, settings: MMoESettings, *, num_outputs: int = 1) -> None:
        counts = {"num_levels": 1, "num_specific": 0, "num_shared": settings.num_experts}
        super().__init__(layout, settings, num_outputs=num_outputs, **counts)


class PLE(_ExpertModel):
    """``logit_k = w_kᵀ tower_k(h_k) + b_k``, h_k what levels of experts make of x, some of one task, some of all (Tang
    et al. 2020).

    ::

        h_k⁺ = Σ_e softmax(G_k h_k)_e f_e    over task k's experts on h_k and the shared ones on h_s
        h_s⁺ = Σ_e softmax(G_s h_s)_e f_e    over all experts; not in the last level

    from ``h_1 = … = h_K = h_s = x``. x is x0, or with ``num_cross_layers`` our own addition, the crosses of x0: ``x =
    cross(x0)``. An expert is a deep network of ``model.deep``; see :class:`~crossrank.nn.GatedExperts`.

    Shape: features of B rows -> (B, K) for K tasks; (B,) for one.
    Cost: per row and level that of K num_specific + num_shared deep networks, and for each expert that a gate weighs
    D + H multiply-adds, D the width of the level's input; the towers.
    Limits: one level is CGC (customized gate control); without specific experts that would be MMoE. Takes any embedding
    widths.
    """

    def __init__(self, layout: InputLayout, settings: PLESettings, *, num_outputs: int = 1) -> None:
        counts = {key: getattr(settings, key) for key in ("num_levels", "num_specific", "num_shared")}
        super().__init__(layout, settings, num_outputs=num_outputs, **counts)
