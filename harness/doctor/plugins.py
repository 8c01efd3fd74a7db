"""Plug-ins of other packages in the harness's own interpreter: which of them could not be used, and why."""

from __future__ import annotations

import importlib

from harness import extras
from probes import plugins
from reports.doctor_model import Hazard, Passed, Unchecked

# Entry point group -> the module of its registry, which says which plug-ins it refused.
_REGISTRIES = {
    "rlhf_harness.checks": "harness.parity.checks.registry",
    "rlhf_harness.causes": "harness.parity.causes.registry",
    "rlhf_harness.engines": "scenarios.engines.registry",
    "rlhf_harness.frameworks": "harness.frameworks.spec",
    "rlhf_harness.renderers": "reports.renderers",
}
RULES = {"plug-ins": "Whether each installed plug-in can be loaded and is what its group asks for."}
_WHERE = ("harness",)


def look() -> list[Hazard | Passed | Unchecked]:
    """One answer for each plug-in that is not used, and one for all others. Loads them all; empty if there are none."""
    answers: list[Hazard | Passed | Unchecked] = []
    good = []
    for group, home in _REGISTRIES.items():
        installed = plugins.installed(group)
        if not installed:
            continue
        try:
            refused = importlib.import_module(home).refused()
        except ModuleNotFoundError as error:  # the core installation has no NumPy, and judges no runs
            fix = extras.install_command(extras.bringing(str(error.name)) or "diff")
            answers += [Unchecked("plug-ins", _WHERE, f"{title}: {error}", fix) for title in map(str, installed)]
            continue
        answers += [_hazard(error) for error in refused]
        names = {error.name for error in refused}
        good += [str(plugin) for plugin in installed if plugin.entry.name not in names]
    return [*answers, *([Passed("plug-ins", _WHERE, ", ".join(good))] if good else [])]


def _hazard(error: plugins.PluginError) -> Hazard:
    return Hazard(
        check="plug-ins",
        severity="warning",
        what=str(error),
        where=_WHERE,
        measured="",
        why="what it brings is missing",
        fix="update or uninstall its package",
    )
