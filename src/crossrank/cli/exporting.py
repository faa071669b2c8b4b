"""Commands that take a run to where it answers."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated, Literal

import typer

from crossrank.cli.app import Json, Overwrite, RunFolder, app, new_path, out, say, table_of


@app.command(epilog="Example: crossrank export runs/first --into bundles/first --precision int8 --data data/clicks")
def export(
    run: RunFolder,
    into: Annotated[Path, new_path("The bundle to make, a folder.")],
    format: Annotated[  # noqa: A002
        Literal["onnx", "pt2"],
        typer.Option(help="Of the model; pt2 is compiled for this machine's processor, by g++, and needs torch."),
    ] = "onnx",
    precision: Annotated[
        Literal["float32", "bfloat16", "int8"],
        typer.Option(help="Of the embedding tables; int8 has a scale for each row. All else is float32."),
    ] = "float32",
    data: Annotated[
        Path | None,
        typer.Option(
            help="Rows with labels to compare on: a dataset, of which the validation rows are taken, or a table; left "
            "out, rows drawn from what the encoder knows."
        ),
    ] = None,
    overwrite: Overwrite = False,
    as_json: Json = False,
) -> None:
    """Write a run as a bundle that scores rows, as ONNX without torch, once it is seen to answer as the run does."""
    from crossrank.serving.export import export as export_run

    bundle = export_run(run, into, format=format, precision=precision, data=data, overwrite=overwrite)
    parity = bundle.manifest["parity"]
    if as_json:
        print(json.dumps({"precision": precision, **parity}))
    else:
        table = table_of("compared with the run", "value", title="")
        for name, value in parity.items():
            table.add_row(
                name.replace("_", " "),
                f"{value:.1e}" if isinstance(value, float) else f"{value:,}" if name == "rows" else value,
            )
        out.print(table)
    size = sum(path.stat().st_size for path in into.rglob("*") if path.is_file())
    say(f"bundle: {into} ({size / 1e6:,.1f} MB, {precision})")
