"""What is collected here."""

from __future__ import annotations

collect_ignore_glob = ["src/crossrank/training/distributed/*.py"]  # they need TorchRec, and have no examples
