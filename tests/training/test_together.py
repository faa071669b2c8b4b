"""The loop of models that take their steps together, on a processor."""

from __future__ import annotations

import pytest
import torch

from crossrank.models import build_model
from crossrank.training import Config, train
from crossrank.training.cuda_many import ManyTraining
from crossrank.training.together import train_many

SMALL = {
    "model": {"embedding": {"dim": 4}, "deep": {"sizes": [8]}},
    "training": {"batch_size": 128, "epochs": 3, "log_every": 5, "learning_rate": 0.05, "eval_every": 6, "patience": 1}
    | {"device": "cpu", "precision": "float32"},
}


def test_a_loop_for_many_equals_a_loop_for_each(dataset, tmp_path) -> None:
    config = Config.parse(SMALL)
    if any(feature.kind == "multivalent" for feature in dataset.features):
        pytest.skip("bags are trained alone")
    models = []
    for seed in range(3):
        torch.manual_seed(seed)
        models.append(build_model(config.model, dataset.features))
    many = ManyTraining(
        models, dataset.train, config.training, seeds=range(3), label_kind="binary", device=torch.device("cpu")
    )
    folders = [tmp_path / f"together-{seed}" for seed in range(3)]
    for folder in folders:
        folder.mkdir()
    for seed, trainer in enumerate(train_many(many, dataset, config.training, folders)):
        alone = train(dataset, into=tmp_path / f"alone-{seed}", config=config, seed=seed)
        assert trainer.position.step == alone.report["training"]["steps"]
        assert trainer.position.best_step == alone.report["training"]["best_step"]
        assert trainer.position.best == pytest.approx(alone.report["valid"]["logloss"], abs=1e-4)
        assert len((folders[seed] / "metrics.jsonl").read_text().splitlines()) == len(alone.metrics)
        assert (folders[seed] / "checkpoint" / "position.json").is_file()
