"""The training loop and what it needs."""

from crossrank.training.settings import Config, TrainingSettings
from crossrank.training.train import train, train_seeds

__all__ = ["Config", "TrainingSettings", "train", "train_seeds"]
