"""What each path answers."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import orjson
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route, Router
from starlette.types import Receive, Scope, Send

from crossrank import __version__
from crossrank.errors import CrossRankError, listing
from crossrank.serving.http.batching import Answer, Batcher, BusyError, Job
from crossrank.serving.http.bodies import BodyReader, RefusedError, json_of, ranking_of, rows_of
from crossrank.serving.http.gate import Gate, answer
from crossrank.serving.http.logs import log
from crossrank.serving.http.metrics import Metrics
from crossrank.serving.http.openapi import document
from crossrank.serving.http.page import PAGE, POLICY
from crossrank.serving.http.protocol import HEADER, metadata, read_inference, write_inference
from crossrank.serving.http.served import Models, Row, Scores, Served
from crossrank.serving.http.settings import ServeSettings

MOST_ASIDE = 64


class App:
    """The answers of one process.

    Args:
        settings: what the server was told.
        models: what it answers with; :meth:`reload` puts others in their place.
        tell_others: called after a reload that was asked for here, so that other processes reload as well.
    """

    def __init__(
        self,
        settings: ServeSettings,
        models: Models,
        *,
        tell_others: Callable[[], None] = lambda: None,
    ) -> None:
        self.settings, self.models, self.tell_others = settings, models, tell_others
        self.metrics = Metrics()
        # Of requests for a score that were let through, and the sizes of their bodies
        self.heads: dict[bytes, int] = {}
        self._count_versions()
        self.bodies = BodyReader(settings.max_body, settings.timeout_seconds)
        self.batcher = Batcher(
            max_batch=settings.max_batch,
            max_wait=settings.max_wait_ms / 1000,
            queue=settings.queue,
            seconds=settings.timeout_seconds,
            watch=self._watch,
        )
        self._loading, self._shadowing = asyncio.Lock(), False
        self._threads, self._asides = ThreadPoolExecutor(max((os.cpu_count() or 1) // settings.workers, 1)), 0
        self._tasks: set[asyncio.Task[None]] = set()
        named = ("/v2/models/{name}", "/v2/models/{name}/versions/{version}")
        routes = [
            Route("/score", self.well, methods=["POST"]),  # for the answer to other methods
            Route("/rank", self.rank, methods=["POST"]),
            *(Route(f"{path}/infer", self.infer, methods=["POST"]) for path in named),
            *(Route(path, self.about_v2) for path in named),
            *(Route(f"{path}/ready", self.ready_v2) for path in named),
            Route("/v2/health/live", self.well),
            Route("/v2/health/ready", self.well),
            Route("/v2", self.server_v2),
            Route("/model", self.about),
            Route("/metrics", self.measured),
            Route("/openapi.json", self.openapi),
            Route("/admin/reload", self.reload_now, methods=["POST"]),
            Route("/", self.page),
        ]
        self._others = Router(routes, redirect_slashes=False, default=_nowhere)
        self.gate = Gate(self._route, self.metrics, token=settings.token, admin_token=settings.admin_token)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        await self.gate(scope, receive, send)

    async def _route(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope.get("path") == "/score" and scope["method"] == "POST":  # by far the most frequent: the shortest way
            await answer(send, 200, await self.score(scope, receive), {})
        else:
            await self._others({**scope, "app": self}, receive, send)  # with an app a wrong method is an exception

    async def score(self, scope: Scope, receive: Receive) -> dict[str, Any]:
        content = json_of(await self.bodies.read(scope, receive))
        asked = Request(scope).query_params.get("version") if scope["query_string"] else None
        model = self.model if asked is None else self._version(asked)
        rows = rows_of(content, model, self.settings.max_rows)
        scores = await self.batcher.score(model, rows)
        return {"scores": scores.tolist(), "model": model.version}

    def submit(self, body: bytes, answer: Answer) -> Served | None:
        """Let rows be scored by the model that is returned; None for what has to be refused, or scored in pieces."""
        model = self.model
        try:
            rows = rows_of(json_of(body), model, min(self.settings.max_rows, self.settings.max_batch))
            self.batcher.check_room(len(rows))
        except (RefusedError, BusyError):
            return None
        until = asyncio.get_running_loop().time() + self.settings.timeout_seconds
        self.batcher.submit(Job(model, rows, answer, until))
        return model

    async def rank(self, request: Request) -> Response:
        content = json_of(await self.bodies.read(request.scope, request.receive))
        model = self.model
        context, items, k, exclude, explain = ranking_of(content, model, self.settings.max_rows)
        if items and isinstance(items[0], dict):
            rows = [{**context, **item} for item in items]
            scores = await self.batcher.score(model, rows)
            best = np.argsort(-scores, kind="stable")[:k].tolist()
            ranked = [{"index": place, "score": float(scores[place])} for place in best]
        else:
            ranked = await self._aside(model.rank, context, items, k, exclude)
        if explain:
            for one in ranked:
                row = rows[one["index"]] if "index" in one else {**context, **model.item(one["id"])}
                one["reasons"] = await self._aside(model.reasons, row)
        return _json({"items": ranked, "model": model.version})

    async def _aside(self, call: Callable[..., Any], *arguments: Any) -> Any:
        """Do something in another thread; there are as many as cores for this process, and not too much may wait."""
        if self._asides >= MOST_ASIDE:
            raise BusyError
        self._asides += 1
        try:
            async with asyncio.timeout(self.settings.timeout_seconds):
                return await asyncio.get_running_loop().run_in_executor(self._threads, call, *arguments)
        finally:
            self._asides -= 1

    async def infer(self, request: Request) -> Response:
        model = self._asked(request)
        body = await self.bodies.read(request.scope, request.receive)
        rows, content = read_inference(body, request.headers.get(HEADER), model, self.settings.max_rows)
        scores = await self.batcher.score(model, rows)
        answer, headers = write_inference(request.path_params["name"], model.version, content, scores)
        return Response(answer, headers=headers)

    def _asked(self, request: Request) -> Served:
        asked = request.path_params
        if asked["name"] != self.model.name:
            raise RefusedError(404, f"The model here is '{self.model.name}'.")
        return self._version(asked["version"]) if "version" in asked else self.model

    def _version(self, version: str) -> Served:
        versions = self.models.versions
        if version not in versions:
            raise RefusedError(404, f"The versions here are {listing(versions)}.")
        return versions[version]

    async def about_v2(self, request: Request) -> Response:
        model = self._asked(request)
        return _json(metadata(self.model.name, model, list(self.models.versions)))

    async def ready_v2(self, request: Request) -> Response:
        self._asked(request)
        return Response()

    async def server_v2(self, request: Request) -> Response:
        return _json({"name": "crossrank", "version": __version__, "extensions": ["binary_tensor_data"]})

    async def well(self, request: Request) -> Response:
        """A process listens only once its model is loaded and warm: what answers is alive and ready."""
        return Response()

    async def about(self, request: Request) -> Response:
        model = self.model
        label, columns = model.schema.label, {one.input: one.kind for one in model.schema.in_table}
        return _json(
            {
                "name": model.name,
                "version": model.version,
                "model": model.kind,
                "label": {key: getattr(label, key) for key in ("name", "kind", "classes", "columns")},
                "columns": [{"name": name, "kind": kind} for name, kind in columns.items()],
                "items": model.num_items,
            }
        )

    async def openapi(self, request: Request) -> Response:
        return _json(document(self.model, self.settings))

    async def measured(self, request: Request) -> Response:
        self.metrics.waiting.set(self.batcher.waiting)
        self.gate.journal.write()
        return Response(self.metrics.page(), media_type="text/plain; version=0.0.4")

    async def page(self, request: Request) -> Response:
        return Response(PAGE, media_type="text/html", headers={"content-security-policy": POLICY})

    async def reload_now(self, request: Request) -> Response:
        old = self.model.version
        if not await self.reload():
            raise RefusedError(
                409, "The run could not be opened; the model that was loaded goes on. The log knows more."
            )
        self.tell_others()
        return _json({"model": self.model.version, "before": old})

    async def reload(self) -> bool:
        """Open the run anew beside the one in use, and put it in its place; whether it could be opened."""
        async with self._loading:
            try:
                models = await asyncio.to_thread(Served.open_all, self.settings)
            except CrossRankError as error:
                self.metrics.reloads.labels("failed").inc()
                log("reload failed", error=str(error), model=self.model.version)
                return False
            log("reloaded", before=self.model.version, model=models.model.version)
            for version in self.models.versions:
                self.metrics.loaded.labels(version).set(0)
            self.models = models
            self._count_versions()
            self.metrics.reloads.labels("done").inc()
            return True

    @property
    def model(self) -> Served:
        return self.models.model

    def _count_versions(self) -> None:
        for version in self.models.versions:
            self.metrics.loaded.labels(version).set(1)

    def _watch(self, model: Served, rows: Sequence[Row], scores: Scores, unseen: dict[str, int]) -> None:
        self.metrics.passed(scores, unseen, probabilities=model.schema.label.kind not in ("real", "grade"))
        shadow = self.models.shadow
        if shadow is not None and model is self.model and not self._shadowing and len(rows):
            self._shadowing = True  # one at a time; the rest is left out
            task = asyncio.get_running_loop().create_task(self._compare(shadow, rows, scores))
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)

    async def _compare(self, shadow: Served, rows: Sequence[Row], scores: Scores) -> None:
        try:
            others, _ = await asyncio.to_thread(shadow.score, rows)
            for difference in np.abs(others - scores).reshape(len(scores), -1).max(axis=1).tolist():
                self.metrics.shadow.observe(difference)
        except Exception as error:
            log("shadow failed", error=str(error)[:200])
        finally:
            self._shadowing = False


def _json(content: Any) -> Response:
    return Response(orjson.dumps(content, default=str), media_type="application/json")


async def _nowhere(scope: Scope, receive: Receive, send: Send) -> None:
    raise RefusedError(404, "There is nothing at this path.")
