"""A bundle behind NVIDIA's Triton server (nvidia-pytriton): ``python serve_triton.py BUNDLE ITEMS PORT``.

A row, or a request to rank, is one text of JSON in a tensor of bytes; Triton gathers rows of several requests.
"""

from __future__ import annotations

import sys
from typing import Any

import numpy as np
import orjson
from kept_items import KeptItems
from pytriton.decorators import batch
from pytriton.model_config import DynamicBatcher, ModelConfig, Tensor
from pytriton.triton import Triton, TritonConfig

kept, port = KeptItems(*sys.argv[1:3]), int(sys.argv[3])


@batch  # type: ignore[untyped-decorator]
def score(row: Any) -> dict[str, Any]:
    scores = kept.score([orjson.loads(one) for one in row[:, 0].tolist()])
    return {"score": np.array(scores, np.float32)[:, None]}


@batch  # type: ignore[untyped-decorator]
def rank(request: Any) -> dict[str, Any]:
    asked = orjson.loads(request[0, 0])
    return {"best": np.array([[orjson.dumps(kept.rank(asked["context"], asked["items"], asked["k"]))]])}


def tensor(name: str, dtype: Any) -> Tensor:
    return Tensor(name=name, dtype=dtype, shape=(1,))


if __name__ == "__main__":
    with Triton(config=TritonConfig(http_port=port, grpc_port=port + 1000, metrics_port=port + 2000)) as triton:
        gathered = ModelConfig(max_batch_size=512, batcher=DynamicBatcher(max_queue_delay_microseconds=0))
        triton.bind("score", score, [tensor("row", bytes)], [tensor("score", np.float32)], config=gathered)
        one = ModelConfig(max_batch_size=1)
        triton.bind("rank", rank, [tensor("request", bytes)], [tensor("best", bytes)], config=one)
        triton.serve()
