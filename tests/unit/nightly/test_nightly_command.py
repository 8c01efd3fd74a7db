"""`harness nightly` and `harness history`, with cells that a script plays."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import tempfile
import textwrap
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from xml.etree import ElementTree

import nightly_support as support
import pytest
from waiting import until

from harness import cli
from harness.errors import BadInput, Mistakes
from harness.nightly import cells, known, matrix

pytestmark = pytest.mark.slow

pytest.importorskip("sqlalchemy", reason="the extra [nightly] is not installed")
HISTORY = "runs/nightly/history.db"


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "player.py").write_text(support.PLAYER)
    (tmp_path / "matrix.toml").write_text(support.MATRIX)
    monkeypatch.setattr(cells, "COMMAND", (sys.executable, str(tmp_path / "player.py"), str(tmp_path / "script.json")))
    monkeypatch.setattr(cells, "GRACE_S", 2.0)
    equal = support.verdict()
    support.script(tmp_path / "script.json", hf_hf=equal, hf_vllm=equal, hf_sglang=equal)
    return tmp_path


LACKING = '[[include]]\npair = ["vllm", "vllm"]\nneeds = { gpus = 9999 }\n'
CELL = 'name = "x"\n[[include]]\npair = ["hf", "hf"]\n'


def run(*words: str) -> int:
    return cli.main(["nightly", "matrix.toml", *words])


def statuses(number: int) -> dict[str, str]:
    found = json.loads(Path(f"runs/nightly/night-{number:05d}/night.json").read_text())
    return {one["cell"]: one["status"] for one in found["results"]}


def test_scenarios_and_known_differences_are_found_from_the_matrix_s_folder(
    folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    ours = folder / "nights"
    ours.mkdir()
    (ours / "mine.toml").write_text('name = "mine"\nsteps = 1\ntrain = false\n[model]\npath = "builtin:tiny"\n'
                                    '[prompts]\npath = "builtin:tiny"\n')  # fmt: skip
    (ours / "known.toml").write_text("")
    (ours / "matrix.toml").write_text(
        'name = "x"\nknown = "known.toml"\n[matrix]\npairs = [["hf", "hf"]]\nscenarios = ["mine.toml", "ppo-tiny"]\n'
    )
    monkeypatch.chdir(folder.parent)
    assert cli.main(["nightly", f"{folder.name}/nights/matrix.toml", "--list"]) == 0
    assert capsys.readouterr().out == "hf-hf/mine\nhf-hf/ppo-tiny\n"
    _, [mine, tiny] = matrix.load(Path(folder.name, "nights/matrix.toml"))
    assert str(ours / "mine.toml") in mine.arguments(Path("out")) and "ppo-tiny" in tiny.arguments(Path("out"))
    (ours / "mine.toml").unlink()
    assert cli.main(["nightly", f"{folder.name}/nights/matrix.toml", "--list"]) == 2
    assert f"the scenario file {ours / 'mine.toml'} does not exist" in capsys.readouterr().err


def test_a_metric_that_is_gone_is_told_on_the_terminal(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    equal, gone = support.verdict(), support.verdict()
    assert run() == 0
    assert gone.parity is not None
    gone.parity.metrics.clear()
    support.script(folder / "script.json", hf_hf=equal, hf_vllm=gone, hf_sglang=equal)
    capsys.readouterr()
    assert run() == 1 and statuses(2)["hf-vllm/ppo-tiny"] == "REGRESSED"
    printed = " ".join(capsys.readouterr().out.split())
    assert "max |Δ logprob| absent, 4e-6 before" in printed and "mean Δ logprob absent, 0 before" in printed
    assert cli.main(["history", "compare", "1", "2"]) == 0
    assert "hf-vllm/ppo-tiny: EQUIVALENT → EQUIVALENT (fewer k1, fewer max_delta_logprob)" in capsys.readouterr().out


def test_nights_from_new_to_regressed_to_fixed(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    equal, other = support.verdict(), support.verdict("DIVERGENT", "STOP")
    assert run() == 0 and set(statuses(1).values()) == {"NEW"}
    assert run() == 0 and set(statuses(2).values()) == {"OK"}
    support.script(folder / "script.json", hf_hf=equal, hf_vllm=other, hf_sglang=equal)
    capsys.readouterr()
    assert run("--format", "github") == 1
    printed = capsys.readouterr().out
    assert printed.startswith(
        "::error title=REGRESSED%3A hf-vllm/ppo-tiny::new: DIVERGENT: a reason; new: cause STOP; "
    )
    assert "a second run showed the same%3B" not in printed and "the baseline against itself shows no" in printed
    assert statuses(3) == {"hf-hf/ppo-tiny": "OK", "hf-vllm/ppo-tiny": "REGRESSED", "hf-sglang/ppo-tiny": "OK"}
    assert run() == 0 and statuses(4)["hf-vllm/ppo-tiny"] == "STILL FAILING"
    support.script(folder / "script.json", hf_hf=equal, hf_vllm=equal, hf_sglang=equal)
    assert run() == 0 and statuses(5)["hf-vllm/ppo-tiny"] == "FIXED"
    assert cli.main(["history", "show", "3", "--format", "md"]) == 1
    assert "### REGRESSED: hf-vllm/ppo-tiny" in capsys.readouterr().out
    assert cli.main(["history", "compare", "2", "3"]) == 0
    assert "hf-vllm/ppo-tiny: EQUIVALENT → DIVERGENT (STOP)" in capsys.readouterr().out
    assert cli.main(["history", "list"]) == 0 and capsys.readouterr().out.count("  trial  ") == 5
    assert cli.main(["history", "metric", "hf-vllm/ppo-tiny", "compared_tokens"]) == 0
    assert "2,000" in capsys.readouterr().out
    junit = ElementTree.parse("runs/nightly/night-00003/junit.xml").getroot()
    assert [case.get("name") for case in junit.iter("testcase") if case.find("failure") is not None] == [
        "hf-vllm/ppo-tiny"
    ]
    assert cli.main(["history", "html", "site"]) == 0
    page = (folder / "site" / "index.html").read_text()
    assert page.count("<tr>") == 3 and "FIXED" in page and len(list((folder / "site" / "cells").iterdir())) == 3


def test_a_new_cell_that_does_not_pass_is_red_and_comes_first(folder: Path) -> None:
    support.script(
        folder / "script.json", hf_hf="die", hf_vllm=support.verdict(), hf_sglang=support.verdict("DIVERGENT")
    )
    assert run() == 1 and statuses(1)["hf-sglang/ppo-tiny"] == "NEW"
    assert cli.main(["history", "html", "site"]) == 0
    page = Path("site/index.html").read_text()
    assert re.findall(r'html">(\S+)</a></td><td><b class="(\w+)">([A-Z ]+)<.*?<rect class="(\w+)"', page) == [
        ("hf-hf/ppo-tiny", "bad", "COULD NOT RUN", "bad"),
        ("hf-sglang/ppo-tiny", "bad", "NEW", "bad"),
        ("hf-vllm/ppo-tiny", "ok", "NEW", "ok"),
    ]


def test_a_change_that_a_second_run_does_not_show_is_flaky(folder: Path) -> None:
    equal, other = support.verdict(), support.verdict("DIVERGENT", "STOP")
    support.script(folder / "script.json", hf_hf=equal, hf_sglang=equal, hf_vllm=[equal, other, equal, other, other])
    assert run() == 0 and run() == 0
    assert statuses(2)["hf-vllm/ppo-tiny"] == "FLAKY"
    assert run("--only", "hf-vllm*") == 1 and statuses(3) == {"hf-vllm/ppo-tiny": "REGRESSED"}


def test_a_test_that_tests_less_is_a_regression(folder: Path) -> None:
    equal, less = support.verdict(), support.verdict(checks=3)
    support.script(folder / "script.json", hf_hf=equal, hf_sglang=equal, hf_vllm=[equal, less])
    assert run() == 0 and run() == 1
    found = json.loads(Path("runs/nightly/night-00002/night.json").read_text())
    told = [change["text"] for one in found["results"] for change in one["new"]]
    assert told == ["3 checks tested, 5 before; no longer: check 3, check 4"]


@pytest.mark.parametrize(("played", "words"), [("die", "ended by signal 9"), ("refuse", "there is no backend")])
def test_a_cell_that_dies_ends_itself_only(folder: Path, played: str, words: str) -> None:
    equal = support.verdict()
    support.script(folder / "script.json", hf_hf=equal, hf_vllm=played, hf_sglang=equal)
    assert run() == 2
    assert statuses(1) == {"hf-hf/ppo-tiny": "NEW", "hf-vllm/ppo-tiny": "COULD NOT RUN", "hf-sglang/ppo-tiny": "NEW"}
    assert words in Path("runs/nightly/night-00001/night.md").read_text()
    night = json.loads(Path("runs/nightly/night-00001/night.json").read_text())
    [dead] = [one for one in night["results"] if one["status"] == "COULD NOT RUN"]
    assert Path(dead["report"]).name == "log.txt" and Path(dead["report"]).is_file()


def test_a_cell_that_is_killed_leaves_no_process_in_any_session(folder: Path) -> None:
    support.script(folder / "script.json", hf_hf="orphans", hf_vllm="orphans", hf_sglang=support.verdict())
    assert run() == 2 and statuses(1)["hf-sglang/ppo-tiny"] == "NEW"
    assert len(list(folder.rglob("attempt-1/orphans"))) == 2
    assert support.running(str(folder)) == []


def test_a_cell_ends_with_a_night_that_is_killed(tmp_path: Path) -> None:
    """One that ran on would run beside itself as soon as the night is resumed."""
    asleep = str(tmp_path / "asleep")
    words = ["watch", "--out", str(tmp_path / "w"), "--", sys.executable, "-c", "import time; time.sleep(600)", asleep]
    program = f"from pathlib import Path; from harness.nightly import cells; cells.launch({words}, Path('place'), 600)"
    path = os.pathsep.join(filter(None, sys.path))
    with subprocess.Popen(
        [sys.executable, "-c", program], cwd=tmp_path, env={**os.environ, "PYTHONPATH": path}
    ) as night:
        until(lambda: len([line for line in support.running(asleep) if "watch" not in line]) == 1)
        night.kill()
    until(lambda: not support.running(asleep))


def test_a_cell_is_ended_at_its_limit_with_its_children_and_tried_again(folder: Path) -> None:
    (folder / "matrix.toml").write_text(
        'name = "slow"\n[[include]]\npair = ["hf", "vllm"]\nlimit = "2s"\nretries = 1\n'
    )
    support.script(folder / "script.json", hf_vllm="hang")
    began = time.monotonic()
    assert run() == 2 and time.monotonic() - began < 60
    attempts = sorted(path.name for path in Path("runs/nightly/night-00001/hf-vllm_ppo-tiny").iterdir())
    assert attempts == ["attempt-1", "attempt-2"]
    assert support.running(str(folder / "player.py")) == []


def test_known_differences_do_not_count_until_they_expire(folder: Path) -> None:
    equal, other = support.verdict(), support.verdict("DIVERGENT", "STOP(eos)", "LENGTH")
    support.script(folder / "script.json", hf_hf=equal, hf_vllm=[equal, other], hf_sglang=equal)
    (folder / "matrix.toml").write_text('known = "known.toml"\n' + support.MATRIX)
    entry = '[[known]]\ncell = "hf-vllm/*"\ncause = "{}"\nreason = "upstream"\nowner = "us"\nexpires = {}\n'
    both = entry.format("STOP(*", "2999-01-01") + entry.format("LENGTH", "2999-01-01")
    (folder / "known.toml").write_text(both)
    assert run() == 0 and run() == 0 and statuses(2)["hf-vllm/ppo-tiny"] == "KNOWN"
    (folder / "known.toml").write_text(both.replace("2999", "2001"))
    assert run() == 1 and statuses(3)["hf-vllm/ppo-tiny"] == "REGRESSED"
    assert "2001-01-01" in Path("runs/nightly/night-00003/night.md").read_text()
    (folder / "known.toml").write_text(entry.format("LENGTH", "2999-01-01"))
    assert run() == 0 and statuses(4)["hf-vllm/ppo-tiny"] == "STILL FAILING"
    (folder / "known.toml").write_text(both.replace("2999", "2001"))
    support.script(folder / "script.json", hf_hf=equal, hf_vllm="die", hf_sglang=equal)
    assert run() == 2 and statuses(5)["hf-vllm/ppo-tiny"] == "COULD NOT RUN"


def test_a_night_that_was_cut_is_resumed(
    folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    from harness.nightly.night import Nightly

    kept = Nightly._cell

    def cut(self: Nightly, number: int, cell: matrix.Cell, attempt: cells.Attempt) -> object:
        if "sglang" in cell.name:
            raise KeyboardInterrupt
        return kept(self, number, cell, attempt)

    (folder / "matrix.toml").write_text(support.MATRIX + LACKING)
    monkeypatch.setattr(Nightly, "_cell", cut)
    assert run() == 130
    assert "--resume" in capsys.readouterr().err
    monkeypatch.setattr(Nightly, "_cell", kept)
    assert run("--resume", "--only", "hf-hf") == 2  # it would end the night without the others
    assert "takes no --only" in capsys.readouterr().err
    assert run("--resume") == 0
    assert len(statuses(1)) == 3
    assert "9,999 GPUs" in Path("runs/nightly/night-00001/night.md").read_text()
    assert run("--resume") == 2


def test_a_cell_that_the_matrix_lost_since_the_night_was_cut_is_said_not_to_have_run(
    folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    from harness.nightly.night import Nightly

    with monkeypatch.context() as patch:
        patch.setattr(Nightly, "_cell", lambda *arguments: (_ for _ in ()).throw(KeyboardInterrupt))
        assert run() == 130
    lost = '[[include]]\npair = ["hf", "sglang"]\n'
    assert support.MATRIX.endswith(lost)
    (folder / "matrix.toml").write_text(support.MATRIX.removesuffix(lost))
    told = "hf-sglang/ppo-tiny  not run: the matrix no longer has it"
    assert run("--resume", "--dry-run") == 0 and told in capsys.readouterr().out
    assert run("--resume") == 0 and len(statuses(1)) == 2
    assert "the matrix no longer has it" in Path("runs/nightly/night-00001/night.md").read_text()


def test_a_night_that_is_still_running_is_not_resumed(
    folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    from harness.nightly.night import Nightly

    with monkeypatch.context() as patch:
        patch.setattr(Nightly, "_cell", lambda *arguments: (_ for _ in ()).throw(KeyboardInterrupt))
        assert run() == 130
    held = (
        "import fcntl, sys; file = open(sys.argv[1], 'w'); fcntl.lockf(file, fcntl.LOCK_EX); print(flush=True); input()"
    )
    command = [sys.executable, "-c", held, "runs/nightly/.night-00001"]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as other:
        assert other.stdout is not None and other.stdout.readline()
        assert run("--resume") == 2 and "night 1" in capsys.readouterr().err
        other.communicate(b"\n")
    assert run("--resume") == 0 and not Path("runs/nightly/.night-00001").exists()


def test_a_night_in_which_nothing_ran_does_not_pass(folder: Path) -> None:
    (folder / "matrix.toml").write_text(CELL + "needs = { gpus = 9999 }\n")
    assert run() == 2


def test_cells_of_one_name_in_two_matrices_are_two(folder: Path) -> None:
    assert run() == 0 and set(statuses(1).values()) == {"NEW"}
    (folder / "matrix.toml").write_text(support.MATRIX.replace('"trial"', '"another"'))
    assert run() == 0 and set(statuses(2).values()) == {"NEW"}
    assert run() == 0 and set(statuses(3).values()) == {"OK"}


def _file(out: Path) -> None:
    out.write_text("a file")


def _full(out: Path) -> None:
    out.symlink_to("/dev/full")


@pytest.mark.parametrize("spoil", [_file, _full], ids=["a file", "a device"])
def test_an_out_that_is_no_folder_is_refused_before_the_night(
    folder: Path, spoil: Callable[[Path], None], capsys: pytest.CaptureFixture[str]
) -> None:
    spoil(folder / "out")
    assert run("--out", "out") == 2
    said = capsys.readouterr().err
    assert (
        said.startswith("harness: --out out: recordings cannot be written there: out is a file, ")
        and "fix: harness nightly matrix.toml --out DIR" in said
    )
    assert not Path(HISTORY).exists()


def test_an_out_without_space_is_refused_before_the_night(
    folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    full = partial(open, "/dev/full", "wb", buffering=0)  # the kernel's: every write fails with ENOSPC
    monkeypatch.setattr(tempfile, "TemporaryFile", lambda dir: full())
    assert run() == 2
    assert "No space left on device" in capsys.readouterr().err and not Path(HISTORY).exists()


@pytest.mark.night
def test_an_older_night_that_was_cut_is_resumed_too(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from harness.nightly.night import Nightly

    with monkeypatch.context() as patch:
        patch.setattr(Nightly, "_cell", lambda *arguments: (_ for _ in ()).throw(KeyboardInterrupt))
        assert run() == 130
    assert run("--only", "hf-vllm") == 0
    assert run("--resume") == 0 and set(statuses(1)) == {"hf-hf/ppo-tiny", "hf-sglang/ppo-tiny"}
    assert run("--resume") == 2


def test_a_dry_run_makes_no_history(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run("--dry-run") == 0 and "3 cells, about" in capsys.readouterr().out
    assert run("--dry-run", "--resume") == 2 and "was cut on this machine" in capsys.readouterr().err
    assert not Path("runs").exists()


@pytest.mark.night
def test_a_budget_takes_what_changed_last_then_what_was_longest_not_run(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    equal = support.verdict()
    support.script(
        folder / "script.json", hf_hf=equal, hf_vllm=[equal, support.verdict("DIVERGENT", "STOP")], hf_sglang=equal
    )
    assert run() == 0 and run("--only", "hf-hf") == 0 and run("--only", "vllm") == 1
    capsys.readouterr()
    assert run("--dry-run", "--budget", "10ms") == 0
    printed = capsys.readouterr().out
    assert printed.startswith("hf-vllm/ppo-tiny") and printed.count("beyond the budget") == 2
    assert run("--budget", "1ms") == 0
    assert statuses(4) == {"hf-vllm/ppo-tiny": "STILL FAILING"}
    assert run("--budget", "1ms") == 0 and statuses(5) == {"hf-sglang/ppo-tiny": "OK"}


def test_the_list_names_every_cell_and_runs_none(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run("--list") == 0
    assert capsys.readouterr().out.split() == ["hf-hf/ppo-tiny", "hf-vllm/ppo-tiny", "hf-sglang/ppo-tiny"]
    assert not Path("runs").exists()


def test_a_budget_that_is_no_duration_names_its_own_option(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run("--budget", "soon") == 2
    assert (
        capsys.readouterr().err
        == "harness: --budget 'soon' is not a duration\n  fix: harness nightly matrix.toml --budget 90s   # or 5m, 1h\n"
    )


def test_a_name_in_the_matrix_does_not_drive_the_terminal(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (folder / "a\x1b[31m\nb").mkdir()
    (folder / "a\x1b[31m\nb" / "config.json").write_text("{}")
    (folder / "matrix.toml").write_text('name = "x"\n[matrix]\npairs = [["hf", "hf"]]\nmodels = ["a\\u001b[31m\\nb"]\n')
    assert run("--list") == 0 and capsys.readouterr().out == "hf-hf/ppo-tiny/a\\x1b[31m\\nb\n"
    assert run("--dry-run") == 0 and "\n1 cell, about" in capsys.readouterr().out


@pytest.mark.by_day(20)
@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("name = ", "is not TOML"),
        ("name = " + "[" * 5000, "is not TOML"),
        ("name = 1" + "0" * 5000, "is not TOML"),
        ("", "name is missing"),
        ('name = "x"', "has no cell"),
        ('name = "x"\nnights = 3', "unknown key nights; known keys: name, known, defaults, matrix, include"),
        ('name = "x"\n[defaults]\nstepz = 1', "unknown key defaults.stepz; known keys: limit, retries"),
        ('name = "x"\n[[include]]\nqqzzy = 1', "unknown key include.0.qqzzy; known keys: limit, retries"),
        ('name = "x"\n[matrix]\npair = [["hf", "hf"]]', "unknown key matrix.pair; did you mean pairs?"),
        ('name = "x"\n[defaults]\nretries = "a"', "defaults.retries = 'a': a whole number was expected"),
        ('name = "x"\n[matrix]\npairs = [["hf"]]', "matrix.pairs.0.1 is missing"),
        ('name = "x"\n[matrix]\npairs = [["hf", "vlm"]]', "cell hf-vlm/ppo-tiny: there is no backend 'vlm'"),
        ('name = "x"\n[matrix]\npairs = [["hf", "hf"]]\nscenarios = ["ppo-tony"]', "did you mean ppo-tiny?"),
        ('name = "x"\n[matrix]\npairs = [["hf", "hf"]]\nmodes = ["warm"]', "matrix.modes.0 = 'warm': it should be"),
        ('name = "x"\n[matrix]\npairs = [["hf", "hf"], ["hf", "hf"]]', "several cells are hf-hf/ppo-tiny"),
        ('name = "x"\n[matrix]\npairs = [["hf", "hf"]]\nexclude = [{ mode = "greedy" }]', "matches no cell"),
        (
            'name = "x"\n[matrix]\npairs = [["hf", "hf"]]\ntopologies = [["engine.motors=2"]]',
            "unknown key engine.motors",
        ),
        ('name = "x"\n[defaults]\nlimit = "soon"\n[matrix]\npairs = [["hf", "hf"]]', "limit 'soon' is not a duration"),
        (
            'name = "x"\n[[include]]\npair = ["hf", "hf"]\nneeds = { memory = "lots" }',
            "needs.memory 'lots' is not a size",
        ),
        ('name = "x"\n[matrix]\npairs = [["hf", "hf"]]\n[keep]\nsize = "huge"', "matrix.toml: keep.size 'huge' is no"),
        (
            'name = "x"\n[[job]]\nname = "j"\npair = ["hf", "hf"]\nframework = "tlr"\ncommand = ["python"]',
            "there is no adapter for 'tlr'",
        ),
        (
            'name = "x"\n[[job]]\nname = "j"\npair = ["vllm", "sglang"]\nframework = "trl"\ncommand = ["trl"]',
            "cell vllm-sglang/j: trl does not generate with sglang",
        ),
        (
            'name = "x"\n[[job]]\nname = "j"\npair = ["vllm", "sglang"]\ncommand = ["python", "nobody.py"]',
            "neither the words of this command nor its scripts name one of",
        ),
        ('name = "x"\n[[faults]]\nsuite = "parity"\npair = ["vllm", "slang"]', "did you mean sglang?"),
        (CELL + 'mode = "native"', "cell hf-hf/ppo-tiny/native: whole runs in native mode part after one update"),
        (CELL + 'model = "/no/where"', "cell hf-hf/ppo-tiny/where: model.path = '/no/where': no such directory\n"),
        (CELL + 'settings = ["model.reward=/no/where"]', "model.reward = '/no/where': no such directory"),
        (CELL + 'settings = ["prompts.path=none.jsonl"]', "none.jsonl"),
        (CELL + 'candidate_settings = ["steps=9"]', "steps and rollout.mode belong to both sides"),
        (CELL + 'candidate_settings = ["sampling.top_k=0"]', 'candidate_settings = ["sampling.top_k=-1"]'),
        (
            CELL + 'dtype = "bfloat16"\nsettings = ["model.dtype=float32"]',
            "cell hf-hf/ppo-tiny/bfloat16/model.dtype=float32: dtype = 'bfloat16' and the setting "
            "'model.dtype=float32' contradict each other\n  fix: remove one of the two",
        ),
        (CELL + 'mode = "greedy"\nsettings = ["rollout.mode=coupled"]', "mode = 'greedy' and the setting"),
        (
            CELL + 'settings = ["engine.engines=1", "engine.engines=2"]',
            "engine.engines=1 and the setting 'engine.engines=2' contradict",
        ),
        (CELL + 'settings = ["ppo.world_size=3"]', "ppo.train_batch_size"),
        (
            'name = "x"\n[[faults]]\nsuite = "parity"\nnames = ["temperatur-x"]',
            "cell faults/parity/vllm-sglang/temperatur-x: there is no planted fault 'temperatur-x'; did you mean ",
        ),
        ('name = "x"\n[[faults]]\nsuite = "hang"\nnames = ["x"]', "there is no planted hang 'x'"),
        ('name = "x"\n[[faults]]\nsuite = "hang"\ndtype = "bfloat16"', "dtype does not belong to the suite 'hang'"),
        ('name = "x"\n[[faults]]\nsuite = "parity"\nengines = true', "engines does not belong to the suite 'parity'"),
        (
            'name = "x"\n[[faults]]\nsuite = "parity"\npair = ["hf", "hf"]\nnames = ["kv-pool"]',
            "none of these faults can be had with hf and hf: they need vllm sglang",
        ),
        ('name = "x"\nknown = "none.toml"\n[matrix]\npairs = [["hf", "hf"]]', "none.toml does not exist"),
    ],
)
def test_a_matrix_that_cannot_be_is_one_sentence(
    folder: Path, text: str, words: str, capsys: pytest.CaptureFixture[str]
) -> None:
    (folder / "matrix.toml").write_text(text)
    assert run() == 2
    said = capsys.readouterr().err
    assert words in said and "Traceback" not in said and len(said.splitlines()) <= 2, said
    assert not Path("runs").exists()


@pytest.mark.parametrize(("wrong", "right"), [("trlx", "hf"), ("nosuch", "ppo-tiny")])
def test_the_fix_of_a_wrong_name_is_a_change_of_the_matrix_and_no_command(
    tmp_path: Path, wrong: str, right: str
) -> None:
    """It was `hf   # or vllm or sglang in place of trlx`, which runs a program of that name."""
    pair, scenario = (wrong, "ppo-tiny") if right == "hf" else ("hf", wrong)
    file = tmp_path / "matrix.toml"
    file.write_text(f'name = "x"\n[matrix]\npairs = [["{pair}", "hf"]]\nscenarios = ["{scenario}"]\n')
    with pytest.raises(BadInput) as refusal:
        matrix.load(file)
    fix = (refusal.value.fix or "").partition("   # ")[0]
    assert fix == f"write {right} in place of {wrong}, in that cell of {file}"
    file.write_text(file.read_text().replace(wrong, right))
    matrix.load(file)


def test_the_matrix_of_the_page_is_valid(tmp_path: Path) -> None:
    page = (Path(__file__).parents[3] / "docs" / "how-to" / "nightly.md").read_text()
    (tmp_path / "doc.toml").write_text(re.findall(r"^```toml\n(.*?)^```", page, re.M | re.S)[0])
    _, all_cells = matrix.load(tmp_path / "doc.toml")
    assert {"grpo", "parity"} <= {word for cell in all_cells for word in cell.name.split("/")}


def test_the_fix_of_a_scenario_that_is_missing_makes_it(tmp_path: Path) -> None:
    text = 'name = "x"\n[matrix]\npairs = [["hf", "hf"]]\nscenarios = ["the mine.toml"]\n'
    (tmp_path / "mx.toml").write_text(text)
    with pytest.raises(BadInput) as error:
        matrix.load(tmp_path / "mx.toml")
    subprocess.run(str(error.value.advice), shell=True, check=True)
    assert [cell.name for cell in matrix.load(tmp_path / "mx.toml")[1]]


def test_the_product_without_what_is_excluded(folder: Path) -> None:
    (folder / "matrix.toml").write_text(
        'name = "x"\n[defaults]\nlimit = "5m"\nstrict = true\n'
        '[matrix]\npairs = [["hf", "vllm"], ["vllm@0.31", "vllm@0.32"]]\n'
        'modes = ["coupled", "greedy"]\ndtypes = ["float32", "bfloat16"]\n'
        'exclude = [{ mode = "greedy", dtype = "bfloat16" }]\n'
        '[[faults]]\nsuite = "parity"\ndtype = "bfloat16"\nlimit = "6h"\n'
        '[[job]]\nname = "grpo"\npair = ["sglang", "vllm"]\nframework = "verl"\ncommand = ["python", "train.py"]\n'
    )
    loaded, found = matrix.load(folder / "matrix.toml")
    assert len(found) == 8 and loaded.name == "x"
    by_name = {cell.name: cell for cell in found}
    assert by_name["faults/parity/vllm-sglang/bfloat16"].limit_s == 21600
    assert by_name["sglang-vllm/grpo"].limit_s == 300
    words = by_name["hf-vllm/ppo-tiny/coupled/bfloat16"].arguments(Path("x"))
    assert words[:3] == ["parity", "hf", "vllm"] and words[words.index("--set") + 1] == "model.dtype=bfloat16"
    assert "--strict" in words and "--strict" in by_name["sglang-vllm/grpo"].arguments(Path("x"))
    assert "--strict" not in by_name["faults/parity/vllm-sglang/bfloat16"].arguments(Path("x"))
    assert by_name["sglang-vllm/grpo"].arguments(Path("x"))[-3:] == ["--", "python", "train.py"]


@pytest.mark.night
def test_the_matrix_of_this_project_can_be() -> None:
    loaded, found = matrix.load(Path(__file__).parents[3] / ".ci" / "nightly.toml")
    names = {cell.name for cell in found}
    assert loaded.name == "rlhf-harness" and len(names) == len(found) == 26
    assert {"faults/hang/engines/conditions", "vllm-sglang/ppo-tiny/engine.engines=2"} <= names


def test_all_mistakes_of_a_matrix_are_named(tmp_path: Path) -> None:
    """First those of its keys, then those of its cells."""
    file = tmp_path / "matrix.toml"
    file.write_text('nme = "x"\n[matrix]\npairs = [["hf", "vlm"]]\nmods = 1\ndtypes = 3\n')
    with pytest.raises(Mistakes) as refusal:
        matrix.load(file)
    assert len(refusal.value.mistakes) == 4 and "unknown key matrix.mods; did you mean mode" in refusal.value.message
    file.write_text('name = "x"\n[matrix]\npairs = [["hf", "vlm"], ["hf", "hf"], ["hg", "hf"]]\n')
    with pytest.raises(Mistakes) as refusal:
        matrix.load(file)
    assert len(refusal.value.mistakes) == 2


def test_a_cell_whose_needs_this_machine_has_not_is_left_out(folder: Path) -> None:
    (folder / "matrix.toml").write_text(support.MATRIX + "needs = { gpus = 9999 }\n")
    assert run() == 0 and len(statuses(1)) == 2
    assert "9,999 GPUs" in Path("runs/nightly/night-00001/night.md").read_text()


def test_every_text_is_escaped_on_its_way_out(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    evil = support.verdict("DIVERGENT", "STOP(<script>alert(1)</script>\n::error::x\x1b[31m)")
    support.script(folder / "script.json", hf_hf=evil, hf_vllm=evil, hf_sglang=evil)
    assert run("--format", "github") == 1
    printed = capsys.readouterr().out
    assert "\x1b" not in printed and all(
        line.startswith(("::error title=NEW", "3 NEW")) for line in printed.splitlines()
    )
    assert cli.main(["history", "html", "site"]) == 0
    for page in (folder / "site").rglob("*.html"):
        assert "<script" not in page.read_text() and "\x1b" not in page.read_text()
    assert "<script" not in Path("runs/nightly/night-00001/night.md").read_text()
    assert cli.main(["history", "html", str(folder)]) == 2


def test_the_examples_of_the_help_work_when_they_are_typed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    help_text = cli.commands().commands["nightly"].help
    matrix, entries = (textwrap.dedent(block.partition("\n\n")[0]) for block in help_text.split("\b\n")[1:3])
    (tmp_path / "matrix.toml").write_text(matrix)
    monkeypatch.chdir(tmp_path)
    assert cli.main(["nightly", "matrix.toml", "--list"]) == 0
    (tmp_path / "known.toml").write_text(entries)
    (tmp_path / "matrix.toml").write_text(f'known = "known.toml"\n{matrix}')
    assert cli.main(["nightly", "matrix.toml", "--list"]) == 0 and len(known.load(tmp_path / "known.toml")) == 1


def test_a_file_of_known_differences_that_is_not_there_is_made_empty(tmp_path: Path) -> None:
    file = tmp_path / "known.toml"
    with pytest.raises(BadInput) as refusal:
        known.load(file)
    assert refusal.value.fix and refusal.value.fix.partition("   # ")[0] == f"touch {file}"
    subprocess.run(["touch", str(file)], check=True)
    assert known.load(file) == ()
