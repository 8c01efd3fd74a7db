"""The real command on this machine: it ends, says what it measured, changes nothing, and a planted fact trips it."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from reports.doctor_model import Report

ROOT = Path(__file__).parents[2]


def doctor(*options: str, **variables: str) -> tuple[int, str, str]:
    environ = {name: value for name, value in os.environ.items() if not name.startswith(("NCCL_", "TORCH_", "RAY_"))}
    done = subprocess.run(
        [Path(sys.executable).with_name("harness"), "doctor", *options], cwd=ROOT, env={**environ, **variables},
        capture_output=True, text=True, timeout=600,
    )  # fmt: skip
    return done.returncode, done.stdout, done.stderr


def test_this_machine() -> None:
    code, out, err = doctor("--format", "json")
    report = Report.from_dict(json.loads(out))
    assert code == report.exit_code, err
    assert code == int(any(item.severity == "error" for item in report.hazards))
    made = {item.check for item in (*report.hazards, *report.passed)}
    assert {"imports", "ptrace", "shared-memory", "disk-space", "ports", "libraries"} <= made
    assert all(item.fix for item in report.hazards)
    assert {item.check for item in report.unchecked} >= {"worker-libraries", "worker-variables"}, "no worker was asked"


def test_without_the_imports_nothing_heavy_is_imported(tmp_path: Path) -> None:
    """What takes most of the time: a torch that is never done with its import does not hold it up."""
    (tmp_path / "torch.py").write_text("import time; time.sleep(3000)")
    code, out, err = doctor("--no-imports", "--format", "json", PYTHONPATH=str(tmp_path))
    assert code == Report.from_dict(json.loads(out)).exit_code, err


def test_planted_facts_trip_the_real_command(tmp_path: Path) -> None:
    variables = {
        "NCCL_SOCKET_IFNAME": "ib9",
        "TORCH_FR_BUFFER_SIZE": "0",
        "ROCR_VISIBLE_DEVICES": "0",
        "RAY_ADDRESS": "127.0.0.1:1",
        "TORCH_FR_DUMP_TEMP_FILE": str(tmp_path / "none" / "fr_"),
        "RAY_TMPDIR": str(tmp_path / ("x" * 60)),
        "HF_TOKEN": "hf_nobody_may_see_this",
    }
    code, out, err = doctor("--no-imports", "--stall", "10m", "--format", "json", **variables)
    assert code == 1, err
    report = Report.from_dict(json.loads(out))
    errors = {item.check for item in report.hazards if item.severity == "error"}
    assert {"interfaces", "flight-recorder", "amd-variables", "ray-address", "dump-files"} <= errors
    assert {"ray-directory", "timeouts"} <= errors
    assert "nobody_may_see" not in out + err


def test_the_other_formats_end_with_the_outcome() -> None:
    code, out, err = doctor("--no-imports")
    assert out.splitlines()[-1].split(": ")[0] in (
        f"READY (exit code {code})", f"MAY FAIL (exit code {code})", f"WILL FAIL (exit code {code})"
    ), err  # fmt: skip
    code, out, _ = doctor("--no-imports", "--format", "md")
    assert out.startswith("## harness doctor: ")


@pytest.mark.by_day(1)
@pytest.mark.parametrize(
    ("options", "said"),
    [
        (("--stall", "soon"), "'soon' is not a duration"),
        (("--address", "127.0.0.1:1"), "could not be joined"),
        (("--address", "auto", "--ray"), "choose"),
    ],
)
def test_what_it_cannot_do_is_one_sentence_and_exit_code_2(options: tuple[str, ...], said: str) -> None:
    code, out, err = doctor("--no-imports", *options)
    assert code == 2 and said in err and "fix:" in err and "Traceback" not in err and not out


def test_a_worker_of_a_real_cluster_is_compared_with_the_shell() -> None:
    code, out, err = doctor("--ray", "--no-imports", "--format", "json")
    report = Report.from_dict(json.loads(out))
    assert len(report.places) == 2, err
    made = {item.check for item in (*report.hazards, *report.passed)}
    assert {"worker-libraries", "worker-variables", "packages", "clocks", "nodes"} <= made
    assert code in (0, 1)
