"""Compares the nodes of a job through a folder that all of them can write.

Each node's doctor first leaves its facts there and then reads those of the others. So of two doctors that run at the
same time, at least one sees the other.
"""

from __future__ import annotations

import json
import os
import shlex
import socket
from pathlib import Path

from harness.doctor.checks.cluster import packages
from harness.doctor.facts import Facts
from harness.doctor.outcome import Asked, Outcome, Unseen
from harness.errors import BadInput
from probes import limits
from probes.files import write_whole
from reports import codec


def compare(folder: Path, mine: Facts) -> list[tuple[str, Outcome]]:
    """Compare this node's Python and packages with those of the nodes that wrote their facts before.

    Raises BadInput for a folder that is not there, which each node would make for itself, or cannot be written.
    """
    if not folder.is_dir():
        # A name that a file has is free beside it.
        again = shlex.quote(f"{folder}.nodes" if os.path.lexists(folder) else str(folder))
        raise BadInput(
            f"{folder} is no directory: the nodes share one that is there",
            fix=f"mkdir -p {again}; harness doctor --nodes {again}   # on storage that all nodes see",
        )
    host = socket.gethostname()
    own_file = folder / f"software-{host}.json"
    try:
        write_whole(own_file, codec.dumps(codec.builtins(Facts(host, software=mine.software))).encode())
    except OSError as error:
        raise BadInput(f"{folder} cannot be written: {error.strerror}", fix="--nodes DIR") from error
    peers, outcomes = [], list[tuple[str, Outcome]]()
    for file in sorted({*folder.glob("software-*.json")} - {own_file}):
        try:
            peers.append(Facts.from_dict(json.loads(limits.read_text(file))))
        except (OSError, ValueError) as error:
            outcomes.append((file.name, Unseen(f"it cannot be read: {error}")))
    places = [facts for facts in (mine, *peers) if facts.software is not None]
    return [*outcomes, *packages(places, Asked())] if mine.software is not None and len(places) > 1 else outcomes
