"""The command that plans a training before there are machines for it."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from crossrank.cli.app import ConfigFile, Json, Sets, app, out, say, table_of
from crossrank.cli.scoring import refuse

if TYPE_CHECKING:
    from crossrank.experiments.planning import Cluster, Plan, Workload

ROWS, FEATURES, NUMBERS, VOCABULARY = 45_840_617, 26, 13, "2.3e6"  # Criteo's
USUAL_SHARE = 4096  # rows of a device in a step, where nobody says
WITHOUT = (
    "TorchRec is not installed, so nobody placed the tables: every device is given an equal share of each. How to "
    "install it stands in docs/guides/many-machines.md"
)
EXAMPLE = "crossrank plan --rows 100e9 --vocabulary 1e9 --machines 2 --interconnect infiniband-400 --price 80"


def _count(text: str, option: str) -> int:
    """A whole number, also written as 100e9 or 45_000_000."""
    try:
        value = float(text.replace("_", ""))
        if value == int(value) and abs(value) < 2**63:
            return int(value)
    except (OverflowError, ValueError):
        pass
    raise typer.BadParameter(f"must be a whole number, such as 45_000_000 or 100e9; got '{text}'", param_hint=option)


@app.command(epilog=f"Example: {EXAMPLE}")
def plan(
    dataset: Annotated[
        Path | None, typer.Argument(help="A prepared dataset, whose features and counts are taken.", show_default=False)
    ] = None,
    rows: Annotated[str | None, typer.Option(help="Of an epoch, such as 100e9; Criteo's if left out.")] = None,
    features: Annotated[int | None, typer.Option(help="Embedded features; 26 if left out.")] = None,
    numbers: Annotated[int | None, typer.Option(help="Numeric features; 13 if left out.")] = None,
    vocabulary: Annotated[
        str | None, typer.Option(help="Embedding rows of all features, such as 1e9, or of each: 1e9,1e6,500.")
    ] = None,
    config: ConfigFile = None,
    sets: Sets = None,
    device: Annotated[str, typer.Option(help="h200, h100, a100, cpu, or here: what --calibrate measured.")] = "h200",
    machines: Annotated[int, typer.Option(help="How many.")] = 1,
    per_machine: Annotated[
        int | None, typer.Option(help="GPUs, or processes on a processor, in each; 8 GPUs or 1 process if left out.")
    ] = None,
    interconnect: Annotated[
        str | None,
        typer.Option(help="Between machines: infiniband-400 or -200, roce-200, ethernet-100, -25 or -10."),
    ] = None,
    cores: Annotated[int | None, typer.Option(help="Of a machine, which its processes share.")] = None,
    memory: Annotated[float | None, typer.Option(help="Of a machine, in GB; left out, the device's.")] = None,
    price: Annotated[float | None, typer.Option(help="Of a machine for an hour, in any currency.")] = None,
    figure: Annotated[
        Path | None, typer.Option(help="Draw step time by part against devices, as .svg or .png.")
    ] = None,
    calibrate: Annotated[bool, typer.Option("--calibrate", help="Measure this machine, and do nothing else.")] = False,
    rates: Annotated[Path, typer.Option(help="Where the measured rates are.")] = Path("crossrank-rates.json"),
    as_json: Json = False,
) -> None:
    """Plan a training: memory of a device, placement of tables, step time by part, time and cost of an epoch.

    The model and the global batch are settings: --set model.embedding.dim=64 --set training.batch_size=65536. For this
    machine: crossrank plan --calibrate, then crossrank plan data/clicks --device here --per-machine 2.
    """
    from crossrank.experiments.planning import make_plan

    if calibrate:
        _calibrate(rates, as_json)
        return
    cluster = _cluster(device, machines, per_machine, interconnect, cores, memory, price, rates)
    workload = _workload(dataset, rows, features, numbers, vocabulary, config, sets, devices=cluster.num_devices)
    made = make_plan(workload, cluster)
    if figure:
        from crossrank.experiments.planning.figure import draw_plans, plans_by_size

        draw_plans(plans_by_size(workload, cluster), figure)
        say(f"figure: {figure}")
    if as_json:
        print(json.dumps(made.to_dict()))
    else:
        _show(made)
    if not made.placed:
        say(f"note: {WITHOUT}")
    if not made.fits:
        say(
            f"warning: a device has {made.cluster.device_memory / 1e9:,.1f} GB, and the fullest one needs "
            f"{made.memory.total / 1e9:,.1f}; take more or larger ones, narrower embeddings or smaller batches"
        )


def _calibrate(rates: Path, as_json: bool) -> None:
    from crossrank.experiments.planning.calibrate import calibrate, rates_table

    device = calibrate(rates, say=say)
    if as_json:
        print(json.dumps(dataclasses.asdict(device)))
    else:
        table = table_of("what", "rate", title="measured on this machine")
        for line in rates_table(device):
            table.add_row(*line)
        out.print(table)
    say(f"rates: {rates}; use them with --device here")


def _cluster(
    device: str,
    machines: int,
    per_machine: int | None,
    interconnect: str | None,
    cores: int | None,
    memory: float | None,
    price: float | None,
    rates: Path,
) -> Cluster:
    from crossrank.experiments.planning import Cluster, find_device
    from crossrank.experiments.planning.rates import find_link

    found = find_device(device, rates)
    return Cluster(
        device=found,
        machines=machines,
        per_machine=(8 if found.kind == "cuda" else 1) if per_machine is None else per_machine,
        link=find_link(interconnect) if interconnect else None,
        cores=found.cores if cores is None else cores,
        memory=1e9 * memory if memory else (0.0 if found.kind == "cuda" else found.memory),
        price=price,
    )


def _workload(
    dataset: Path | None,
    rows: str | None,
    features: int | None,
    numbers: int | None,
    vocabulary: str | None,
    config: Path | None,
    sets: list[str] | None,
    *,
    devices: int,
) -> Workload:
    from crossrank.config import load_toml, override
    from crossrank.data import EncodedDataset
    from crossrank.experiments.planning import Workload, planned_features
    from crossrank.training import Config
    from crossrank.training.plan import check_distributed

    values: dict[str, Any] = override(load_toml(config) if config else {}, sets or [])
    if "batch_size" not in values.get("training", {}):
        values = override(values, [f"training.batch_size={USUAL_SHARE * devices}"])
        say(f"training.batch_size was left out: planned with {USUAL_SHARE * devices:,}, {USUAL_SHARE:,} rows a device")
    settings = Config.parse(values)
    if devices > 1:
        check_distributed(settings)
    counts = None
    if dataset is None:
        planned = planned_features(
            FEATURES if features is None else features,
            NUMBERS if numbers is None else numbers,
            [_count(word, "--vocabulary") for word in (vocabulary or VOCABULARY).split(",")],
        )
        total = ROWS
    else:
        refuse("a prepared dataset, which has its features", features=features, numbers=numbers, vocabulary=vocabulary)
        opened = EncodedDataset.open(dataset)
        planned, total = [*opened.features], len(opened.train)
        counts = {one.name: opened.encoder.counts(one.name) for one in planned if one.kind != "numeric"}
    return Workload.of(settings, planned, rows=total if rows is None else _count(rows, "--rows"), counts=counts)


def _show(made: Plan) -> None:
    from crossrank.experiments.planning.estimate import placements

    def tell(text: str) -> None:
        out.print(text, highlight=False, soft_wrap=True)

    work, cluster = made.workload, made.cluster
    rows = sum(table.rows for table in work.tables)
    tell(
        f"{work.config.model.name}: {rows:,} embedding rows with {made.weights:,} weights, {work.dense:,} other weights"
    )
    link = f", {cluster.link.about} (documented)" if cluster.link and cluster.machines > 1 else ""
    tell(f"machines: {cluster.machines}, devices in each: {cluster.per_machine}; {cluster.device.about}{link}")
    memory = table_of("memory of the fullest device", "GB", title="")
    for part, size in dataclasses.asdict(made.memory).items():
        memory.add_row(ABOUT[part], f"{size / 1e9:,.3f}")
    memory.add_row("at most", f"{made.memory.total / 1e9:,.3f}")
    memory.add_row("there is", f"{cluster.device_memory / 1e9:,.3f}")
    out.print(memory)
    tables = table_of("placement", "tables", "embedding rows", "devices of one", title="")
    listed = placements(made.parts)
    for kind in dict.fromkeys(one["placement"] for one in listed):
        own = [one for one in listed if one["placement"] == kind]
        spread = sorted({len(one["devices"]) for one in own})
        devices = f"{spread[0]}" if len(spread) == 1 else f"{spread[0]} to {spread[-1]}"
        name = kind if cluster.num_devices > 1 else "one device"
        tables.add_row(name, f"{len(own):,}", f"{sum(one['rows'] for one in own):,}", devices)
    out.print(tables)
    steps = table_of(f"step of {made.batch_size:,} rows", "ms", "share", title="")
    for part, seconds in dataclasses.asdict(made.step).items():
        steps.add_row(ABOUT[f"step {part}"], f"{1e3 * seconds:,.3f}", f"{seconds / made.step.total:.1%}")
    steps.add_row("together", f"{1e3 * made.step.total:,.3f}", "")
    out.print(steps)
    cost = "" if made.cost is None else f", cost {made.cost:,.2f}"
    size, took = f"{work.rows:,} rows ({made.dataset_bytes / 1e9:,.1f} GB)", _spoken(made.epoch_seconds)
    tell(f"{made.rows_per_second:,.0f} rows/s; an epoch of {size} takes {took}{cost}")
    if cluster.num_devices > 1:
        before, disk = _spoken(made.setup_seconds), f"{made.machine_disk / 1e9:,.1f} GB"
        tell(f"before it: {before} to draw the first weights, and {disk} in TMPDIR of each machine")


ABOUT = {
    "tables": "embedding rows, their state, the best ones",
    "dense": "other weights, gradient, state, the best ones",
    "working": "activations and vectors of a step",
    "checkpoint": "or copies while a checkpoint is written",
    "step compute": "compute: products and activations",
    "step memory": "memory: embedding rows and optimiser",
    "step all_to_all": "all-to-all: ids and vectors",
    "step all_reduce": "all-reduce: gradients and loss",
    "step overhead": "overhead, however few rows",
}


def _spoken(seconds: float) -> str:
    """A duration in the unit that suits it.

    >>> _spoken(5400), _spoken(90), _spoken(3e5)
    ('1.50 hours', '90.0 seconds', '3.47 days')
    """
    for unit, size in (("days", 86_400), ("hours", 3600), ("minutes", 60)):
        if seconds >= 2 * size or (unit == "hours" and seconds >= size):
            return f"{seconds / size:,.2f} {unit}"
    return f"{seconds:,.1f} seconds"
