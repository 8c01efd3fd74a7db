"""Comparisons of a bisection that a script plays."""

from __future__ import annotations

import json
from pathlib import Path

import nightly_support as support

# Plays `harness parity A B`: DIVERGENT where all words of one of the causes are in its command line or, as
# NAME=VALUE, in its environment.
PLAYER = """
import json, os, sys
from pathlib import Path
words = sys.argv[2:]
script = json.loads(Path(sys.argv[1]).read_text())
out = Path(words[words.index("--out") + 1])
with open(Path(sys.argv[1]).with_name("played"), "a") as log:
    log.write(json.dumps(words) + chr(10))
if any(set(refused) <= set(words) for refused in script["refused"]):
    from harness import cli
    from harness.errors import BadInput
    sys.exit(cli._tell(BadInput("these cannot be together"), []))
given = {*words, *(f"{name}={value}" for name, value in os.environ.items())}
other = any(set(cause) <= given for cause in script["causes"])
out.mkdir(parents=True)
(out / "verdict.json").write_text(json.dumps(script["other" if other else "equal"]))
"""


def play(folder: Path, *causes: list[str], refused: tuple[list[str], ...] = ()) -> None:
    script = {"causes": causes, "refused": refused, "equal": support.verdict().to_dict(),
              "other": support.verdict("DIVERGENT", "STOP").to_dict()}  # fmt: skip
    (folder / "script.json").write_text(json.dumps(script))
    (folder / "played").unlink(missing_ok=True)
