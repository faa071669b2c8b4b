"""A run behind FastAPI and eager PyTorch, as people write it: ``python serve_fastapi.py RUN PORT``."""

from __future__ import annotations

import sys
from typing import Any

import torch
import uvicorn
from fastapi import FastAPI
from pydantic import create_model

from crossrank import Run

torch.set_num_threads(1)
run = Run.open(sys.argv[1])
model, encoder = run.model, run.encoder
Row: Any = create_model("Row", **dict.fromkeys(run.schema.inputs, (str | float | None, None)))
app = FastAPI()


@app.post("/score")
def score(row: Row) -> dict[str, float]:
    with torch.no_grad():
        logits = model(encoder.encode_rows([row.model_dump()]).features())
    return {"score": float(torch.sigmoid(logits)[0])}


uvicorn.run(app, host="127.0.0.1", port=int(sys.argv[2]), access_log=False, log_level="warning")
