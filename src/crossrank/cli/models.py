"""Commands about models before they are trained."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from crossrank.cli.app import ConfigFile, Sets, app, bench_commands, models_from, out


@app.command(epilog="Example: crossrank cost data/clicks --config mix.toml")
def cost(
    dataset: Annotated[Path | None, typer.Argument(help="A dataset; left out, the paper's Criteo features.")] = None,
    config: ConfigFile = None,
    sets: Sets = None,
    paper: Annotated[bool, typer.Option(help="The ten models of the paper's main table, beside its numbers.")] = False,
) -> None:
    """Count a model's parameters and multiply-adds per row."""
    from crossrank.config import load_toml, override
    from crossrank.data import EncodedDataset
    from crossrank.experiments.paper.table6 import CRITEO
    from crossrank.models.cost import cost_table, model_cost
    from crossrank.training import Config

    if paper:
        out.print(CRITEO.table(), highlight=False, soft_wrap=True)
        return
    settings = Config.parse(override(load_toml(config) if config else {}, sets or [])).model
    features = EncodedDataset.open(dataset).features if dataset else CRITEO.features
    table = cost_table({settings.name: model_cost(settings, features)})
    out.print(table, highlight=False, soft_wrap=True)


@app.command(epilog="Example: crossrank models")
def models() -> None:
    """List the models, a line each."""
    from crossrank.models import MODELS

    width = max(map(len, MODELS))
    for name, entry in MODELS.items():
        out.print(f"{name:{width}}  {entry.about}", highlight=False, soft_wrap=True)


@app.command(epilog="Example: crossrank config dcn-mix > config.toml")
def config(
    model: Annotated[
        str, typer.Argument(help="A model's name; see `crossrank models`.", autocompletion=models_from)
    ] = "dcn-v2",
) -> None:
    """Print a config file with every setting of a model, its default, its meaning and its choices."""
    from crossrank.config import template
    from crossrank.training import Config

    print(template(Config.defaults({"name": model})), end="")


@bench_commands.command("models", epilog="Example: crossrank bench models --batch 512 --threads 1")
def bench_models(
    batch: Annotated[int, typer.Option(help="Rows in a step.")] = 512,
    threads: Annotated[int, typer.Option(help="Threads of each matrix product.")] = 2,
    repeats: Annotated[int, typer.Option(help="Steps of each model; the median counts.")] = 31,
) -> None:
    """Time a forward and backward pass of every model at one setting, beside its multiply-adds."""
    from crossrank.experiments.bench import bench_models as measure
    from crossrank.experiments.bench import bench_table

    rows = measure(batch_size=batch, num_threads=threads, repeats=repeats)
    out.print(bench_table(rows), highlight=False, soft_wrap=True)
