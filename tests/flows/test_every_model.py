"""Every model goes the whole way: trained on the demo's rows, saved, reopened, scored."""

from __future__ import annotations

import pytest
import torch

from crossrank.models import MODELS
from crossrank.runs import Run
from crossrank.training import train

TRAINING = {"batch_size": 256, "epochs": 2, "learning_rate": 0.01}


@pytest.mark.parametrize("name", MODELS)
def test_a_model_is_trained_saved_and_reopened_bit_for_bit(name, dataset, clicks, tmp_path, held) -> None:
    config = {"model": {"name": name, "embedding": {"dim": 4}}, "training": TRAINING}
    run = train(dataset, into=tmp_path / "run", config=config)
    losses = [line["valid"]["logloss"] for line in run.metrics if "valid" in line]
    assert run.report["valid"]["logloss"] == min(losses)
    features = [batch.features for batch in dataset.test.batches(8192)]
    reopened = Run.open(tmp_path / "run").model.predict_logits(features)
    assert torch.equal(held["model"].predict_logits(features), reopened)
    assert reopened.isfinite().all()
    assert run.predict(clicks.head(3)).shape == (3,)
