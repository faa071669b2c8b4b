"""What can be collected here."""

from __future__ import annotations

import importlib.util

collect_ignore_glob = [] if importlib.util.find_spec("torchrec") else ["src/crossrank/training/distributed/*.py"]
