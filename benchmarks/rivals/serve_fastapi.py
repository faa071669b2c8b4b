"""A run behind FastAPI and eager PyTorch, as people write it.

``python serve_fastapi.py PORT``, with RUN, ITEMS and WORKERS in the environment.
"""

from __future__ import annotations

import os
import sys
from typing import Any

import torch
import uvicorn
from fastapi import FastAPI
from kept_items import KeptItems
from pydantic import BaseModel, create_model

from crossrank import Run

torch.set_num_threads(1)
run = Run.open(os.environ["RUN"])
model, encoder = run.model, run.encoder
kept = KeptItems(os.environ["RUN"], os.environ["ITEMS"])
Row: Any = create_model("Row", **dict.fromkeys(run.schema.inputs, (str | float | None, None)))
app = FastAPI()


class Rows(BaseModel):
    rows: list[Row]
    k: int


class Items(BaseModel):
    context: dict[str, str | float | None]
    items: list[int]
    k: int


@app.post("/score")
def score(row: Row) -> dict[str, float]:
    with torch.no_grad():
        logits = model(encoder.encode_rows([row.model_dump()]).features())
    return {"score": float(torch.sigmoid(logits)[0])}


@app.post("/rank-rows")
def rank_rows(request: Rows) -> list[dict[str, Any]]:
    return kept.rank_rows([row.model_dump() for row in request.rows], request.k)


@app.post("/rank")
def rank(request: Items) -> list[dict[str, Any]]:
    return kept.rank(request.context, request.items, request.k)


if __name__ == "__main__":
    settings: dict[str, Any] = {"access_log": False, "log_level": "warning", "workers": int(os.environ["WORKERS"])}
    uvicorn.run("serve_fastapi:app", host="127.0.0.1", port=int(sys.argv[1]), **settings)
