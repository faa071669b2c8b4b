"""The training loop and what it needs."""

from crossrank.training.plan import Planned
from crossrank.training.seeds import train_seeds, train_together
from crossrank.training.settings import Config, TrainingSettings
from crossrank.training.train import train, train_or_resume

__all__ = ["Config", "Planned", "TrainingSettings", "train", "train_or_resume", "train_seeds", "train_together"]
