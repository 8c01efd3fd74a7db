"""How many places know of one thing: adding another touches as many. A list that grows elsewhere fails here."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
FILES = [file for room in ("harness", "scenarios", "reports", "probes") for file in sorted((ROOT / room).rglob("*"))
         if file.suffix in (".py", ".toml") and "planted" not in file.parts]  # fmt: skip


def places(pattern: str, *besides: str) -> set[str]:
    """The production files whose text has this, those below `besides` left out."""
    found = (file.relative_to(ROOT).as_posix() for file in FILES if re.search(pattern, file.read_text("utf-8")))
    return {name for name in found if not name.startswith(besides)}


ADAPTERS = ("probes/adapters/", "harness/frameworks/", "scenarios/jobs/")  # what a framework says of its engines
EXAMPLES = {"harness/nightly/matrix.py", "harness/commands/faults.py"}  # a default pair of engines


def test_a_built_in_engine_is_a_folder_a_line_and_its_recipes() -> None:
    """An engine of a package is one folder: tests/integration/test_strangers.py."""
    found = places(r'"sglang"', "scenarios/engines/sglang/", "harness/recipes/", *ADAPTERS) - EXAMPLES
    assert found == {
        "scenarios/engines/registry.py",
        "probes/environment.py",  # packages that are recorded: probes know no engine
        "reports/renderers/issue.py",  # what its maintainers ask for: reports know no engine
    }


def test_a_framework_is_a_folder_and_an_adapter() -> None:
    found = places(r'"openrlhf"', "harness/frameworks/openrlhf/", "probes/adapters/openrlhf")
    assert found == {"probes/environment.py", "reports/renderers/issue.py"}


@pytest.mark.parametrize(
    ("what", "name", "home"),
    [
        ("a check", "memory-growth", "harness/parity/checks/memory.py"),
        ("a check of the doctor", "worker-libraries", "harness/doctor/checks/cluster.py"),
        ("a renderer", '"openmetrics"', "reports/renderers/openmetrics.py"),
        ("a cause", '"RETOKENIZATION"', "harness/parity/causes/retokenization.py"),
        ("a launcher", "kuberay", "harness/launchers/kuberay.py"),
    ],
)
def test_what_has_one_home(what: str, name: str, home: str) -> None:
    assert places(re.escape(name)) == {home}, what


def test_a_sampling_parameter_is_an_entry_and_its_meaning_in_each_engine() -> None:
    """And its arithmetic, where a coupled draw applies it."""
    engines = {f"scenarios/engines/{engine}/parameters.py" for engine in ("vllm", "sglang")}
    assert places(r"\bmin_p\b", *ADAPTERS) == {"scenarios/settings.py", "scenarios/engines/sampling.py", *engines}


def test_a_kind_of_hang_is_a_rule_and_its_place() -> None:
    assert places(r"\bunformed\b") == {"harness/triage/rules/forming.py", "harness/triage/rules/__init__.py"}
