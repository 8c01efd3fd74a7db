"""The launchers of jobs: a script is bash, hands the user's words on as they are, refuses what it cannot run, and ends
with the right exit code."""

from __future__ import annotations

import os
import shlex
import subprocess
from pathlib import Path

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from harness import cli
from harness.launchers import WRITTEN_BY

# A harness and a torchrun that do nothing but start what they are given, and a command that keeps its words.
PROGRAMS = {
    "harness": """
        echo "$1" >> "$DONE/harness"
        [ "$1" = doctor ] && { [ "${REFUSED:-none}" = "${NODE_RANK:-}" ] || exit 0; echo "no gloo here"; exit 1; }
        [ "$1" = triage ] && exit 0
        while [ "$1" != -- ]; do shift; done; shift; exec "$@" """,
    "torchrun": """
        printf "%s\\n" "$@" > "$DONE/torchrun"
        while [ "$1" != --no-python ]; do shift; done; shift; exec "$@" """,
    "ray": 'while [ "$1" != -- ]; do shift; done; shift; RAY_ADDRESS=here:1 exec "$@"',
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
    return tmp_path


def run(script: Path, programs: Path, done: Path, **environ: str) -> tuple[int, str]:
    """(exit code, stderr) of a rendered script in `done`."""
    done.mkdir(parents=True, exist_ok=True)
    variables = {"PATH": f"{programs}:{os.environ['PATH']}", "DONE": str(done), **environ}
    with (done / "log").open("w") as log:  # a pipe would stay open as long as the last sleep below
        code = subprocess.run(["bash", script], cwd=done, env=variables, stdout=log, stderr=log, timeout=60).returncode
    return code, (done / "log").read_text()


WORDS = st.lists(st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0"), max_size=12), max_size=4)


SHELL = '$HOME|`id`|$(id)|it\'s|a "b"|a\nb||*|~|\\|!!|{1..3}|-|--|#x|;&<>'


SCRIPTS = {"torchrun": "keep.torchrun.sh", "ray-job": "keep.ray-job.sh"}


@pytest.mark.parametrize("launcher", SCRIPTS)
@given(words=WORDS)
@example(words=SHELL.split("|"))
def test_the_words_of_a_command_arrive_as_they_were_given(
    launcher: str, words: list[str], programs: Path, tmp_path_factory: pytest.TempPathFactory
) -> None:
    folder = tmp_path_factory.mktemp("words")
    options = ["--results", str(folder)] if launcher == "ray-job" else []
    assert cli.main(["render", launcher, *options, "--out", str(folder), "--", "keep", *words]) == 0
    assert run(folder / SCRIPTS[launcher], programs, folder / "done")[0] == 0
    assert (folder / "done" / "words").read_bytes().decode().split("\0")[:-1] == (words or [""])


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
    assert 'harness doctor --address "$RAY_ADDRESS" --strict >' in text
    code, log = run(folder / "keep.ray-job.sh", programs, folder / "done", RUN_ID="x", CODE="7")
    assert code == 7 and "no job reached a Ray cluster at http://head:8265; fix: ray start --head" in log
    assert (folder / "kept" / "harness-x" / "doctor-node-0.txt").exists()


def test_a_ray_job_without_ray_is_refused(folder: Path, programs: Path) -> None:
    assert cli.main(["render", "ray-job", "--", "keep"]) == 0
    code, log = run(folder / "keep.ray-job.sh", programs, folder / "done", PATH="/usr/bin:/bin")
    assert code == 127 and "there is no ray here to submit with; fix: pip install" in log


def test_evidence_is_taken_before_the_time_limit(folder: Path, programs: Path) -> None:
    assert cli.main(["render", "torchrun", "--time", "2s", "--early", "1", "--", "sleep", "2"]) == 0
    code, log = run(folder / "sleep.torchrun.sh", programs, folder / "done", RUN_ID="x")
    assert code == 0 and "the time limit is 1 s away" in log
    assert (folder / "done" / "harness").read_text().split() == ["doctor", "watch", "triage", "triage"]
    assert (folder / "done" / "harness-x" / "at-the-limit" / "verdict.txt").exists()


def test_recording_takes_the_place_of_watching(folder: Path, programs: Path) -> None:
    assert cli.main(["render", "torchrun", "--record", "--", "keep"]) == 0
    assert run(folder / "keep.torchrun.sh", programs, folder / "done")[0] == 0
    assert (folder / "done" / "harness").read_text().split() == ["doctor", "record"]


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
    assert [node.wait(30) for node in nodes] == [1, 1]
    assert not (folder / "words").exists()
    assert "no gloo here" in (folder / "shared dir" / "harness-x" / f"doctor-node-{refused}.txt").read_text()


@pytest.mark.parametrize(
    ("environ", "message"),
    [
        ({"NODE_RANK": "2", "MASTER_ADDR": "a", "RUN_ID": "x"}, "of 2 node(s), numbered from 0, and this is node 2"),
        ({"NODE_RANK": "one", "MASTER_ADDR": "a", "RUN_ID": "x"}, "this is node one of 2"),
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


def test_a_second_run_of_one_name_is_refused(folder: Path, programs: Path) -> None:
    assert cli.main(["render", "torchrun", "--", "keep"]) == 0
    codes = [run(folder / "keep.torchrun.sh", programs, folder / "done", RUN_ID="x") for _ in range(2)]
    assert [code for code, _ in codes] == [0, 2] and "of an earlier run; fix: another RUN_ID" in codes[1][1]


def test_a_batch_script_outside_slurm_is_refused(folder: Path, programs: Path) -> None:
    assert cli.main(["render", "slurm", "--", "keep"]) == 0
    code, log = run(folder / "keep.sbatch", programs, folder / "done")
    assert code == 2 and "no Slurm runs it; fix: sbatch" in log


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["slurm", "--"], "Missing argument"),
        (["torchrun", "--"], "Missing argument"),
        (["torchrun", "--", ""], "the command of the job is empty"),
        (["torchrun", "--", "torchrun", "train.py"], "the script runs torchrun itself"),
        (["torchrun", "--", "python", "-m", "torch.distributed.run", "x"], "the script runs torchrun itself"),
        (["ray-job", "--submit=no option", "--", "x"], "is no option of ray job submit"),
        (["torchrun", "--time", "4m", "--", "x"], "--time 4m is over before its last 300 s begin"),
        (["torchrun", "--doctor", "it's", "--", "x"], "No closing quotation"),
    ],
)
def test_what_no_script_could_run_is_refused(
    folder: Path, words: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert cli.main(["render", *words]) == 2
    assert message in " ".join(capsys.readouterr().err.split()) and not list(folder.iterdir())


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


@pytest.mark.parametrize(
    ("options", "said"),
    [(["--stall", "soon"], "soon"), (["--sbatch=gpus 8"], "no option of sbatch"), (["--nodes", "0"], "greater than")],
)
def test_bad_options_of_slurm_are_refused(
    folder: Path, options: list[str], said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert cli.main(["render", "slurm", *options, "--", "true"]) == 2
    assert said in capsys.readouterr().err
    assert not list(folder.glob("*.sbatch"))
