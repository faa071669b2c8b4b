"""RecBole's DCNV2, trained by its trainer.

It embeds numbers like everything else, so its vectors are made as narrow as it takes for its x0 to be no wider than
everybody's. Its batch normalisation cannot be switched off; dropout and penalty are.
"""

from __future__ import annotations

import os
import sys
import tempfile

import numpy as np
import torch
from job import Clock, Job, fused_adam
from recbole.config import Config
from recbole.data.dataloader import TrainDataLoader
from recbole.data.dataset import Dataset
from recbole.data.interaction import Interaction
from recbole.model.context_aware_recommender import DCNV2
from recbole.trainer import Trainer
from recbole.utils import FeatureSource, FeatureType


class EncodedRows(Dataset):
    """RecBole's dataset around columns of ids that need no reading, counting and numbering any more."""

    def __init__(self, config: Config, job: Job) -> None:
        self.job = job
        super().__init__(config)

    def _from_scratch(self) -> None:
        self._get_preset()
        self._get_field_from_config()
        self.user_feat = self.item_feat = None
        ids, numbers = self.job.columns()
        for name, size in zip(ids, self.job.vocab_sizes, strict=True):
            self.set_field_property(name, FeatureType.TOKEN, FeatureSource.INTERACTION, 1)
            self.field2id_token[name] = np.arange(size)
        for name in numbers:
            self.set_field_property(name, FeatureType.FLOAT, FeatureSource.INTERACTION, 1)
            self.field2bucketnum[name] = 1
        self.set_field_property("label", FeatureType.FLOAT, FeatureSource.INTERACTION, 1)
        # A number comes with the position of its vector in a table; it has one, so the position is 0.
        pairs = {name: np.stack([column, np.zeros_like(column)], axis=1) for name, column in numbers.items()}
        columns = ids | pairs | {"label": self.job.array("labels")}
        self.inter_feat = Interaction({name: torch.from_numpy(column) for name, column in columns.items()})


def main() -> None:
    job = Job.read()
    ids, numbers = job.columns()
    settings = {
        "embedding_size": job.input_dim // (len(ids) + len(numbers)),
        "cross_layer_num": job.num_layers,
        "mlp_hidden_size": job.deep_sizes,
        "reg_weight": 0,
        "dropout_prob": 0.0,
        "numerical_features": list(numbers),
        "USER_ID_FIELD": None,
        "ITEM_ID_FIELD": None,
        "LABEL_FIELD": "label",
        "train_neg_sample_args": None,
        "train_batch_size": job.batch_size,
        "epochs": 1,
        "use_gpu": False,
        "enable_amp": job.bfloat16,
        "eval_args": {"split": {"RS": [1, 0, 0]}, "group_by": None, "order": "RO", "mode": "labeled"},
        "metrics": ["LogLoss"],
        "valid_metric": "LogLoss",
    }
    sys.argv = sys.argv[:1]  # RecBole reads settings from the command line too
    config = Config(model="DCNV2", dataset="generated", config_dict=settings)
    torch.set_num_threads(job.num_threads)
    dataset = EncodedRows(config, job)
    batches = TrainDataLoader(config, dataset, None, shuffle=True)
    trainer = Trainer(config, DCNV2(config, dataset))
    trainer.optimizer = fused_adam(trainer.model)
    clock = Clock(job, trainer.optimizer)
    trainer.fit(batches, saved=False, verbose=False)
    clock.report()


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as folder:
        os.chdir(folder)  # it writes checkpoints and logs into the working directory
        main()
