"""A recording as Parquet holds every event and every response token."""

from __future__ import annotations

import json
from pathlib import Path

import pandas as pd
from recordings import make, scenario

from harness.recordings.compact import compact
from probes.format import Run


def test_parquet_holds_what_was_recorded(tmp_path: Path) -> None:
    path = make("candidate", scenario(steps=2, prompts=2, group=2)).write(tmp_path / "run")
    events, tokens = (pd.read_parquet(file) for file in compact(path))
    recorded = list(Run(path).events())
    assert len(events) == len(recorded)
    assert sorted(events["kind"]) == sorted(event["kind"] for event in recorded)
    line = events[events["kind"] == "sync"].iloc[0]
    assert json.loads(line["event"])["version"] == 0 and line["role"] == "trainer"
    rollout = tokens[(tokens["kind"] == "rollout") & (tokens["step"] == 1)]
    frame = next(Run(path).frames("rollout", step=1))
    rows = dict(zip(frame.arrays["sample"].tolist(), frame.arrays["output"].rows(), strict=True))
    assert {sample: list(group["token"]) for sample, group in rollout.groupby("sample")} == rows
    assert rollout["actor_logprob"].isna().all() and rollout["logprob"].notna().all()
    assert set(tokens["kind"]) == {"rollout", "experience", "floor", "native"}
    assert set(tokens["variant"].dropna()) == {"base", "batch", "order", "prefill"}
    assert not list(path.glob("*.part"))


def test_a_torn_recording_is_compacted_as_far_as_it_reaches(tmp_path: Path) -> None:
    path = make("candidate", scenario(steps=2, prompts=2, group=2), native=False).write(tmp_path / "run")
    file = next((path / "tokens").glob("rollout*"))
    file.write_bytes(file.read_bytes()[:-40])
    _, tokens = compact(path)
    assert set(pd.read_parquet(tokens)["kind"]) == {"rollout", "experience", "floor"}
