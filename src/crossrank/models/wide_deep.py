"""Wide & Deep: a linear model of values and of pairs of values, beside a deep network."""

from __future__ import annotations

import dataclasses
from itertools import combinations
from typing import Literal

from torch import Tensor, nn

from crossrank.config import setting
from crossrank.errors import ConfigError, did_you_mean
from crossrank.models.base import path_logits
from crossrank.models.fields import BesideLinear, LinearTerm
from crossrank.models.settings import DeepSettings, ModelSettings
from crossrank.nn import FeatureEmbedding, Features, HashedCrosses, OutputLayer
from crossrank.schema import InputLayout


@dataclasses.dataclass(frozen=True, kw_only=True)
class WideDeepSettings(ModelSettings):
    name: str = setting("wide-deep", "which model")
    crosses: tuple[str, ...] | Literal["all", "none"] = setting(
        "all", "crossed categorical columns, each as 'a*b'; 'all' for every pair, 'none' for none"
    )
    cross_buckets: int = setting(10_000, "most weights of one cross; a cross of more pairs of values is hashed")
    deep: DeepSettings = setting(DeepSettings(), "")


class WideTerm(nn.Module):
    """``wᵀ [x; φ(x)]``: the linear term over single values and the hashed one over pairs of them; starts at zero.

    Shape: features of B rows -> (B,).
    """

    def __init__(self, layout: InputLayout, settings: WideDeepSettings) -> None:
        super().__init__()
        self.values = LinearTerm(layout)
        pairs = _pairs(layout, settings.crosses)
        sizes = [slot.vocab_size for slot in layout.of_kind("categorical")]
        self.crosses = HashedCrosses(pairs, sizes, num_buckets=settings.cross_buckets) if pairs else None

    def forward(self, features: Features) -> Tensor:
        logits: Tensor = self.values(features)  # (B,)
        return logits if self.crosses is None else logits + self.crosses(features.categorical)


class WideDeep(BesideLinear):
    """``logit = w_wideᵀ [x; φ(x)] + w_deepᵀ deep(x0) + b`` (Cheng et al. 2016, Eq. 3).

    φ(x) are products of two columns' one-hot values (Eq. 1), each with a weight of its own in ``linear``.

    Shape: features of B rows -> (B,).
    Cost: per row the deep network's multiply-adds, and one addition for each feature and each cross. Each cross has at
    most ``cross_buckets`` weights.
    Limits: no crosses and zero deep weights, logistic regression. Takes any embedding widths.

    Choices: the original crosses a few columns picked by hand; by default every pair of categorical columns is crossed,
    as nobody has picked yet. The wide part is trained as the rest is, not by FTRL, and it counts all features.
    """

    def __init__(self, layout: InputLayout, settings: WideDeepSettings) -> None:
        super().__init__(layout, embedding_dropout=settings.embedding.dropout)
        self.linear = WideTerm(layout, settings)
        self.deep = settings.deep.network(layout.input_dim)
        self.output = OutputLayer(self.deep.output_dim)

    def logits(self, x0: Tensor) -> Tensor:
        logits: Tensor = self.output(self.deep(x0))  # (B,)
        return logits

    def head_logits(self, x0: Tensor) -> Tensor:
        return path_logits(self.output, [x0[:, :0], self.deep(x0)])

    def tables(self) -> list[FeatureEmbedding]:
        """The tables of ``layout.embedded``, without that of the crosses, whose rows belong to no single feature."""
        return [self.embedding, self.linear.values.embedding]


def _pairs(layout: InputLayout, crosses: tuple[str, ...] | Literal["all", "none"]) -> list[tuple[int, int]]:
    """The numbers of the crossed columns among the categorical ones."""
    names = [slot.name for slot in layout.of_kind("categorical")]
    pairs = list(combinations(range(len(names)), 2))
    if isinstance(crosses, str):
        return pairs if crosses == "all" else []
    known = {f"{names[a]}*{names[b]}": pair for pair in pairs for a, b in (pair, pair[::-1])}
    for cross in crosses:
        if cross not in known:
            raise ConfigError(
                f"Each of model.crosses must be two categorical features as 'a*b'; got '{cross}'.",
                hint=did_you_mean(cross, known),
            )
    return list(dict.fromkeys(known[cross] for cross in crosses))
