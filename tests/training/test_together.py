"""The loop of models that take their steps together, on a processor."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from crossrank.data import DatasetWriter, EncodedDataset, EncodedRows, Encoder
from crossrank.data.rows import LabeledRows
from crossrank.data.vocabulary import Vocabulary
from crossrank.models import build_model
from crossrank.schema import Categorical, Label, Schema
from crossrank.training import Config, train
from crossrank.training.cuda.many import ManyTraining
from crossrank.training.together import train_many

SMALL = {
    "model": {"embedding": {"dim": 4}, "deep": {"sizes": [8]}},
    "training": {
        "tables": "lazy",
        "batch_size": 128,
        "epochs": 3,
        "log_every": 5,
        "learning_rate": 0.05,
        "eval_every": 6,
        "patience": 1,
    }
    | {"device": "cpu", "precision": "float32"},
}


@pytest.fixture
def plain_dataset(tmp_path) -> EncodedDataset:
    """Rows without bags."""
    draw, sizes = np.random.default_rng(0), {"user": 50, "item": 30}
    schema = Schema([Categorical(name=name) for name in sizes], Label(name="liked"))
    vocabularies = {}
    for name, size in sizes.items():
        letters = np.frombuffer("".join(f"{i:04}" for i in range(size - 2)).encode(), np.uint8)
        vocabularies[name] = Vocabulary(letters, np.arange(4, len(letters) + 1, 4), np.full(size, 9, np.int64))
    with DatasetWriter(tmp_path / "dataset", schema) as writer:
        for split, count in {"train": 900, "valid": 300, "test": 300}.items():
            ids = np.stack([draw.integers(2, size, count) for size in sizes.values()], axis=1).astype(np.uint32)
            labels = (draw.random(count) < 0.2 + 0.6 * ((ids[:, 0] + ids[:, 1]) % 2)).astype(np.float32)
            writer.append(split, LabeledRows(EncodedRows(ids, np.empty((count, 0), np.float32)), labels))
        writer.finish(Encoder(schema, vocabularies, {}), {})
    return EncodedDataset.open(tmp_path / "dataset")


def test_a_loop_for_many_equals_a_loop_for_each(plain_dataset, tmp_path) -> None:
    config, dataset = Config.parse(SMALL), plain_dataset
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
