"""Parts of the site that are made from the library itself while it is built."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from typer.main import get_command

from crossrank.cli import app
from crossrank.data.splits import SplitSettings
from crossrank.models import MODELS, parse_model_settings
from crossrank.models.settings import EmbeddingSettings
from crossrank.training import TrainingSettings


def on_config(config: Any) -> Any:
    """Write the pages that a ``folder/*.md`` of the navigation stands for."""
    docs = Path(config.docs_dir)
    for section in config.nav:
        for pages in section.values():
            for pattern in [page for page in pages if isinstance(page, str) and "*" in page]:
                at = pages.index(pattern)
                pages[at : at + 1] = [str(path.relative_to(docs)) for path in sorted(docs.glob(pattern))]
    return config


def on_page_markdown(markdown: str, page: Any, **_: Any) -> str:
    """Put what the library says of itself in the place of ``<!-- commands -->`` and the like."""
    for name, write in PARTS.items():
        if f"<!-- {name} -->" in markdown:
            markdown = markdown.replace(f"<!-- {name} -->", "\n".join(write()))
    return markdown


def commands() -> Iterator[str]:
    """Every command, in the order of a person's work, with its arguments and options."""
    group = get_command(app)
    yield from (line for name, command in sorted(group.commands.items()) for line in _command(name, command))


def _command(path: str, command: Any) -> Iterator[str]:
    if hasattr(command, "commands"):
        for name, inner in command.commands.items():
            yield from _command(f"{path} {name}", inner)
        return
    arguments = [param for param in command.params if not param.opts[0].startswith("-")]
    options = [param for param in command.params if param.opts[0].startswith("-")]
    named = " ".join([param.name.upper() + ("..." if param.nargs == -1 else "") for param in arguments])
    yield f"\n## {path}\n\n```\ncrossrank {path} {named}\n```\n\n{command.help}\n"
    if command.epilog:
        yield f"{command.epilog.replace('Example: ', 'Example: `')}`\n"
    yield "| | | |\n| --- | --- | --- |"
    for param in [*arguments, *options]:
        name = param.name.upper() if param in arguments else " ".join(param.opts)
        yield f"| `{name}` | {(param.help or '').replace('|', '&#124;')} | {_default(param)} |"


def _default(param: Any) -> str:
    if param.required:
        return "required"
    return "" if param.default in (None, False) else f"`{param.default}`"


def settings() -> Iterator[str]:
    """Every setting of training and split, and of the part that all models have."""
    parts = {"training": TrainingSettings(), "split": SplitSettings(), "model.embedding": EmbeddingSettings()}
    for name, part in parts.items():
        yield f"\n## {name}\n\n{HEAD}"
        yield from _rows(part, "")


def models() -> Iterator[str]:
    """Every model with the settings of its own."""
    for name, entry in MODELS.items():
        yield f"\n### {name}\n\n{entry.about[0].upper()}{entry.about[1:]}.\n\n{HEAD}"
        yield from _rows(parse_model_settings({"name": name}), "model.")


def _rows(settings: Any, path: str) -> Iterator[str]:
    for field in dataclasses.fields(settings):
        value = getattr(settings, field.name)
        if field.name in ("name", "embedding"):
            continue
        if dataclasses.is_dataclass(value):
            yield from _rows(value, f"{path}{field.name}.")
        else:
            default = "" if value is None else f"`{json.dumps(value)}`"
            yield f"| `{path}{field.name}` | {default} | {field.metadata['about'].replace('|', '&#124;')} |"


HEAD = "| key | default | meaning |\n| --- | --- | --- |"
PARTS: dict[str, Callable[[], Iterator[str]]] = {"commands": commands, "settings": settings, "models": models}
