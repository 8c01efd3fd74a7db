"""Options that the installed version does not know: looked up in its Hydra reference, or in its calls of argparse."""

from __future__ import annotations

import ast
import difflib
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from harness.doctor.frameworks.plan import Option, Plan
from harness.doctor.outcome import Bite, Fine, Outcome, Unseen

_HYDRA_OWN = ("hydra",)


def known(plan: Plan) -> Iterator[Outcome]:
    """Each option of the command against those of the installed version."""
    framework = plan.job.adapter.framework
    if framework == "trl":
        yield Unseen("TRL's options are those of the user's own script")
        return
    installed = plan.job.installed
    if installed is None or not installed.version:
        yield Unseen(f"the {framework} that will run is not known: its options cannot be looked up")
        return
    if framework == "verl":
        yield from _verl(plan)
    else:
        yield from _openrlhf(plan)


def _verl(plan: Plan) -> Iterator[Outcome]:
    config = next(
        (plan.words[at + 1] for at, word in enumerate(plan.words[:-1]) if word in ("--config-name", "-cn")), ""
    )
    config = next((word.partition("=")[2] for word in plan.words if word.startswith("--config-name=")), config)
    if any(word.startswith(("--config-path", "--config-dir", "-cp", "-cd")) for word in plan.words):
        yield Unseen("the command brings a configuration of its own (--config-path)")
        return
    assert plan.job.installed is not None
    package = plan.job.installed.source("verl")
    reference = (package.parent / "trainer" / "config" if package else Path()) / (
        f"_generated_{(config or 'ppo_trainer').removesuffix('.yaml')}.yaml"
    )
    paths = _paths(reference)
    if not paths:
        yield Unseen(f"verl {plan.job.installed.version} has no {reference.name} to look options up in")
        return
    wrong = []
    for option in plan.options:
        name = option.name
        if "@" in name or "/" in name or name.split(".")[0] in _HYDRA_OWN:
            continue
        if option.sign in ("", "~") and name not in paths:
            near = _nearest(name, paths)
            wrong.append((option, f"it is not in the configuration{near}"))
        elif option.sign == "+" and name in paths:
            wrong.append((option, "it is there already: leave the + out"))
    yield from _told(plan, wrong, "verl's configuration", "Hydra refuses it and the job ends before its first step")


def _openrlhf(plan: Plan) -> Iterator[Outcome]:
    assert plan.job.installed is not None
    module = next((found[0] for word in plan.words if (found := re.search(r"openrlhf\.cli\.\w+", word))), "")
    if not module:
        name = next((found[1] for word in plan.words if (found := re.search(r"(train_\w+)(\.py)?$", word))), "")
        module = f"openrlhf.cli.{name}" if name else ""
    file = plan.job.installed.source(module) if module else None
    names = _arguments(file) if file else set()
    if not names:
        yield Unseen("the command does not name a module of openrlhf.cli whose options could be looked up")
        return
    wrong = []
    for option in plan.options:
        if option.name in names or sum(one.startswith(option.name) for one in names) == 1:  # argparse takes prefixes
            continue
        if option.name in ("help", "address", "runtime-env-json", "runtime-env", "working-dir", "no-wait"):  # ray job
            continue
        wrong.append((option, f"{module} has no such option{_nearest(option.name, names)}"))
    yield from _told(plan, wrong, f"{module}'s options", "argparse ends the job before it starts")


def _told(plan: Plan, wrong: list[tuple[Option, str]], where: str, why: str) -> Iterator[Outcome]:
    installed = plan.job.installed
    version = f"{plan.job.adapter.framework} {installed.version if installed else ''}".strip()
    for option, what in wrong:
        shown = f"{option.sign}{option.name}" + ("" if option.sign == "--" else "=…")
        yield Bite(
            "error", f"{version} does not know {shown}", what, why, "take it out, or write it as this version does"
        )
    if not wrong:
        yield Fine(f"all {len(plan.options)} options are among {where}")


def _paths(reference: Path) -> set[str]:
    """Every dotted path of a YAML file, nodes and leaves; empty where there is none."""
    if not reference.is_file():
        return set()
    import yaml  # type: ignore[import-untyped]

    found: set[str] = set()

    def walk(value: Any, path: str) -> None:
        for name, one in value.items() if isinstance(value, dict) else ():
            here = f"{path}.{name}" if path else str(name)
            found.add(here)
            walk(one, here)

    walk(yaml.safe_load(reference.read_text(encoding="utf-8")), "")
    return found


def _arguments(file: Path) -> set[str]:
    """The long options that a file adds to an argparse parser, read and not run."""
    found: set[str] = set()
    for node in ast.walk(ast.parse(file.read_bytes())):
        if isinstance(node, ast.Call) and getattr(node.func, "attr", "") == "add_argument":
            for one in node.args:
                if isinstance(one, ast.Constant) and str(one.value).startswith("--"):
                    found.add(str(one.value)[2:])
    return found


def _nearest(name: str, names: set[str]) -> str:
    """`; perhaps X`, of the name whose words are most alike."""
    plain = {re.sub(r"[._-]", "", one): one for one in sorted(names)}
    found = difflib.get_close_matches(re.sub(r"[._-]", "", name), plain, n=1, cutoff=0.6)
    return f"; perhaps {plain[found[0]]}" if found else ""
