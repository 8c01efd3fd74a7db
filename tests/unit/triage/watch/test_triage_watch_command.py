"""What the watch makes of a command line: durations, the environment of the probes, `ray job submit`."""

from __future__ import annotations

import json
import os
import shlex
from pathlib import Path

import pytest
from triage_trial import late

from harness.amended_command import amended
from harness.errors import BadInput
from harness.program import CommandNotRun, find_program, missing_module_fix
from harness.triage.judge import triage
from harness.triage.watch.watched_command import (
    SITE,
    WatchResult,
    claimed,
    hang_of,
    watched,
    with_environment,
)

ENVIRONMENT = {"RLHF_HARNESS_WATCH": "/d", "RLHF_HARNESS_SOCKETS": "/s"}


def test_the_probes_stand_first_on_the_path_and_once(tmp_path: Path) -> None:
    assert (SITE / "sitecustomize.py").exists()
    found = watched({"PYTHONPATH": f"/a:{SITE}:/b", "X": "1"}, tmp_path, "/s")
    assert found["PYTHONPATH"].split(os.pathsep) == [str(SITE), "/a", "/b"]
    assert (found["RLHF_HARNESS_WATCH"], found["RLHF_HARNESS_SOCKETS"], found["X"]) == (str(tmp_path), "/s", "1")
    assert watched({}, tmp_path)["PYTHONPATH"] == str(SITE)


def runtime(words: list[str]) -> dict[str, object]:
    return json.loads(words[words.index("--runtime-env-json") + 1])


def test_a_ray_job_is_told_the_watch() -> None:
    words = with_environment(["ray", "job", "submit", "--address", "a", "--", "python", "x.py"], ENVIRONMENT)
    assert words[-5:] == ["--address", "a", "--", "python", "x.py"]
    assert runtime(words) == {"env_vars": {**ENVIRONMENT, "PYTHONPATH": f"{SITE}:${{PYTHONPATH}}"}}


def test_a_ray_job_keeps_its_own_runtime_environment() -> None:
    given = '{"pip": ["x"], "env_vars": {"A": "1", "PYTHONPATH": "/mine"}}'
    for option in (["--runtime-env-json", given], [f"--runtime-env-json={given}"]):
        words = with_environment(
            ["/bin/ray", "job", "submit", *option, "--", "python", "--runtime-env-json"], ENVIRONMENT
        )
        assert runtime(words) == {"pip": ["x"], "env_vars": {"A": "1", **ENVIRONMENT, "PYTHONPATH": f"{SITE}:/mine"}}
        assert words[-3:] == ["--", "python", "--runtime-env-json"]


@pytest.mark.parametrize(
    "words",
    [
        ["python", "train.py", "--runtime-env-json", "{}"],
        ["ray", "job", "submit", "--runtime-env", "file.yaml", "--", "x"],
        ["ray", "job", "submit", "--runtime-env-json", "{broken", "--", "x"],
        ["ray", "status"],
    ],
)
def test_other_commands_are_left_as_they_are(words: list[str]) -> None:
    assert with_environment(words, ENVIRONMENT) == words


@pytest.mark.parametrize(
    ("words", "changed"),
    [
        ("env PYTHONPATH=. python train.py", "env PYTHONPATH={0}:. python train.py"),
        ("env PYTHONPATH= python train.py", "env PYTHONPATH={0} python train.py"),
        ("nice -n 5 env -u B A=1 PYTHONPATH=/a torchrun x", "nice -n 5 env -u B A=1 PYTHONPATH={0}:/a torchrun x"),
        ("docker run -e PYTHONPATH=/a image", "docker run -e PYTHONPATH=/a image"),
        ("python train.py env PYTHONPATH=/a", "python train.py env PYTHONPATH=/a"),
        ("env A=1 program PYTHONPATH=/a", "env A=1 program PYTHONPATH=/a"),
    ],
)  # fmt: skip
def test_the_probes_stand_first_on_a_path_that_env_sets(words: str, changed: str) -> None:
    assert with_environment(words.split(), ENVIRONMENT) == changed.format(SITE).split()


@pytest.mark.parametrize(
    ("words", "path", "fix"),
    [
        ("python scripts/train.py", "", "-- env PYTHONPATH=. python scripts/train.py"),
        ("python scripts/train.py", "/a", "-- env PYTHONPATH=.:/a python scripts/train.py"),
        ("env PYTHONPATH=/b python scripts/train.py", "/a", "-- env PYTHONPATH=.:/b python scripts/train.py"),
        ("env PYTHONPATH=.:/b python scripts/train.py", "", ""),
        ("python scripts/train.py", ".:/a", ""),
    ],
)
def test_a_module_of_this_folder_that_python_did_not_find(tmp_path: Path, words: str, path: str, fix: str) -> None:
    (tmp_path / "mine.py").touch()
    for last_words, expected in (("No module named 'mine.parts'", fix), ("No module named 'theirs'", ""), ("", "")):
        assert missing_module_fix(last_words, words.split(), {"PYTHONPATH": path}, tmp_path) == expected


@pytest.mark.parametrize(("mode", "code"), [(0o644, 126), (None, 127)])
def test_a_command_that_cannot_be_run_is_one_sentence(tmp_path: Path, mode: int | None, code: int) -> None:
    path = tmp_path / "train"
    if mode is not None:
        path.touch(mode)
    with pytest.raises(BadInput) as found:
        find_program([str(path)], {"PATH": "/bin"})
    assert found.value.exit_code == code and str(path) in found.value.message and found.value.fix


@pytest.mark.parametrize(
    ("program", "fix"),
    [
        ("trian", "-- train --steps 3"),
        ("nosuch", "echo $PATH   # "),
        ("nope", "echo $PATH   # "),
        ("{}/bin/nosuch", "ls {}/bin   # "),
    ],
)
def test_a_program_that_is_not_there_is_answered_with_a_similar_one_or_a_look(
    tmp_path: Path, program: str, fix: str
) -> None:
    (tmp_path / "bin").mkdir()
    for name in ("train", "node"):
        (tmp_path / "bin" / name).touch(0o755)
    with pytest.raises(CommandNotRun) as refused:
        find_program([program.format(tmp_path), "--steps", "3"], {"PATH": f"{tmp_path}/absent:{tmp_path}/bin"})
    assert refused.value.exit_code == 127 and str(refused.value.fix).startswith(fix.format(tmp_path))


@pytest.mark.parametrize(
    ("typed", "fix"),
    [
        ("train --steps 3", "-- train --steps 3"),
        ("train 'a b'", "-- train 'a b'"),
        ("nosuch --steps 3", "echo $PATH   # "),  # without its quotes it would not be found either
        ("train 'a", "echo $PATH   # "),
    ],
)
def test_a_command_line_in_quotes_is_answered_with_its_words(tmp_path: Path, typed: str, fix: str) -> None:
    (tmp_path / "train").touch(0o755)
    with pytest.raises(CommandNotRun) as refused:
        find_program([typed], {"PATH": str(tmp_path)})
    assert str(refused.value.fix).startswith(fix)


def test_a_pipe_is_no_program_and_is_not_waited_for(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "train.py")
    with pytest.raises(CommandNotRun) as refused:
        find_program([str(tmp_path / "train.py")], {"PATH": "/bin"})
    assert refused.value.exit_code == 126


def test_a_directory_is_no_command(tmp_path: Path) -> None:
    with pytest.raises(BadInput, match="is a directory") as found:
        find_program([str(tmp_path)], {"PATH": "/bin"})
    assert found.value.exit_code == 126


def test_a_folder_that_cannot_be_used_is_one_sentence(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(BadInput, match="cannot be written"):
        claimed(tmp_path / "file" / "out", ["x"])
    out, claim = claimed(tmp_path / "out", ["train", "--api-key", "secret"])
    claim.release()
    assert "secret" not in (out / "run.json").read_text()
    (out / "beats" / "1.json").touch()
    with pytest.raises(BadInput, match="another recording"):
        claimed(tmp_path / "out", ["x"])
    assert not (out / "watch.lock").exists()


def test_a_directory_that_is_taken_has_a_fix_that_can_be_typed(tmp_path: Path) -> None:
    command = ["python", "-c", "print(2)", "--api-key", "hf_secret"]
    out, claim = claimed(tmp_path / "my run", command)
    claim.release()
    (out / "events").mkdir()
    (out / "events" / "1.jsonl").touch()
    with pytest.raises(BadInput, match="holds another recording") as refused:
        claimed(out, command)
    words = ["watch", "--out", str(out), "--", *command]
    fix = shlex.split(amended(words, refused.value.fix or ""))
    assert fix[:-1] == ["harness", "watch", "--out", f"{out}-2", "--", *command[:-1]] and "hf_secret" not in fix


def test_a_directory_that_another_watch_writes_is_refused(tmp_path: Path) -> None:
    out, claim = claimed(tmp_path / "out", ["first"])
    before = (out / "run.json").read_bytes()
    with pytest.raises(BadInput, match=f"pid {os.getpid()} on host") as refused:
        claimed(tmp_path / "out", ["second"])
    assert refused.value.fix and (out / "run.json").read_bytes() == before
    claim.release()
    claimed(tmp_path / "out", ["second"])[1].release()


@pytest.mark.parametrize(
    ("name", "content", "fix"),
    [
        ("job.log", "step 1\n", "-- python train.py   #"),
        ("train.py", "print(2)\n", "-- python {} --steps 3"),
        ("train.sh", "true\n", "-- bash {} --steps 3"),
        ("train", "#!/bin/sh\n", "chmod +x {}"),
    ],
)
def test_a_file_that_cannot_be_run_is_told_how_its_job_is_watched(
    tmp_path: Path, name: str, content: str, fix: str
) -> None:
    file = tmp_path / name
    file.write_text(content)
    with pytest.raises(CommandNotRun) as refused:
        find_program([str(file), "--steps", "3"], {"PATH": "/bin"})
    assert refused.value.exit_code == 126 and str(refused.value.fix).startswith(fix.format(file))


def test_the_last_line_of_a_command_that_hung_leads_to_the_answer(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen, comparison = late(3, 1, "main:10 step:44 keep_alive")
    verdict = triage(seen, comparison)
    assert verdict.verdict == "HUNG" and verdict.triage is not None
    monkeypatch.chdir(tmp_path)
    result = WatchResult(1, verdict, tmp_path / "runs" / "a b")
    assert hang_of(result) == f"it hung ({verdict.triage.hang}); harness triage 'runs/a b'"
    assert hang_of(result, Path("runs/demo")).endswith("; harness triage runs/demo")
    assert not hang_of(WatchResult(0, verdict, tmp_path)) and not hang_of(WatchResult(1, None, tmp_path))
