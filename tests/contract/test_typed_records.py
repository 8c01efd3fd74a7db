"""The judge reads records as types: their dictionaries are parsed in `harness.recordings.records` alone."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

import harness.parity as parity
from harness.recordings.records.catalogue import Records

FOLDER = Path(parity.__path__[0])
# What is about the dictionaries themselves: their keys, their damage, every setting that differs.
OF_DICTIONARIES = {"coverage.py", "summary.py", "observed_integrity.py", "observed_confounders.py", "observed_flips.py"}
TYPED = {
    "engine_info": "engines", "sampling": "sampling", "weights": "digests", "sync": "syncs", "learner": "updates",
    "step": "steps", "open": "starts", "environment": "environments", "close": "ends", "group": "groups",
    "data": "prompts", "share": "answers", "engine_stats": "engine_stats", "call": "calls",
    "answered": "routed_requests", "tokenizer": "tokenizer", "model": "model_tensors",
}  # fmt: skip
FILES = sorted(path for path in FOLDER.rglob("*.py") if "runs" not in path.parts)


def untyped_reads(source: str) -> list[str]:
    """Reads of a typed kind of event, or of run.json, as dictionaries: `x.all("sync")`, `recording.manifest`."""
    reads = []
    for node in ast.walk(ast.parse(source)):
        if (
            isinstance(node, ast.Call)
            and isinstance(node.func, ast.Attribute)
            and node.func.attr == "all"
            and node.args
        ):
            kind = node.args[0]
            whole_kind = len(node.args) == 1 and not node.keywords  # few lines of a kind are another matter
            typed = isinstance(kind, ast.Constant) and kind.value in TYPED and whole_kind
            reads += [f"all({kind.value!r})"] if typed else []
        if isinstance(node, ast.Attribute) and node.attr in ("manifest", "scenario"):
            owner = node.value.attr if isinstance(node.value, ast.Attribute) else getattr(node.value, "id", "")
            reads += [f"{owner}.{node.attr}"] if owner in ("recording", "run", "baseline", "candidate") else []
    return reads


@pytest.mark.slow
def test_the_judge_reads_no_dictionary_of_a_record() -> None:
    for path in FILES:
        reads = untyped_reads(path.read_text())
        assert not reads or path.name in OF_DICTIONARIES, (path, reads)


def test_an_untyped_read_is_seen() -> None:
    assert untyped_reads('for event in side.recording.all("sync"): pass') == ["all('sync')"]
    assert untyped_reads('side.recording.scenario.get("sampling")') == ["recording.scenario"]
    assert untyped_reads("side.recording.records.manifest.framework") == []


@pytest.mark.parametrize("kind", TYPED)
def test_every_typed_kind_has_a_reader(kind: str) -> None:
    kinds: list[str] = []

    def events(asked_kind: str) -> list[dict[str, object]]:
        kinds.append(asked_kind)
        return []

    getattr(Records({}, events), TYPED[kind])
    assert kinds == [kind]
