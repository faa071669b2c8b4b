"""Where and when something was made."""

from __future__ import annotations

import datetime
import platform
import sys
from typing import Any

import torch

from crossrank import __version__


def origin() -> dict[str, Any]:
    """What a run says of its making: by which version, when, by which command and on what machine."""
    return {
        "library_version": __version__,
        "finished": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
        "command": sys.argv,
        "machine": describe_machine(),
    }


def describe_machine() -> dict[str, str]:
    """What a repeated run should be compared with: versions and threads."""
    return {"python": platform.python_version(), "torch": torch.__version__, "threads": str(torch.get_num_threads())}
