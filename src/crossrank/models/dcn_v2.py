"""DCN-V2: a cross network, stacked under or beside a deep network, or alone."""

from __future__ import annotations

import dataclasses
from typing import Any, Literal, cast

import torch
from torch import Tensor, nn

from crossrank.config import setting
from crossrank.errors import ConfigError
from crossrank.models.base import Model, Terms, path_logits
from crossrank.models.settings import CrossSettings, DeepSettings, ModelSettings
from crossrank.nn import CrossNetwork, OutputLayer, PairProducts
from crossrank.schema import InputLayout


@dataclasses.dataclass(frozen=True, kw_only=True)
class DCNV2Settings(ModelSettings):
    name: str = setting("dcn-v2", "which model")
    structure: Literal["stacked", "parallel", "cross-only"] = setting("stacked", "where the deep network stands")
    cross: CrossSettings = setting(CrossSettings(), "")
    deep: DeepSettings = setting(DeepSettings(), "")

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.cross.pooled != "none" and self.structure == "cross-only":
            raise ConfigError(
                f"model.cross.pooled={self.cross.pooled} gives numbers to a deep network; got structure=cross-only.",
                hint="Set model.structure=stacked or parallel, or leave model.cross.pooled out.",
            )


@dataclasses.dataclass(frozen=True, kw_only=True)
class DCNMixSettings(DCNV2Settings):
    name: str = setting("dcn-mix", "which model")
    cross: CrossSettings = setting(CrossSettings(layer="mixture"), "")


@dataclasses.dataclass(frozen=True, kw_only=True)
class GDCNSettings(DCNV2Settings):
    name: str = setting("gdcn", "which model")
    cross: CrossSettings = setting(CrossSettings(num_layers=3, gate="information"), "")


@dataclasses.dataclass(frozen=True, kw_only=True)
class CrossNetSettings(DCNV2Settings):
    name: str = setting("cross-net", "which model")
    structure: Literal["stacked", "parallel", "cross-only"] = setting("cross-only", "where the deep network stands")


@dataclasses.dataclass(frozen=True, kw_only=True)
class CrossNetMixSettings(CrossNetSettings):
    name: str = setting("cross-net-mix", "which model")
    cross: CrossSettings = setting(CrossSettings(layer="mixture"), "")


class DCNV2(Model):
    """Explicit crosses of bounded degree by a cross network, implicit ones by a deep network (section 3).

    ::

        stacked:     logit = wᵀ deep(cross(x0)) + b
        parallel:    logit = wᵀ [cross(x0); deep(x0)] + b
        cross-only:  logit = wᵀ cross(x0) + b

        with pooled pairs p the deep network reads [cross(x0); p], in parallel [x0; p]

    | here        | paper                                         |
    | ----------- | --------------------------------------------- |
    | ``cross``   | f_cross, L_c layers of Eq. 1, 2, 3 or 4, or   |
    |             | with switches (GDCN: an information gate)     |
    | ``deep``    | f_deep, h_{l+1} = f(W_l h_l + b_l)            |
    | ``output``  | w_logit; the bias b is ours                   |

    Several cross networks are concatenated before they go on ("concatenating cross layers", section 8). Beside each
    other, each network is a path with a head of its own (``training.heads``). Pooled pairs are one number for each pair
    of features, e_iᵀ W_ij e_j (:class:`~crossrank.nn.PairProducts`), of the first cross layer or of each.

    Shape: features of B rows -> (B,).
    Cost: per row and network L_c D² multiply-adds for full layers, 2 L_c D R K for a mixture, plus the deep network.
    Limits: without deep layers ``stacked`` is ``cross-only``.
    """

    takes_classes = True

    def __init__(self, layout: InputLayout, settings: DCNV2Settings) -> None:
        super().__init__(layout, embedding_dropout=settings.embedding.dropout)
        input_dim = layout.input_dim
        crossed_dim = settings.cross.num_networks * input_dim
        self.structure = settings.structure
        self.cross = nn.ModuleList(settings.cross.network(layout) for _ in range(settings.cross.num_networks))
        self.num_pooled = {"none": 0, "first": 1, "each": settings.cross.num_layers}[settings.cross.pooled]  # layers
        pooled = [PairProducts([slot.width for slot in layout.slots]) for _ in range(self.num_pooled * len(self.cross))]
        self.pooled = nn.ModuleList(pooled)
        final_dim = crossed_dim
        if self.structure != "cross-only":
            read = crossed_dim if self.structure == "stacked" else input_dim
            self.deep = settings.deep.network(read + sum(one.output_dim for one in pooled))
            final_dim = self.deep.output_dim + (crossed_dim if self.structure == "parallel" else 0)
        self.output = OutputLayer(final_dim)

    def _paths(self, x0: Tensor) -> list[Tensor]:
        """What stands side by side under the output layer: each cross network and the deep one, or that alone."""
        steps = [cast(CrossNetwork, one).steps(x0) if self.pooled else [one(x0)] for one in self.cross]
        crossed = [one[-1] for one in steps]  # (B, D) each
        if self.structure == "cross-only":
            return crossed
        before = (xl for one in steps for xl in one[: self.num_pooled])  # what each pooled layer reads
        pairs = [
            pool(layer.kernel(), layer.factor(x0, xl), xl)  # (B, P)
            for (layer, pool), xl in zip(self.pools().items(), before, strict=True)
        ]
        if self.structure == "stacked":
            return [self.deep(_joined([*crossed, *pairs]))]  # (B, H)
        return [*crossed, self.deep(_joined([x0, *pairs]))]

    def pools(self) -> dict[Any, PairProducts]:
        layers = [layer for network in self.cross for layer in list(cast(Any, network).layers)[: self.num_pooled]]
        return dict(zip(layers, cast(Any, self.pooled), strict=True))

    def logits(self, x0: Tensor) -> Tensor:
        logits: Tensor = self.output(_joined(self._paths(x0)))  # (B,)
        return logits

    def head_logits(self, x0: Tensor) -> Tensor:
        return path_logits(self.output, self._paths(x0))

    def terms(self) -> Terms | None:
        if self.pooled:
            return None  # the deep network reads products of both sides
        networks: list[Any] = list(self.cross)
        weight, bias = self.output.weight[0], self.output.bias[0]
        if self.structure == "stacked" and len(self.deep.layers):
            return Terms(bias, deep=(self.deep, weight), below=networks)
        width = networks[0].input_dim
        *parts, last = torch.split(weight, [width] * len(networks) + [len(weight) - width * len(networks)])
        deep = (self.deep, last) if self.structure == "parallel" else None
        return Terms(bias, list(zip(networks, parts, strict=True)), deep)


def _joined(parts: list[Tensor]) -> Tensor:
    """(B, H_m) each -> (B, Σ H_m)"""
    return torch.cat(parts, dim=-1) if len(parts) > 1 else parts[0]
