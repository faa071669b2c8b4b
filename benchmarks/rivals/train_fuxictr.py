"""FuxiCTR's DCNv2, put together from its layers as in its model zoo, trained by its ``fit``.

A number goes through a learned factor, so that x0 is as wide as everybody's. Nothing is evaluated between steps.
"""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Any

import numpy as np
from fuxictr.features import FeatureMap
from fuxictr.pytorch.dataloaders import RankDataLoader
from fuxictr.pytorch.layers import CrossNetV2, FeatureEmbedding, MLP_Block
from fuxictr.pytorch.models import BaseModel
from job import Clock, Job, fused_adam
from torch import Tensor


class DCNv2(BaseModel):
    def __init__(self, feature_map: FeatureMap, job: Job) -> None:
        super().__init__(feature_map, eval_steps=10**9, verbose=0, metrics=[], model_root=job.folder)
        self.embedding_layer = FeatureEmbedding(feature_map, job.embedding_dim)
        self.crossnet = CrossNetV2(job.input_dim, job.num_layers)
        self.mlp = MLP_Block(input_dim=job.input_dim, hidden_units=job.deep_sizes, output_dim=1)
        self.compile("adam", "binary_crossentropy", 1e-3)
        self.reset_parameters()
        self.optimizer = fused_adam(self)

    def forward(self, inputs: dict[str, Tensor]) -> dict[str, Tensor]:
        x0 = self.embedding_layer(self.get_inputs(inputs), flatten_emb=True)
        return {"y_pred": self.output_activation(self.mlp(self.crossnet(x0)))}

    def load_weights(self, checkpoint: Any) -> None:
        """``fit`` ends with this; nothing was evaluated, so there is no better model to go back to."""


def main() -> None:
    job = Job.read()
    ids, numbers = job.columns()
    feature_map = FeatureMap("generated", job.folder)
    for name, size in zip(ids, job.vocab_sizes, strict=True):
        feature_map.features[name] = {"type": "categorical", "source": "", "vocab_size": size}
    for name in numbers:
        feature_map.features[name] = {"type": "numeric", "source": "", "embedding_dim": 1}
    feature_map.labels = ["label"]
    feature_map.set_column_index()
    model = DCNv2(feature_map, job)
    clock = Clock(job, model.optimizer)
    with tempfile.TemporaryDirectory() as folder:
        path = str(Path(folder) / "rows.npz")
        # It stacks all columns into one array; float32 makes that half as large.
        columns = {name: column.astype(np.float32) for name, column in (ids | numbers).items()}
        np.savez(path, **columns, label=job.array("labels"))
        batches, _ = RankDataLoader(
            feature_map, stage="train", train_data=path, batch_size=job.batch_size, shuffle=True, num_workers=1
        )
        model.fit(batches, epochs=1)
    clock.report()


if __name__ == "__main__":
    main()
