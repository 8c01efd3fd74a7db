"""From facts to a report: comparisons of nodes, what is not checked, exit codes, renderers, the command."""

from __future__ import annotations

import dataclasses
import io
import json
import re
from pathlib import Path

import pytest
from doctor_support import GIB, compared, every_name, given, gpu, healthy, worker
from rich.console import Console

from harness.doctor.examine import judge, report
from harness.doctor.gather.graphics import Gpus
from harness.doctor.gather.software import Import, Imports
from harness.doctor.outcome import Asked, Problem, bytes_, duration
from reports import render
from reports.doctor_model import Hazard, Passed, Report, Unchecked
from reports.renderers.text import TextRenderer


def printed(made: Report, width: int) -> str:
    file = io.StringIO()
    TextRenderer().show(made, Console(file=file, width=width))
    return file.getvalue()


CUSPARSE = "/conda/envs/rlhf/lib/python3.11/site-packages/nvidia/cusparse/lib"


def only(found: list) -> Problem:
    ((_, outcome),) = [(where, item) for where, item in found if isinstance(item, Problem)]
    return outcome


def test_a_worker_without_the_shells_library_path_is_told_with_the_option_that_carries_it() -> None:
    shell = healthy(software=given(LD_LIBRARY_PATH=CUSPARSE))
    problem = only(compared("worker-libraries", shell, worker()))
    assert problem.severity == "warning" and "worker not set" in problem.measured
    sent = json.loads(re.search(r"--runtime-env-json='(.*)'", problem.fix)[1])
    assert sent == {"env_vars": {"LD_LIBRARY_PATH": CUSPARSE}}


def test_it_is_an_error_once_an_import_really_fails_there() -> None:
    broken = worker(imports=Imports((Import("flash_attn_2_cuda", False, "undefined symbol: _ZN3c105Error"),)))
    assert (
        only(compared("worker-libraries", healthy(software=given(LD_LIBRARY_PATH=CUSPARSE)), broken)).severity
        == "error"
    )


def test_a_variable_that_only_the_worker_has_is_fixed_where_ray_was_started() -> None:
    problem = only(compared("worker-libraries", healthy(), worker(software=given(PYTHONPATH="/old/site-packages"))))
    assert problem.fix.startswith("unset PYTHONPATH")


def test_nccl_variables_that_differ_between_nodes() -> None:
    nodes = [worker("worker on a", software=given(NCCL_ALGO="0")), worker("worker on b")]
    problem = only(compared("worker-variables", healthy(), *nodes))
    assert problem.severity == "error" and problem.measured == "worker on a 0, worker on b not set"


def test_interface_names_may_differ_between_nodes() -> None:
    nodes = [worker(f"worker on {name}", software=given(NCCL_SOCKET_IFNAME=name)) for name in ("eth0", "eno1")]
    assert only(compared("worker-variables", healthy(), *nodes)).severity == "info"


def test_an_export_that_does_not_reach_the_workers() -> None:
    problem = only(compared("worker-variables", healthy(software=given(NCCL_DEBUG="WARN")), worker(), worker("b")))
    assert problem.severity == "warning" and "workers not set" in problem.measured and "NCCL_DEBUG" in problem.fix


@pytest.mark.parametrize(("package", "severity"), [("torch", "error"), ("numpy", "warning")])
def test_packages_that_differ(package: str, severity: str) -> None:
    shell = healthy(software={"packages": {package: "2.13.0"}})
    problem = only(compared("packages", shell, worker(software={"packages": {package: "2.5.1"}})))
    assert problem.severity == severity and problem.measured == "shell 2.13.0, there 2.5.1"


def test_another_minor_version_of_python() -> None:
    assert only(compared("packages", healthy(), worker(software={"python": "3.12.1"}))).severity == "error"
    assert only(compared("packages", healthy(), worker(software={"python": "3.11.9"}))).severity == "info"


def test_clock_skew_bites_only_beyond_what_the_round_trip_hides() -> None:
    off = dataclasses.replace(worker(), skew_s=-40.0, skew_error_s=0.01)
    assert only(compared("clocks", healthy(), off)).severity == "warning"
    slow = dataclasses.replace(worker(), skew_s=1.5, skew_error_s=2.0)
    assert not [item for _, item in compared("clocks", healthy(), slow) if isinstance(item, Problem)]


def test_nodes_with_other_gpus_and_dead_nodes() -> None:
    nodes = [worker("a", gpus=Gpus((gpu(),))), worker("b", gpus=Gpus((gpu(name="NVIDIA A100"),)))]
    assert only(compared("gpus-alike", healthy(), *nodes)).severity == "warning"
    assert only(compared("nodes", healthy(), worker(), dead=("node-3 (10.0.0.3)",))).measured == "node-3 (10.0.0.3)"


def test_equal_places_have_nothing_to_tell() -> None:
    found = judge([healthy(), dataclasses.replace(worker(), skew_s=0.0), worker("worker on node-2")], Asked(nodes=2))
    assert {type(item) for item in found} == {Passed}
    assert {item.check for item in found} == set(every_name())


def test_a_section_that_is_missing_makes_its_checks_unchecked_with_the_reason() -> None:
    node = dataclasses.replace(healthy(), gpus=None, gaps={"gpus": "RuntimeError: nvidia-smi did not answer"})
    found = [item for item in judge([node], Asked()) if isinstance(item, Unchecked) and item.check.startswith("gpu-")]
    assert {item.check for item in found} == {"gpu-driver", "gpu-kinds", "gpu-memory", "gpu-errors"}
    assert "nvidia-smi did not answer" in found[0].reason


def test_without_a_worker_no_comparison_passes() -> None:
    found = [item for item in judge([healthy()], Asked()) if isinstance(item, Unchecked)]
    assert {item.check for item in found} == {
        "worker-libraries",
        "worker-variables",
        "packages",
        "gpus-alike",
        "clocks",
        "nodes",
    }
    assert all(item.fix for item in found)


def test_a_worker_on_the_shells_own_machine_repeats_nothing_of_the_machine() -> None:
    full = {"shm": {"total": 64 << 20, "free": 60 << 20}}
    beside = dataclasses.replace(worker(**{"shm": {"total": 64 << 20, "free": 50 << 20}}), same_host=True)
    (hazard,) = report(judge([healthy(**full), beside], Asked()), [], 0).hazards
    assert hazard.where == ("this shell",)


def test_equal_hazards_of_many_nodes_are_one() -> None:
    small = {"shm": {"total": 64 << 20, "free": 64 << 20}}
    nodes = [worker(f"worker on n{number}", **small) for number in range(8)]
    (hazard,) = report(judge([healthy(), *nodes], Asked(nodes=8)), [], 0).hazards
    assert len(hazard.where) == 8 and hazard.measured == "64 MiB of 64 MiB free"


def hazard(severity: str, **more: str) -> Hazard:
    text = {"what": "it is broken", "measured": "0 of 8", "why": "the run ends", "fix": "fix it   # by hand", **more}
    return Hazard("memlock", severity, text["what"], ("this shell",), text["measured"], text["why"], text["fix"])


@pytest.mark.parametrize(
    ("severities", "strict", "code"),
    [
        ((), False, 0),
        (("info",), True, 0),
        (("warning",), False, 0),
        (("warning",), True, 1),
        (("info", "error"), False, 1),
    ],
)
def test_exit_codes(severities: tuple[str, ...], strict: bool, code: int) -> None:
    assert report([hazard(severity) for severity in severities], ["this shell"], 1.0, strict).exit_code == code


def an_example() -> Report:
    items = [
        *(hazard(severity, what=what) for severity, what in (("info", "to know"), ("error", "it is broken"))),
        hazard("warning", what="perhaps"),
        Passed("ports", ("this shell",), "free"),
        Unchecked("clocks", ("this shell",), "no Ray worker was asked", "harness doctor --ray"),
    ]
    return report(items, ["this shell"], 2.25)


def test_a_report_survives_json() -> None:
    made = an_example()
    data = json.loads(made.to_json())
    assert Report.from_dict(data) == made
    assert (data["exit_code"], data["schema_version"]) == (1, 1)
    with pytest.raises(ValueError, match="schema"):
        Report.from_dict({**data, "schema_version": 2})


@pytest.mark.parametrize("width", [80, 120])
def test_the_terminal_ends_with_the_worst_and_keeps_commands_whole(width: int) -> None:
    text = printed(an_example(), width)
    assert text.index("to know") < text.index("perhaps") < text.index("✗ it is broken")
    assert text.index("Passed") < text.index("Not checked") < text.index("Good to know")
    assert "\n  fix   fix it   # by hand\n" in text
    assert text.splitlines()[-1] == "WILL FAIL (exit code 1): 1 error, 1 warning, 1 info; 2 checks made, 1 not checked"


def test_a_quiet_report_is_ready() -> None:
    text = render(report([Passed("ports", ("this shell",), "free: 6379")], ["this shell"], 1.0))
    assert "free: 6379" in text and text.splitlines()[-1].startswith("READY (exit code 0): nothing found")


def test_text_from_outside_drives_neither_the_terminal_nor_the_page() -> None:
    made = report([hazard("error", measured="pid 7 \x1b[31m<script>`|")], ["this shell"], 1.0)
    assert "\x1b" not in render(made)
    page = render(made, "md")
    assert "<script>" not in page and "&lt;script&gt;" in page and "\x1b" not in page


def test_an_ascii_terminal_gets_ascii(tmp_path: Path) -> None:
    with open(tmp_path / "out", "w", encoding="ascii") as file:
        TextRenderer().show(an_example(), Console(file=file, width=80))
    assert "X it is broken" in (tmp_path / "out").read_text("ascii")


@pytest.mark.parametrize(
    ("size", "text"), [(0, "0 B"), (64 << 20, "64 MiB"), (1001 << 20, "1001 MiB"), (1536 * GIB, "1.5 TiB")]
)
def test_sizes(size: int, text: str) -> None:
    assert bytes_(size) == text


@pytest.mark.parametrize(("seconds", "text"), [(45, "45 s"), (600, "10 min"), (9000, "2.5 h"), (2 * 86_400, "2 days")])
def test_durations(seconds: float, text: str) -> None:
    assert duration(seconds) == text


def test_the_page_names_every_check() -> None:
    page = (Path(__file__).parents[3] / "docs" / "how-to" / "doctor.md").read_text("utf-8")
    for name in (*every_name(), "environments", "engine-imports", "worker"):
        assert f"`{name}`" in page, name


def test_what_breaks_one_command_is_no_difference_between_two() -> None:
    def hazard(*where: str) -> Hazard:
        return Hazard("sizes", "error", "a mini-batch is larger than the batch", where, "256 of 32", "it is refused")

    both = Report((hazard("the commands"), hazard("command A"), hazard("command B")), (), (), (), 0.1, compared=True)
    assert both.reason == "1 setting makes them other runs, command A and command B will fail"
    assert Report((hazard("command A"),), (), (), (), 0.1, compared=True).reason == "command A will fail"
