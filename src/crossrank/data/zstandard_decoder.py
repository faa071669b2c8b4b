"""What the process that decompresses zstandard text runs, with a bound on its memory: one endless line would take all.

The first argument is where to find polars, as JSON, the second the file. Lines go to stdout, what is wrong to stderr.
"""

from __future__ import annotations

import json
import signal
import sys

MOST_BYTES = 2 << 30
DAMAGED, NO_TEXT = 3, 4


def main() -> int:
    """Write the lines, without their carriage returns; or how polars refuses the file."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the process that reads
    sys.path[:] = json.loads(sys.argv[1])
    import polars as pl

    if sys.platform != "win32":
        import resource

        resource.setrlimit(resource.RLIMIT_DATA, (MOST_BYTES, resource.getrlimit(resource.RLIMIT_DATA)[1]))
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    try:
        for batch in pl.scan_lines(sys.argv[2], glob=False).collect_batches(chunk_size=1 << 14, maintain_order=True):
            sys.stdout.buffer.write(str(batch.to_series().str.join("\n").item()).encode() + b"\n")
        sys.stdout.buffer.flush()
    except BrokenPipeError:
        return 0
    except (pl.exceptions.ComputeError, OSError) as error:
        print(str(error).strip().splitlines()[0][:500], file=sys.stderr)
        return DAMAGED if isinstance(error, OSError) else NO_TEXT
    return 0


if __name__ == "__main__":
    sys.exit(main())
