"""Judge one row of the golden table: unpack what is kept, run its command, and read the verdict that it gives."""

from __future__ import annotations

import contextlib
import io
import json
import tarfile
import tempfile
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from harness import cli
from tests.golden.bench_answers import NAME as ANSWERS

TESTS = Path(__file__).resolve().parents[1]
PROGRAM = b"/PROGRAM"  # in place of the folder that the program of a hang lay in
ATTRIBUTE = "attribute"  # in place of `diff`: with the interventions, which the answers of the bench decide


def judged(row: dict[str, Any]) -> dict[str, Any]:
    """What is said of the row today: the columns of the table that `python -m tests.golden.update` writes."""
    with unpacked(TESTS / row["input"]) as folder, contextlib.chdir(folder):
        command, *words = row["command"]
        if command == ATTRIBUTE:
            return _attributed(*words)
        return columns(_by_command(row["command"]))


@contextlib.contextmanager
def unpacked(path: Path) -> Iterator[Path]:
    if path.is_dir():
        yield path
        return
    with tempfile.TemporaryDirectory(prefix="golden-") as scratch, tarfile.open(path) as packed:
        packed.extractall(scratch, filter="data")
        _lay_program_beside(Path(scratch))
        yield Path(scratch)


def _lay_program_beside(folder: Path) -> None:
    """Triage reads the program's text at the absolute paths of a stack: those of kept evidence begin with PROGRAM."""
    for file in folder.glob("evidence/**/*.json"):
        content = file.read_bytes()
        if PROGRAM in content:
            file.write_bytes(content.replace(PROGRAM, str(folder).encode()))


def _by_command(words: list[str]) -> dict[str, Any]:
    printed, errors = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(printed), contextlib.redirect_stderr(errors):
        status = cli.main([*words, "--format", "json"])
    try:
        verdict: dict[str, Any] = json.loads(printed.getvalue())
    except ValueError as error:
        raise AssertionError(f"harness {' '.join(words)} printed no verdict: {errors.getvalue()[:300]}") from error
    assert verdict["exit_code"] == status
    return verdict


def _attributed(baseline: str, candidate: str, native: str = "") -> dict[str, Any]:
    """The columns of a comparison with interventions, and how many kept answers the judge did not ask for.

    As `harness parity` does it: interventions look into what differs before the native stage, which has a part in the
    verdict where the command ends in `--native`.
    """
    from harness.parity.attribution import merged, search
    from harness.parity.verdict import judged_pair as compared
    from tests.golden.bench_answers import ReplayedBench

    sides, bench = (Path(baseline), Path(candidate)), ReplayedBench(Path(ANSWERS))
    before = compared(*sides, native=False)
    attribution = search(before, bench)  # type: ignore[arg-type]
    verdict = merged(compared(*sides) if native else before, attribution)
    return columns(verdict.to_dict()) | ({"answers_not_asked_for": bench.unused} if bench.unused else {})


def columns(verdict: dict[str, Any]) -> dict[str, Any]:
    """The columns of a verdict's JSON."""
    row = {
        "verdict": verdict["verdict"],
        "exit_code": verdict["exit_code"],
        "reason": verdict["reason"],
        "causes": [_cause(cause) for cause in verdict["causes"]],
        "confounders": [_finding(finding) for finding in verdict["confounders"]],
        "findings": [_finding(finding) for finding in verdict["findings"]],
        "missing": verdict["missing"],
    }
    if verdict["parity"]:
        row |= _of_parity(verdict["parity"])
    if verdict["triage"]:
        row |= _of_triage(verdict["triage"])
    return {name: value for name, value in row.items() if value not in ([], {}, "", None)}


def _of_parity(parity: dict[str, Any]) -> dict[str, Any]:
    checks = defaultdict(list)
    for check in parity["checks"]:
        checks[check["state"]].append(check["name"])
    first = parity["first_divergence"]
    place = ("step", "phase", "rank", "sample", "position", "field")
    return {
        "first_divergence": first and {name: first[name] for name in place},
        "confirmed": checks["confirmed"],
        "undecided": checks["undecided"],
        "not_tested": checks["not tested"],
        "ruled_out": checks["ruled out"],
    }


def _of_triage(triage: dict[str, Any]) -> dict[str, Any]:
    return {
        "hang": triage["hang"],
        "culprits": [_party(party) for party in triage["culprits"]],
        "victims": [_party(party) for party in triage["victims"]],
        "cycle": triage["cycle"],
        "place": triage["place"],
    }


def _cause(cause: dict[str, Any]) -> dict[str, Any]:
    proofs = [
        f"{proof['intervention']}: {_short(proof['before'])} to {_short(proof['after'])} {proof['unit']}, {proof['on']}"
        for proof in cause["proofs"]
    ]
    level = {"proofs": proofs} if proofs else {"proofs": "none"}
    return {"cause": cause["name"], "party": cause["party"], **level, "observed": len(cause["observed"])}


def _finding(finding: dict[str, Any]) -> str:
    where = f" ({finding['where']})" if finding["where"] else ""
    return f"{finding['severity']}: {finding['name']}{where}"


def _party(party: dict[str, Any]) -> str:
    words = [party["key"], "" if party["rank"] is None else f"rank {party['rank']}", party["role"], party["frame"]]
    return ", ".join(filter(None, words))


def _short(number: Any) -> str:
    return f"{number:.4g}" if isinstance(number, float) else str(number)
