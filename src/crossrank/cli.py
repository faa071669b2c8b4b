"""The command line: each command is one call of a function of the library.

Results go to standard output, progress and talk to standard error.
"""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import Annotated, Any, Literal

import typer
from rich.console import Console
from rich.table import Table as RichTable

import crossrank
from crossrank.errors import CrossRankError

app = typer.Typer(
    name="crossrank",
    help="Train, explain and serve models that cross features.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)
data_commands = typer.Typer(help="Look into tables and datasets, and make large ones.", no_args_is_help=True)
app.add_typer(data_commands, name="data")
bench_commands = typer.Typer(help="Measure the library on this machine.", no_args_is_help=True)
app.add_typer(bench_commands, name="bench")
out, talk = Console(), Console(stderr=True)

OnError = Literal["raise", "skip"]
Json = Annotated[bool, typer.Option("--json", help="Print one JSON object and nothing else on standard output.")]
Overwrite = Annotated[bool, typer.Option(help="Replace what stands there, once the new one is complete.")]
ConfigFile = Annotated[Path | None, typer.Option("--config", help="A TOML file; see `crossrank config`.")]
Sets = Annotated[list[str] | None, typer.Option("--set", help="One setting, such as model.cross.num_layers=3.")]
SchemaFile = Annotated[Path | None, typer.Option("--schema", help="JSON; drafted from the table if left out.")]
Separator = Annotated[str | None, typer.Option(help="What stands between two fields; guessed if left out.")]


def main() -> None:
    """Run a command; an error of ours becomes one line, a hint, and exit status 2."""
    try:
        app()
    except CrossRankError as error:
        if "--debug" in sys.argv:
            raise
        talk.print(f"error: {error.message}", style="red", markup=False, highlight=False, soft_wrap=True)
        if error.hint:
            talk.print(f"hint: {error.hint}", markup=False, highlight=False, soft_wrap=True)
        sys.exit(2)
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # the reader of our output has gone; so do we
        sys.exit(1)


def _version(show: bool) -> None:
    if show:
        print(crossrank.__version__)
        raise typer.Exit


@app.callback()
def options(
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Print the version.")
    ] = False,
    debug: Annotated[bool, typer.Option(help="Show the whole traceback of an error.")] = False,
) -> None:
    """Train, explain and serve models that cross features."""


@app.command(epilog="Example: crossrank demo --into runs/demo")
def demo(
    into: Annotated[Path, typer.Option(help="The folder to make.")] = Path("runs/demo"),
    rows: Annotated[int, typer.Option(help="Rows of the generated click log.")] = 100_000,
    seed: Annotated[int, typer.Option(help="Of the click log and of the models.")] = 0,
    overwrite: Overwrite = False,
) -> None:
    """Train three models on a generated click log and see which crosses they found."""
    from crossrank.experiments.demo import run_demo

    result = run_demo(into, rows=rows, seed=seed, overwrite=overwrite, say=_say)
    table = _table("model", "log loss", "AUC", "parameters", "seconds", title="test rows, lower log loss is better")
    for model in result.models:
        table.add_row(
            model.name, f"{model.logloss:.4f}", f"{model.auc:.4f}", f"{model.parameters:,}", f"{model.seconds:.0f}"
        )
    table.add_row("best reachable", f"{result.best_logloss:.4f}", f"{result.best_auc:.4f}", "", "")
    out.print(table)
    crosses = _table("cross", "strength", "planted", title="strongest crosses learned by DCN-V2")
    for cross in result.crosses:
        crosses.add_row(cross.name, f"{cross.strength:.3f}", "yes" if cross.planted else "")
    out.print(crosses)
    _say(f"run folder: {result.run}")
    _say(f"next: crossrank explain {result.run} --top 20")


@app.command(epilog="Example: crossrank prepare clicks.csv --schema schema.json --into data/clicks")
def prepare(
    sources: Annotated[list[Path], typer.Argument(help="Tables (csv, tsv, parquet), or folders of them.")],
    into: Annotated[Path, typer.Option(help="The dataset folder to make.")],
    schema: SchemaFile = None,
    source: Annotated[str | None, typer.Option(help="A known set: criteo, movielens-1m or avazu.")] = None,
    label: Annotated[str | None, typer.Option(help="The label's name, where no schema is given.")] = None,
    separator: Separator = None,
    on_error: Annotated[OnError, typer.Option(help="What a bad row does: raise, or skip and count it.")] = "raise",
    sets: Sets = None,
    overwrite: Overwrite = False,
) -> None:
    """Encode tables into a dataset that training reads at full speed.

    Splits are set with --set split.method=random|time|time-then-random|group, split.column=NAME, split.fractions=[0.8,0.1,0.1].
    """
    from crossrank.config import override, parse
    from crossrank.data.prepare import prepare as prepare_dataset
    from crossrank.data.splits import SplitSettings
    from crossrank.data.table import open_table

    values = override({}, sets or [])
    if source:
        from crossrank.data.sources import open_source

        table, meaning, split = open_source(source, sources, on_error=on_error)
    else:
        table = open_table(sources, separator=separator, on_error=on_error)
        meaning, split = _schema(table, schema, label), SplitSettings()
    if "split" in values:
        split = parse(SplitSettings, values["split"], path="split")
    dataset = prepare_dataset(table, meaning, into, split=split, on_error=on_error, overwrite=overwrite)
    rows = {name: split["rows"] for name, split in dataset.manifest["splits"].items()}
    for reason, count in table.skipped.items():
        _say(f"left out {count:,} rows: {reason}")
    _say(f"dataset: {into} ({', '.join(f'{name} {count:,}' for name, count in rows.items())} rows)")


@app.command(epilog="Example: crossrank train clicks.csv --into runs/first --set model.cross.num_layers=3 --seeds 5")
def train(
    data: Annotated[Path, typer.Argument(help="A dataset made by `prepare`, or a table (csv, tsv, parquet).")],
    into: Annotated[Path, typer.Option(help="The run folder to make.")],
    config: ConfigFile = None,
    sets: Sets = None,
    schema: SchemaFile = None,
    label: Annotated[str | None, typer.Option(help="The label's name, where no schema is given.")] = None,
    seed: Annotated[int, typer.Option(help="The same seed gives the same weights.")] = 0,
    seeds: Annotated[int, typer.Option(help="Train this many models; report mean and deviation.", min=1)] = 1,
    resume: Annotated[bool, typer.Option(help="Go on with an interrupted training.")] = False,
    profile: Annotated[bool, typer.Option(help="Tell where the time of a step goes.")] = False,
    overwrite: Overwrite = False,
    as_json: Json = False,
) -> None:
    """Train a model, measure it on the test rows, and save it as a run folder."""
    from crossrank.config import load_toml, override
    from crossrank.training import Config, train_seeds
    from crossrank.training import train as train_run
    from crossrank.training.profile import StepClock

    settings = Config.parse(override(load_toml(config) if config else {}, sets or []))
    meaning = None
    if not (data / "manifest.json").is_file():
        from crossrank.data.table import open_table

        meaning = _schema(open_table(data), schema, label)
    if seeds > 1:
        summary = train_seeds(data, into=into, seeds=seeds, config=settings, schema=meaning, overwrite=overwrite)
        _show_spread(summary, as_json)
    else:
        clock = StepClock() if profile else None
        options: dict[str, Any] = {
            "schema": meaning,
            "seed": seed,
            "resume": resume,
            "overwrite": overwrite,
            "clock": clock,
        }
        run = train_run(data, into=into, config=settings, **options)
        if clock:
            _show_profile(clock.rows(run.report["training"]["steps"]))
        _show_metrics(run.report["test"], as_json)
    _say(f"run folder: {into}")


@app.command(epilog="Example: crossrank evaluate runs/first later.csv --json")
def evaluate(
    run: Annotated[Path, typer.Argument(help="A run folder.")],
    data: Annotated[
        Path | None, typer.Argument(help="A dataset or a table; left out, the stored test metrics.")
    ] = None,
    split: Annotated[str, typer.Option(help="Which rows of a dataset: train, valid or test.")] = "test",
    as_json: Json = False,
) -> None:
    """Measure a trained model."""
    from crossrank.evaluation import evaluate as measure
    from crossrank.runs import Run

    opened = Run.open(run)
    _show_metrics(opened.report[split] if data is None else measure(opened, data, split=split), as_json)


@app.command(epilog="Example: crossrank predict runs/first today.parquet --into scored.parquet")
def predict(
    run: Annotated[Path, typer.Argument(help="A run folder.")],
    table: Annotated[Path, typer.Argument(help="Raw rows (csv, tsv, parquet); the label is not needed.")],
    into: Annotated[Path, typer.Option(help="The table to write: csv, tsv or parquet, by its suffix.")],
    column: Annotated[str, typer.Option(help="The name of the new column.")] = "probability",
    overwrite: Overwrite = False,
) -> None:
    """Write a table again with the model's probability for each row."""
    from crossrank.runs import Run
    from crossrank.serving.tables import predict_table

    rows = predict_table(Run.open(run), table, into, column=column, overwrite=overwrite)
    _say(f"{rows:,} rows: {into}")


@app.command(epilog="Example: crossrank explain runs/first --top 20")
def explain(
    run: Annotated[Path, typer.Argument(help="A run folder.")],
    top: Annotated[int, typer.Option(help="How many pairs.")] = 15,
    layer: Annotated[int | None, typer.Option(help="Only this cross layer, counted from 1.")] = None,
    as_json: Json = False,
) -> None:
    """List the pairs of features whose learned cross moves the answer most."""
    from crossrank.evaluation import explain as strongest
    from crossrank.runs import Run

    pairs = strongest(Run.open(run), top=top, layer=layer)
    if as_json:
        print(json.dumps(pairs))
        return
    if not pairs:
        _say("this model has no cross layers")
    table = _table("cross", "layer", "strength", "norm", title="strength: how far the cross moves the logit")
    for pair in pairs:
        name = f"{pair['left']} × {pair['right']}"
        table.add_row(name, str(pair["layer"]), f"{pair['strength']:.4f}", f"{pair['norm']:.3f}")
    out.print(table)


@data_commands.command("describe", epilog="Example: crossrank data describe clicks.csv --min-count 5")
def data_describe(
    source: Annotated[Path, typer.Argument(help="A table (csv, tsv, parquet) or a dataset.")],
    schema: SchemaFile = None,
    label: Annotated[str | None, typer.Option(help="The label's name, where no schema is given.")] = None,
    min_count: Annotated[int, typer.Option(help="Tell the share of values seen less often than this.")] = 10,
    as_json: Json = False,
) -> None:
    """Show what is in a table: values, missing and rare shares, what each column knows of the label, and warnings."""
    from crossrank.data.describe import describe
    from crossrank.schema import Schema

    told = describe(source, schema=Schema.load(schema) if schema else None, label=label, min_count=min_count)
    if as_json:
        print(json.dumps(told.to_dict()))
        return
    title = f"{told.name}: {told.rows:,} rows, mean of '{told.label}' {told.label_rate:.4f}"
    table = _table("column", "kind", "values", "missing", f"seen < {min_count}", "signal", "most frequent", title=title)
    for column in told.columns:
        top = ", ".join(f"{value} {share:.0%}" if share else value for value, share in column.top)
        distinct = "" if column.distinct is None else f"{column.distinct:,}"
        signal = "" if column.signal is None else f"{column.signal:.3f}"
        table.add_row(column.name, column.kind, distinct, f"{column.missing:.1%}", f"{column.rare:.1%}", signal, top)
    out.print(table)
    for warning in told.warnings:
        _say(f"warning: {warning}")


@data_commands.command("synthesize", epilog="Example: crossrank data synthesize --rows 45_000_000 --into criteo.txt")
def data_synthesize(
    rows: Annotated[str, typer.Option(help="How many; 45_000_000 may be written so.")],
    into: Annotated[Path, typer.Option(help="The file (text) or dataset folder (encoded) to make.")],
    like: Annotated[Literal["criteo"], typer.Option(help="Which set to imitate.")] = "criteo",
    output: Annotated[
        Literal["text", "encoded"], typer.Option("--format", help="Criteo's text, or a dataset ready to train on.")
    ] = "text",
    seed: Annotated[int, typer.Option(help="The same seed gives the same rows.")] = 0,
    overwrite: Overwrite = False,
    as_json: Json = False,
) -> None:
    """Generate a click log of any size whose crosses and best log loss are known."""
    from crossrank.data.sources.synthetic import synthesize

    if not rows.replace("_", "").isdecimal():
        raise typer.BadParameter(f"must be a whole number; got '{rows}'", param_hint="--rows")
    made = synthesize(into, rows=int(rows), like=like, seed=seed, format=output, overwrite=overwrite)
    if as_json:
        print(json.dumps({"rows": made.rows, "label_rate": made.base_rate, "best_logloss": made.best_logloss}))
    _say(f"{made.rows:,} rows: {made.path} (label rate {made.base_rate:.3f}, best log loss {made.best_logloss:.4f})")


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
    from crossrank.models import parse_model_settings
    from crossrank.models.cost import cost_table, model_cost
    from crossrank.models.paper_settings import CRITEO

    if paper:
        out.print(CRITEO.table(), markup=False, highlight=False)
        return
    values = override(load_toml(config) if config else {}, sets or [])
    settings = parse_model_settings(values.get("model", {}))
    features = EncodedDataset.open(dataset).features if dataset else CRITEO.features
    out.print(cost_table({settings.name: model_cost(settings, features)}), markup=False, highlight=False)


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
    out.print(bench_table(rows), markup=False, highlight=False, soft_wrap=True)


@app.command()
def models() -> None:
    """List the models, a line each."""
    from crossrank.models import MODELS

    width = max(map(len, MODELS))
    for name, entry in MODELS.items():
        out.print(f"{name:{width}}  {entry.about}", highlight=False)


@app.command(epilog="Example: crossrank config dcn-mix > config.toml")
def config(model: Annotated[str, typer.Argument(help="A model's name; see `crossrank models`.")] = "dcn-v2") -> None:
    """Print a config file with every setting of a model, its default and its meaning."""
    from crossrank.config import template
    from crossrank.data.splits import SplitSettings
    from crossrank.models import parse_model_settings
    from crossrank.training import TrainingSettings

    parts = {"model": parse_model_settings({"name": model}), "training": TrainingSettings(), "split": SplitSettings()}
    print(template(parts), end="")


def _schema(table: Any, schema: Path | None, label: str | None) -> Any:
    """The schema from a file, or a draft that is shown to the person."""
    from crossrank.schema import Schema

    if schema is not None:
        return Schema.load(schema)
    draft = Schema.infer(table.head(), label=label)
    kinds: dict[str, list[str]] = {}
    for column in draft.features:
        kinds.setdefault(column.kind, []).append(column.name)
    _say(f"no --schema: drafted one, with the {draft.label.kind} label '{draft.label.name}' and")
    for kind, names in kinds.items():
        _say(f"  {kind}: {', '.join(names)}")
    left_out = [name for name in table.columns if name not in set(draft.required)]
    if left_out:
        _say(f"  left out: {', '.join(left_out)}")
    return draft


def _say(text: str) -> None:
    talk.print(text, markup=False, highlight=False, soft_wrap=True)


def _table(*columns: str, title: str) -> RichTable:
    table = RichTable(title=title, title_justify="left", title_style="bold")
    for i, column in enumerate(columns):
        table.add_column(column, justify="left" if i == 0 else "right")
    return table


def _show_metrics(metrics: dict[str, Any], as_json: bool) -> None:
    if as_json:
        print(json.dumps(metrics))
        return
    table = _table("metric", "value", title="")
    for name, value in metrics.items():
        table.add_row(name, f"{value:,}" if isinstance(value, int) else "–" if value is None else f"{value:.5f}")
    out.print(table)


def _show_profile(rows: list[tuple[str, str, float, float]]) -> None:
    table = _table("part", "ms a step", "share", "meaning", title="where the time of a step goes")
    for part, about, milliseconds, share in rows:
        table.add_row(part, f"{milliseconds:.3f}", f"{share:.1%}", about)
    talk.print(table)


def _show_spread(summary: dict[str, Any], as_json: bool) -> None:
    if as_json:
        print(json.dumps(summary))
        return
    table = _table("metric", "mean", "deviation", title=f"test rows, {summary['seeds']} seeds")
    for name, spread in summary["test"].items():
        table.add_row(name, f"{spread['mean']:.5f}", f"{spread['deviation']:.5f}")
    out.print(table)
