"""DeepCTR-Torch's DCN with matrices, trained by its ``fit``.

Its cross and deep networks stand side by side, which costs as many multiplications as stacking them. The linear term
and the penalties, on by default, are left out, and no metrics are computed.
"""

from __future__ import annotations

import numpy as np
from deepctr_torch.inputs import DenseFeat, SparseFeat
from deepctr_torch.models import DCN
from job import Clock, Job, fused_adam


def main() -> None:
    job = Job.read()
    ids, numbers = job.columns()
    sizes = zip(ids, job.vocab_sizes, strict=True)
    features = [
        *(SparseFeat(name, vocabulary_size=size, embedding_dim=job.embedding_dim) for name, size in sizes),
        *(DenseFeat(name) for name in numbers),
    ]
    model = DCN(
        linear_feature_columns=[],
        dnn_feature_columns=features,
        cross_num=job.num_layers,
        cross_parameterization="matrix",
        dnn_hidden_units=tuple(job.deep_sizes),
        l2_reg_linear=0,
        l2_reg_embedding=0,
        l2_reg_cross=0,
    )
    optimizer = fused_adam(model)
    model.compile(optimizer, "binary_crossentropy")
    clock = Clock(job, optimizer)
    # It keeps all columns in one array; with float32 ids it is half as large, and they are exact up to 2^24.
    columns = {name: column.astype(np.float32) for name, column in (ids | numbers).items()}
    model.fit(columns, job.array("labels"), batch_size=job.batch_size, epochs=1, verbose=0)
    clock.report()


if __name__ == "__main__":
    main()
