"""Cost of judging two recordings: linear in their tokens and events.

Prints seconds, processor seconds and peak memory of one judgement in a process of its own. By hand, for figures:
`python tests/benchmarks/test_diff_scale.py 10000000 1000000`.
"""

from __future__ import annotations

import dataclasses
import json
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "tests" / "unit"))

import recordings  # noqa: E402

PROMPTS, GROUP, LONGEST = 500, 4, 64
JUDGE = """
import json, resource, sys, time
import harness.parity.verdict as judge  # before the clock
wall, cpu = time.perf_counter(), time.process_time()
verdict = judge.judge(sys.argv[1] + "/baseline", sys.argv[1] + "/candidate")
print(json.dumps({"verdict": verdict.verdict, "reason": verdict.reason, "tokens": verdict.coverage["compared_tokens"],
                  "seconds": time.perf_counter() - wall, "cpu_seconds": time.process_time() - cpu,
                  "peak_MiB": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024}))
"""


def write_pair(folder: Path, tokens: int, events: int) -> None:
    """Two equal runs of about so many tokens and events each; the steps repeat each other's tokens."""
    one = recordings.scenario(steps=1, prompts=PROMPTS, group=GROUP, max_tokens=LONGEST)
    truth = recordings.Step.of(one, 0)
    steps = max(1, round(tokens / len(truth.logprob)))
    plan = dataclasses.replace(one, steps=steps)

    def repeated(plan: object, step: int, *, other: bool = False) -> recordings.Step:
        return dataclasses.replace(truth, step=step, sample=truth.sample + step * len(truth.sample))

    original, recordings.Step.of = recordings.Step.of, staticmethod(repeated)  # type: ignore[method-assign]
    try:
        for side in ("baseline", "candidate"):
            # The generator of the learner's other numbers is shared: both sides must see the same ones.
            truth.rng = recordings.np.random.default_rng(1)
            run = recordings.make(side, plan)
            actor = run.logs["actor"]
            spans = events - sum(len(log.events) for log in run.logs.values())
            for i in range(max(0, spans)):
                actor.event("span", name="actor_forward", start_ns=i * 1000, dur_ns=1_234_567, ok=True, step=i % steps)
            run.write(folder / side)
    finally:
        recordings.Step.of = original  # type: ignore[method-assign]


def judged(folder: Path) -> dict[str, float]:
    command = [sys.executable, "-c", JUDGE, str(folder)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True)
    found: dict[str, float] = json.loads(done.stdout.splitlines()[-1])
    return found


@pytest.mark.benchmark
def test_judging_is_linear_in_tokens(tmp_path: Path) -> None:
    figures = {}
    for tokens in (500_000, 1_000_000):
        folder = tmp_path / str(tokens)
        write_pair(folder, tokens, tokens // 10)
        figures[tokens] = min((judged(folder) for _ in range(2)), key=lambda one: one["cpu_seconds"])
        print(f"\n{tokens} tokens: {figures[tokens]}")
        assert figures[tokens]["verdict"] == "EQUIVALENT", figures[tokens]
    once, twice = (figures[tokens]["cpu_seconds"] for tokens in (500_000, 1_000_000))
    assert twice <= 3 * once
    assert figures[1_000_000]["peak_MiB"] <= 2 * figures[500_000]["peak_MiB"]


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as name:
        write_pair(Path(name), int(sys.argv[1]), int(sys.argv[2]))
        print(judged(Path(name)))
