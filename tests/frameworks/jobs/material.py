"""What the frameworks' jobs train on: the built-in policy, and questions of its grammar in each one's format.

python tests/frameworks/jobs/material.py DIR
"""

from __future__ import annotations

import json
import random
import shutil
import sys
from pathlib import Path

import pandas

from harness.envs import home
from scenarios.models import build, build_reward, grammar

ROWS = 32


def prepare(directory: Path, *, seed: int = 0) -> Path:
    """Write model/, reward/, prompts.parquet (verl) and prompts.jsonl (OpenRLHF) there."""
    directory.mkdir(parents=True, exist_ok=True)
    for name, make in (("model", build), ("reward", build_reward)):
        if not (directory / name).exists():
            shutil.copytree(make(seed, home.directory("models")), directory / name)
    rng = random.Random(seed)
    chats = [grammar.messages(rng) for _ in range(ROWS)]
    pandas.DataFrame(
        {
            "data_source": "grammar",
            "prompt": chats,
            "ability": "talk",
            "reward_model": [{"style": "rule", "ground_truth": ""} for _ in chats],
            "extra_info": [{"index": row, "split": "train"} for row in range(ROWS)],
        }
    ).to_parquet(directory / "prompts.parquet")
    lines = (json.dumps({"input": chat}) for chat in chats)
    (directory / "prompts.jsonl").write_text("\n".join(lines) + "\n", encoding="utf-8")
    return directory


if __name__ == "__main__":
    print(prepare(Path(sys.argv[1]).absolute()))
