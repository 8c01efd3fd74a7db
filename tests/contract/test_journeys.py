"""How many places know of one thing: adding another touches as many. A list that grows elsewhere fails here."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from scenarios.engines import registry

ROOT = Path(__file__).resolve().parents[2]
FILES = [file for room in ("harness", "scenarios", "reports", "probes") for file in sorted((ROOT / room).rglob("*"))
         if file.suffix in (".py", ".toml") and "planted" not in file.parts]  # fmt: skip


def places(pattern: str, *besides: str) -> set[str]:
    """The production files whose text has this, those below `besides` left out."""
    found = (file.relative_to(ROOT).as_posix() for file in FILES if re.search(pattern, file.read_text("utf-8")))
    return {name for name in found if not name.startswith(besides)}


ADAPTERS = ("probes/adapters/", "harness/frameworks/", "scenarios/jobs/")  # what a framework says of its engines
# Where an engine may be named outside its folder: it has an entry in the first two, and none in those below them.
NAMED = {
    "scenarios/engines/registry.py": "the list of those that are built in",
    "probes/engines.py": "how its processes are told: probes know no engine's folder",
    "reports/renderers/issue.py": "what its maintainers ask for: reports know no engine",
    "scenarios/engines/engine_tensors.py": "where each engine keeps what its attention reads",
    "harness/nightly/matrix.py": "a default pair of engines",
    "harness/commands/faults.py": "a default pair of engines",
}


def names_of_engines() -> re.Pattern[str]:
    """What tells that a text is about one of the engines: its name, packages, variables or titles."""
    apart = [spec for spec in registry.specs().values() if not spec.embedded]
    assert apart
    words = {
        word.lower().rstrip("_")
        for spec in apart
        for word in (spec.name, *spec.process.packages, *spec.process.variables, *spec.process.titles)
    }
    return re.compile(rf"(?<![a-z])({'|'.join(sorted(words))})(?![a-z])", re.IGNORECASE)


def literals(file: Path) -> Iterator[str]:
    """Its texts that are data: no docstring, and no sentence or command, which consist of words."""
    tree = ast.parse(file.read_text("utf-8"))
    told = {id(node.value) for node in ast.walk(tree) if isinstance(node, ast.Expr)}
    for node in ast.walk(tree):
        text = node.value if isinstance(node, ast.Constant) and id(node) not in told else None
        if isinstance(text, str) and (" " not in text or re.search(r"[\\^|]", text)):
            yield text


@pytest.mark.slow
def test_an_engine_is_named_by_its_own_folder_and_its_entries_only() -> None:
    """An engine of a package is one folder: tests/integration/test_strangers.py."""
    engine = names_of_engines()
    homes = (*ADAPTERS, "harness/recipes/", *(f"scenarios/engines/{name}/" for name in registry.BUILT_IN))
    files = {file.relative_to(ROOT).as_posix(): file for file in FILES if file.suffix == ".py"}
    found = {
        name
        for name, file in files.items()
        if not name.startswith(homes)
        and engine.search(file.read_text("utf-8"))
        and any(engine.search(text) for text in literals(file))
    }
    assert found == set(NAMED)


def test_a_framework_is_a_folder_and_an_adapter() -> None:
    found = places(r'"openrlhf"', "harness/frameworks/openrlhf/", "probes/adapters/openrlhf")
    assert found == {"probes/environment.py", "reports/renderers/issue.py"}


@pytest.mark.parametrize(
    ("what", "name", "home"),
    [
        ("a check", "memory-growth", "harness/parity/subjects/engines/checks_memory.py"),
        ("a check of the doctor", "worker-libraries", "harness/doctor/checks/cluster.py"),
        ("a renderer", '"openmetrics"', "reports/renderers/openmetrics.py"),
        ("a cause", '"RETOKENIZATION"', "harness/parity/subjects/prompts/causes_retokenization.py"),
        ("a launcher", "kuberay", "harness/launchers/kuberay.py"),
    ],
)
def test_what_has_one_home(what: str, name: str, home: str) -> None:
    assert places(re.escape(name)) == {home}, what


@pytest.mark.slow
def test_a_sampling_parameter_is_an_entry_and_its_meaning_in_each_engine() -> None:
    """And its arithmetic, where a coupled draw applies it."""
    engines = {f"scenarios/engines/{engine}/parameters.py" for engine in ("vllm", "sglang")}
    assert places(r"\bmin_p\b", *ADAPTERS) == {"scenarios/settings.py", "scenarios/engines/sampling.py", *engines}


@pytest.mark.slow
def test_a_kind_of_hang_is_a_rule_and_its_place() -> None:
    assert places(r"\bunformed\b") == {"harness/triage/rules/forming.py", "harness/triage/rules/__init__.py"}
