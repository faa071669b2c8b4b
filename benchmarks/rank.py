"""Ranking: a ranker with a loaded catalogue, against the same model by onnxruntime on full rows.

    python benchmarks/rank.py                      the paper's Criteo shape, 500 of 100,000 items, one thread
    python benchmarks/rank.py --threads 2
    python benchmarks/rank.py --processes 2        two requests at a time, each in a process of its own
    python benchmarks/rank.py --retrieval          the top 20 of a million items, two layers of rank 32
    python benchmarks/rank.py --many               64 requests at a time, against one after the other

26 features of width 39 and 13 numbers (D = 1027), two full cross layers, deep 768-768, random weights; an item is three
features (117 of the 1027). Ours is the whole of ``Ranker.rank``: a context as a dictionary and 500 ids in, the best 20
out. onnxruntime is given 500 rows whose ids are encoded already, and only finds their logits. The two take turns of ten
calls, so that a busy moment of the machine meets both, and each finds its own weights in the caches, as in a server.
Between turns all sleep: threads of onnxruntime and of OpenMP spin for milliseconds after a call, on the cores that the
next turn is to have. Then whoever is next has a tenth of a second that is not counted. Medians are compared, and the
least times, which other work touches least. With several processes, which share the memory of what was loaded, each has
ten calls in a turn, and the time is that of a turn over its requests.
"""

from __future__ import annotations

import argparse
import itertools
import multiprocessing
import statistics
import tempfile
import time
from collections.abc import Callable
from functools import partial
from multiprocessing.connection import Connection
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import polars as pl
import torch
from torch import Tensor, nn

from crossrank.data import Encoder
from crossrank.models import build_model, parse_model_settings
from crossrank.nn import Features
from crossrank.schema import Categorical, Label, Numeric, Schema
from crossrank.serving.ranker import Ranker

CATEGORIES = [f"C{number}" for number in range(1, 27)]
NUMBERS = [f"I{number}" for number in range(1, 14)]
ITEM = CATEGORIES[-3:]
VALUES = 2_000  # of each feature
FULL = {"num_layers": 2}
SEPARABLE = {**FULL, "context": [*CATEGORIES[:-3], *NUMBERS]}
MODELS: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "cross-only": ({"structure": "cross-only"}, {}),
    "parallel": ({"structure": "parallel"}, {}),
    "parallel, deep layers in bfloat16": ({"structure": "parallel"}, {"deep_precision": "bfloat16"}),
    "stacked": ({"structure": "stacked"}, {}),
    "stacked, separable": ({"structure": "stacked", "cross": SEPARABLE}, {}),
    "stacked, separable, deep layers in bfloat16": (
        {"structure": "stacked", "cross": SEPARABLE},
        {"deep_precision": "bfloat16"},
    ),
}
TURN = 10
REST_SECONDS = 0.2  # twice what any thread was seen to spin for
WARM_SECONDS = 0.1
REQUESTS = 200  # other contexts and candidates each, so that no row is still in the caches
MANY = 64


def rows(count: int, names: list[str], seed: int) -> dict[str, Any]:
    """Rows whose values are as frequent as in logs: the n-th one 1 / n times as often as the first."""
    generator, often = np.random.default_rng(seed), 1 / np.arange(1, VALUES + 1)
    columns: dict[str, Any] = {
        name: generator.choice(VALUES, p=often / often.sum(), size=count).astype(str)
        for name in names
        if name[0] == "C"
    }
    return columns | {name: generator.normal(size=count) for name in names if name[0] == "I"}


def encoder() -> Encoder:
    columns = [
        *(Categorical(name=one) for one in CATEGORIES),
        *(Numeric(name=one, encoding="scalar") for one in NUMBERS),
    ]
    return Encoder.fit(pl.DataFrame(rows(20_000, [*CATEGORIES, *NUMBERS], 0)), Schema(columns, Label(name="y")))


def made(encoder: Encoder, settings: dict[str, Any]) -> Any:
    torch.manual_seed(0)
    values = {"embedding": {"dim": 39}, **settings}
    return SimpleNamespace(
        encoder=encoder, schema=encoder.schema, model=build_model(parse_model_settings(values), encoder.features).eval()
    )


class FullRows(nn.Module):
    """The model as a function of tensors."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, ids: Tensor, numbers: Tensor) -> Tensor:
        logits: Tensor = self.model(Features(ids, numbers))
        return logits


def session(model: nn.Module, ids: Tensor, numbers: Tensor, threads: int) -> Any:
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = threads
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "model.onnx"
        torch.onnx.export(FullRows(model).eval(), (ids, numbers), path, dynamo=True, verbose=False)
        return onnxruntime.InferenceSession(path, options, providers=["CPUExecutionProvider"])


def timed(calls: list[Callable[[], object]], repeats: int) -> list[tuple[float, float]]:
    """The median and the least milliseconds of each call, taking turns of ten calls each."""
    seconds: list[list[float]] = [[] for _ in calls]
    for _ in range(-(-repeats // TURN)):
        for place, call in enumerate(calls):
            time.sleep(REST_SECONDS)
            ready = time.perf_counter() + WARM_SECONDS
            while time.perf_counter() < ready:
                call()  # the first ones find the caches full of the other's numbers, and a core that slept
            for _ in range(TURN):
                start = time.perf_counter()
                call()
                seconds[place].append(time.perf_counter() - start)
    return [(1e3 * statistics.median(one), 1e3 * min(one)) for one in seconds]


def at_once(call: Callable[[], object], processes: int) -> Callable[[], object]:
    """Ten calls by each of so many processes, which begin together."""
    fork = multiprocessing.get_context("fork")

    def serve(pipe: Connection, skip: int) -> None:
        for _ in range(skip):
            call()  # so that no two ask for the same
        while pipe.recv():
            for _ in range(TURN):
                call()
            pipe.send(True)

    ours = []
    for number in range(processes):
        mine, theirs = fork.Pipe()
        fork.Process(target=serve, args=(theirs, number * REQUESTS // processes), daemon=True).start()
        ours.append(mine)

    def turn() -> None:
        for pipe in ours:
            pipe.send(True)
        for pipe in ours:
            pipe.recv()

    return turn


def ranked(args: argparse.Namespace, fitted: Encoder, named: str, settings: dict[str, Any], **options: Any) -> None:
    """A row of the table: our rankings, and the same pairs as full rows by onnxruntime."""
    catalogue = pl.DataFrame({"id": np.arange(args.items), **rows(args.items, ITEM, 1)})
    contexts = pl.DataFrame(rows(REQUESTS, [*CATEGORIES[:-3], *NUMBERS], 2)).to_dicts()
    draw = np.random.default_rng(3)
    chosen = [draw.choice(args.items, size=args.candidates, replace=False).tolist() for _ in contexts]
    full = [
        catalogue[some].with_columns(pl.lit(value).alias(name) for name, value in context.items())
        for context, some in zip(contexts, chosen, strict=True)
    ]
    encoded = [fitted.encode(frame).features() for frame in full]
    run = made(fitted, {"cross": FULL, "deep": {"sizes": [768, 768]}, **settings})
    ort = session(run.model, encoded[0].categorical, encoded[0].numeric, args.threads)
    names = [one.name for one in ort.get_inputs()]
    feeds = [dict(zip(names, (one.categorical.numpy(), one.numeric.numpy()), strict=True)) for one in encoded]
    ranker = Ranker(run, **options).load(catalogue, id="id")
    assert ranker.how == "split"
    difference = 0.0
    for context, some, feed in zip(contexts, chosen, feeds, strict=True):
        ours = ranker.rank(context, some, k=len(some))
        difference = max(difference, float(np.abs(ours.logits - ort.run(None, feed)[0][ours.positions]).max()))
    feed, request = itertools.cycle(feeds), itertools.cycle(zip(contexts, chosen, strict=True))
    calls = [lambda: ort.run(None, next(feed)), lambda: ranker.rank(*next(request), k=20)]
    if args.processes > 1:
        calls = [at_once(call, args.processes) for call in calls]
    each = TURN * args.processes if args.processes > 1 else 1  # requests
    (theirs, least), (mine, my_least) = ((one / each, other / each) for one, other in timed(calls, args.repeats))
    cells = [
        *(named, args.threads, args.processes, f"{theirs:.2f} ({least:.2f})", f"{mine:.2f} ({my_least:.2f})"),
        *(f"{theirs / mine:.1f} ({least / my_least:.1f})", f"{1e3 * args.candidates / mine:,.0f}"),
        *(f"{ranker.bytes_per_item:,.0f}", f"{difference:.0e}"),
    ]
    print(f"| {' | '.join(map(str, cells))} |", flush=True)


def candidates(args: argparse.Namespace) -> None:
    fitted = encoder()
    print(f"{args.candidates} of {args.items:,} items; ms: median (least) of {args.repeats}")
    print("| model | threads | processes | onnxruntime, ms | ours, ms | ratio | pairs/s | bytes an item | difference |")
    print("| --- | ---: | ---: | ---: | ---: | ---: | ---: | ---: | ---: |")
    for named, (settings, options) in MODELS.items():
        if not args.models or named in args.models:
            ranked(args, fitted, named, settings, **options)


def retrieval(args: argparse.Namespace) -> None:
    run = made(encoder(), {"name": "cross-net", "cross": {"num_layers": 2, "layer": "low_rank", "rank": 32}})
    count = args.items if args.items != 100_000 else 1_000_000
    catalogue = pl.DataFrame({"id": np.arange(count), **rows(count, ITEM, 1)})
    context = {name: column[0] for name, column in rows(1, [*CATEGORIES[:-3], *NUMBERS], 2).items()}
    for precision in args.precisions:
        index = Ranker(run).load(catalogue, id="id", precision=precision).index("exact")
        ((median, least),) = timed([partial(index.search, context, k=20)], max(args.repeats // 4, 5))
        size, threads = f"{index.ranker.bytes_per_item:,.0f} bytes an item", f"{args.threads} thread(s)"
        print(
            f"top 20 of {count:,}, rank 32, {precision}, {size}, {threads}: {median:.1f} ({least:.1f}) ms", flush=True
        )


def many(args: argparse.Namespace) -> None:
    """Requests stacked by ``rank_many``, and the same ones in a loop."""
    fitted = encoder()
    catalogue = pl.DataFrame({"id": np.arange(args.items), **rows(args.items, ITEM, 1)})
    contexts = pl.DataFrame(rows(MANY, [*CATEGORIES[:-3], *NUMBERS], 2)).to_dicts()
    print(f"{MANY} requests; pairs/s by the median (least) of {args.repeats}")
    print("| model | candidates | threads | one after the other | stacked | ratio |")
    print("| --- | ---: | ---: | ---: | ---: | ---: |")
    low_rank = {"structure": "cross-only", "cross": {**FULL, "layer": "low_rank", "rank": 32}}
    models = {"cross-only": MODELS["cross-only"][0], "cross-only, rank 32": low_rank, "parallel": MODELS["parallel"][0]}
    for (named, settings), count in itertools.product(models.items(), (20, args.candidates, args.items)):
        if count == args.items and named != "cross-only, rank 32":
            continue  # takes minutes
        run = made(fitted, {"cross": FULL, "deep": {"sizes": [768, 768]}, **settings})
        ranker, some = Ranker(run).load(catalogue, id="id"), list(range(count)) if count < args.items else None
        calls = [
            partial(lambda ranker, some: [ranker.rank(context, some) for context in contexts], ranker, some),
            partial(ranker.rank_many, contexts, some),
        ]
        (alone, least), (stacked, my_least) = timed(calls, args.repeats)
        speeds = [f"{1e3 * MANY * count / one:,.0f}" for one in (alone, least, stacked, my_least)]
        cells = [named, f"{count:,}", args.threads, f"{speeds[0]} ({speeds[1]})", f"{speeds[2]} ({speeds[3]})"]
        print(f"| {' | '.join(map(str, cells))} | {alone / stacked:.1f} ({least / my_least:.1f}) |", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--items", type=int, default=100_000)
    parser.add_argument("--candidates", type=int, default=500)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--processes", type=int, default=1, help="that ask at once, each for a request at a time")
    parser.add_argument("--repeats", type=int, default=50)
    parser.add_argument("--models", nargs="+", choices=MODELS, metavar="MODEL", help="all where left out")
    parser.add_argument("--precisions", nargs="+", default=["float32"], help="of the items' rows, for --retrieval")
    parser.add_argument("--retrieval", action="store_true")
    parser.add_argument("--many", action="store_true")
    args = parser.parse_args()
    torch.set_num_threads(args.threads)
    (retrieval if args.retrieval else many if args.many else candidates)(args)


if __name__ == "__main__":
    main()
