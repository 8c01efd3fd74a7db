"""A control: a driver starts the stages of a conversion together and collects them one after the other.

The last ones are done at once and stay uncollected, while the first one reads and writes for three thresholds.
"""

from __future__ import annotations

import argparse
import hashlib
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import torch  # noqa: F401 -- as a converter does: what imports it is watched


def convert(seconds: float) -> None:
    end = time.monotonic() + seconds
    with tempfile.TemporaryDirectory() as folder:
        while time.monotonic() < end:
            shard = os.urandom(1 << 20)
            Path(folder, hashlib.sha256(shard).hexdigest()).write_bytes(shard)
            time.sleep(0.05)


def main() -> None:
    arguments = argparse.ArgumentParser()
    arguments.add_argument("--stall", type=float, default=5.0)
    arguments.add_argument("--convert", type=float, default=-1.0)
    options = arguments.parse_args()
    if options.convert >= 0:
        convert(options.convert)
        return
    seconds = (3 * options.stall, 0.0, 0.0)
    stages = [subprocess.Popen([sys.executable, __file__, "--convert", str(each)]) for each in seconds]
    sys.exit(max(stage.wait() for stage in stages))


if __name__ == "__main__":
    main()
