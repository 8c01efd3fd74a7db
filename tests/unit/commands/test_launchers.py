"""The launchers of jobs: a script is bash, hands the user's words on as they are, refuses what it cannot run, and ends
with the right exit code."""

from __future__ import annotations

import json
import math
import os
import resource
import shlex
import signal
import subprocess
import sys
from pathlib import Path

import jsonschema
import pytest
import yaml
from hypothesis import example, given
from hypothesis import strategies as st
from interpreters import environment
from waiting import until

from harness import cli
from harness.launchers import WRITTEN_BY, dstack, kuberay, skypilot, slurm
from probes.files import FILE_MODE
from reports.model import Verdict

FIXTURES = Path(__file__).parents[2] / "fixtures"
CHECKED = {"kuberay": kuberay.CHECKED, "dstack": dstack.CHECKED, "skypilot": skypilot.CHECKED}

# A harness and a torchrun that do nothing but start what they are given, and a command that keeps its words.
PROGRAMS = {
    "harness": """
        echo "$1" >> "$DONE/harness"
        [ "$1" = watch ] && echo "$*" > "$DONE/watch"
        [ "$1" = doctor ] && sleep "${DOCTOR_S:-0}"
        [ "$1" = doctor ] && { [ "${REFUSED:-none}" = "${NODE_RANK:-}" ] || exit 0; echo "no gloo here"; exit 1; }
        [ "$1" = triage ] && { [ -e "$DONE/ends-inside" ] || exit 0
            touch "$DONE/end"; while kill -0 "$(cat "$DONE/up")" 2> /dev/null; do sleep 0.05; done; exit 0; }
        while [ "$1" != -- ]; do shift; done; shift; exec "$@" """,
    "torchrun": """
        printf "%s\\n" "$@" > "$DONE/torchrun"
        while [ "$1" != --no-python ]; do shift; done; shift; exec "$@" """,
    "ray": """
        [ "$1" = health-check ] && exec test -e "$DONE/ray" -a -z "${SILENT:-}"
        [ "$1" = start ] && echo "$*" >> "$DONE/ray" && exec sleep "${RAY_S:-60}"
        echo "$*" >> "$DONE/ray"
        while [ "$1" != -- ]; do shift; done; shift; RAY_ADDRESS=here:1 "$@" || exit 1 """,
    "python": """
        [ "$1" = - ] && { [ "${ASKED:-0}" = 0 ] && echo "${CODE:-}"; exit "${ASKED:-0}"; } # how a Ray job ended
        [ "$1" = -c ] && echo 10.0.0.1 # where Ray is, and that all nodes have joined it""",
    "scontrol": "echo here",
    "srun": 'echo "$*" >> "$DONE/srun"; while [ "$1" != bash ]; do shift; done; SLURMD_NODENAME=here exec "$@"',
    "keep": 'printf "%s\\0" "$@" > "$DONE/words"; exit "${CODE:-0}"',
}


@pytest.fixture(scope="module")
def programs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("programs")
    for name, text in PROGRAMS.items():
        (folder / name).write_text(f"#!/bin/bash\n{text}\n")
        (folder / name).chmod(0o755)
    return folder


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HARNESS_SOURCE", ".")
    return tmp_path


def run(script: Path, programs: Path, done: Path, **environ: str) -> tuple[int, str]:
    """(exit code, stderr) of a rendered script in `done`."""
    done.mkdir(parents=True, exist_ok=True)
    variables = {"PATH": f"{programs}:{os.environ['PATH']}", "DONE": str(done), **environ}
    with (done / "log").open("w") as log:  # a pipe would stay open as long as the last sleep below
        code = subprocess.run(["bash", script], cwd=done, env=variables, stdout=log, stderr=log, timeout=600).returncode
    return code, (done / "log").read_text()


WORDS = st.lists(st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0"), max_size=12), max_size=4)


SHELL = '$HOME|`id`|$(id)|it\'s|a "b"|a\nb||*|~|\\|!!|{1..3}|-|--|#x|;&<>'


# What a scheduler says to a script.
SAID = {
    "torchrun": {},
    "ray-job": {},
    "github-job": {"GITHUB_RUN_ID": "7"},
    "kuberay": {"RAY_ADDRESS": "here:1"},
    "dstack": {"DSTACK_RUN_NAME": "x"},
    "slurm": {"SLURM_JOB_ID": "7", "SLURM_JOB_NUM_NODES": "1", "SLURM_JOB_NODELIST": "here", "SLURM_SUBMIT_DIR": ".",
              "SLURM_NODEID": "0", "SLURM_CPUS_ON_NODE": "2", "SLURMD_NODENAME": "here"},
    "skypilot": {"SKYPILOT_TASK_ID": "sky-1_x:y", "SKYPILOT_NODE_IPS": "10.0.0.1\n10.0.0.2"},
}  # fmt: skip


def rendered(launcher: str, folder: Path, *words: str) -> Path:
    """The script of a launcher, what it leaves below `folder`."""
    options = {
        "ray-job": ["--results", str(folder)],
        "kuberay": ["--image", "ray:1"],
        "github-job": ["--source", "."],  # where this harness is installed from is not what is tested
    }.get(launcher, [])
    assert cli.main(["render", launcher, *options, "--out", str(folder), "--recreate", *words]) == 0
    if launcher != "kuberay":
        return next(folder.glob("*.sbatch" if launcher == "slurm" else f"*.{launcher}.sh"))
    _, config = yaml.safe_load_all(next(folder.glob("*.yaml")).read_text())
    script = folder / "job.sh"
    script.write_text(config["data"]["job.sh"].replace("SHARED=/tmp\n", f"SHARED={folder}\n"))
    return script


@pytest.mark.by_day(1)
@pytest.mark.slow
@pytest.mark.parametrize("launcher", SAID)
@given(words=WORDS)
@example(words=SHELL.split("|"))
def test_the_words_of_a_command_arrive_as_they_were_given(
    launcher: str, words: list[str], programs: Path, tmp_path_factory: pytest.TempPathFactory
) -> None:
    folder = tmp_path_factory.mktemp("words")
    assert run(rendered(launcher, folder, "--", "keep", *words), programs, folder / "done", **SAID[launcher])[0] == 0
    assert (folder / "done" / "words").read_bytes().decode().split("\0")[:-1] == (words or [""])


@pytest.mark.slow
@pytest.mark.parametrize("launcher", [name for name, variables in SAID.items() if variables])
def test_a_script_that_its_scheduler_does_not_run_says_so(launcher: str, folder: Path, programs: Path) -> None:
    code, log = run(rendered(launcher, folder, "--", "keep"), programs, folder / "done")
    assert code == 2 and "runs this script; fix: " in log and not (folder / "done" / "words").exists()


@pytest.mark.parametrize("launcher", ["dstack", "skypilot"])
def test_variables_of_a_job_are_replaced_on_its_node(launcher: str, folder: Path, programs: Path) -> None:
    script = rendered(launcher, folder, "--", "keep", "$NODE_RANK", "a=${MASTER_PORT}", "$NODE_RANKS", "$HOME")
    assert run(script, programs, folder / "done", **SAID[launcher])[0] == 0
    assert (folder / "done" / "words").read_text().split("\0")[:-1] == ["0", "a=29500", "$NODE_RANKS", "$HOME"]


@pytest.mark.slow
@pytest.mark.parametrize("launcher", ["dstack", "skypilot", "slurm"])
def test_ray_is_started_before_the_command_and_ends_with_it(launcher: str, folder: Path, programs: Path) -> None:
    script = rendered(launcher, folder, "--ray", "--setup", "echo one; echo two # it's loud", "--", "keep")
    assert run(script, programs, folder / "done", **SAID[launcher], CODE="7")[0] == 7
    address = "127.0.0.1" if launcher == "dstack" else "10.0.0.1"
    port = 6407 if launcher == "slurm" else 6379
    assert f"--head --port {port} --node-ip-address {address} " in (folder / "done" / "ray").read_text()


def test_ray_has_a_port_that_is_not_one_of_its_own(folder: Path) -> None:
    lines = rendered("slurm", folder, "--ray", "--", "keep").read_text().splitlines()
    line = [one for one in lines if one.startswith("RAY_PORT=")][-1]
    loop = f"for SLURM_JOB_ID in {{1..20000..7}}; do {line}; echo $RAY_PORT; done"
    ports = set(map(int, subprocess.run(["bash", "-c", loop], capture_output=True, check=True).stdout.split()))
    assert len(ports) > 1000 and min(ports) > 1024 and max(ports) < 8265


@pytest.mark.slow
@pytest.mark.parametrize("launcher", ["dstack", "slurm"])
def test_ray_that_does_not_start_is_not_awaited(launcher: str, folder: Path, programs: Path) -> None:
    script = rendered(launcher, folder, "--ray", "--", "keep")
    code, log = run(script, programs, folder / "done", **SAID[launcher], SILENT="1", RAY_S="0")
    assert code == 1 and "Ray" in log and not (folder / "done" / "words").exists()


@pytest.mark.slow
def test_a_job_is_ended_while_it_waits_for_ray(folder: Path, programs: Path) -> None:
    script = rendered("dstack", folder, "--ray", "--", "keep")
    environ = {"PATH": f"{programs}:{os.environ['PATH']}", "DONE": str(folder), **SAID["dstack"], "SILENT": "1"}
    with (folder / "log").open("w") as log:
        job = subprocess.Popen(["bash", script], cwd=folder, env=environ, stdout=log, stderr=log)
    until(lambda: (folder / "ray").exists())
    job.terminate()
    assert job.wait(600) == 143 and not (folder / "words").exists()


MANIFEST = {
    "kuberay": "",
    "dstack": "type: task\nname: mine\nimage: ray:1\nresources: {gpu: 'H100:8'}\nfiles: ['./data:/data']\n",
    "skypilot": "name: mine\nworkdir: ../code\nresources: {accelerators: 'H100:8'}\nenvs: {A: b}\n",
}


def manifest(launcher: str, folder: Path, *options: str) -> Path:
    (folder / "own.yaml").write_text(MANIFEST[launcher])
    assert cli.main(["render", launcher, "--nodes", "2", "--time", "2h", *options, "--", "python", "train.py"]) == 0
    path = next(folder.glob(f"python.{launcher}.y*ml"))
    assert f"# Validated against the schema of {CHECKED[launcher]}, not run.\n" in path.read_text()
    return path


@pytest.mark.slow
def test_a_ray_job_of_kuberay_fits_its_custom_resource(folder: Path) -> None:
    path = manifest("kuberay", folder, "--image", "ray:1", "--gpus", "8", "--claim", "runs")
    job, config = yaml.safe_load_all(path.read_text())
    jsonschema.validate(job, json.loads((FIXTURES / "kuberay-rayjob-1.7.0.json").read_text()))
    assert job["spec"]["activeDeadlineSeconds"] - job["spec"]["preRunningDeadlineSeconds"] == 7200
    assert config["metadata"]["name"] == job["metadata"]["name"] == "python"
    job["spec"]["rayClusterSpec"]["headGroupSpec"]["tmplate"] = {}
    with pytest.raises(jsonschema.ValidationError, match="tmplate"):
        jsonschema.validate(job, json.loads((FIXTURES / "kuberay-rayjob-1.7.0.json").read_text()))


@pytest.mark.slow
def test_a_ray_job_of_one_s_own_keeps_its_cluster(folder: Path) -> None:
    path = manifest("kuberay", folder, "--image", "ray:1")
    job, _ = yaml.safe_load_all(path.read_text())
    job["metadata"] = {"name": "mine", "namespace": "team"}
    (folder / "mine.yaml").write_text(yaml.safe_dump(job))
    assert cli.main(["render", "kuberay", "--base", "mine.yaml", "--name", "two", "--", "python"]) == 0
    job, config = yaml.safe_load_all((folder / "two.kuberay.yaml").read_text())
    assert job["metadata"] == {"name": "mine", "namespace": "team"} and config["metadata"]["namespace"] == "team"
    assert job["spec"]["rayClusterSpec"]["workerGroupSpecs"][0]["replicas"] == 1


@pytest.mark.slow
@pytest.mark.parametrize(
    ("launcher", "text", "message"),
    [
        ("kuberay", "spec: x", "own.yaml: spec is a str, not a dict"),
        ("kuberay", "spec: {rayClusterSpec: {headGroupSpec: {}}}", "own.yaml has no pod with a container"),
        ("dstack", "files: x", "own.yaml: files is a str, not a list"),
        ("dstack", "a: [", "own.yaml cannot be read as a manifest"),
        ("skypilot", "resources: [x]", "own.yaml: resources is a list, not a dict"),
    ],
)
def test_a_manifest_that_is_none_is_refused(
    folder: Path, launcher: str, text: str, message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    (folder / "own.yaml").write_text(text)
    assert cli.main(["render", launcher, "--base", "own.yaml", "--", "x"]) == 2
    assert message in " ".join(capsys.readouterr().err.split()) and len(list(folder.iterdir())) == 1


# What the launcher's own package reads in a manifest, whose path is the first argument.
READERS = {
    "dstack": """
import json, sys, yaml
from dstack._internal.core.models.configurations import parse_apply_configuration
task = parse_apply_configuration(yaml.safe_load(open(sys.argv[1])))
print(json.dumps([task.nodes, task.max_duration, task.image, [file.path for file in task.files], list(task.env)]))""",
    "skypilot": """
import json, sys, sky
task = sky.Task.from_yaml(sys.argv[1])
[one] = task.resources
mounts, secrets = sorted(task.file_mounts), [secret.name for secret in task.managed_secret_refs]
print(json.dumps([task.num_nodes, one.autostop_config.idle_minutes, one.accelerators, mounts, secrets]))""",
}
READ = {
    "dstack": [2, 7200, "ray:1", ["/data", "/tmp/python.dstack.sh"], ["RLHF_HARNESS_TOKEN"]],
    "skypilot": [2, 10, {"H100": 8}, ["~/python.skypilot.sh"], ["RLHF_HARNESS_TOKEN"]],
}


@pytest.mark.night
@pytest.mark.parametrize("launcher", READERS)
def test_a_manifest_is_read_by_its_launcher(
    launcher: str, folder: Path, tmp_path_factory: pytest.TempPathFactory
) -> None:
    """In an environment of its own, with that package alone."""
    home = tmp_path_factory.mktemp("home")
    interpreter = environment(home / "env", sys.executable, CHECKED[launcher].replace(" ", "=="))
    path = manifest(launcher, folder, "--base", "own.yaml", *(["--autostop", "10"] if launcher == "skypilot" else []))

    def read() -> subprocess.CompletedProcess[str]:
        command = [interpreter, "-c", READERS[launcher], path]
        return subprocess.run(
            command, cwd=folder, env={**os.environ, "HOME": str(home)}, capture_output=True, text=True
        )

    done = read()
    assert json.loads(done.stdout.splitlines()[-1]) == READ[launcher], done.stderr
    path.write_text(path.read_text() + "unheard_of: 1\n")
    assert "unheard_of" in read().stderr


@pytest.mark.slow
@given(words=WORDS)
@example(words=SHELL.split("|"))
def test_a_script_names_the_command_that_writes_it_again(
    words: list[str], programs: Path, tmp_path_factory: pytest.TempPathFactory
) -> None:
    folder = tmp_path_factory.mktemp("again")
    script = rendered("torchrun", folder, "--time", "2h", "--", "keep", *words)
    (folder / "again").write_text("keep" + script.read_text().split("\n")[2].removeprefix("# harness render"))
    assert run(folder / "again", programs, folder)[0] == 0
    assert (folder / "words").read_bytes().decode().split("\0")[:-1] == ["torchrun", "--time=2h", "--", "keep", *words]


def test_the_exit_code_is_the_command_s(folder: Path, programs: Path) -> None:
    assert cli.main(["render", "torchrun", "--nproc-per-node", "2", "--time", "2h", "--", "keep"]) == 0
    assert run(folder / "keep.torchrun.sh", programs, folder / "done", CODE="7")[0] == 7
    asked = (folder / "done" / "torchrun").read_text().split()
    assert asked == ["--nnodes", "1", "--nproc-per-node", "2", "--standalone", "--no-python", "keep"]


def test_a_ray_job_is_submitted_with_its_folder_and_what_was_asked(folder: Path, programs: Path) -> None:
    options = ["--results", str(folder / "kept"), "--submit=--entrypoint-num-cpus=1", "--doctor=--strict"]
    assert cli.main(["render", "ray-job", *options, "--address", "http://head:8265", "--", "keep"]) == 0
    text = (folder / "keep.ray-job.sh").read_text()
    assert "ADDRESS=http://head:8265\n" in text and "--working-dir . --entrypoint-num-cpus=1 -- \\\n" in text
    assert 'harness doctor --nodes "$HARNESS_OUT" --address "$RAY_ADDRESS" --strict >' in text
    code, log = run(folder / "keep.ray-job.sh", programs, folder / "done", RUN_ID="x", CODE="7")
    assert code == 7 and "no Ray cluster" not in log
    assert (folder / "kept" / "harness-x" / "doctor-node-0.txt").exists()


def test_a_ray_job_has_its_own_exit_code_where_ray_is_a_link(folder: Path, programs: Path) -> None:
    script = rendered("ray-job", folder, "--", "keep")
    (folder / "links").mkdir()
    (folder / "links" / "ray").symlink_to(programs / "ray")
    path = f"{folder / 'links'}:{programs}:{os.environ['PATH']}"
    code, log = run(script, programs, folder / "done", CODE="7", PATH=path)
    assert code == 7 and "no Ray cluster" not in log


@pytest.mark.parametrize(("asked", "said"), [("3", True), ("1", False)])
def test_only_a_cluster_that_does_not_answer_is_called_that(
    folder: Path, programs: Path, asked: str, said: bool
) -> None:
    script = rendered("ray-job", folder, "--address", "http://head:8265", "--", "keep")
    code, log = run(script, programs, folder / "done", CODE="7", ASKED=asked)
    sentence = "harness: no Ray cluster answers at http://head:8265; fix: ray start --head"
    assert code == 1 and log.startswith(sentence) == said
    assert (folder / "done" / "ray").exists() != said  # whose traceback of a hundred lines would hide the sentence


@pytest.mark.parametrize("address", ["ray://head:10001", "auto", "head:8265"])
def test_an_address_of_another_client_of_ray_is_refused(
    folder: Path, capsys: pytest.CaptureFixture[str], address: str
) -> None:
    assert cli.main(["render", "ray-job", "--address", address, "--", "keep"]) == 2
    assert "fix: harness render ray-job --address http://HEAD:8265 -- keep" in capsys.readouterr().err
    assert not (folder / "keep.ray-job.sh").exists()


def test_a_node_whose_environment_is_not_active_is_told_the_option(folder: Path, programs: Path) -> None:
    assert cli.main(["render", "torchrun", "--", "keep"]) == 0
    code, log = run(folder / "keep.torchrun.sh", programs, folder / "done", RUN_ID="x", PATH="/usr/bin:/bin")
    assert code == 1 and "node-0" in log and "--setup 'source" in log, log


def test_a_ray_job_without_ray_is_refused(folder: Path, programs: Path) -> None:
    assert cli.main(["render", "ray-job", "--", "keep"]) == 0
    code, log = run(folder / "keep.ray-job.sh", programs, folder / "done", PATH="/usr/bin:/bin")
    assert code == 127 and "there is no ray here to submit with; fix: pip install" in log


@pytest.mark.slow
def test_evidence_is_taken_before_the_time_limit(folder: Path, programs: Path) -> None:
    assert cli.main(["render", "torchrun", "--time", "2s", "--early", "1", "--", "sleep", "2"]) == 0
    code, log = run(folder / "sleep.torchrun.sh", programs, folder / "done", RUN_ID="x")
    assert code == 0 and "1 s away" in log
    assert (folder / "done" / "harness").read_text().split() == ["doctor", "watch", "triage", "triage"]
    assert (folder / "done" / "harness-x" / "at-the-limit" / "verdict.txt").exists()


@pytest.mark.slow
def test_a_time_limit_before_the_start_is_said(folder: Path, programs: Path) -> None:
    assert cli.main(["render", "torchrun", "--time", "2s", "--early", "1", "--", "keep"]) == 0
    code, log = run(folder / "keep.torchrun.sh", programs, folder / "done", RUN_ID="x", DOCTOR_S="3")
    assert code == 1 and "1 s away" in log
    assert not (folder / "done" / "words").exists()


@pytest.mark.slow
@pytest.mark.parametrize("ends", ["inside", "after"])
def test_a_job_that_ends_at_a_look_has_its_own_exit_code(folder: Path, programs: Path, ends: str) -> None:
    until_told = "echo $$ > $DONE/up.new; mv $DONE/up.new $DONE/up; until [ -e $DONE/end ]; do sleep 0.05; done; exit 7"
    script = rendered("torchrun", folder, "--", "bash", "-c", until_told)
    environ = {"PATH": f"{programs}:{os.environ['PATH']}", "DONE": str(folder), "RUN_ID": "x"}
    (folder / f"ends-{ends}").touch()
    job = subprocess.Popen(["bash", str(script)], cwd=folder, env=environ, stderr=subprocess.DEVNULL)
    try:
        until((folder / "up").exists)
        job.send_signal(signal.SIGUSR1)
        until(lambda: ends != "after" or (folder / "harness").read_text().count("triage") >= 2)
        if ends == "after":
            (folder / "end").touch()
        assert job.wait(600) == 7
    finally:
        job.kill()


@pytest.mark.slow
def test_a_job_that_is_told_twice_that_it_hangs_ends_once(folder: Path, programs: Path) -> None:
    slow = "trap 'sleep 2; touch $DONE/ended; exit' TERM; touch $DONE/up; while :; do sleep 0.1; done"
    script = rendered("torchrun", folder, "--", "bash", "-c", slow)
    environ = {"PATH": f"{programs}:{os.environ['PATH']}", "DONE": str(folder), "RUN_ID": "x"}
    job = subprocess.Popen(["bash", str(script)], cwd=folder, env=environ, stderr=subprocess.DEVNULL)
    try:
        for name in ("up", "harness-x/hangs"):
            until((folder / name).exists, what=lambda name=name: name)
            job.send_signal(signal.SIGUSR2)
        assert job.wait(600) == 86 and (folder / "ended").exists()
        assert (folder / "harness-x" / "ended.node-0").read_text() == "86\n"
    finally:
        job.kill()


def test_recording_takes_the_place_of_watching(folder: Path, programs: Path) -> None:
    assert cli.main(["render", "torchrun", "--record", "--", "keep"]) == 0
    assert run(folder / "keep.torchrun.sh", programs, folder / "done")[0] == 0
    assert (folder / "done" / "harness").read_text().split() == ["doctor", "record"]


@pytest.mark.slow
@pytest.mark.parametrize("refused", ["0", "1"])
def test_no_node_starts_before_the_doctor_has_passed_on_all(folder: Path, programs: Path, refused: str) -> None:
    options = ["--nodes", "2", "--shared", str(folder / "shared dir")]
    assert cli.main(["render", "torchrun", *options, "--", "keep"]) == 0
    given = {"RUN_ID": "x", "MASTER_ADDR": "localhost", "REFUSED": refused}
    command = ["bash", str(folder / "keep.torchrun.sh")]
    environ = {**os.environ, **given, "PATH": f"{programs}:{os.environ['PATH']}", "DONE": str(folder)}
    nodes = [
        subprocess.Popen(command, cwd=folder, env={**environ, "NODE_RANK": rank}, stderr=subprocess.DEVNULL)
        for rank in "01"
    ]
    assert [node.wait(600) for node in nodes] == [1, 1]
    assert not (folder / "words").exists()
    assert "no gloo here" in (folder / "shared dir" / "harness-x" / f"doctor-node-{refused}.txt").read_text()


ADDRESSES = "10.0.0.1\nfd00::2\n10.0.0.3"
SECOND = {  # of three nodes
    "torchrun": {"RUN_ID": "x", "NODE_RANK": "1", "NODE_ADDRS": ADDRESSES},
    "dstack": {"DSTACK_RUN_NAME": "x", "DSTACK_NODES_NUM": "3", "DSTACK_NODE_RANK": "1", "DSTACK_NODES_IPS": ADDRESSES},
    "skypilot": {
        "SKYPILOT_TASK_ID": "x", "SKYPILOT_NUM_NODES": "3", "SKYPILOT_NODE_RANK": "1", "SKYPILOT_NODE_IPS": ADDRESSES
    },
}  # fmt: skip


@pytest.mark.slow
@pytest.mark.parametrize("launcher", SECOND)
def test_the_watch_of_a_node_serves_its_evidence_at_its_own_address(
    launcher: str, folder: Path, programs: Path
) -> None:
    script = rendered(launcher, folder, "--nodes", "3", "--", "keep")
    assert run(script, programs, folder / "a", RLHF_HARNESS_TOKEN="x", **SECOND[launcher])[0] == 0
    assert "--serve [fd00::2]:7701 --serve-after 1s --out" in (folder / "a" / "watch").read_text()
    few = {name: value.replace("10.0.0.1\n", "") for name, value in SECOND[launcher].items()}
    code, log = run(script, programs, folder / "b", **few)
    assert code == 2 and "NODE_ADDRS has 2" in log
    assert not (folder / "b" / "watch").exists()


@pytest.mark.slow
@pytest.mark.parametrize(
    ("environ", "told"),
    [
        ({}, "RLHF_HARNESS_TOKEN is not set; fix: read -r RLHF_HARNESS_TOKEN < FILE"),
        ({"WATCH_PORT": "abc"}, "WATCH_PORT is 'abc'; fix: WATCH_PORT=7700"),
        ({"WATCH_PORT": "65534"}, "WATCH_PORT is '65534'; fix: WATCH_PORT=7700"),
    ],
)
def test_a_watch_that_could_not_serve_is_refused(
    environ: dict[str, str], told: str, folder: Path, programs: Path
) -> None:
    script = rendered("torchrun", folder, "--nodes", "3", "--", "keep")
    code, log = run(script, programs, folder / "done", **SECOND["torchrun"], **environ)
    assert code == 2 and log.count("harness: ") == 1 and told in log, log
    assert not (folder / "done" / "watch").exists()


@pytest.mark.slow
def test_the_token_may_be_set_by_setup(folder: Path, programs: Path) -> None:
    script = rendered(
        "torchrun", folder, "--nodes", "3", "--setup", "export RLHF_HARNESS_TOKEN=$(cat token)", "--", "keep"
    )
    (folder / "done").mkdir()
    (folder / "done" / "token").write_text("x")
    assert run(script, programs, folder / "done", **SECOND["torchrun"])[0] == 0


@pytest.mark.slow
def test_a_node_that_knows_no_addresses_says_what_that_means(folder: Path, programs: Path) -> None:
    given = {"RUN_ID": "x", "NODE_RANK": "0", "MASTER_ADDR": "a"}
    code, log = run(rendered("torchrun", folder, "--nodes", "2", "--", "keep"), programs, folder / "done", **given)
    assert code == 0 and "NODE_ADDRS" in log
    assert "--serve" not in (folder / "done" / "watch").read_text()


TOKEN = "RLHF_HARNESS_TOKEN"


@pytest.mark.slow
@pytest.mark.parametrize(
    ("launcher", "own", "field", "there"),
    [
        ("dstack", "{}", "env", [TOKEN]),
        ("dstack", "env: [A=b]", "env", ["A=b", TOKEN]),
        ("dstack", "env: {A: b}", "env", ["A=b", TOKEN]),
        ("dstack", f"env: ['{TOKEN}=${{{{ secrets.mine }}}}']", "env", [TOKEN + "=${{ secrets.mine }}"]),
        ("skypilot", "{}", "secrets", {TOKEN: None}),
        ("skypilot", "secrets: {A: b}", "secrets", {"A": "b", TOKEN: None}),
        ("skypilot", "secrets: ['secrets:A']", "secrets", {"secrets:A": None, TOKEN: None}),
        ("skypilot", f"envs: {{{TOKEN}: b}}", "secrets", {}),
    ],
)
def test_a_manifest_of_several_nodes_asks_for_their_token(
    launcher: str, own: str, field: str, there: object, folder: Path
) -> None:
    """And names none: it is that of whoever starts the job."""
    (folder / "own.yaml").write_text(own)
    for name, options in {"served": [], "shared": ["--shared", "/data"], "ray": ["--ray"], "rec": ["--record"]}.items():
        words = ["--nodes", "2", "--base", "own.yaml", "--name", name, *options, "--", "true"]
        assert cli.main(["render", launcher, *words]) == 0
        task = yaml.safe_load(next(folder.glob(f"{name}.{launcher}.y*ml")).read_text())
        assert task.get(field) == (there if name == "served" else yaml.safe_load(own).get(field))


@pytest.mark.slow
@pytest.mark.parametrize(
    ("environ", "message"),
    [
        (
            {"NODE_RANK": "5", "MASTER_ADDR": "a", "RUN_ID": "x"},
            "this is node 5 of 2; fix: NODE_RANK from 0 to 1, or harness render ... --nodes 6",
        ),
        ({"NODE_RANK": "one", "MASTER_ADDR": "a", "RUN_ID": "x"}, "NODE_RANK is 'one'; fix: NODE_RANK from 0 to 1"),
        ({"NODE_RANK": "08", "MASTER_ADDR": "a", "RUN_ID": "x"}, "NODE_RANK is '08'; fix: NODE_RANK from 0 to 1"),
        ({"NODE_RANK": "0", "RUN_ID": "x"}, "MASTER_ADDR is not set; fix: RUN_ID="),
        ({"NODE_RANK": "0", "MASTER_ADDR": "a", "RUN_ID": "../x"}, "RUN_ID is '../x'"),
    ],
)
def test_a_node_that_is_not_of_the_job_is_refused(
    folder: Path, programs: Path, environ: dict[str, str], message: str
) -> None:
    assert cli.main(["render", "torchrun", "--nodes", "2", "--", "keep"]) == 0
    code, log = run(folder / "keep.torchrun.sh", programs, folder / "done", **environ)
    assert code == 2 and message in log and not (folder / "done" / "words").exists()


@pytest.mark.slow
@pytest.mark.parametrize("launcher", SAID)
def test_a_setup_may_read_variables_that_are_not_set(launcher: str, folder: Path, programs: Path) -> None:
    """So do the scripts that activate an environment."""
    script = rendered(launcher, folder, "--setup", 'echo "$UNSET"', "--", "keep")
    code, log = run(script, programs, folder / "done", **SAID[launcher], CODE="7")
    assert code == 7 and "unbound variable" not in log
    lines = [line.strip() for line in script.read_text().splitlines() if 'echo "$UNSET"' in line and line[0] != "#"]
    assert {*lines} == {'set +u; echo "$UNSET"'}


@pytest.mark.parametrize(
    "words", [["--setup", "export WANDB_API_KEY=Zq7hunter2Xw9", "--", "keep"],
              ["--setup", "export WANDB_API_KEY=${KEY:-Zq7hunter2Xw9}", "--", "keep"],
              ["--", "keep", "--hf-token", "hf_Zq7hunter2Xw9"]],
)  # fmt: skip
def test_a_script_with_a_secret_is_its_user_s_alone_and_says_what_to_do(
    folder: Path, words: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    rendered("torchrun", folder, "--", "keep").chmod(0o644)
    capsys.readouterr()
    script = rendered("torchrun", folder, *words)
    assert script.stat().st_mode & 0o777 == 0o600 and "Zq7hunter2Xw9" in script.read_text()
    said = capsys.readouterr().err
    assert said.count("\n") == 1 and "--setup 'export NAME=$(cat FILE)'" in said and "hunter2" not in said


@pytest.mark.slow
@pytest.mark.parametrize("launcher", SAID)
@pytest.mark.parametrize("setup", ["export HF_TOKEN=$(cat ~/.hf)", 'export HF_TOKEN="$(cat ~/.hf)" A_KEY=${B_KEY:-}'])
def test_a_script_that_reads_its_secrets_where_it_runs_is_no_secret(
    launcher: str, setup: str, folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    options = {"slurm": ["--local", "/tmp"], "dstack": ["--ray"], "skypilot": ["--ray"]}.get(launcher, [])
    rendered(launcher, folder, *options, "--", "keep")
    files = [*folder.glob("keep.*")]
    assert {file.stat().st_mode & 0o777 for file in files} == {FILE_MODE}
    for file in files:
        file.chmod(0o644)
    rendered(launcher, folder, *options, "--setup", setup, "--", "keep", "--hf-token", "$HF_TOKEN")
    assert {file.stat().st_mode & 0o777 for file in folder.glob("keep.*")} == {0o644} and not capsys.readouterr().err


@pytest.mark.slow
def test_a_script_that_says_how_to_set_a_token_holds_no_secret(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert cli.main(["render", "torchrun", "--nodes", "2", "--", "python", "train.py"]) == 0
    assert "RLHF_HARNESS_TOKEN" in (folder / "python.torchrun.sh").read_text() and not capsys.readouterr().err


REFERRING = {  # a manifest that names secrets, and what makes it hold one
    "dstack": ("env: [HF_TOKEN, 'API_KEY=${{ secrets.wandb }}']", "[HF_TOKEN", "[HF_TOKEN=Zq7hunter2"),
    "skypilot": ("secrets: {HF_TOKEN: null}", "null", "Zq7hunter2"),
    "kuberay": (
        "spec: {rayClusterSpec: {headGroupSpec: {template: {spec: {imagePullSecrets: [{name: registry}], containers: "
        "[{name: head, image: x, env: [{name: HF_TOKEN, valueFrom: {secretKeyRef: {name: hub, key: token}}}]}]}}}}}",
        "valueFrom: {secretKeyRef: {name: hub, key: token}}",
        "value: Zq7hunter2",
    ),
}


@pytest.mark.slow
@pytest.mark.parametrize("launcher", REFERRING)
def test_a_manifest_may_name_secrets_and_is_private_where_it_holds_one(
    launcher: str, folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    naming, reference, value = REFERRING[launcher]
    for own, warnings in ((naming, 0), (naming.replace(reference, value), 1)):
        (folder / "own.yaml").write_text(own)
        assert cli.main(["render", launcher, "--recreate", "--base", "own.yaml", "--", "keep"]) == 0
        assert capsys.readouterr().err.count(" holds a secret in clear") == warnings


def test_a_second_run_of_one_name_is_refused(folder: Path, programs: Path) -> None:
    assert cli.main(["render", "torchrun", "--", "keep"]) == 0
    codes = [run(folder / "keep.torchrun.sh", programs, folder / "done", RUN_ID="x") for _ in range(2)]
    assert [code for code, _ in codes] == [0, 2] and "fix: mv " in codes[1][1]


@pytest.mark.slow
@pytest.mark.parametrize("launcher", ["dstack", "skypilot"])
def test_a_job_that_its_scheduler_starts_again_has_a_folder_of_its_own(
    launcher: str, folder: Path, programs: Path
) -> None:
    assert cli.main(["render", launcher, "--shared", str(folder / "shared"), "--", "keep"]) == 0
    for _ in range(3):
        assert run(folder / f"keep.{launcher}.sh", programs, folder / "done", **SAID[launcher])[0] == 0
    first, *again = sorted(path.name for path in (folder / "shared").glob("harness-*"))
    assert again == [f"{first}-restart-1", f"{first}-restart-2"]


def test_a_setup_that_fails_is_told(folder: Path, programs: Path) -> None:
    script = rendered("slurm", folder, "--setup", "[ -d /nowhere ]", "--", "keep")
    code, log = run(script, programs, folder / "done", **SAID["slurm"])
    assert code == 0 and log.count("harness: here: the last command of --setup ended with 1\n") == 1


def test_options_behind_the_command_are_the_command_s(folder: Path, programs: Path) -> None:
    assert run(rendered("slurm", folder, "keep", "--lr", "3"), programs, folder / "done", **SAID["slurm"])[0] == 0
    assert (folder / "done" / "words").read_text().split("\0")[:-1] == ["--lr", "3"]


def test_a_requeued_job_of_slurm_has_a_folder_of_its_own(folder: Path, programs: Path) -> None:
    script = rendered("slurm", folder, "--", "keep")
    for restarts in ({}, {"SLURM_RESTART_COUNT": "0"}, {"SLURM_RESTART_COUNT": "2"}):
        assert run(script, programs, folder / "done", **SAID["slurm"], **restarts)[0] == 0
    assert {path.name for path in (folder / "done").glob("harness-*")} == {"harness-7", "harness-7-restart-2"}


def test_a_step_of_slurm_has_the_variables_of_its_script(folder: Path, programs: Path) -> None:
    """Whatever sbatch --export was told."""
    assert run(rendered("slurm", folder, "--", "keep"), programs, folder / "done", **SAID["slurm"])[0] == 0
    steps = (folder / "done" / "srun").read_text().splitlines()
    assert len(steps) == 2 and all("--export=ALL " in step for step in steps)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("typed", "words"),
    [
        ("torchrun --nnodes 2 mine.py --lr 1", "--nodes 2 -- python mine.py --lr 1"),
        ("torchrun --nproc_per_node=8 --standalone -m pkg.train --lr 1",
         "--nproc-per-node 8 -- python -m pkg.train --lr 1"),
        ("python -m torch.distributed.run --nnodes 1:4 --no-python ./job -x", "-- ./job -x"),
        ("torchrun --nnodes 2", "--nodes 2 -- python train.py"),
    ],
)  # fmt: skip
def test_a_command_of_torchrun_is_proposed_without_it(
    folder: Path, typed: str, words: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert cli.main(["render", "torchrun", "--time", "2h", "--", *typed.split()]) == 2
    assert f"harness render torchrun --time 2h {words}\n" in capsys.readouterr().err


@pytest.mark.slow
@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["slurm", "--"], "there is no command to render"),
        (["torchrun", "--"], "there is no command to render"),
        (["torchrun", "--", ""], "the command of the job is empty"),
        (["torchrun", "--", "torchrun", "train.py"], "the script runs torchrun itself"),
        (["torchrun", "--", "python", "-m", "torch.distributed.run", "x"], "the script runs torchrun itself"),
        (["ray-job", "--submit=no option", "--", "x"], "is no option of ray job submit"),
        (["kuberay", "--", "x"], "a RayJob needs an image"),
        (["dstack", "--base", "none.yaml", "--", "x"], "none.yaml cannot be read as a manifest: No such file"),
        (["dstack", "--base", "/dev/null", "--", "x"], "cannot be read as a manifest: it is not a regular file"),
        (["slurm", "--time", "1:00:00", "--early", "9000", "--", "x"], "--time 1:00:00 is over before its last 9000 s"),
        (["slurm", "--time", "5", "--", "x"], "--time 5 is over before its last 300 s begin"),
        (["slurm", "--time", "abc", "--", "x"], "--time abc is not a time limit of sbatch"),
        (["torchrun", "--nproc-per-node", "-3", "--", "x"], "--nproc-per-node -3: a number of ranks"),
        (["torchrun", "--nproc-per-node", "zero", "--", "x"], "--nproc-per-node zero: a number of ranks"),
        (["torchrun", "--time", "4m", "--", "x"], "--time 4m is over before its last 300 s begin"),
        (["torchrun", "--shared", "runs", "--", "x"], "--shared runs is not the same on every node"),
        (["dstack", "--shared", "~/runs", "--", "x"], "--shared ~/runs is not the same on every node"),
        (["ray-job", "--results", "runs", "--", "x"], "--results runs is not the same on every node"),
        (["torchrun", "--doctor", "it's", "--", "x"], "No closing quotation"),
        (["torchrun", "--doctor=--bogus", "--", "x"], "--doctor '--bogus': No such option: --bogus"),
        (["slurm", "--doctor=--stall", "--", "x"], "Option '--stall' requires an argument"),
        (["torchrun", "--setup", 'source "x', "--", "x"], "is no line of bash: line 1: unexpected EOF"),
        (["torchrun", "--time", "12:00:00", "--", "x"], "--time '12:00:00' is not a duration"),
    ],
)
def test_what_no_script_could_run_is_refused(
    folder: Path, words: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert cli.main(["render", *words]) == 2
    assert message in " ".join(capsys.readouterr().err.split()) and not list(folder.iterdir())


@pytest.mark.parametrize(
    ("words", "typed"),
    [
        (["slurm", "--time", "00:01:00"], ["--early", "30"]),
        (["slurm", "--time", "5"], ["--early", "60"]),
        (["slurm", "--time", "0:1"], ["--time", "10"]),
        (["torchrun", "--time", "1s"], ["--time", "10m"]),
        (["torchrun", "--time", "2s"], ["--early", "1"]),
        (["torchrun", "--time", "1m", "--early", "100"], ["--early", "30"]),
    ],
)
@pytest.mark.slow
def test_a_time_limit_that_is_too_short_has_a_fix_that_works(
    folder: Path, words: list[str], typed: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert cli.main(["render", *words, "--", "x"]) == 2
    fix = shlex.split(capsys.readouterr().err.partition("fix: ")[2], comments=True)
    assert fix[fix.index(typed[0]) :] == [*typed, "--", "x"] and cli.main(fix[1:]) == 0


def test_a_time_limit_of_zero_is_none_for_slurm(folder: Path) -> None:
    """sbatch(1): "A time limit of zero requests that no time limit be imposed.\""""
    assert cli.main(["render", "slurm", "--time", "0", "--", "x"]) == 0


def test_a_script_that_does_not_fit_on_the_disk_leaves_no_file(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (512, before[1]))  # a full disk's way out, for this process alone
    try:
        assert cli.main(["render", "slurm", "--", "x"]) == 2
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    assert [*folder.iterdir()] == [] and "  fix: df -h " in capsys.readouterr().err


def test_a_batch_script_of_slurm_is_bash_and_replaces_only_variables_of_the_job(folder: Path) -> None:
    words = ["torchrun", "--node-rank", "$SLURM_NODEID", "--rdzv-endpoint=${MASTER_ADDR}:1", "$HOME", "it's", "a b"]
    options = ["--nodes", "2", "--time", "1:00:00", "--sbatch=--gpus-per-node=8", "--setup", "true"]
    assert cli.main(["render", "slurm", *options, "--", *words]) == 0
    script = (folder / "torchrun.sbatch").read_text()
    assert script.startswith("#!/bin/bash\n" + WRITTEN_BY) and "#SBATCH --gpus-per-node=8\n" in script
    assert (
        """-- torchrun --node-rank "$SLURM_NODEID" --rdzv-endpoint="${MASTER_ADDR}":1 '$HOME' 'it'"'"'s' 'a b'\n"""
        in script
    )
    assert subprocess.run(["bash", "-n", "torchrun.sbatch"], check=False).returncode == 0
    again = shlex.split(script.splitlines()[2].removeprefix("# harness"))
    assert cli.main(again) == 0 and (folder / "torchrun.sbatch").read_text() == script


def test_the_watches_of_nodes_that_share_no_folder_serve_their_evidence(folder: Path) -> None:
    """But under Ray, where the first node sees all."""
    served = {}
    for name, options in {
        "plain": [],
        "local": ["--local", "/scratch"],
        "ray": ["--local", "/scratch", "--ray"],
    }.items():
        assert cli.main(["render", "slurm", *options, "--name", name, "--", "true"]) == 0
        script = (folder / f"{name}.sbatch").read_text()
        assert subprocess.run(["bash", "-n", f"{name}.sbatch"], check=False).returncode == 0
        served[name] = "--serve" in script, "HARNESS_OUT=/scratch/harness-" in script
    assert served == {"plain": (False, False), "local": (True, True), "ray": (False, True)}


@pytest.mark.slow
def test_why_a_look_at_all_nodes_is_unclear_is_said_once(folder: Path) -> None:
    """With the node that gave no evidence; and again when the reason is another one."""
    script = rendered("torchrun", folder, "--nodes", "2", "--", "true").read_text()
    (folder / "run").write_text(
        'look_together() { mkdir "$1"; cp verdict.json "$1"; return 3; }\nHARNESS_OUT=.\n'
        + script[script.index("hangs() {") : script.index("await() {")]
        + "hangs 1 || hangs 2 || sed -i s/8/9/ verdict.json; hangs 3"
    )
    silent = "no evidence from http://10.0.0.2:7701: it has another token"
    (folder / "verdict.json").write_text(Verdict("triage", "INSUFFICIENT", 3, '8 "wait"', missing=(silent,)).to_json())
    path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
    ended = subprocess.run(
        ["bash", "-u", "run"], capture_output=True, text=True, check=False, env={**os.environ, "PATH": path}
    )
    first, last = ended.stderr.splitlines()
    assert first.endswith(f'look-1/verdict.json: INSUFFICIENT 8 "wait"; {silent}'), ended.stderr
    assert last.endswith(f'look-3/verdict.json: INSUFFICIENT 9 "wait"; {silent}'), ended.stderr


def test_a_node_of_slurm_with_an_ipv6_address_serves_at_it_in_brackets(folder: Path) -> None:
    assert cli.main(["render", "slurm", "--local", "/scratch", "--", "true"]) == 0
    script = (folder / "true.sbatch").read_text()
    watches = script[script.index("at_ports() {") : script.index("address() {")]
    watches += script[script.index("WATCHES=$(") : script.index("if ! first")]
    nodes = "NodeName=a NodeAddr=fd00::1 Port=1\\nNodeName=b NodeAddr=10.0.0.2 Port=1\\n"
    said = f"SLURM_JOB_ID=0 SLURM_JOB_NODELIST=x; scontrol() {{ printf '{nodes}'; }}\n{watches}\necho \"$WATCHES\""
    done = subprocess.run(["bash", "-c", said], capture_output=True, text=True, check=True)
    assert done.stdout == "a [fd00::1]:12000\nb 10.0.0.2:12001\n"


@pytest.mark.parametrize(
    ("time", "limit"),
    [("90", 5400), ("5:30", 330), ("1:00:00", 3600), ("2-12", 216000), ("1-0:30", 88200), ("1-1:1:1", 90061),
     ("UNLIMITED", math.inf)],
)  # fmt: skip
def test_the_time_limits_of_sbatch(time: str, limit: float) -> None:
    assert slurm._seconds(time) == limit


SLURM = "fix: harness render slurm"


@pytest.mark.parametrize(
    ("options", "said"),
    [(["--stall", "soon"], "soon"), (["--sbatch=gpus 8"], "no option of sbatch"), (["--nodes", "0"], "greater than"),
     (["--sbatch=--time=5"], f"{SLURM} --time TIME -- true"), (["--sbatch=-N2"], f"{SLURM} --nodes NUMBER -- true"),
     (["--sbatch=--signal=B:TERM@60"], f"{SLURM} --early SECONDS -- true"),
     (["--sbatch=-J=x"], f"{SLURM} --name NAME -- true"),
     (["--sbatch=--ntasks=8"], "fix: let COMMAND start the ranks of a node"),
     (["--local", "runs"], "not the same on every node"), (["--local", "/tmp", "--record"], "serves no evidence")],
)  # fmt: skip
def test_bad_options_of_slurm_are_refused(
    folder: Path, options: list[str], said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert cli.main(["render", "slurm", *options, "--", "true"]) == 2
    assert said in capsys.readouterr().err
    assert not list(folder.glob("*.sbatch"))
