"""The parity suite without engines: the catalogue, how it is planned, scored and damaged, and foreign files."""

from __future__ import annotations

import ast
import dataclasses
import json
import re
from pathlib import Path
from typing import Any, Literal

import pytest
from recordings import pair

from harness import cli, config
from harness.commands.faults import list_, refuse_unknown, run
from harness.errors import BadInput
from harness.parity.causes.registry import families
from harness.parity.verdict import judge
from harness.planted.differences import files, tables
from harness.planted.differences.damage import DAMAGES, damage
from harness.planted.differences.fault_runs import inside_engines, planned, sound_name
from harness.planted.differences.outcome import Outcome, score, started_since
from harness.planted.differences.rotation import rotated
from probes.format import seal
from probes.lines import check_seal, decode_line, encode_lines
from reports.model import AUDIT_EXIT_CODES, EXIT_CODES, Cause, Finding, Verdict
from scenarios.planted.differences import shapes
from scenarios.planted.differences.catalog import FAMILIES, FAULTS, Fault, family, matches, named
from scenarios.planted.differences.faulty_engine import PLANTS
from scenarios.planted.differences.trainer import TrainerPlants
from scenarios.settings import Model, Scenario
from scenarios.tiny import ARCHITECTURES, PREFIX


def verdict(word: str, *causes: Cause, findings: tuple[str, ...] = ()) -> Verdict:
    return Verdict("parity", word, 1, "because", causes=list(causes), findings=[Finding(name, "") for name in findings])


def test_every_cause_has_a_planted_fault_and_every_verdict_too() -> None:
    planted = {cause.partition("(")[0] for fault in FAULTS for cause in fault.causes}
    assert planted == families().keys() - {"UNEXPLAINED"}
    assert {fault.expected for fault in FAULTS} == {"DIVERGENT", "CONFOUNDED", "EQUIVALENT", "INCONCLUSIVE"}
    assert {party for fault in FAULTS for party in fault.parties} >= {"baseline", "candidate", "mapping", "trainer"}
    assert sum(len(fault.causes) > 1 for fault in FAULTS) >= 3


@pytest.mark.slow
def test_every_cause_that_the_judge_can_name_is_known() -> None:
    """The words are read in its source: a name beginning in capitals, alone or with a detail."""
    found = set()
    for file in (Path(__file__).parents[3] / "harness" / "parity").rglob("*.py"):
        for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Constant) and isinstance(node.value, str):
                found |= set(re.findall(r"^([A-Z][A-Z_]{2,})(?:$|\()", node.value))
    others = {"FAULTS", "FAMILIES", "NOT_RUN", "KINDS", "CPU", "GPU", "KEY", "NONE"}
    others |= {"PYTHONPATH", "PYTHONDONTWRITEBYTECODE"}
    assert found - {*EXIT_CODES, *AUDIT_EXIT_CODES} - others <= families().keys()


@pytest.mark.by_day(70)
@pytest.mark.slow
@pytest.mark.parametrize("fault", FAULTS, ids=lambda fault: fault.name)
def test_the_catalogue_is_sound(fault: Fault) -> None:
    assert files.problem(fault, Path(__file__)) == ""
    assert bool(fault.causes) == bool(fault.party)
    config.changed(Scenario(), [*fault.scenario, *fault.settings])


def test_a_fault_of_the_catalogue_says_how_it_is_made_again() -> None:
    line = files.reproduced_by(named("kv-pool"), ("sglang", "vllm"), Model())
    assert line == "harness faults run --suite parity kv-pool --backends sglang vllm"
    assert files.reproduced_by(dataclasses.replace(FAULTS[0], name="of-a-file"), ("vllm", "sglang"), Model()) == ""


def test_each_fault_moves_to_the_next_architecture_that_has_its_tensors_and_the_control_is_on_all() -> None:
    turns = [rotated(FAULTS, turn) for turn in range(2)]
    models = [PREFIX + name for name in ARCHITECTURES]
    assert [fault.model for fault in turns[0] if fault.name == "control"] == models
    moved = [(a, b) for a, b in zip(*turns, strict=True) if a.name != "control" and a.model]
    assert len(moved) > 100 and all(a.model != b.model for a, b in moved)
    stale = [rotated([named("stale-tensor")], turn)[0].model for turn in range(len(models))]
    lacking = {"builtin:experts", "builtin:learned-positions"}  # no model.layers.0.mlp.down_proj.weight
    assert set(stale) == set(models) - lacking
    turned = [rotated([named("lifted-rotary-base")], turn)[0].model for turn in range(len(models))]
    assert set(turned) == set(models) - {"builtin:learned-positions"}  # its positions are no rotation


def test_a_fault_on_another_architecture_is_its_own_family_folder_and_command() -> None:
    [rotated_fault] = rotated([named("kv-pool")], 0)
    assert family(rotated_fault) == family(named("kv-pool"))
    settings = config.changed(Scenario(), rotated_fault.of_both)
    assert settings.model.path == rotated_fault.model != ""
    line = files.reproduced_by(rotated_fault, ("vllm", "sglang"), settings.model)
    assert line.split()[-2:] == ["--model", rotated_fault.model]
    folders = [fault.folder for fault in rotated(FAULTS, 0)]
    assert len(set(folders)) == len(folders)


def test_names_are_unique_and_an_unknown_one_is_refused() -> None:
    assert len({fault.name for fault in FAULTS}) == len(FAULTS)
    assert named("stale-tensor").expected == "DIVERGENT"
    with pytest.raises(ValueError, match="'nope'"):
        named("nope")
    with pytest.raises(BadInput, match="'nope'"):
        files.chosen(FAULTS, ["nope"])
    assert [one.name for one in files.chosen(FAULTS, ["truncated-", "control"])][-1] == "control"


@pytest.mark.parametrize(
    ("expected", "cause", "right"),
    [
        ("STALE_WEIGHTS(a)", "STALE_WEIGHTS(a)", True),
        ("STALE_WEIGHTS(a)", "STALE_WEIGHTS(b)", False),
        ("STALE_WEIGHTS", "STALE_WEIGHTS(b)", True),
        ("RNG", "RNG_COLLISION", False),
        ("RNG(seed ignored)", "RNG", False),
    ],
)
def test_a_cause_matches_by_its_detail_or_without_one(expected: str, cause: str, right: bool) -> None:
    assert matches(expected, cause) is right


def outcome(fault: Fault, said: str, *causes: tuple[str, str], findings: tuple[str, ...] = ()) -> Outcome:
    return Outcome(fault, verdict(said, *(Cause(name, party, "") for name, party in causes), findings=findings), 5.0)


SHIFT = Fault("shift", causes=("ALIGNMENT",), party="candidate")
PAIR = Fault("pair", causes=("ALIGNMENT", "VOCAB"), party="candidate")
QUIET = Fault("quiet", expected="EQUIVALENT")


@pytest.mark.parametrize(
    ("one", "found", "right"),
    [
        (outcome(SHIFT, "DIVERGENT", ("ALIGNMENT", "candidate")), True, True),
        (outcome(SHIFT, "DIVERGENT", ("ALIGNMENT", "baseline")), True, False),
        (outcome(SHIFT, "DIVERGENT", ("UNEXPLAINED", "candidate")), True, False),
        (outcome(SHIFT, "DIVERGENT", ("ALIGNMENT", "candidate"), ("VOCAB", "candidate")), True, False),
        (outcome(SHIFT, "EQUIVALENT"), False, False),
        (outcome(SHIFT, "INCONCLUSIVE", ("ALIGNMENT", "candidate")), False, False),
        (outcome(PAIR, "DIVERGENT", ("ALIGNMENT", "candidate")), True, False),
        (outcome(PAIR, "DIVERGENT", ("VOCAB", "candidate"), ("ALIGNMENT", "candidate")), True, True),
        (outcome(QUIET, "EQUIVALENT"), True, True),
        (outcome(QUIET, "DIVERGENT", ("ALIGNMENT", "candidate")), False, False),
        (Outcome(SHIFT, None, error="the engine died"), False, False),
    ],
)
def test_what_counts_as_found_and_as_named(one: Outcome, found: bool, right: bool) -> None:
    assert (one.as_expected, one.right) == (found, right)


def test_a_finding_that_must_stand_there() -> None:
    told = Fault("told", expected="EQUIVALENT", findings=("engine.seed",))
    assert outcome(told, "EQUIVALENT", findings=("engine.seed", "other")).right
    assert not outcome(told, "EQUIVALENT", findings=("other",)).as_expected
    quiet = dataclasses.replace(QUIET, absent=("growth",))
    assert outcome(quiet, "EQUIVALENT", findings=("other",)).right
    assert not outcome(quiet, "EQUIVALENT", findings=("growth",)).right
    confounded = Fault("confounded", expected="CONFOUNDED", confounders=("ppo.clip",))
    for name, found in (("ppo.clip", True), ("seed", False)):
        said = dataclasses.replace(verdict("CONFOUNDED"), confounders=[Finding(name, "")])
        assert Outcome(confounded, said).as_expected == found


def test_a_fault_that_the_recordings_may_not_suffice_to_tell_may_be_untested_and_never_ruled_out() -> None:
    small = dataclasses.replace(SHIFT, or_untested=True)
    untested, ruled_out = outcome(small, "INCONCLUSIVE"), outcome(small, "EQUIVALENT")
    assert untested.as_expected and untested.right and not ruled_out.as_expected and not ruled_out.right
    assert not outcome(SHIFT, "INCONCLUSIVE").as_expected
    counted = score([untested, ruled_out])
    assert (counted.detected, counted.faults, counted.causes, counted.passed) == (1, 2, 1, False)


def test_what_must_be_told_of_a_cause_or_a_finding() -> None:
    kernel = Fault("k", causes=("UNEXPLAINED",), party="candidate", told={"UNEXPLAINED": "in layer 2,"})
    for evidence, right in (("they differ first in layer 2, by 0.1", True), ("first in layer 21", False), ("", False)):
        said = verdict("DIVERGENT", Cause("UNEXPLAINED", "candidate", "", evidence))
        assert Outcome(kernel, said).right == right
    flag = Fault("f", expected="EQUIVALENT", findings=("CONFIG(eager)",), told={"CONFIG(eager)": "none measured"})
    for effect, right in (("none measured: without A nothing differs", True), ("not separated", False)):
        said = dataclasses.replace(verdict("EQUIVALENT"), findings=[Finding("CONFIG(eager)", "", effect)])
        assert Outcome(flag, said).as_expected == right


def test_every_plant_has_the_shape_of_its_setting() -> None:
    trainer = {one.name for one in dataclasses.fields(TrainerPlants)}
    assert set(shapes.PLANTS) == {*PLANTS, "first_sample", "only"}
    assert set(shapes.TRAINER) == trainer and set(shapes.RECORDING) == set(DAMAGES)


def test_the_mapping_is_blamed_on_the_side_at_fault() -> None:
    fault = Fault("map", causes=("CONFIG(dtype)",), party="mapping")
    for side, right in (("candidate", True), ("baseline", False)):
        cause = Cause("CONFIG(dtype)", "mapping", "", details={"side": side})
        assert Outcome(fault, verdict("DIVERGENT", cause)).named is right


def test_the_score_counts_and_passes_only_when_all_is_right() -> None:
    right, missed = outcome(SHIFT, "DIVERGENT", ("ALIGNMENT", "candidate")), outcome(SHIFT, "EQUIVALENT")
    quiet, alarm = outcome(QUIET, "EQUIVALENT"), outcome(QUIET, "DIVERGENT")
    assert score([right, quiet]).passed
    assert not score([right, quiet, missed]).passed and score([right, missed]).misses == ["shift"]
    assert not score([right, alarm]).passed and score([right, alarm]).alarms == ["quiet"]
    unnamed = outcome(SHIFT, "DIVERGENT", ("UNEXPLAINED", "candidate"))
    assert score([right] * 19 + [unnamed]).passed  # 95 %
    assert not score([right] * 18 + [unnamed]).passed
    assert "found 19/19; named 18/19" in score([right] * 18 + [unnamed]).line


def test_the_start_of_an_engine_is_counted_apart() -> None:
    warm = outcome(SHIFT, "DIVERGENT", ("ALIGNMENT", "candidate"))
    cold = dataclasses.replace(warm, run_s=30.0, live_s=2.0, starts=(2, 15.5))
    assert (warm.warm_s, cold.seconds, cold.warm_s) == (5.0, 32.0, 16.5)
    assert "32.0 s at most; 1 fault started an engine; without such starts 16.5 s at most" in score([warm, cold]).line
    assert "started an engine" not in score([warm]).line
    assert started_since((1, 5.0), (3, 12.25)) == (2, 7.2) and started_since((3, 9.0), (1, 4.0)) == (0, 0.0)


def test_faults_are_planned_by_pair_and_scenario_with_restarts_last() -> None:
    faults = [
        Fault("restart", settings=("engine.seed=1",)),
        Fault("baseline", side="baseline"),
        Fault("plain"),
        Fault("cool", scenario=("sampling.temperature=0.7",)),
        Fault("reversed", pair=("b", "a")),
        Fault("elsewhere", pair=("c", "d")),
    ]
    plans = planned(faults, ("a", "b"))
    assert [(pair, [[one.name for one in group] for _, group in groups]) for pair, groups in plans] == [
        (("a", "b"), [["plain", "restart", "baseline"], ["cool"]]),
        (("b", "a"), [["reversed"]]),
    ]


def recording(folder: Path) -> Path:
    for name, content in (
        ("tokens/rollout-0.bin", b"x" * 100),
        ("events/rollout-0.jsonl", encode_lines([(0, "environment", {"packages": {"torch": "1"}})])),
        (
            "events/trainer-0.jsonl",
            encode_lines([(0, "environment", {"packages": {"torch": "1"}}), (0, "other", {"step": 1})]),
        ),
    ):
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_bytes(content)
    return folder


def read_events(file: Path) -> list[dict[str, Any]]:
    lines = file.read_bytes().splitlines(keepends=True)
    check_seal(b"".join(lines), 0)
    return [decode_line(line) for line in lines]


def test_damage_to_a_recording(tmp_path: Path) -> None:
    half = recording(tmp_path / "half")
    damage(half, {"keep": 0.5})
    assert (half / "tokens/rollout-0.bin").stat().st_size == 50
    assert (half / "events/rollout-0.jsonl").stat().st_size > 0
    empty = recording(tmp_path / "empty")
    damage(empty, {"keep": 0.0})
    assert not any(file.stat().st_size for file in empty.rglob("*") if file.is_file())
    other = recording(tmp_path / "other")
    damage(other, {"packages": {"torch": "2"}})
    assert read_events(other / "events/rollout-0.jsonl")[0]["packages"] == {"torch": "1"}
    [changed, kept] = read_events(other / "events/trainer-0.jsonl")
    assert changed["packages"] == {"torch": "2"} and kept["step"] == 1


@pytest.mark.slow
def test_a_learner_of_another_environment_is_no_damage(tmp_path: Path) -> None:
    """What a planted fault writes is what a run would have written: its index fits."""
    sides = [made.write(tmp_path / made.manifest["side"]) for made in pair(native=False)]
    for side in sides:
        seal(side)
    damage(sides[1], {"packages": {"torch": "2.4.1"}})
    verdict = judge(*sides)
    assert verdict.verdict == "CONFOUNDED", verdict.reason
    assert [confounder.name for confounder in verdict.confounders] == ["learner environment"]


HEAD = """\
from scenarios.planted.differences.catalog import Fault
from scenarios.planted.differences.faulty_engine import Wrapper
"""
GOOD = f"""{HEAD}
class Mine(Wrapper):
    pass

FAULTS = [
    Fault("mine", "a wrapper of my own", engine={{"wrapper": "Mine"}}, causes=["ALIGNMENT"], party="candidate"),
    Fault("cold", settings=("sampling.temperature=0.5",), causes=("SAMPLING_PARAM(temperature)",), party="candidate"),
]
"""


def test_faults_of_a_foreign_file(tmp_path: Path) -> None:
    file = tmp_path / "mine.py"
    file.write_text(GOOD)
    mine, cold = files.faults(str(file))
    assert mine.engine["wrapper"] == f"{file}:Mine" and mine.causes == ("ALIGNMENT",)
    assert cold.settings == ("sampling.temperature=0.5",)
    assert files.faults() is FAULTS


@pytest.mark.slow
@pytest.mark.parametrize(
    ("content", "said"),
    [
        (None, "no such file"),
        ("1/0", r"cannot be executed: ZeroDivisionError: division by zero \(line 1\)"),
        ("def (", r"cannot be executed: SyntaxError: [^(]* \(line 1\)$"),
        ("x = 1", "has no list FAULTS at its top level"),
        ("FAULTS = []", "its list FAULTS is empty"),
        ("FAULTS = [1]", r"FAULTS\[0\] is of the type int, not a scenarios.planted.differences.catalog.Fault"),
        (HEAD + 'FAULTS = [Fault("a/b")]', "cannot name a folder"),
        (HEAD + 'FAULTS = [Fault("a", side="left")]', "it is baseline or candidate"),
        (HEAD + 'FAULTS = [Fault("a", expected="WRONG")]', "expects 'WRONG'"),
        (HEAD + 'FAULTS = [Fault("a", causes=("VOCAB",), party="me")]', "has the party 'me'"),
        (HEAD + 'FAULTS = [Fault("a", causes="ALIGNMENT")]', "they are a tuple of strings"),
        (HEAD + 'FAULTS = [Fault("a", settings=("sampling.warmth=1",))]', "did you mean|unknown key"),
        (HEAD + 'FAULTS = [Fault("a", engine={"shft": 1})]', "plants 'shft', which there is not"),
        (HEAD + 'FAULTS = [Fault("a", engine={"wrapper": "Nobody"})]', "which is no class of this file"),
        (HEAD + 'FAULTS = [Fault("a", trainer={"scales": 1})]', "plants 'scales'"),
        (HEAD + 'FAULTS = [Fault("a"), Fault("a")]', "several faults are called a"),
        (HEAD + 'FAULTS = [Fault("a", causes=("ALIGNMNT",), party="candidate")]', "did you mean ALIGNMENT?"),
        (HEAD + 'FAULTS = [Fault("a", causes=("VOCAB",), party="candidate", told={"ORDER": "x"})]', "has told"),
        (HEAD + 'FAULTS = [Fault("a", engine={"shift": "one"})]', "plants shift 'one'; its setting is a whole number"),
        (HEAD + 'FAULTS = [Fault("a", engine={"reorder": False})]', "reorder False; its setting is true"),
        (HEAD + 'FAULTS = [Fault("a", engine={"truncate": {"keep": 4}})]', "'left' or 'right', 'keep': a whole"),
        (HEAD + 'FAULTS = [Fault("a", engine={"sampling": {"warmth": 2}})]', "plants sampling"),
        (HEAD + 'FAULTS = [Fault("a", stage="native", engine={"native": {"noise": "x"}})]', "noise 'x'; .* a number"),
        (HEAD + 'FAULTS = [Fault("a", trainer={"omit_tensors": ["x"]})]', "omit_tensors .*{<a whole number>: a list"),
        (HEAD + 'FAULTS = [Fault("a", recording={"keep": None})]', "keep None; its setting is a number"),
        (HEAD + 'FAULTS = [Fault("..")]', "cannot name a folder"),
        (HEAD + 'FAULTS = [Fault("a", party=5)]', "has the party 5"),
        (HEAD + 'FAULTS = [Fault("a", cap="big")]', "has the cap 'big'; it is a positive number"),
        (HEAD + 'FAULTS = [Fault("a", cap=-1)]', "has the cap -1"),
        (HEAD + 'FAULTS = [Fault("a", pair="hf")]', "has the pair 'hf'"),
        (HEAD + 'FAULTS = [Fault("a", engine={"native": 5})]', "plants native 5"),
        (HEAD + 'FAULTS = [Fault("a", mapping={"edits": {"engine": 5}})]', "edits the mapping by"),
        (HEAD + 'FAULTS = [Fault("a", mapping={"edits": {"nope": {}}})]', "edits the mapping by"),
        (HEAD + 'FAULTS = [Fault("a", mapping={"file": "/nope.py"})]', "'/nope.py', which is not a file"),
    ],
)
def test_a_bad_file_is_refused_in_one_sentence(tmp_path: Path, content: str | None, said: str) -> None:
    file = tmp_path / "bad.py"
    if content is not None:
        file.write_text(content)
    with pytest.raises(BadInput, match=said) as refused:
        files.faults(str(file))
    assert "\n" not in refused.value.message and refused.value.fix


DOCUMENT = (Path(__file__).parents[3] / "docs" / "measurements" / "parity-faults.md").read_text()


@pytest.mark.parametrize(
    ("content", "listed"),
    [
        (HEAD + 'FAULTS = [Fault("mine")]', ["mine"]),
        ("x = 1", "has no list HANGS or FAULTS at its top level"),
        ("FAULTS = []", "its list FAULTS is empty"),
    ],
)
def test_a_list_of_faults_is_found_by_its_name(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], content: str, listed: list[str] | str
) -> None:
    file = tmp_path / "mine.py"
    file.write_text(content)
    if isinstance(listed, str):
        with pytest.raises(BadInput, match=listed):
            list_(source=str(file), format="json")
        return
    list_(source=str(file), format="json")
    assert [one["name"] for one in json.loads(capsys.readouterr().out)] == listed


def test_the_document_has_every_field_and_every_keyword() -> None:
    plants = [field.name for kind in (Fault, TrainerPlants) for field in dataclasses.fields(kind)]
    missing = [name for name in [*plants, *PLANTS, *DAMAGES] if f"`{name}`" not in DOCUMENT]
    assert missing == []


def test_the_documented_file_is_accepted(tmp_path: Path) -> None:
    file = tmp_path / "documented.py"
    file.write_text(DOCUMENT.split("```python\n")[1].split("```")[0])
    assert [one.name for one in files.faults(str(file))] == ["deaf", "cold-and-late"]


def test_faults_that_all_need_other_engines_are_bad_input(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["faults", "run", "--suite", "parity", "generation-config", "--backends", "hf", "hf"]) == 2
    first, fix = capsys.readouterr().err.splitlines()
    assert "need sglang vllm" in first and fix.endswith("--backends sglang vllm")


def test_what_is_known_of_a_suite_is_kept_by_family_and_by_fault(tmp_path: Path) -> None:
    control, kernel = named("control"), named("wrong-kernel")
    layer = Cause("COMPUTATION(layer 2)", "candidate", "")
    rows = [
        Outcome(kernel, verdict("DIVERGENT", layer), 10.0, 1.0, 9.0, (1, 8.5), ("vllm", "sglang")),
        Outcome(control, verdict("EQUIVALENT"), 9.0, pair=("vllm", "sglang")),
        Outcome(Fault("mine", causes=("VOCAB",), party="candidate"), verdict("EQUIVALENT"), 30.0),
    ]
    tables.keep(rows, tmp_path)
    text = (tmp_path / "suite.md").read_text()
    assert "| weights | 1 of 1 | 1 of 1 | - | 0 | 20.0 | 20.0 | 11.5 | 10.0 |\n" in text
    assert "| controls | - | - | 1 of 1 | 0 | 9.0 | 9.0 | 9.0 | - |\n" in text
    assert "| your own | 0 of 1 | 0 of 1 | - | 0 | 30.0 | 30.0 | 30.0 | - |\n" in text
    assert "| all | 1 of 2 | 1 of 2 | 1 of 1 | 0 | 20.0 | 30.0 | 30.0 | 10.0 |\n" in text
    assert "| wrong-kernel | vllm sglang | DIVERGENT | DIVERGENT | COMPUTATION(layer 2) (candidate) | yes |" in text
    assert json.loads((tmp_path / "suite.json").read_text())["score"]["misses"] == ["mine"]


@pytest.mark.slow
def test_a_fault_that_is_planted_otherwise_in_half_precision_keeps_its_family() -> None:
    for name, faults in FAMILIES.items():
        for fault in faults:
            half = fault.at("bfloat16")
            assert family(fault) == name and (half is None or family(half) == name)
    assert family(dataclasses.replace(FAULTS[0], name="mine")) == "your own"


def test_what_a_fault_changes_in_an_engine_keeps_it_from_those_that_are_up() -> None:
    chosen = {fault.name: fault for fault in FAULTS}
    free = (
        "loss-divided-unsaid",
        "top-p-and-min-tokens",
        "half-a-recording",
        "fewer-samples",
        "ranks-are-dealt-in-turn",
    )
    assert inside_engines([chosen[name] for name in free]) == ""
    for name, why in {
        "stale-cache": "the fault stale-cache changes an engine",
        "dtype-auto": "the fault dtype-auto changes an engine",
        "two-engines": "the fault two-engines is for another engine (engine.engines=2)",
    }.items():
        assert inside_engines([chosen["loss-divided-unsaid"], chosen[name]]) == why


@pytest.mark.parametrize(
    ("suite", "other", "name"), [("hang", "parity", "min-tokens-dropped"), ("parity", "hang", "trip-")]
)
def test_a_name_of_the_other_suite_is_answered_with_the_command_that_runs_it(
    suite: Literal["hang", "parity"], other: str, name: str
) -> None:
    with pytest.raises(BadInput) as refusal:
        refuse_unknown(suite, [name], ("vllm", "sglang"), engines=False, conditions=False)
    assert refusal.value.fix == f"harness faults run --suite {other} {name}"


def test_a_name_of_neither_suite_is_looked_up_in_the_list() -> None:
    with pytest.raises(BadInput) as refusal:
        refuse_unknown("hang", ["no-such-fault"], ("vllm", "sglang"), engines=False, conditions=False)
    assert refusal.value.fix == "harness faults list"


def test_the_fault_in_the_example_of_the_command_is_of_its_suite() -> None:
    [words] = [line.split() for line in (run.__doc__ or "").splitlines() if line.strip().startswith("harness ")]
    assert words[words.index("--suite") + 1] == "parity"
    assert named(words[-1]).name == words[-1]


def test_a_shared_folder_has_no_character_that_an_engine_or_an_upload_refuses() -> None:
    """SGLang refuses a colon in the path of its model, GitHub's upload of artifacts in any path."""
    name = sound_name("native", ("vllm", "sglang"), ("engine.engines=2", "model.path=builtin:odd-sizes"))
    assert name == "native-vllm-sglang-engine.engines-2-model.path-builtin-odd-sizes"
