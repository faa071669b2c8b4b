"""crossrank's trainer on an encoded dataset, with the settings it has by default."""

from __future__ import annotations

import json
import tempfile
from pathlib import Path

import numpy as np
from job import Job

from crossrank.data import DatasetWriter, EncodedDataset, EncodedRows, Encoder
from crossrank.data.rows import LabeledRows
from crossrank.data.scaling import NumericStatistics
from crossrank.data.vocabulary import HashedVocabulary
from crossrank.models import build_model
from crossrank.schema import Categorical, Label, Numeric, Schema
from crossrank.training import Config
from crossrank.training.engines import make_engine
from crossrank.training.memory import keep_freed_memory
from crossrank.training.trainer import Trainer, train_models


class UnevaluatedTrainer(Trainer):
    """Like everybody else, it is not stopped for a look at validation rows."""

    def evaluate(self) -> None:
        self.best = self.model.state_dict()


def write_dataset(job: Job, path: Path) -> EncodedDataset:
    ids, numbers = job.columns()
    columns = [
        *(Categorical(name=name, hash_size=size - 2) for name, size in zip(ids, job.vocab_sizes, strict=True)),
        *(Numeric(name=name) for name in numbers),
    ]
    schema = Schema(columns, Label(name="label"))
    counts = zip(ids.items(), job.vocab_sizes, strict=True)
    vocabularies = {name: HashedVocabulary(np.bincount(column, minlength=size)) for (name, column), size in counts}
    encoder = Encoder(schema, vocabularies, {name: NumericStatistics() for name in numbers})
    rows = EncodedRows(job.array("categorical"), job.array("numeric"))
    with DatasetWriter(path, schema) as writer:
        writer.append("train", LabeledRows(rows, job.array("labels")))
        writer.finish(encoder, {})
    return EncodedDataset.open(path)


def main() -> None:
    job = Job.read()
    keep_freed_memory()  # as crossrank.train does
    config = Config.parse(
        {
            "model": {
                "name": "dcn-v2",
                "embedding": {"dim": job.embedding_dim},
                "cross": {"num_layers": job.num_layers},
                "deep": {"sizes": job.deep_sizes},
            },
            "training": {
                "batch_size": job.batch_size,
                "max_steps": job.steps,
                "log_every": job.window,
                "device": "cpu",
            },
        }
    )
    with tempfile.TemporaryDirectory() as folder:
        dataset = write_dataset(job, Path(folder) / "dataset")
        model = build_model(config.model, dataset.features)
        engine = make_engine(model, dataset, config.training, seed=0)
        trainer = UnevaluatedTrainer(engine.members[0], dataset, config.training, folder=Path(folder))
        train_models(engine, [trainer], show_progress=False)
        lines = [json.loads(line) for line in (Path(folder) / "metrics.jsonl").read_text().splitlines()]
    print(json.dumps([line["rows_per_second"] for line in lines[1:]]))


if __name__ == "__main__":
    main()
