"""Help, shell completion and colour."""

from __future__ import annotations

import os
import pty
import re
import shlex
import subprocess
import sys
from pathlib import Path

import click
import pytest
import typer

from crossrank.cli import app
from crossrank.models import MODELS

SCRIPT = Path(sys.executable).with_name("crossrank")
COLOUR = re.compile(r"\x1b\[(?:\d+;)*(?:3[0-8]|4[0-8]|9[0-7])(?:;\d+)*m")


def walk(command: click.Command, *path: str) -> dict[tuple[str, ...], click.Command]:
    """Every command and group by the words that reach it."""
    found = {path: command}
    for name, child in getattr(command, "commands", {}).items():
        found |= walk(child, *path, name)
    return found


COMMANDS = walk(typer.main.get_command(app), "crossrank")


@pytest.mark.parametrize("path", COMMANDS, ids=" ".join)
def test_every_command_has_an_example_that_it_can_read(path) -> None:
    command = COMMANDS[path]
    first, _, line = command.epilog.partition(": ")
    words = shlex.split(line.partition(" > ")[0])
    assert first == "Example" and tuple(words[: len(path)]) == path
    leaf = COMMANDS[path] if not hasattr(command, "commands") else COMMANDS[tuple(words[: len(path) + 1])]
    leaf.make_context("example", words[len(path) + hasattr(command, "commands") :])


def test_every_option_and_argument_has_a_help_text() -> None:
    for path, command in COMMANDS.items():
        for parameter in command.params:
            assert getattr(parameter, "help", "-"), f"{' '.join(path)} {parameter.name}"


def complete(line: str, cwd) -> list[str]:
    """What bash is offered for the last word of a line."""
    count = len(line.split(" ")) - 1
    asked = {"_CROSSRANK_COMPLETE": "complete_bash", "COMP_WORDS": line, "COMP_CWORD": str(count)}
    done = subprocess.run(SCRIPT, env=os.environ | asked, cwd=cwd, capture_output=True, text=True, check=True)
    return done.stdout.splitlines()


def test_the_shell_completes_commands_options_models_and_runs(run, tmp_path) -> None:
    (tmp_path / "runs").mkdir()
    (tmp_path / "runs" / "first").symlink_to(run.path)
    (tmp_path / "runs" / "notes").mkdir()
    assert complete("crossrank ev", tmp_path) == ["evaluate"]
    assert "--seeds" in complete("crossrank train clicks.csv --se", tmp_path)
    assert complete("crossrank train clicks.csv --track t", tmp_path) == ["tensorboard"]
    assert complete("crossrank config dcn", tmp_path) == [name for name in MODELS if name.startswith("dcn")]
    assert complete("crossrank explain ", tmp_path) == ["runs/first"]
    assert complete(f"crossrank evaluate {tmp_path}/runs/f", "/") == [f"{tmp_path}/runs/first"]


def test_completion_can_be_installed(tmp_path) -> None:
    words = ["bash", "-c", f"{shlex.quote(str(SCRIPT))} --install-completion && true"]
    done = subprocess.run(words, env={"HOME": str(tmp_path)}, capture_output=True, text=True, check=True)
    assert "bash completion installed" in done.stdout
    assert "crossrank" in (tmp_path / ".bashrc").read_text()


def on_a_terminal(*words, **environment) -> str:
    """What a command writes to a terminal."""
    ours, theirs = pty.openpty()
    environment = {"PATH": os.environ["PATH"], "TERM": "xterm-256color", **environment}
    with subprocess.Popen([SCRIPT, *words], env=environment, stdout=theirs, stderr=theirs, stdin=theirs):
        os.close(theirs)
        text = b""
        try:
            while part := os.read(ours, 65536):
                text += part
        except OSError:  # the other end is closed
            pass
    os.close(ours)
    return text.decode()


AN_ERROR = pytest.param(("data", "describe", "nowhere.csv"), marks=pytest.mark.slow, id="an error")


@pytest.mark.parametrize("words", [pytest.param(("--help",), id="help"), AN_ERROR])
def test_colour_is_for_terminals_that_want_it(words) -> None:
    assert COLOUR.search(on_a_terminal(*words))
    assert not COLOUR.search(on_a_terminal(*words, NO_COLOR="1"))
    piped = subprocess.run([SCRIPT, *words], capture_output=True, text=True, check=False)
    assert "\x1b" not in piped.stdout + piped.stderr
