"""Settings that several models share: how features are embedded, crossed and passed through a deep network."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any, Literal

from crossrank.config import setting
from crossrank.errors import ConfigError, did_you_mean, listing
from crossrank.nn import CrossNetwork, DeepNetwork
from crossrank.nn.activations import ActivationName
from crossrank.nn.network import LayerKind
from crossrank.schema import Feature, InputLayout

MOST_MEMBERS = 1000


def check_share(name: str, value: float) -> None:
    if not 0 <= value < 1:
        raise ConfigError(f"{name} must be at least 0 and below 1; got {value}.")


@dataclasses.dataclass(frozen=True, kw_only=True)
class EmbeddingSettings:
    dim: int | Literal["rule", "average"] = setting(
        16,
        "width of each feature's vector; 'rule' for 6 v^(1/4) of its vocabulary size v, 'average' for that rule's mean",
    )
    dims: Mapping[str, int] = setting({}, "widths for single features, by name")
    dropout: float = setting(0.0, "share of x0's embedded numbers set to zero in training")

    def __post_init__(self) -> None:
        check_share("model.embedding.dropout", self.dropout)


@dataclasses.dataclass(frozen=True, kw_only=True)
class CrossSettings:
    num_layers: int = setting(2, "cross layers on top of each other")
    layer: Literal["full", "low_rank", "mixture"] = setting("full", "kind of cross layer: Eq. 1, Eq. 2, or Eq. 3 and 4")
    rank: int | None = setting(
        None, "rank of a low-rank layer or of each expert; left out, a quarter of the input width"
    )
    num_experts: int = setting(4, "experts of a mixture layer")
    gate: Literal["softmax", "sigmoid", "constant", "information"] = setting(
        "softmax",
        "how a mixture layer weighs its experts: softmax, sigmoid or constant; or, for a full layer, information: how "
        "much of each cross passes, σ(V x), as in GDCN",
    )
    activation: ActivationName | None = setting(
        None, "activation around the middle matrix of each expert (Eq. 4); left out, none"
    )
    source: Literal["x0", "previous"] = setting("x0", "what a full layer multiplies: x0, or the x before it")
    inner: ActivationName | None = setting(None, "activation inside the product of a full layer; left out, none")
    heads: int = setting(1, "matrices of each full layer, whose products are averaged")
    bias: bool = setting(True, "bias inside each cross layer")
    residual: bool = setting(True, "add each cross layer's input to its output")
    num_networks: int = setting(1, "cross networks side by side, their outputs concatenated")
    context: tuple[str, ...] = setting(
        (), "columns of the context, which then never sees the item (separable layers); left out, all cross all"
    )

    pooled: Literal["none", "first", "each"] = setting(
        "none",
        "give the deep network one more number for each pair of features, the sum of its products in the first or in "
        "each cross layer",
    )

    def __post_init__(self) -> None:
        for key in ("num_layers", "num_experts", "num_networks", "heads"):
            if getattr(self, key) < 1:
                raise ConfigError(f"model.cross.{key} must be at least 1; got {getattr(self, key)}.")
        for key in (*self.switches, *(["context"] if self.context else [])):
            if self.layer != "full":
                raise ConfigError(
                    f"model.cross.{key}={getattr(self, key)} is for full cross layers; got layer={self.layer}.",
                    hint=f"Set model.cross.layer=full, or leave model.cross.{key} out.",
                )
        if self.pooled != "none" and self.layer == "mixture":
            raise ConfigError(
                f"model.cross.pooled={self.pooled} reads one matrix of each layer; got layer=mixture.",
                hint="Set model.cross.layer=full or low_rank, or leave model.cross.pooled out.",
            )

    @property
    def switches(self) -> dict[str, Any]:
        """What makes a full layer another one than Eq. 1."""
        values = {"source": self.source, "inner": self.inner, "heads": self.heads}
        changed = {key: value for key, value in values.items() if value != getattr(CrossSettings, key)}
        return changed | ({"gate": self.gate} if self.gate == "information" else {})

    def network(self, layout: InputLayout) -> CrossNetwork:
        """One cross network as these settings describe it."""
        input_dim = layout.input_dim
        options: dict[str, Any] = {"bias": self.bias, "residual": self.residual}
        layer: LayerKind = "general" if self.switches else "separable" if self.context else self.layer
        options |= self.switches
        if self.context:
            options["context"] = places_of(layout, self.context, setting="model.cross.context")
            if len(options["context"]) == input_dim:
                raise ConfigError(
                    f"model.cross.context must leave columns to the item; got all of them, {listing(self.context)}.",
                    hint="Name the columns that are the same for all candidates of a request.",
                )
        if self.layer == "low_rank":
            options |= {"rank": self.rank or max(1, input_dim // 4)}
        if self.layer == "mixture":
            options |= {
                "rank": self.rank or max(1, input_dim // (4 * self.num_experts)),
                "num_experts": self.num_experts,
                "gate": self.gate,
                "activation": self.activation,
            }
        return CrossNetwork(input_dim, num_layers=self.num_layers, layer=layer, **options)


def places_of(layout: InputLayout, columns: Sequence[str], *, setting: str) -> list[int]:
    """Where in x0 these columns stand, which a setting names."""
    known = list(dict.fromkeys(slot.column for slot in layout.slots))
    for name in columns:
        if name not in known:
            hint = did_you_mean(name, known)
            raise ConfigError(f"{setting} must be columns among {listing(known)}; got '{name}'.", hint=hint)
    return [place for slot in layout.slots if slot.column in columns for place in range(slot.start, slot.stop)]


@dataclasses.dataclass(frozen=True, kw_only=True)
class DeepSettings:
    sizes: tuple[int, ...] = setting((256, 256), "sizes of the deep network's layers")
    activation: ActivationName = setting("relu", "activation after each deep layer")
    dropout: float = setting(0.0, "share of each deep layer's outputs set to zero in training")

    def __post_init__(self) -> None:
        check_share("model.deep.dropout", self.dropout)
        if any(size < 1 for size in self.sizes):
            raise ConfigError(f"model.deep.sizes must be positive; got {list(self.sizes)}.")

    def network(self, input_dim: int) -> DeepNetwork:
        return DeepNetwork(input_dim, sizes=self.sizes, activation=self.activation, dropout=self.dropout)


@dataclasses.dataclass(frozen=True, kw_only=True)
class ModelSettings:
    """What every model has; each model's own class adds its parts."""

    name: str = setting("", "which model")
    ensemble: int = setting(1, "models trained from as many seeds, whose answers are averaged")
    embedding: EmbeddingSettings = setting(EmbeddingSettings(), "")

    def __post_init__(self) -> None:
        if not 1 <= self.ensemble <= MOST_MEMBERS:
            raise ConfigError(f"model.ensemble must be from 1 to {MOST_MEMBERS:,}; got {self.ensemble:,}.")

    def layout(self, features: Sequence[Feature]) -> InputLayout:
        """The slots of x0 for these features."""
        return InputLayout.plan(features, embedding_dim=self.embedding.dim, given=self.embedding.dims)
