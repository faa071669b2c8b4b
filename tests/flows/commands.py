"""Commands as the shell would run them, in this process."""

from __future__ import annotations

import contextlib
import io
import os
import sys
from unittest import mock

from crossrank.cli import main

SMALL = ["--set", "model.embedding.dim=4", "--set", "model.deep.sizes=[8]", "--set", "training.epochs=1"]


def crossrank(*words, cwd=".", code=0):
    """Run a command as the shell would, which ends with a code, or any if None; its standard output and error."""
    output, talk = io.StringIO(), io.StringIO()
    environment = {"NO_COLOR": "1", "COLUMNS": "200"}
    with (
        contextlib.chdir(cwd),
        contextlib.redirect_stdout(output),
        contextlib.redirect_stderr(talk),
        mock.patch.dict(os.environ, environment),
        mock.patch.object(sys, "argv", ["crossrank", *map(str, words)]),
    ):
        try:
            main()
            status = 0
        except SystemExit as stop:
            status = stop.code or 0
    assert code in (status, None), output.getvalue() + talk.getvalue()
    return output.getvalue(), talk.getvalue()
