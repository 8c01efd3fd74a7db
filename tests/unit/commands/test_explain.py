"""`harness explain`: what a name in a report means, from the registries."""

from __future__ import annotations

import ast
import dataclasses
import json
import re
import shlex
from pathlib import Path

import pytest

from harness import cli, glossary
from harness.commands.doors import DOORS
from harness.errors import BadInput
from harness.exit_codes import EXITS, STALLED
from harness.parity.causes import registry
from harness.parity.causes.family import CauseFamily
from harness.parity.subjects.engines import observed_lifecycle
from harness.parity.subjects.learner.observed import _IN_THE_LOSS
from harness.parity.subjects.learner.observed_learner_faults import Divisor, Reading
from harness.parity.subjects.log_probabilities.observed_metrics import Mismatch
from harness.parity.subjects.prompts.causes import UNDONE
from harness.parity.subjects.ranks import observed_faults
from harness.terms import TERMS
from reports.model import HANGS, VERDICTS
from reports.sections import bisect, doctor, parity, titles
from scenarios.engines.canonical import BY_NAME

REPORTS = Path(__file__).parents[3] / "reports"


def explained(capsys: pytest.CaptureFixture[str], *words: str) -> str:
    assert cli.main(["explain", *words]) == 0
    return capsys.readouterr().out


def test_a_cause_as_a_verdict_prints_it_has_its_meaning_fix_and_rivals(capsys: pytest.CaptureFixture[str]) -> None:
    family = registry.families()["STALE_WEIGHTS"]
    told = " ".join(explained(capsys, "STALE_WEIGHTS(lm_head.weight, model.norm.weight)").split())
    assert told.startswith(f"STALE_WEIGHTS cause {family.meaning} fix: {family.fix}")
    for rival in family.rivals:
        assert f"looks the same: {rival.cause} not if {rival.excluded_by[0]}" in told


def test_a_detail_is_explained_where_a_registry_knows_it() -> None:
    def cause(name: str) -> glossary.Entry:
        [entry] = [entry for entry in glossary.find(name) if entry.kind == "cause"]
        return entry

    family = registry.families()["LOGPROB_SEMANTICS"]
    for part, meaning in family.details.items():
        entry = cause(f"LOGPROB_SEMANTICS({part})")
        assert entry.details == {part: meaning} and entry.fix == family.fixes.get(part, family.fix)
    assert BY_NAME["temperature"].concept in cause("SAMPLING_PARAM(temperature)").details["temperature"]
    tensors = cause("STALE_WEIGHTS(lm_head.weight, all tensors)").details
    assert len({*tensors.values()}) == 2 and registry.families()["STALE_WEIGHTS"].named in tensors["lm_head.weight"]
    assert cause("SAMPLING_PARAM").details == {}


def test_a_detail_that_no_cause_has_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["explain", "TOKENIZATION(duble BOS)"]) == 2
    first, second = capsys.readouterr().err.splitlines()
    assert "did you mean double BOS?" in first and second.startswith("  fix: harness explain TOKENIZATION ")


@pytest.mark.slow
def test_every_detail_that_the_source_can_print_is_explained() -> None:
    """Of keys with constants, and of enumerations and tables that keys are made of."""
    families = registry.families()
    details = [
        *(("LIFECYCLE", part) for part in observed_lifecycle.What),
        *(("TRAINER", part) for part in (*observed_faults.What, *Reading, *Divisor, *_IN_THE_LOSS.values())),
        *(("TOKENIZATION", part) for part in UNDONE if not any(part in family.prompts for family in families.values())),
        *((name, part) for name, family in families.items() for part in (*family.fixes, *family.suspicions)),
        *((name, part) for name, family in families.items() for parts in family.prompts.values() for part in parts),
    ]
    for file in Path(glossary.__file__).parent.glob("parity/**/*.py"):
        for node in ast.walk(ast.parse(file.read_text("utf-8"))):
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr == "key":
                name = ast.unparse(node.func.value)
                details += [
                    (name, word.value) for word in node.args if name in families and isinstance(word, ast.Constant)
                ]
    assert len(details) > 60
    assert not [(name, part) for name, part in details if not glossary.detail(families[name], part)]


@pytest.mark.parametrize("name", ["K4(foo)", "weight-sync(foo)", "HUNG(foo)"])
def test_what_has_no_details_says_so(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["explain", "K10", name]) == 2
    first, second = capsys.readouterr().err.splitlines()
    assert "'foo'" in first and second == f"  fix: harness explain K10 {name.partition('(')[0]}"


def test_an_exit_code_behind_a_verdict_is_no_detail() -> None:
    assert glossary.find("INSUFFICIENT (exit code 3)") == glossary.find("INSUFFICIENT")


@pytest.mark.slow
def test_several_kinds_may_have_one_name(capsys: pytest.CaptureFixture[str]) -> None:
    told = explained(capsys, "baseline-itself", "file-limit")
    assert "baseline-itself  cause" in told and "baseline-itself  check" in told and "file-limit  doctor check" in told


def test_a_hang_as_a_verdict_prints_it_says_what_shows_it_and_who_is_named(capsys: pytest.CaptureFixture[str]) -> None:
    kind = HANGS["K10"]
    for words in (["K10"], ["k10 rank-conditional collective"]):
        told = " ".join(explained(capsys, *words).split())
        assert told.startswith(f"K10 hang {kind.name}: {kind.shows}. ")
        assert told.endswith(f"{kind.named}. fix: {kind.fix}")


def test_a_verdict_says_when_it_is_given_its_exit_code_and_what_to_do(capsys: pytest.CaptureFixture[str]) -> None:
    for name, answer in VERDICTS.items():
        told = " ".join(explained(capsys, name.lower()).split())
        assert f"{name} verdict {answer.meaning} Exit code {answer.exit_code}. fix: {answer.fix}" in told
    assert "triage verdict" in explained(capsys, "ERROR") and "triage verdict" in explained(capsys, "HUNG")


def test_an_exit_code_says_which_commands_end_with_it(capsys: pytest.CaptureFixture[str]) -> None:
    told = " ".join(explained(capsys, "exit code 3").split())
    assert told == " ".join(explained(capsys, "3").split())
    assert (
        "replay and report: INCONCLUSIVE or CONFOUNDED; harness audit: INCONCLUSIVE; harness triage: INSUFFICIENT"
        in told
    )
    assert "found hung" in " ".join(explained(capsys, "86").split())


def test_everything_is_listed_with_a_meaning_and_every_cause_and_hang_with_a_fix(
    capsys: pytest.CaptureFixture[str],
) -> None:
    entries = glossary.entries()
    assert all(one.meaning for one in entries)
    assert all(one.fix for one in entries if one.kind in ("cause", "hang"))
    lines = explained(capsys).splitlines()
    assert [line.split("  ")[0] for line in lines[1:]] == [one.name for one in entries]
    listed = json.loads(explained(capsys, "--format", "json"))
    assert [one["name"] for one in listed] == [one.name for one in entries]


def test_a_cause_of_another_package_is_explained(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    loaded = registry._loaded()
    theirs = CauseFamily("IN_BITS", meaning="log-probabilities are in bits", fix="ask for nats", alone="one factor")
    monkeypatch.setattr(registry, "_loaded", lambda: ({**loaded[0], theirs.name: theirs}, *loaded[1:]))
    [printed] = json.loads(explained(capsys, "IN_BITS", "--format", "json"))
    wanted = {"kind": "cause", "meaning": theirs.meaning, "fix": theirs.fix}
    assert printed == dataclasses.asdict(glossary.Entry("IN_BITS", **wanted)) | {"also": []}


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "told"),
    [("STALE_WEIGHT", "; did you mean STALE_WEIGHTS"), ("alignement", "; did you mean ALIGNMENT?")],
)
def test_an_unknown_name_comes_with_the_closest(name: str, told: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["explain", name]) == 2
    first, fix = capsys.readouterr().err.splitlines()
    assert f"there is no verdict, cause, check, hang or exit code {name!r}" in first and told in f"{first} "
    assert fix == f"  fix: harness explain {told.strip('?').split()[-1]}"
    assert explained(capsys, *fix.split()[3:])


@pytest.mark.slow
@pytest.mark.parametrize(
    ("words", "fix"),
    [
        ("doublebos", "'TOKENIZATION(double BOS)'"),
        ("K2 order invrsion", "'K2 order inversion'"),
        ("K2 order invrsion K4", "'K2 order inversion' K4"),
        ("K4 stale weight", "K4 STALE_WEIGHTS"),
        ("weightsync", "'weight sync'"),
    ],
)
def test_the_nearest_words_are_proposed_whatever_joins_them(
    words: str, fix: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert cli.main(["explain", *words.split()]) == 2
    printed = capsys.readouterr().err.splitlines()[1]
    assert printed == f"  fix: harness explain {fix}"
    assert cli.main(shlex.split(printed)[2:]) == 0


def test_an_exit_code_of_a_signal_is_explained() -> None:
    [killed] = glossary.find("137")
    assert killed.kind == "exit code" and "SIGKILL" in killed.meaning
    assert [glossary.find(text) for text in ("exit code 137", "exit 137")] == [[killed]] * 2
    assert glossary.find("143") == [entry for entry in glossary.entries() if entry.name == "143"]


@pytest.mark.parametrize(
    ("text", "code"), [("128", "128"), ("255", "255"), ("-9", "137"), ("SIGSEGV", "139"), ("sigint", "130")]
)
def test_each_number_that_an_exit_code_can_be_is_explained(text: str, code: str) -> None:
    [entry] = glossary.find(text)
    assert (entry.name, entry.kind) == (code, "exit code")


@pytest.mark.parametrize(("text", "fix"), [("300", "44"), ("1000", "232")])
def test_a_number_above_every_exit_code_is_what_arrives_of_it(text: str, fix: str) -> None:
    with pytest.raises(BadInput) as refused:
        glossary.find(text)
    assert (refused.value.fix, refused.value.instead) == (fix, text)
    assert glossary.find(fix)


@pytest.mark.slow
def test_a_name_that_is_near_none_is_looked_up_in_the_list(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["explain", "qqqqqq"]) == 2
    assert capsys.readouterr().err.splitlines()[1] == "  fix: harness explain   # lists them"


def test_every_party_of_a_report_is_a_term() -> None:
    parties = {"culprit", "victim", "suspect", "bystander"}
    assert parties <= TERMS["Hangs"].keys()


def test_an_exit_code_names_every_command_that_has_it() -> None:
    [stalled] = [row for row in EXITS if row.code == str(STALLED)]
    assert "watch" in stalled.commands and "record" in stalled.commands


def _titles() -> set[str]:
    """What the commands print above their sections."""
    terminal = "".join(file.read_text("utf-8") for file in sorted((REPORTS / "sections" / "terminal").glob("*.py")))
    page = (REPORTS / "templates" / "report.html").read_text("utf-8")
    written = re.findall(r'heading\("([^"]+)"', terminal) + re.findall(r"<h[23][^>]*>([A-Z][^<{]+)", page)
    arranged = [title for table in (doctor.TITLES, doctor.COMPARED) for title in table.values()]
    constants = (
        *(parity.ELEVEN, parity.OTHERS, parity.CONFOUNDERS[0]),
        *(parity.NOT_AS_ASKED, parity.NOT_CALLED, parity.NOT_SHOWN, parity.UNNOTICED, parity.WARNINGS),
        *(titles.WRONG, titles.DROPPED, titles.LEFT_OUT, titles.NEVER_EQUAL, titles.NOTES),
        *(bisect.FIRST_BAD, bisect.ONE_IS_FIRST_BAD, bisect.LAST_GOOD, "cause 1, only together"),
    )
    return {*written, *arranged, *constants, "Floor and tolerance", "Coverage", "Figures"}


@pytest.mark.parametrize("title", sorted(_titles()))
@pytest.mark.slow
def test_the_title_of_a_section_is_explained(title: str) -> None:
    assert glossary.find(title) and glossary.find(f"{title}   2 of them")


def _numbers() -> set[str]:
    """The names of numbers that a report prints: the metrics, and the seconds of a command."""
    names = "delta k1 k3 mult apart apart_max apart2 p q pp qq pq weight weight2 sequence sequences"
    sums = dict.fromkeys(names.split(), 0.5)
    metrics = Mismatch(1, 0, sums, (0.0, 0.0, 0.0), {}, {}, (0.0, 0, 0, 0), {}, (0, 0)).result()
    laps = re.findall(r'lap\("(\w+)"\)', (REPORTS.parent / "harness" / "parity" / "runs" / "run.py").read_text("utf-8"))
    return {*metrics, *laps, "total_s", "warm"} - {"p50", "p95", "p99", "tokens"}


@pytest.mark.parametrize("word", sorted({*_numbers(), *titles.LINES, *BY_NAME, "max_running_requests", "coupled"}))
@pytest.mark.slow
def test_a_number_a_line_and_a_setting_are_explained(word: str) -> None:
    assert all(entry.meaning for entry in glossary.find(word))


@pytest.mark.parametrize("command", [name for names in DOORS.values() for name in names])
@pytest.mark.slow
def test_a_command_is_explained_with_where_its_help_is(command: str) -> None:
    for text in (command, f"harness {command}: MAY FAIL"):
        (entry,) = (entry for entry in glossary.find(text) if entry.kind == "command")
        assert entry.meaning and entry.fix == f"harness help {command}"


def test_the_title_of_what_was_not_as_asked_names_its_section() -> None:
    assert [(entry.name, entry.kind) for entry in glossary.find("not as you asked")] == [
        (parity.NOT_AS_ASKED, "section")
    ]


@pytest.mark.parametrize(
    ("words", "names"),
    [
        ("K2 order inversion", ["K2"]),
        ("HUNG K4 absent peer", ["HUNG", "K4"]),
        ("K2 K4 UNSOUND", ["K2", "K4", "UNSOUND"]),
        ("STALE_WEIGHTS K4", ["STALE_WEIGHTS", "K4"]),
    ],
)
def test_a_name_of_several_words_needs_no_quotes(words: str, names: list[str]) -> None:
    assert [entry.name for entry in glossary.find_words(words.split())] == names
