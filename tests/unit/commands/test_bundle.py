"""A bundle is read as the directory that it was made of, holds no secret, and one from a stranger is trusted in
nothing."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import zipfile
from collections.abc import Callable
from pathlib import Path

import msgspec
import pytest
from recordings import make, pair, put
from secret_catalogue import PLANTED
from triage_evidence import evidence, process

from harness import cli
from harness.bundle import opening
from harness.bundle.contents import contents
from harness.bundle.manifest import INDEX, NAME, Manifest, Member
from harness.bundle.packing import pack
from harness.bundle.prompt_hashes import PromptHash
from harness.errors import BadInput, HarnessError
from harness.parity.runs.run import diff
from harness.triage import directory
from probes.format import (
    Flat,
    FormatError,
    Run,
    encode_frame,
    encode_lines,
    encode_manifest,
    read_manifest,
    run_id,
    seal,
    write_manifest,
)
from probes.install import start
from reports.model import Triage, Verdict

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A pair of runs as `harness parity` leaves it: the candidate's prompts of step 1 lost their last token."""
    folder = tmp_path_factory.mktemp("runs") / "pair"
    baseline, candidate = pair()
    prompts = candidate.frame("rollout", 1).arrays["prompt_seen"]
    prompts.values[0] += 1
    verdict = put(folder, baseline, candidate)
    assert verdict.verdict == "DIVERGENT"
    (folder / "verdict.json").write_text(verdict.to_json())
    return folder


def comparable(verdict: Verdict) -> object:
    """Without the paths, and the texts of prompts."""
    value = json.loads(verdict.to_json())
    for run in value["parity"]["runs"]:
        run.pop("path")
    return {key: value[key] for key in ("verdict", "reason", "coverage", "missing", "causes")} | {
        "checks": [(one["name"], one["state"]) for one in value["parity"]["checks"]]
    }


@pytest.mark.parametrize("hashed", [False, True])
def test_the_verdict_on_a_bundle_is_that_on_its_runs(folder: Path, tmp_path: Path, hashed: bool) -> None:
    pack([folder], tmp_path / "b.zip", hash_prompts=hashed)
    before = diff(folder / "baseline", folder / "candidate")
    after = diff(tmp_path / "b.zip")
    assert after.reproduce == f"harness diff {tmp_path / 'b.zip'}"
    assert comparable(after) == comparable(before)
    sides = diff(tmp_path / "b.zip" / "baseline", tmp_path / "b.zip" / "candidate")
    assert comparable(sides) == comparable(before)


def test_a_file_that_was_deleted_or_added_before_is_noticed_in_the_bundle(tmp_path: Path) -> None:
    run = make("baseline").write(tmp_path / "run")
    pack([run], tmp_path / "whole.zip")
    assert Run(opening.resolve(tmp_path / "whole.zip")).complete
    file = sorted((run / "events").glob("critic-*"))[0]
    file.rename(file.with_name("critic-7-7.jsonl"))
    pack([run], tmp_path / "b.zip")
    names = {name for name, _ in Run(opening.resolve(tmp_path / "b.zip"), strict=False).torn}
    assert names == {f"events/{file.name}", "events/critic-7-7.jsonl"}


def test_two_runs_make_a_pair_and_are_judged(tmp_path: Path) -> None:
    sides = [make(side).write(tmp_path / name) for side, name in (("baseline", "one"), ("candidate", "two"))]
    manifest = pack(sides, tmp_path / "b.zip")
    assert manifest.kind == "pair"
    assert json.loads(zipfile.ZipFile(tmp_path / "b.zip").read("verdict.json"))["verdict"] == "EQUIVALENT"


@pytest.mark.by_day(1)
@pytest.mark.parametrize("format", ["text", "md", "json", "html", "perfetto", "issue"])
def test_a_bundle_is_named_and_not_where_it_was_unpacked(
    folder: Path, format: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    pack([folder], Path("pair.zip"))
    pack([folder / "baseline"], Path("run.zip"))
    directory.write(evidence(process(7, "trainer")), Path("evidence"))
    pack([Path("evidence")], Path("hang.zip"))
    recordings = ["report pair.zip", "diff pair.zip", "diff pair.zip/candidate run.zip"]
    recordings += [] if format == "issue" else ["report run.zip"]
    hangs = [] if format == "perfetto" else ["report hang.zip", "triage hang.zip"]
    for line in recordings + hangs:
        assert cli.main([*line.split(), "--format", format]) != 2
        told = capsys.readouterr().out
        assert "harness-evidence-" not in told, line
        if format in ("text", "md", "json"):
            assert line.split()[1].removesuffix("/candidate") in told, line
        if format == "html" and "pair" in line:
            assert 'id="samples"' in told and "not there" not in told
        if format == "perfetto":
            assert "not there" not in told and '"ph":"X"' in told.replace(" ", "")


def test_what_is_damaged_in_a_bundle_is_named_in_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    run = make("baseline").write(tmp_path / "run")
    (run / "run.json").write_text('{"format_version": 99}')
    files = contents([run]).files
    with zipfile.ZipFile("b.zip", "w") as zipped:
        members = {name: Member.of(file) for name, file in files.items()}
        zipped.writestr(NAME, msgspec.json.encode(Manifest(1, "run", "0", members)))
        for name, file in files.items():
            zipped.write(file, name)
    assert cli.main(["report", "b.zip"]) == 2
    told = capsys.readouterr().err
    assert "b.zip" in told and "99" in told and "harness-evidence-" not in told


def test_hashed_prompts_are_nowhere_in_it(folder: Path, tmp_path: Path) -> None:
    pack([folder], tmp_path / "plain.zip")
    pack([folder], tmp_path / "hashed.zip", hash_prompts=True)

    def prompts(bundle: Path) -> list[tuple[int, ...]]:
        run = Run(opening.resolve(bundle / "baseline"))
        rows = [row for frame in run.frames("rollout") for row in frame.arrays["prompt"].rows()]
        return [tuple(row) for row in rows]

    plain, hashed = prompts(tmp_path / "plain.zip"), prompts(tmp_path / "hashed.zip")
    assert [len(row) for row in plain] == [len(row) for row in hashed]
    assert len(set(plain)) == len(set(hashed)) and not set(plain) & set(hashed)
    ends = list(Run(opening.resolve(tmp_path / "hashed.zip" / "baseline")).events("boundaries"))
    assert ends and all(end["text_first"] == end["text_seam"] == "" for end in ends)
    assert [end["prompt_first"] for end in ends[:1]] == [list(hashed[0][: len(ends[0]["prompt_first"])])]


def test_prompts_that_were_hashed_apart_are_not_compared(folder: Path, tmp_path: Path) -> None:
    for side in ("baseline", "candidate"):
        pack([folder / side], tmp_path / f"{side}.zip", hash_prompts=True)
    with pytest.raises(BadInput, match="hashed apart"):
        diff(tmp_path / "baseline.zip", tmp_path / "candidate.zip")


def test_a_hash_keeps_what_is_equal_and_what_is_special() -> None:
    key = PromptHash(b"k" * 32)
    one, two = (key.ids(row, frozenset({1, 5}), 100) for row in ((1, 7, 8, 9, 5), (1, 7, 3, 9, 5)))
    assert one[:2] == two[:2] and one[2:4] != two[2:4] and (one[0], one[4]) == (1, 5)
    assert not {1, 5} & {*one[1:4], *two[1:4]} and max(one + two) < 100
    assert key.ids((250,), frozenset(), 100) == [250]


def test_the_page_shows_the_report_with_its_samples_and_loads_nothing(folder: Path, tmp_path: Path) -> None:
    pack([folder], tmp_path / "b.zip")
    page = zipfile.ZipFile(tmp_path / "b.zip").read(INDEX).decode()
    assert "DIVERGENT" in page and "default-src 'none'" in page and 'id="samples"' in page
    assert str(folder) not in page


def test_the_same_runs_make_the_same_bytes(folder: Path, tmp_path: Path) -> None:
    for name in ("one.zip", "two.zip"):
        pack([folder], tmp_path / name)
    assert (tmp_path / "one.zip").read_bytes() == (tmp_path / "two.zip").read_bytes()
    with pytest.raises(BadInput, match="never overwrites"):
        pack([folder], tmp_path / "one.zip")


def test_evidence_is_judged_and_triaged(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    directory.write(evidence(process(7, "trainer")), tmp_path / "evidence")
    assert pack([tmp_path / "evidence"], tmp_path / "b.zip").kind == "evidence"
    codes = [cli.main([name, str(tmp_path / "b.zip"), "--format", "json"]) for name in ("triage", "report")]
    told = capsys.readouterr().out.split("}\n{")
    assert codes == [3, 3] and len(told) == 2 and all('"INSUFFICIENT"' in one for one in told)


def test_a_run_opens_as_its_steps_and_is_no_hang(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run = make("baseline").write(tmp_path / "run")
    bundle = tmp_path / "b.zip"
    assert pack([run], bundle).kind == "run"
    assert b"reward_mean" in zipfile.ZipFile(bundle).read(INDEX)
    assert cli.main(["report", str(bundle), "--format", "md"]) == 0
    assert "| step | reward_mean" in capsys.readouterr().out
    assert cli.main(["report", str(bundle), "--format", "junit"]) == 2
    assert cli.main(["triage", str(bundle)]) == 2
    assert "no evidence of a hang" in capsys.readouterr().err


def test_a_watched_run_opens_as_its_hang(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run = make("baseline").write(tmp_path / "run")
    directory.write(evidence(process(7, "trainer")), run / "evidence" / "20260101-000000")
    hang = Verdict("triage", "HUNG", 1, "rank 1 stands", triage=Triage("K9", [], [], [], [], [], []))
    (run / "verdict.json").write_text(hang.to_json())
    pack([run], tmp_path / "b.zip")
    assert b"rank 1 stands" in zipfile.ZipFile(tmp_path / "b.zip").read(INDEX)
    for path in (run, tmp_path / "b.zip"):
        assert cli.main(["report", str(path), "--issue"]) == 1 and "rank 1 stands" in capsys.readouterr().out


def test_no_secret_of_a_foreign_recording_is_in_it(tmp_path: Path) -> None:
    """Written as another framework would, past our own recorder's scrubber."""
    run, marker = tmp_path / "run", "PLACE-OF-A-SECRET"
    write_manifest(run, {"command": marker})
    with start(run, role="trainer") as recorder:
        recorder.event("note", text=marker)
        recorder.event("weights", source=marker)  # a kind that our own recorder does not look through
        recorder.frame("rollout", step=0, fields={"finish": [marker]}, arrays={"sample": Flat.of([1], "i8")})
    journal = next((run / "events").glob("trainer*"))
    without_checksums = re.sub(r',"crc":"[0-9a-f]{8}"', "", journal.read_text())  # as a writer of format 2
    clean = {run / "run.json": json.dumps({"format_version": 2, "command": marker}), journal: without_checksums}
    for number, planted in enumerate(PLANTED):
        written = json.dumps(planted.text)[1:-1]
        for file, text in clean.items():
            file.write_text(text.replace(marker, written))
        with open(journal, "a") as stream:
            stream.write(f'{{"seq":9,"text":"{written}')  # torn
        pack([run], tmp_path / f"{number}.zip")
        with zipfile.ZipFile(tmp_path / f"{number}.zip") as zipped:
            for name in zipped.namelist():
                assert planted.value.encode() not in zipped.read(name), (planted.kind, name)


def test_no_secret_in_a_name_of_a_foreign_recording_is_in_it(tmp_path: Path) -> None:
    """In kinds of events and frames, roles, names of fields and arrays, which a foreign writer may choose."""
    run, token = tmp_path / "run", "hf_" + "aB3" * 11
    write_manifest(run, {"index": True, "records": [f"kind {token}"], f"key {token}": 1})
    begun = {"role": f"role {token}", "rank": 0, "pid": 1, "run": run_id(run), "format": 4}
    counts = {"events": {"open": 1, f"kind {token}": 1}, "frame_kinds": {f"frame {token}": 1}, "frames": 1}
    events = [("open", begun), (f"kind {token}", {f"field {token}": 1}), ("close", {"ok": True, **counts})]
    frame = encode_frame(
        f"frame {token}", 0, f"role {token}", 0, {f"field {token}": 1}, {f"array {token}": Flat.of([1], "i8")},
        seq=0, run=run_id(run),
    )  # fmt: skip
    for folder in ("events", "tokens"):
        (run / folder).mkdir()
    (run / "events" / "a-0-1.jsonl").write_bytes(encode_lines((1, kind, fields) for kind, fields in events))
    (run / "tokens" / "a-0-1.bin").write_bytes(frame)
    seal(run)
    assert Run(run).complete
    pack([run], tmp_path / "b.zip")
    with zipfile.ZipFile(tmp_path / "b.zip") as zipped:
        assert not [name for name in zipped.namelist() if token.encode() in zipped.read(name)]
    copied = Run(opening.resolve(tmp_path / "b.zip"))
    assert copied.complete and [frame.kind for frame in copied.frames()] == ["frame ***"]
    assert [event["kind"] for event in copied.events()] == ["open", "kind ***", "close"]


def test_a_bundle_of_a_run_whose_run_json_holds_a_secret_is_whole(tmp_path: Path) -> None:
    """Its journals name the run.json with the secret, which the one without replaces."""
    run, secret = tmp_path / "run", PLANTED[0]
    write_manifest(run, {"index": True})
    manifest = read_manifest(run) | {"command": secret.text}
    (run / "run.json").write_bytes(encode_manifest(manifest))  # as a foreign writer does
    start(run, role="trainer").close()
    seal(run)
    pack([run], tmp_path / "b.zip")
    copied = Run(opening.resolve(tmp_path / "b.zip"))
    assert copied.complete and secret.value not in str(copied.manifest)


def _again(bundle: Path, change: Callable[[dict[str, bytes]], None]) -> Path:
    """The bundle with its members changed, as somebody with a zip program would."""
    with zipfile.ZipFile(bundle) as zipped:
        members = {name: zipped.read(name) for name in zipped.namelist()}
    change(members)
    target = bundle.with_name("changed.zip")
    with zipfile.ZipFile(target, "w", zipfile.ZIP_DEFLATED) as zipped:
        for name, data in members.items():
            zipped.writestr(name, data)
    return target


def _manifest(**changes: object) -> Callable[[dict[str, bytes]], None]:
    return lambda members: members.update({NAME: json.dumps(json.loads(members[NAME]) | changes).encode()})


@pytest.mark.by_day(2)
@pytest.mark.parametrize(
    ("change", "reason"),
    [
        (lambda members: members.update({"run.json": b"{}"}), "is not what its manifest says"),
        (lambda members: members.pop("run.json"), "is missing"),
        (lambda members: members.update({"more": b""}), "is not in its manifest"),
        (lambda members: members.update({"../out": b""}), "would leave the directory"),
        (lambda members: members.update({"a/" * 30 + "x": b""}), "too long a path"),
        (lambda members: members.update({NAME: b"[" * 100_000}), "no manifest of a bundle"),
        (lambda members: members.update({NAME: b"{}"}), "no manifest of a bundle"),
        (_manifest(bundle_version="1"), "no manifest of a bundle"),
        (_manifest(bundle_version=2), "the newest that this installation reads is 1"),
        (_manifest(kind="other"), "no manifest of a bundle"),
    ],
)
def test_a_bundle_that_was_changed_is_refused_in_a_sentence(
    tmp_path: Path, change: Callable[[dict[str, bytes]], None], reason: str, capsys: pytest.CaptureFixture[str]
) -> None:
    pack([make("baseline").write(tmp_path / "run")], tmp_path / "b.zip")
    for command in (["report"], ["triage"], ["diff", str(tmp_path / "run")]):
        assert cli.main([*command, str(_again(tmp_path / "b.zip", change))]) == 2
        told = capsys.readouterr().err
        assert reason in told and "defect" not in told, told
        opening._opened.cache_clear()


def test_a_bomb_and_a_crowd_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pack([make("baseline").write(tmp_path / "run")], tmp_path / "b.zip")
    swollen = _again(tmp_path / "b.zip", lambda members: members.update({"x": b"0" * 5_000_000}))
    unpack = opening.archive.unpack
    monkeypatch.setattr(opening.archive, "unpack", lambda file: unpack(file, max_bytes=4_000_000))
    with pytest.raises(BadInput, match="too large when it is unpacked"):
        opening.resolve(swollen)
    monkeypatch.setattr(opening.archive, "unpack", lambda file: unpack(file, max_files=3))
    with pytest.raises(BadInput, match="files"):
        opening.resolve(tmp_path / "b.zip")


@pytest.mark.parametrize("content", ["text", "zip"])
@pytest.mark.parametrize(
    ("words", "told", "fix"),
    [
        (["diff", "junk.zip"], "junk.zip is a file, and no bundle", "harness record -- COMMAND"),
        (["diff", "junk.zip/baseline", "run"], "junk.zip is a file, and no bundle", "ls ."),
        (["report", "junk.zip"], "junk.zip is neither a verdict, which is JSON, nor a bundle", "harness record"),
        (
            ["bundle", "junk.zip"],
            "junk.zip is a file, and a bundle is made of a directory",
            "harness triage junk.zip --out junk.zip-evidence; harness bundle junk.zip-evidence",
        ),
        (["bundle", "absent.zip"], "absent.zip: no such file or directory", "ls ."),
    ],
)
def test_a_file_that_is_no_bundle_is_called_that(
    content: str,
    words: list[str],
    told: str,
    fix: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    if content == "zip":
        with zipfile.ZipFile("junk.zip", "w") as zipped:
            zipped.writestr("a.txt", "x")
    else:
        Path("junk.zip").write_text("no zip")
    assert cli.main(words) == 2
    first, second = capsys.readouterr().err.splitlines()
    assert first == f"harness: {told}" and second.startswith(f"  fix: {fix}")


def test_a_bundle_of_a_bundle_is_refused(folder: Path, tmp_path: Path) -> None:
    pack([folder], tmp_path / "b.zip")
    with pytest.raises(BadInput, match=r"b\.zip is a bundle already"):
        contents([tmp_path / "b.zip"])


@pytest.mark.parametrize(("text", "words"), [("{", "not JSON"), ("{}", "no format_version in it")])
def test_a_run_that_cannot_be_read_is_named_and_makes_no_bundle(text: str, words: str, tmp_path: Path) -> None:
    (tmp_path / "run.json").write_text(text)
    with pytest.raises(FormatError, match=words) as refused:
        pack([tmp_path], tmp_path / "b.zip")
    assert str(refused.value).startswith(f"{tmp_path}/run.json: ") and not (tmp_path / "b.zip").exists()


def test_an_issue_of_a_run_and_in_another_format_are_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = make("baseline").write(tmp_path / "run")
    assert cli.main(["report", str(run), "--issue"]) == 2
    told = capsys.readouterr().err
    assert f"{run} is one recorded run without a verdict" in told and "harness diff BASELINE" in told
    assert cli.main(["report", str(run), "--issue", "--format", "json"]) == 2
    assert "--issue and --format json ask for two formats" in capsys.readouterr().err


def test_what_cannot_be_packed_says_why(folder: Path, tmp_path: Path) -> None:
    with pytest.raises(BadInput, match="holds neither a run"):
        contents([tmp_path])
    with pytest.raises(BadInput, match="no such file or directory"):
        contents([tmp_path / "absent"])
    with pytest.raises(BadInput, match=r"the largest file is (baseline|candidate)/"):
        pack([folder], tmp_path / "b.zip", max_bytes=1000)
    assert not list(tmp_path.iterdir())
    (folder / "verdict.json").rename(folder / "kept")
    try:
        (folder / "verdict.json").write_text("{")
        manifest = pack([folder], tmp_path / "b.zip")
    finally:
        (folder / "kept").rename(folder / "verdict.json")
    assert "verdict.json cannot be read" in manifest.notes[0] and manifest.kind == "pair"
    with pytest.raises(HarnessError, match=r"c\.zip cannot be written: Not a directory"):
        pack([folder], tmp_path / "b.zip" / "c.zip")


def test_a_path_that_is_no_bundle_stays_as_it_is(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"PK\x03\x04")
    for path in (tmp_path, tmp_path / "file", tmp_path / "absent", Path("123")):
        assert opening.resolve(path) == path and not opening.is_bundle(path)
    pack([make("baseline").write(tmp_path / "run")], tmp_path / "b.zip")
    with pytest.raises(BadInput, match="leads out"):
        opening.resolve(tmp_path / "b.zip" / ".." / "run")


def test_damage_stays_damage(tmp_path: Path) -> None:
    run = make("baseline").write(tmp_path / "run")
    log = next((run / "tokens").glob("rollout*"))
    journal = next((run / "events").glob("trainer*"))
    log.write_bytes(log.read_bytes()[:-5])
    journal.write_bytes(journal.read_bytes()[:-5])
    before = Run(run)
    pack([run], tmp_path / "b.zip")
    after = Run(opening.resolve(tmp_path / "b.zip"))
    assert {name for name, _ in after.torn} == {name for name, _ in before.torn} != set()
    assert after.incomplete == before.incomplete
    data = bytearray(log.read_bytes())
    data[200] ^= 1
    log.write_bytes(data)
    pack([run], tmp_path / "c.zip")
    damage = [Run(path, strict=False).torn for path in (run, opening.resolve(tmp_path / "c.zip"))]
    assert {name for name, _ in damage[0]} == {name for name, _ in damage[1]}
    assert any("dropped" in why for _, why in damage[1])


def test_opening_loads_no_heavy_package() -> None:
    heavy = "{'numpy', 'pandas', 'torch', 'scipy'}"
    code = f"import sys; import harness.bundle.opening, harness.cli; print({heavy} & set(sys.modules))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "set()\n"


def test_a_verdict_is_shown_with_the_recordings_beside_it(folder: Path, tmp_path: Path) -> None:
    from harness import verdict_file

    pack([folder], tmp_path / "b.zip")
    verdict = verdict_file.read(opening.resolve(tmp_path / "b.zip"))
    assert verdict.parity is not None
    assert all(Path(run.path).is_dir() and str(folder) not in run.path for run in verdict.parity.runs)


def test_a_run_whose_manifest_is_a_link_is_refused_by_its_name(folder: Path, tmp_path: Path) -> None:
    run = tmp_path / "run"
    run.mkdir()
    (run / "run.json").symlink_to(folder / "baseline" / "run.json")
    with pytest.raises(BadInput, match=re.escape(str(run / "run.json"))):
        pack([run], tmp_path / "b.zip")
    assert not (tmp_path / "b.zip").exists()


def test_a_folder_of_runs_is_answered_with_its_newest_run(tmp_path: Path) -> None:
    for number, name in enumerate(("old", "new")):
        make("baseline").write(tmp_path / "runs" / name)
        os.utime(tmp_path / "runs" / name, (number, number))
    with pytest.raises(BadInput) as caught:
        contents([tmp_path / "runs"])
    assert caught.value.instead == str(tmp_path / "runs")
    assert str(caught.value.fix).startswith(str(tmp_path / "runs" / "new"))
