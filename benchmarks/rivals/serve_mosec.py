"""A bundle behind mosec: ``python serve_mosec.py --port PORT``, with BUNDLE, ITEMS and WORKERS in the environment."""

from __future__ import annotations

import os
from typing import Any

import orjson
from kept_items import KeptItems
from mosec import Runtime, Server, Worker


class Kept(Worker):  # type: ignore[misc]
    def __init__(self) -> None:
        super().__init__()
        self.kept = KeptItems(os.environ["BUNDLE"], os.environ["ITEMS"])

    def deserialize(self, data: bytes) -> Any:  # faster than the default, which is Python's own
        return orjson.loads(data)

    def serialize(self, data: Any) -> bytes:
        return orjson.dumps(data)


class Score(Kept):
    def forward(self, data: list[Any]) -> list[Any]:
        return [{"score": score} for score in self.kept.score(data)]


class Rank(Kept):
    def forward(self, data: Any) -> Any:
        return self.kept.rank(data["context"], data["items"], data["k"])


class RankRows(Kept):
    def forward(self, data: Any) -> Any:
        return self.kept.rank_rows(data["rows"], data["k"])


if __name__ == "__main__":
    server, num = Server(), int(os.environ["WORKERS"])
    workers = {
        "/score": Runtime(Score, num=num, max_batch_size=256, max_wait_time=1),
        "/rank": Runtime(Rank, num=num),
        "/rank-rows": Runtime(RankRows, num=num),
    }
    server.register_runtime({route: [runtime] for route, runtime in workers.items()})
    server.run()
