"""Several engines in one run, for real: one engine against two, learners of two ranks, one engine that dies; and
engines of several processes."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest
from test_run_failures import family, gone, start, until

from harness.recordings.store import Recording
from reports.model import Verdict
from scenarios.engines.engine_processes import title
from scenarios.fleet import engine_of

pytestmark = pytest.mark.timeout(1200)

HARNESS = Path(sys.executable).with_name("harness")


def compared(out: Path, *arguments: str, pair: tuple[str, str] = ("hf", "hf")) -> Verdict:
    command = [str(HARNESS), "parity", *pair, "--steps", "2", "--no-native", "--out", str(out), *arguments]
    done = subprocess.run(command, capture_output=True, text=True, timeout=900)
    assert done.returncode == 0, done.stdout + done.stderr
    return Verdict.from_dict(json.loads((out / "verdict.json").read_text()))


@pytest.mark.night
def test_one_engine_draws_and_trains_as_two_do(tmp_path: Path) -> None:
    out = tmp_path / "pair"
    verdict = compared(out, "--set", "ppo.world_size=2", "--candidate-set", "engine.engines=2")
    assert verdict.verdict == "EQUIVALENT", verdict.reason
    candidate = Recording(out / "candidate")
    assert candidate.ranks("rollout") == {0, 1} and Recording(out / "baseline").ranks("rollout") == {0}
    for step in range(2):
        table = candidate.table("rollout", step)
        assert table is not None
        by_rule = [engine_of(sample, candidate.scenario["rollout"]["samples_per_prompt"], 2) for sample in table.sample]
        assert table.rank.tolist() == by_rule and len(set(table.sample.tolist())) == len(table.sample) == 32
    arrived = {event["rank"] for event in candidate.all("weights") if event["source"] == "received"}
    assert arrived == {0, 1}  # each says what it received
    syncs = candidate.all("sync")
    assert syncs and all(event["ok"] and event["proof_engine"] in (0, 1) for event in syncs)


@pytest.mark.night
@pytest.mark.parametrize(
    ("how", "line", "said"),  # the last line, or the one before its fix
    [(signal.SIGKILL, -1, ["died"]), (signal.SIGSTOP, -2, ["hung: rollout-1 (", ": stopped (SIGSTOP)"])],
    ids=["dies", "hangs"],
)
def test_one_of_two_engines_that_dies_or_hangs_ends_the_run(
    tmp_path: Path, how: signal.Signals, line: int, said: list[str]
) -> None:
    process = start(tmp_path / "run", "--backend", "hf", "--set", "engine.engines=2", "--stall", "8s")
    until(process, "step 0 ")
    journal = next((tmp_path / "run" / "events").glob("rollout-1-*.jsonl"))
    processes = family(process)
    os.kill(int(journal.stem.rpartition("-")[2]), how)
    output, _ = process.communicate(timeout=300)
    assert process.returncode == 3, output
    assert all(words in output.strip().splitlines()[line] for words in said), output
    assert gone(processes) == []


@pytest.mark.night
@pytest.mark.engines
def test_engines_of_two_tensor_parallel_ranks_are_equivalent(tmp_path: Path) -> None:
    verdict = compared(tmp_path / "pair", "--set", "engine.tensor_parallel=2", pair=("vllm", "sglang"))
    assert verdict.verdict == "EQUIVALENT", verdict.reason
    for side in ("baseline", "candidate"):
        [told] = Recording(tmp_path / "pair" / side).all("engine_info")
        assert told["canonical"]["tensor_parallel"] == 2


ROUTER = ("--set", "engine.engines=2", "--set", "engine.router=round_robin")


@pytest.mark.night
@pytest.mark.engines
def test_engines_behind_a_router_draw_as_those_of_a_rule_do(tmp_path: Path) -> None:
    out = tmp_path / "pair"
    verdict = compared(out, *ROUTER[:2], "--candidate-set", ROUTER[3], pair=("sglang", "sglang"))
    assert verdict.verdict == "EQUIVALENT", verdict.reason
    told = Counter((event["rank"], event["offset"]) for event in Recording(out / "candidate").all("answered"))
    assert told == {(0, 0): 32, (1, 0): 32} and not Recording(out / "baseline").all("answered")


@pytest.mark.night
@pytest.mark.engines
@pytest.mark.parametrize("what", ["the router", "the run"])
def test_a_router_that_dies_ends_the_run_and_a_run_that_is_killed_ends_its_router(tmp_path: Path, what: str) -> None:
    process = start(tmp_path / "run", "--backend", "sglang", *ROUTER)
    until(process, "step 0 ")
    processes = [one for one in family(process) if what == "the router" or "sglang::" in title(one.pid)]
    [router] = [one for one in processes if title(one.pid).startswith("sglang::router")]
    (router if what == "the router" else process).kill()
    output, _ = process.communicate(timeout=300)
    if what == "the router":
        assert process.returncode == 3, output
        assert re.search(r"sglang: engine process \d+ died \(sglang::router\): killed by signal 9", output), output
    assert gone(processes) == []
