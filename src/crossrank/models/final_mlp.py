"""FinalMLP: two deep networks on differently gated features, joined by the products of their outputs."""

from __future__ import annotations

import dataclasses

import torch
from torch import Tensor, nn

from crossrank.config import setting
from crossrank.models.base import Model
from crossrank.models.settings import DeepSettings, ModelSettings, places_of
from crossrank.nn import BilinearFusion, FeatureGate, OutputLayer
from crossrank.schema import InputLayout


@dataclasses.dataclass(frozen=True, kw_only=True)
class FinalMLPSettings(ModelSettings):
    name: str = setting("final-mlp", "which model")
    first_context: tuple[str, ...] = setting((), "columns that gate the first stream; none, gates that are constant")
    second_context: tuple[str, ...] = setting((), "columns that gate the second stream; none, gates that are constant")
    gate_sizes: tuple[int, ...] = setting((64,), "sizes of the hidden layers between a context and its gates")
    num_heads: int = setting(1, "equal pieces of both streams that are multiplied with each other")
    deep: DeepSettings = setting(DeepSettings(), "")
    second: DeepSettings = setting(DeepSettings(), "")


class FinalMLP(Model):
    """``logit = w_1ᵀ h_1 + w_2ᵀ h_2 + b + Σ_k h_1ᵏᵀ W_k h_2ᵏ`` with ``h_i = deep_i(g_i ⊙ x0)`` (Mao et al. 2023).

    | here        | paper                                                         |
    | ----------- | ------------------------------------------------------------- |
    | ``gates``   | g_i = 2 σ(MLP_i(context_i)), stream-specific feature selection |
    | ``deep``    | MLP_1 and MLP_2, the two streams; settings deep and second    |
    | ``output``  | [w_1; w_2] and b                                              |
    | ``fusion``  | W_k, multi-head bilinear fusion                               |

    Shape: features of B rows -> (B,).
    Cost: per row both deep networks' multiply-adds, H_1 H_2 / K + H_2 for the fusion, and the gates'.
    Limits: W_k and w_2 zero and gates of 1, DNN. Takes any embedding widths.

    Choices: a context is read from the vectors that x0 has of it, where the original learns other vectors for it, so
    there is one table. No batch norm in the streams, which the public code has as an option: a row's logit is a
    function of the row.
    """

    def __init__(self, layout: InputLayout, settings: FinalMLPSettings) -> None:
        super().__init__(layout, embedding_dropout=settings.embedding.dropout)
        width = layout.input_dim
        contexts = {"model.first_context": settings.first_context, "model.second_context": settings.second_context}
        self.gates = nn.ModuleList(
            FeatureGate(width, context=places_of(layout, columns, setting=key), sizes=settings.gate_sizes)
            for key, columns in contexts.items()
        )
        self.deep = nn.ModuleList([settings.deep.network(width), settings.second.network(width)])
        first, second = (int(stream.output_dim) for stream in self.deep)  # type: ignore[arg-type]
        self.fusion = BilinearFusion(first, second, num_heads=settings.num_heads)
        self.output = OutputLayer(first + second)

    def logits(self, x0: Tensor) -> Tensor:
        first, second = (stream(gate(x0)) for gate, stream in zip(self.gates, self.deep, strict=True))  # (B, H_i)
        logits: Tensor = self.output(torch.cat([first, second], dim=-1)) + self.fusion(first, second)  # (B,)
        return logits
