"""What the spectra of a cross network say about the rank it needs."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any, cast

from crossrank.evaluation.spectrum import energy_rank
from crossrank.models import ModelSettings
from crossrank.models.build import BUILT_IN
from crossrank.models.cost import model_cost
from crossrank.models.settings import CrossSettings
from crossrank.results import Spectrum
from crossrank.schema import Feature, InputLayout

KEPT = 0.99  # of the energy
EXPERTS = 4


@dataclasses.dataclass(frozen=True)
class Advice:
    """The rank that keeps 99% of the energy of every cross layer, and what it would save.

    Attributes:
        rank: the largest that any layer needs.
        most: the largest rank that the layers have now: their width, or their own rank.
        saved: the share of parameters outside the tables that low-rank layers of this rank would save; negative where
            they would cost more.
        text: the same in words.
    """

    rank: int
    most: int
    saved: float
    text: str


def advise(layers: Sequence[Spectrum], settings: ModelSettings, features: Sequence[Feature]) -> Advice | None:
    """What to do about the rank.

    Args:
        layers: a run's spectra.
        settings: of its model.
        features: what its encoder makes.

    Returns:
        None for a model whose layers have no matrices to choose a rank for.
    """
    cross = getattr(settings, "cross", None)
    if not layers or not isinstance(cross, CrossSettings) or settings.name not in BUILT_IN:
        return None  # what a network of one's own makes of such settings is not known
    width = len(layers[0].used)
    rank = max(energy_rank(layer.used, KEPT) for layer in layers)
    if cross.layer != "full":
        return _about_rank(rank, min(width, _total_rank(cross, settings.layout(features))))
    if cross.context or cross.switches:
        return None  # low-rank layers have neither
    low_rank = dataclasses.replace(cross, layer="low_rank", rank=rank)
    low_rank_settings = dataclasses.replace(cast(Any, settings), cross=low_rank)
    before, after = (model_cost(each, features).network_parameters for each in (settings, low_rank_settings))
    return _about_width(rank, width, before, after)


def _total_rank(cross: CrossSettings, layout: InputLayout) -> int:
    """The rank of a low-rank layer, or of all experts of a mixture together."""
    layer: Any = cross.network(layout).layers[0]
    return int(layer.rank) * (cross.num_experts if cross.layer == "mixture" else 1)


def _about_rank(rank: int, most: int) -> Advice:
    text = f"Rank {rank} of the {most} that the layers have keeps {KEPT:.0%} of the energy. "
    if rank < 0.75 * most:
        text += f"A smaller rank would do: train with model.cross.rank lowered in that proportion ({rank}/{most})."
    else:
        text += "All of it is in use: a larger model.cross.rank may do better."
    return Advice(rank, most, 1 - rank / most, text)


def _about_width(rank: int, width: int, before: int, after: int) -> Advice:
    saved = 1 - after / before
    text = f"Rank {rank} of {width} keeps {KEPT:.0%} of the energy of every cross layer. "
    if saved > 0:
        experts = -(-rank // EXPERTS)
        text += (
            f"Low-rank layers of that rank would save {saved:.0%} of the parameters outside the tables "
            f"({before:,} to {after:,}): crossrank compress RUN --rank {rank}; "
            f"or train dcn-mix with {EXPERTS} experts of rank {experts}."
        )
    else:
        text += (
            "That is more than half of the width, where two narrow matrices cost more than a full one: keep the full "
            "ones, or let crossrank compress RUN --rank auto measure what a smaller rank costs on the validation rows."
        )
    return Advice(rank, width, saved, text)
