"""The training loop and what it needs."""

from crossrank.training.settings import Config, TrainingSettings
from crossrank.training.train import Planned, train, train_or_resume, train_seeds, train_together

__all__ = ["Config", "Planned", "TrainingSettings", "train", "train_or_resume", "train_seeds", "train_together"]
