"""The command that answers over HTTP."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from crossrank.cli.app import RunFolder, app


@app.command(epilog="Example: crossrank serve runs/first --workers 2")
def serve(
    run: RunFolder,
    catalogue: Annotated[Path | None, typer.Option(help="A table of items to rank by their id.")] = None,
    id_column: Annotated[str | None, typer.Option("--id", help="The catalogue's column that names an item.")] = None,
    also: Annotated[Path | None, typer.Option(help="Another version, for requests that ask for it.")] = None,
    shadow: Annotated[Path | None, typer.Option(help="A run that scores the same rows, for /metrics alone.")] = None,
    host: Annotated[
        str, typer.Option(help="The address to listen on; others than loopback need a token.")
    ] = "127.0.0.1",
    port: Annotated[int, typer.Option(help="Its port; 0 takes any free one.")] = 8000,
    workers: Annotated[int, typer.Option(help="Processes that answer, about one for each core.")] = 1,
    token_file: Annotated[Path | None, typer.Option(help="A file with the token; or set CROSSRANK_TOKEN.")] = None,
    admin_token_file: Annotated[
        Path | None, typer.Option(help="The same for /admin; or set CROSSRANK_ADMIN_TOKEN.")
    ] = None,
    max_batch: Annotated[int, typer.Option(help="Rows scored in one pass.")] = 256,
    max_wait_ms: Annotated[float, typer.Option(help="How long a row waits for others; 0 takes what is there.")] = 0.0,
    queue: Annotated[int, typer.Option(help="Rows that may wait in a process; beyond, the answer is 503.")] = 4096,
    max_body_mb: Annotated[float, typer.Option(help="The largest body, in MiB.")] = 8.0,
    max_rows: Annotated[int, typer.Option(help="The most rows or items of a request.")] = 10_000,
    timeout: Annotated[float, typer.Option(help="Seconds for a body to arrive, and for rows to be scored.")] = 10.0,
) -> None:
    """Answer over HTTP: scores, rankings, the Open Inference Protocol v2, and a page to try it at /.

    SIGHUP loads the run anew, SIGTERM finishes what was accepted.
    """
    from crossrank.errors import MissingExtraError
    from crossrank.serving.http.settings import ADMIN_TOKEN, TOKEN, ServeSettings, read_token

    try:
        from crossrank.serving.http.server import serve as start
    except ModuleNotFoundError:
        raise MissingExtraError("Serving", "serve") from None
    settings = ServeSettings(
        run=run,
        catalogue=catalogue,
        id=id_column,
        also=also,
        shadow=shadow,
        host=host,
        port=port,
        workers=workers,
        token=read_token(token_file, TOKEN),
        admin_token=read_token(admin_token_file, ADMIN_TOKEN),
        max_batch=max_batch,
        max_wait_ms=max_wait_ms,
        queue=queue,
        max_body_mb=max_body_mb,
        max_rows=max_rows,
        timeout_seconds=timeout,
    )
    start(settings)
