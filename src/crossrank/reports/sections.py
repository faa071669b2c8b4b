"""The parts of a page that are words and tables."""

from __future__ import annotations

import json
import shlex
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from crossrank.config import flatten, template, to_dict
from crossrank.data import MISSING_ID, UNSEEN_ID
from crossrank.evaluation import explain
from crossrank.evaluation.advice import advise
from crossrank.evaluation.spectrum import energy_rank, numerical_rank
from crossrank.evaluation.stability import stability
from crossrank.models import MODELS
from crossrank.models.build import build_shapes
from crossrank.models.cost import PARTS, model_cost
from crossrank.nn.cross_base import label_of
from crossrank.reports.contents import place
from crossrank.reports.markup import Markup, amount, decimal, percent, table, text
from crossrank.reports.quality import METRICS, are_seeds, figure, measured
from crossrank.results import Spectrum
from crossrank.runs import Run
from crossrank.schema import InputLayout
from crossrank.training import Config

TOLERANCES = (0.05, 0.01)
SHOWN_PAIRS = 15
SHOWN_BESIDE = 8  # pairs of each run


def describe(run: Run) -> str:
    """A model in a sentence."""
    model = to_dict(run.model_settings)
    about = f", {model['structure']}" if "structure" in model else f": {MODELS[model['name']].about}"
    words = [model["name"] + about, f"{_layout(run).input_dim} inputs"]
    layers = build_shapes(run.model_settings, run.encoder.features).cross_layers()
    kinds = Counter(label_of(layer) for _, _, layer in layers)
    words += [f"{count} {kind} cross layers" for kind, count in kinds.items()]
    deep = model.get("deep")
    if deep and model.get("structure") != "cross-only":
        words.append(f"deep layers of {', '.join(map(str, deep['sizes'])) or 'none'}")
    return "; ".join(words) + "."


def _layout(run: Run) -> InputLayout:
    """The slots of x0, without opening the weights."""
    return run.model_settings.layout(run.encoder.features)


def compression(run: Run) -> Markup:
    """What compressing the model did to it, where it was compressed."""
    found = run.report.get("compression")
    if not found:
        return Markup()
    before, after = found["before"], found["after"]
    rows = [
        ["parameters outside the tables", before["parameters"], after["parameters"]],
        ["multiply-adds per row", before["multiply_adds"], after["multiply_adds"]],
        *(
            [
                f"milliseconds, batch of {size}",
                *(decimal(side["milliseconds"].get(size), 3) for side in (before, after)),
            ]
            for size in before["milliseconds"]
        ),
    ]
    for split in (split for split in ("valid", "test") if split in before and split in after):
        keys = [key for key in ("logloss", "rmse", "auc") if key in before[split] and key in after[split]]
        rows += [
            [f"{METRICS[key].title}, {split}", *(figure(key, side[split][key], 5) for side in (before, after))]
            for key in keys
        ]
    lead = f"<p>Compressed from <b>{text(found['source'])}</b> to cross layers of rank {text(found['rank'])}.</p>"
    return Markup(f"<h3>Compression</h3>{lead}{table(['', 'before', 'after'], rows)}")


def spectrum_summary(runs: Sequence[Run], names: Mapping[Path, str]) -> Markup:
    """Numerical ranks of each layer, and what they advise."""
    rows, advice = [], []
    for run in runs:
        spectra = run.spectrum
        for one in spectra:
            ranks = [_ranks(one, tolerance) for tolerance in TOLERANCES]
            energy = [energy_rank(values, 0.99) for values in (one.values, one.used)]
            rows.append([names[run.path], place(one, spectra), len(one.values), *ranks, *energy])
        found = advise(spectra, run.model_settings, run.encoder.features)
        if found:
            where = "" if len(runs) == 1 else f"<b>{text(names[run.path])}.</b> "
            advice.append(f'<p class="advice">{where}{text(found.text)}</p>')
    if not rows:
        return Markup()
    headers = ["run", "layer", "width", *(f"R at {t:g}" for t in TOLERANCES), "99% of W", "99% as used"]
    cut = slice(1 if len(runs) == 1 else 0, None)
    return Markup(
        "".join(advice) + table(headers[cut], [row[cut] for row in rows], words=(0,) if cut.start else (0, 1))
    )


def _ranks(spectrum: Spectrum, tolerance: float) -> str:
    ranks = [numerical_rank(values, tolerance) for values in (spectrum.initial, spectrum.values) if values]
    return " → ".join(map(str, ranks))


def unexplained(runs: Sequence[Run], names: Mapping[Path, str]) -> Markup:
    """What of the crosses cannot be told, where that is so."""
    return Markup(
        "".join(
            f'<p class="advice">{f"<b>{text(names[run.path])}.</b> " if len(runs) > 1 else ""}{text(sentence)}</p>'
            for run in runs
            for sentence in run.unexplained
        )
    )


def pairs_beside(runs: Sequence[Run], names: Mapping[Path, str]) -> Markup:
    """The strongest pairs of the first cross layer of any run, and their strength in every run."""
    found = [{cross.name: cross.strength for cross in explain(run, layer=1) if cross.network == 1} for run in runs]
    if sum(map(bool, found)) < 2:
        return Markup()
    top = dict.fromkeys(pair for pairs in found for pair in list(pairs)[:SHOWN_BESIDE])
    rows = [[pair, *(decimal(pairs.get(pair), 3) for pairs in found)] for pair in top]
    return Markup(f"<h3>Side by side</h3>{table(['pair, layer 1', *(names[run.path] for run in runs)], rows)}")


def stable_pairs(runs: Sequence[Run]) -> Markup:
    """How the rank of the strongest pairs moves over the seeds of one setting; nothing for anything else."""
    if not are_seeds(runs) or not runs[0].crosses:
        return Markup()
    rows = [
        [
            one.cross.name,
            one.cross.layer,
            decimal(one.mean_rank, 1),
            f"{one.best_rank} to {one.worst_rank}",
            decimal(one.cross.strength),
            decimal(one.deviation),
        ]
        for one in stability(runs, top=SHOWN_PAIRS)
    ]
    lead = (
        f"<p>Which pairs hold up over {len(runs)} seeds. A pair whose rank moves from seed to seed was not learned "
        "from the data.</p>"
    )
    headers = ["pair", "layer", "mean rank", "ranks", "mean strength", "deviation"]
    return Markup(f"<h3>Over the seeds</h3>{lead}{table(headers, rows)}")


def costs(runs: Sequence[Run], names: Mapping[Path, str]) -> Markup:
    """Parameters and multiply-adds of each part of each model."""
    rows, problems = [], []
    for run in runs:
        try:
            cost = model_cost(run.model_settings, run.encoder.features)
        except Exception as error:  # a forward of somebody's own may look at values, where there are only shapes
            problems.append(
                f'<p class="advice">What {text(names[run.path])} costs cannot be counted; {text(error)}</p>'
            )
            continue
        for what, parts in (("parameters", cost.parameters), ("multiply-adds per row", cost.multiply_adds)):
            rows.append([names[run.path], what, *(parts[part] for part in PARTS), sum(parts.values())])
    cut = slice(1 if len(runs) == 1 else 0, None)
    headers = ["run", "", "tables", *PARTS[1:], "total"]
    counted = table(headers[cut], [row[cut] for row in rows], words=(0,) if cut.start else (0, 1)) if rows else ""
    return Markup("".join(problems) + counted)


def data_summary(runs: Sequence[Run], names: Mapping[Path, str]) -> Markup:
    """What each dataset of the runs holds."""
    sets: dict[str, list[Run]] = {}
    for run in runs:
        sets.setdefault(run.info["data_fingerprint"], []).append(run)
    if len(sets) == 1:
        return _dataset(runs[0])
    titles = [", ".join(names[run.path] for run in users) for users in sets.values()]
    return Markup("".join(f"<h3>{text(t)}</h3>{_dataset(u[0])}" for t, u in zip(titles, sets.values(), strict=True)))


def _dataset(run: Run) -> Markup:
    """Rows of each split, and what the encoder learned of each column."""
    encoder, widths = run.encoder, {slot.name: slot.width for slot in _layout(run).slots}
    rows: list[list[Any]] = []
    train_rows = 0
    for feature in encoder.features:
        if feature.kind == "numeric" and feature.column in encoder.crosses:
            known = encoder.crosses[feature.column]
            total, missing, unseen = int(known.counts.sum()), 0, None
            values = f"statistics of {known.num_cells:,} cells"
        elif feature.kind == "numeric":
            seen = encoder.statistics[feature.column]
            total, missing, unseen = seen.count + seen.missing, seen.missing, None
            values = f"mean {amount(seen.mean, 3)}, deviation {amount(seen.deviation, 3)}"
            if feature.width > 1 and seen.edges:
                values = f"{feature.width} pieces from {amount(seen.edges[0], 3)} to {amount(seen.edges[-1], 3)}"
        else:
            counts = encoder.counts(feature.name)
            total, missing, unseen = int(counts.sum()), int(counts[MISSING_ID]), int(counts[UNSEEN_ID])
            values = f"{int((counts[2:] > 0).sum()):,} values"
        train_rows = max(train_rows, total) if feature.kind != "multivalent" else train_rows
        shares = [None if count is None else percent(count / max(total, 1)) for count in (missing, unseen)]
        rows.append([feature.name, feature.kind, values, widths[feature.name], *shares])
    splits = [f"{train_rows:,} training"] if train_rows else []
    splits += [f"{run.report[split]['rows']:,} {split}" for split in ("valid", "test") if split in run.report]
    rate = measured(run)[1].get("positive_rate")
    share = f" {rate:.2%} of the {measured(run)[0]} rows are positive." if rate is not None else ""
    label = encoder.schema.label
    about = f"the label is <b>{text(label.name)}</b> ({text(label.kind)}).{text(share)}"
    lead = f"<p>{text(', '.join(splits))} rows; {about}</p>"
    headers = ["feature", "kind", "training values", "width", "missing", "rare"]
    return Markup(lead + table(headers, rows, words=(0, 1, 2), wrap=0))


def configuration(runs: Sequence[Run], names: Mapping[Path, str]) -> Markup:
    """What differs between the runs, then every setting of each."""
    flat = [flatten(run.config) for run in runs]
    keys = dict.fromkeys(key for settings in flat for key in settings)
    differing = [key for key in keys if len({json.dumps(settings.get(key)) for settings in flat}) > 1]
    parts: list[str] = []
    if differing:
        rows = [
            [key, *(json.dumps(settings[key]) if key in settings else None for settings in flat)] for key in differing
        ]
        parts.append(table(["setting", *(names[run.path] for run in runs)], rows, words=range(len(runs) + 1)))
    for run in runs:
        config = Config.parse({**run.config, "model": to_dict(run.model_settings)})
        toml = template({"model": config.model, "training": config.training, "split": config.split})
        title = "All settings" if len(runs) == 1 else f"All settings of {names[run.path]}"
        parts.append(f"<details><summary>{text(title)}</summary><pre>{text(toml)}</pre></details>")
    return Markup("".join(parts))


def repeat(runs: Sequence[Run], names: Mapping[Path, str]) -> Markup:
    """For each run the command that was given, and the one that needs nothing but this page and the data."""
    titles = [f"<h3>{text(names[run.path])}</h3>" if len(runs) > 1 else "" for run in runs]
    return Markup("".join(title + _repeat(run) for title, run in zip(titles, runs, strict=True)))


def _repeat(run: Run) -> str:
    info = run.info
    command: list[str] = info.get("command", [])
    given = ""
    if command and Path(command[0]).name == "crossrank":
        given = f"<p>It was made by</p><pre>{text(shlex.join(['crossrank', *command[1:]]))}</pre>"
    again = f"crossrank train DATASET --into RUN --config config.toml --seed {info['seed']}"
    machine = ", ".join(f"{key} {value}" for key, value in info.get("machine", {}).items())
    return (
        f"{given}<p>Save the settings above as config.toml, then</p><pre>{text(again)}</pre>"
        f'<p class="note">The dataset has the fingerprint <code>{text(info["data_fingerprint"])}</code>. '
        f"crossrank {text(info['library_version'])}; {text(machine)}. The same seed on the same machine gives the same "
        "weights.</p>"
    )
