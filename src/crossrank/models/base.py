"""What every model is: features -> x0 -> logits."""

from __future__ import annotations

import abc
from collections.abc import Iterable, Iterator, Mapping

import torch
from numpy.typing import ArrayLike
from torch import Tensor, nn

from crossrank.nn import CrossNetwork, FeatureEmbedding, Features
from crossrank.schema import InputLayout

SPECIAL_IDS = 2  # the first ids of each vocabulary: missing and unseen


class Model(nn.Module, abc.ABC):
    """A network that turns the features of B rows into B logits.

    ``forward`` embeds the features into x0 and asks :meth:`logits` for the rest, so a subclass describes only what it
    does with x0. A model with a second table (a linear term, say) overrides ``forward``. How to bring one of your own
    stands in :mod:`crossrank.models.own`.

    Shape: features of B rows -> (B,).
    """

    def __init__(self, layout: InputLayout, *, embedding_dropout: float = 0.0) -> None:
        super().__init__()
        self.layout = layout
        self.embedding = embed(layout, dropout=embedding_dropout)
        self.label_mean: Tensor
        self.label_deviation: Tensor
        self.register_buffer("label_mean", torch.zeros(()))
        self.register_buffer("label_deviation", torch.ones(()))

    def forward(self, features: Features) -> Tensor:
        x0: Tensor = self.embedding(features)  # (B, D)
        return self.logits(x0)

    @abc.abstractmethod
    def logits(self, x0: Tensor) -> Tensor:
        """(B, D) -> (B,)"""

    def kernels(self) -> Iterator[nn.Parameter]:
        """The weights that the penalty λ Σ ||W||² counts: of cross and deep layers alone, no biases, no gates."""
        exempt = ("embedding.", "fields.", "linear.", "output.")
        for name, parameter in self.named_parameters():
            if not name.startswith(exempt) and ".gate." not in name and not name.endswith("bias"):
                yield parameter

    def cross_networks(self) -> list[CrossNetwork]:
        """The cross networks fed with x0, for explanations; none in most baselines. Others are told by their width."""
        networks = (module for module in self.modules() if isinstance(module, CrossNetwork))
        return [network for network in networks if network.layers[0].input_dim == self.layout.input_dim]

    def tables(self) -> list[FeatureEmbedding]:
        """Every embedding table of the model; their features are ``layout.embedded``, in that order."""
        return [module for module in self.modules() if isinstance(module, FeatureEmbedding)]

    @torch.no_grad()
    def fill_untrained_rows(self, counts: Mapping[str, ArrayLike]) -> None:
        """Give the missing and unseen ids that no training row used the mean vector of their feature.

        Such rows would otherwise keep their random initial value, and every unseen value would be scored with noise.
        The mean is weighted by how often each id occurred in training, so an unseen value counts as an average one.

        Args:
            counts: for each embedded feature, how often each of its ids occurred in the training rows.
        """
        for i, slot in enumerate(self.layout.embedded):
            seen = torch.as_tensor(counts[slot.name], dtype=torch.float64)  # (v,)
            untrained = (seen[:SPECIAL_IDS] == 0).nonzero()[:, 0]
            if len(untrained) == 0 or seen.sum() == 0:
                continue
            for table in (embedding.table(i) for embedding in self.tables()):
                share = (seen / seen.sum()).to(table)
                table[untrained.to(table.device)] = share @ table  # (e,)

    def _load_from_state_dict(self, state_dict: dict[str, Any], prefix: str, *others: Any) -> None:
        for name in ("label_mean", "label_deviation"):  # runs of before 
            state_dict.setdefault(prefix + name, getattr(self, name))
        super()._load_from_state_dict(state_dict, prefix, *others)

    def in_units(self, logits: Tensor) -> Tensor:
        return logits * self.label_deviation + self.label_mean

    @torch.no_grad()
    def predict_logits(self, batches: Iterable[Features]) -> Tensor:
        """Logits of all rows, without dropout and without a graph; on the CPU."""
        training = self.training
        self.eval()
        try:
            logits = [self.in_units(self(features)).float().cpu() for features in batches]
        finally:
            self.train(training)
        return torch.cat(logits) if logits else torch.empty(0)


def embed(layout: InputLayout, *, dropout: float = 0.0) -> FeatureEmbedding:
    """The embedding layer that makes x0 as the layout says."""
    return FeatureEmbedding(
        [slot.vocab_size for slot in layout.embedded],
        [slot.width for slot in layout.embedded],
        num_multivalent=len(layout.of_kind("multivalent")),
        num_numeric=len(layout.of_kind("numeric")),
        dropout=dropout,
    )
