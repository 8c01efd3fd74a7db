"""OpenRLHF's PPO on a Ray cluster of two nodes that was there before: every worker of the job is recorded, no other."""

from __future__ import annotations

import json
import os
import subprocess
import textwrap
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from framework_jobs import (
    LIMIT_S,
    assert_hooks,
    assert_tokens_agree,
    finished,
    interpreter,
    openrlhf_command,
    record,
)
from ray_clusters import Cluster, two_nodes

from harness.parity.verdict import judge
from probes.format import Run

pytestmark = pytest.mark.timeout(3 * LIMIT_S)
STEPS, PROMPTS = 2, 8
ACTORS = {"trainer", "actor", "critic", "reference", "reward", "rollout"}
# A job of somebody else: an actor on each node that imports what the probes wait for. It says their process ids.
OTHER = """
import ray
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

@ray.remote(num_cpus=0.1)
class Other:
    def pid(self):
        import os
        import openrlhf, torch.distributed
        return os.getpid()

ray.init(runtime_env={"env_vars": {"OTHER": "1"}}, log_to_driver=False)
nodes = [one["NodeID"] for one in ray.nodes() if one["Alive"]]
actors = [Other.options(scheduling_strategy=NodeAffinitySchedulingStrategy(one, soft=False)).remote() for one in nodes]
print("others", *ray.get([one.pid.remote() for one in actors]), flush=True)
input()
"""
# A job of which one actor runs on each node for some seconds, and imports the framework.
SMALL = OTHER.replace("log_to_driver=False", "").replace(
    "        return os", "        import time; time.sleep(8)\n        return os"
)


@contextmanager
def others(cluster: Cluster, python: str) -> Iterator[set[int]]:
    """Another driver's actors, one on each node, while this lasts."""
    words = [python, "-c", OTHER]
    with subprocess.Popen(
        words, env=cluster.environ, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as driver:
        assert driver.stdout is not None
        try:
            found = next(line.split()[1:] for line in driver.stdout if line.startswith("others"))
            yield {int(pid) for pid in found}
        finally:
            driver.kill()


@pytest.fixture(scope="module")
def recording(recordings: Path) -> Run:
    """The recording of the job; which raylets and which other actors there were lies beside it."""
    python, beside = interpreter("openrlhf"), recordings / "openrlhf-cluster.json"
    if not beside.exists():
        with two_nodes(python) as cluster, others(cluster, python) as pids:
            command = openrlhf_command(recordings, "openrlhf-cluster-job")
            record(recordings, "openrlhf-cluster", "openrlhf", command, cluster.environ)
            beside.write_text(json.dumps({"raylets": cluster.raylets, "others": sorted(pids)}))
    return Run(recordings / "openrlhf-cluster", strict=False)


def test_the_workers_of_both_nodes_are_recorded_whole(recordings: Path, recording: Run) -> None:
    there = json.loads((recordings / "openrlhf-cluster.json").read_text())
    opened = [one for one in recording.events("open") if one["role"] in ACTORS]
    assert {one["role"] for one in opened} == ACTORS
    assert {one["ppid"] for one in opened} == set(there["raylets"])
    assert_hooks(recording)
    assert recording.incomplete == []
    assert_tokens_agree(recording, STEPS, PROMPTS)
    versions = [(event["source"], event["version"]) for event in recording.events("weights")]
    assert versions == [("learner", 0), ("learner", 1), ("learner", 2), ("received", 1), ("received", 2)]


def test_nothing_of_another_driver_is_recorded(recordings: Path, recording: Run) -> None:
    there = json.loads((recordings / "openrlhf-cluster.json").read_text())
    assert len(there["others"]) == 2
    assert not {one["pid"] for one in recording.events("open")} & set(there["others"])
    beats = {json.loads(path.read_bytes())["pid"] for path in (recording.path / "beats").glob("[0-9]*.json")}
    assert beats and not beats & set(there["others"])


def test_it_is_no_second_run_of_itself(recording: Run) -> None:
    verdict = judge(recording, recording)
    assert verdict.verdict == "INCONCLUSIVE" and "the same recording twice" in verdict.account


def test_a_hang_on_two_nodes_names_the_engine_and_both_nodes_workers_wait(recordings: Path) -> None:
    folder, python = recordings / "hang-cluster", interpreter("openrlhf")
    if not (folder / "verdict.json").exists():
        with two_nodes(python, plant="engine-stops") as cluster:
            command = openrlhf_command(recordings, "hang-cluster-job")
            words = ["watch", "--stall", "30s", "--on-stall", "end", "--out", str(folder), "--", *command]
            code, said = finished(words, cluster.environ)
            (recordings / "hang-cluster.log").write_text(said)
            assert code == 86, said[-4000:]
            for raylet in cluster.raylets:  # the job is ended, and the cluster is not its own
                os.kill(raylet, 0)
    verdict = json.loads((folder / "verdict.json").read_text())
    [culprit] = verdict["triage"]["culprits"]
    assert verdict["verdict"] == "HUNG" and (culprit["engine"], culprit["role"]) == ("vllm", "VLLM_Worker")
    waiting = {one["role"] for one in verdict["triage"]["victims"]}
    assert waiting == {"driver", "trainer", "actor", "rollout", "VLLM_EngineCore"}


def test_a_node_that_does_not_share_the_recording_says_so(tmp_path: Path) -> None:
    python, folder = interpreter("openrlhf"), tmp_path / "run"
    folder.mkdir()
    # A mount of its own is the other node's disk; sh, since what follows it are the words of `ray start`.
    own = ["unshare", "-m", "sh", "-c", f'mount -t tmpfs none "{folder}" && exec "$@"', "sh"]
    if subprocess.run([*own, "true"], capture_output=True, check=False).returncode:
        pytest.skip("no mounts of its own for a process here")
    script = tmp_path / "small.py"
    script.write_text(textwrap.dedent(SMALL).replace("input()\n", ""))
    with two_nodes(python, second=own) as cluster:
        words = ["record", "--framework", "openrlhf", "--out", str(folder), "--", python, str(script)]
        code, said = finished(words, cluster.environ)
    assert code == 0, said[-4000:]
    # Both nodes' monitors read the one folder of logs here, so a line may come twice.
    told = {line for line in said.splitlines() if f"stays in its own {folder}, which is not the job's" in line}
    assert len(told) == 1 and "the recording has to lie on a disk that every node shares" in told.pop(), said[-4000:]
