"""Run one command under the watchdog in a process of its own, because `watch` sets signal handlers in the main
thread.

    python -m harness.planted.hangs.trial SPEC.json

The specification has `command`, `stall_s`, `out` and `result`. The file `result` gets `exit_code`, `seconds` (from
the last progress to the verdict, null without a stall), `verdict` and `evidence`.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

from harness.triage.watch import Stall, watch
from harness.triage.watch.watchdog import Watchdog
from probes.files import write_whole


class LookedAt(Watchdog):
    """A watchdog that keeps the verdict of its look even where the program then ends well, as the lab's programs do."""

    def over(self, exit_code: int) -> None:
        pass


def main(spec: Path) -> int:
    """Run the command of `spec`. It is ended at its first stall."""
    request: dict[str, Any] = json.loads(spec.read_text(encoding="utf-8"))
    stalls: list[Stall] = []
    result = watch(
        request["command"], stall_s=request["stall_s"], out=Path(request["out"]), on_stall="end", show=stalls.append,
        watchdog=LookedAt,
        say=lambda line: print(f"watch: {line}", file=sys.stderr, flush=True),
    )  # fmt: skip
    answer = {
        "exit_code": result.exit_code,
        "seconds": stalls[0].seconds if stalls else None,
        "verdict": result.verdict.to_dict() if result.verdict else None,
        "evidence": str(stalls[0].evidence) if stalls else "",
    }
    write_whole(request["result"], json.dumps(answer).encode())
    return 0


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1])))
