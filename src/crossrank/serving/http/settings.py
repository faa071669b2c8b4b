"""What a server is told when it starts."""

from __future__ import annotations

import dataclasses
import ipaddress
import os
from pathlib import Path

from crossrank.errors import ConfigError

METRICS_FOLDER = "PROMETHEUS_MULTIPROC_DIR"
TOKEN, ADMIN_TOKEN = "CROSSRANK_TOKEN", "CROSSRANK_ADMIN_TOKEN"
SHORTEST_TOKEN = 16


@dataclasses.dataclass(frozen=True, kw_only=True)
class ServeSettings:
    """Where to listen, what to answer from, and what one request may cost."""

    run: Path
    catalogue: Path | None = None
    id: str | None = None
    also: Path | None = None
    shadow: Path | None = None
    host: str = "127.0.0.1"
    port: int = 8000
    workers: int = 1
    token: str = dataclasses.field(default="", repr=False)
    admin_token: str = dataclasses.field(default="", repr=False)
    max_batch: int = 256
    max_wait_ms: float = 0.0
    queue: int = 4096
    max_body_mb: float = 8.0
    max_rows: int = 10_000
    timeout_seconds: float = 10.0

    def __post_init__(self) -> None:
        for name in ("workers", "max_batch", "queue", "max_body_mb", "max_rows", "timeout_seconds"):
            if getattr(self, name) <= 0:
                raise ConfigError(f"{name} must be above 0; got {getattr(self, name)}.")
        if not 0 <= self.max_wait_ms <= 1000:
            raise ConfigError(f"max_wait_ms must be between 0 and 1000; got {self.max_wait_ms}.")
        if not 0 <= self.port < 2**16:
            raise ConfigError(f"port must be between 0, for any free one, and 65535; got {self.port}.")
        if not self.token and not is_loopback(self.host):
            raise ConfigError(
                f"Without a token a server listens on this machine alone; got --host {self.host}.",
                hint=f"Put a token of {SHORTEST_TOKEN} characters or more into a file and name it with --token-file, "
                f"or set {TOKEN}.",
            )
        if (self.catalogue is None) != (self.id is None):
            raise ConfigError("--catalogue and --id go together: a table of items, and the column that names them.")

    @property
    def max_body(self) -> int:
        """Bytes that a body may have."""
        return int(self.max_body_mb * 2**20)


def is_loopback(host: str) -> bool:
    """Whether only this machine reaches a host.

    >>> [is_loopback(host) for host in ("127.0.0.1", "localhost", "::1", "[::1]", "0.0.0.0", "example.org", "")]
    [True, True, True, True, False, False, False]
    """
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return False


def read_token(file: Path | None, variable: str) -> str:
    """A token from a file, or else from the environment; empty where there is neither."""
    if file is None:
        token, source = os.environ.get(variable, "").strip(), variable
        if not token:
            return ""
    else:
        source = str(file)
        try:
            token = file.read_text(encoding="utf-8").strip()
        except (OSError, UnicodeDecodeError):
            raise ConfigError(f"{file} must be a file with a token in it; it cannot be read.") from None
    if len(token) < SHORTEST_TOKEN or not token.isascii() or not token.isprintable() or " " in token:
        raise ConfigError(
            f"A token must have {SHORTEST_TOKEN} or more ASCII characters and no blanks; that of {source} does not.",
            hint="Make one: openssl rand -hex 32",
        )
    return token
