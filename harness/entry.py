"""The installed command: `harness.cli` with guarded imports, and with an end that native threads cannot spoil."""

from __future__ import annotations

import os
import sys

from harness import exit_cleanup


def main() -> None:
    """Run the command line and exit with its code."""
    for name in ("stdout", "stderr"):
        if getattr(sys, name) is None:  # closed by the caller: `harness ... >&-`
            setattr(sys, name, open(os.devnull, "w"))  # noqa: SIM115
    try:
        from harness.cli import main as run

        code = run()
        sys.stdout.flush()
        sys.stderr.flush()
    except KeyboardInterrupt:  # raised before the command line could catch it
        print("harness: interrupted", file=sys.stderr, flush=True)
        code = 130
    # Threads of Ray's core may still run here, and one was seen to crash while the interpreter shut down. So exit
    # without that: the command is over, its processes are ended, and its output is written.
    exit_cleanup.now()
    os._exit(code)


if __name__ == "__main__":
    main()
