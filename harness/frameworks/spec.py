"""What the harness knows about a framework, and the registry of frameworks.

A folder beside this module that exports `FRAMEWORK` is a framework. So is each entry point of the group
`rlhf_harness.frameworks`, which names a `Framework` of another package. General code asks the spec and never compares
names.
"""

from __future__ import annotations

import functools
import importlib
import importlib.util
import pkgutil
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from harness.doctor.outcome import Documented, Outcome, Unseen
from harness.frameworks.argv import Start
from harness.frameworks.installed import Installation
from harness.frameworks.options import UnknownOption
from harness.frameworks.settings import Settings
from harness.frameworks.shared_meanings import Meaning
from probes import plugins
from probes.adapters.table import Adapter, compare
from probes.plugins import Plugin, PluginError
from scenarios.engines.spec import FramePattern

GROUP = "rlhf_harness.frameworks"


@dataclass(frozen=True)
class Trap(Documented):
    """A setting that the framework accepts although it breaks the job.

    `look` judges a configuration, whether it was read from a command or recorded by the job. `read_in`: the version
    whose source shows the trap. `until`: the first version that no longer has it.
    """

    check: str
    look: Callable[[Settings], Iterator[Outcome]]
    read_in: str
    until: str = ""

    def applies(self, version: str) -> bool:
        """Whether this version has the trap. An unknown version (an empty string) may have it."""
        return not (version and self.until) or compare(version, self.until) < 0


@dataclass(frozen=True)
class Examined:
    """A command's settings, and how its options compare with those of the installed version."""

    settings: Settings
    options: tuple[Outcome, ...] = ()


@dataclass(frozen=True)
class Framework:
    """One framework.

    `unpaired`: engines that it generates with too, but of whose runs no pair can be judged -> why and how.

    `module`: its adapter in the job's processes, which has `ADAPTER` (distribution, tested versions, hooks, names of
    actors). `commands`: patterns that recognise it in the words of a command or in the scripts that it names. `starts`:
    a pattern of the word that starts it and the word after that. `engines`: engines that it can generate with.
    `switch`: the option that chooses one, as `NAME=ENGINE`; empty if there is only one. `beside`: packages whose source
    its parser needs.

    Coupled sampling: `overrides` are added to the command. `plugin` is the module that the adapters' loader imports in
    each process. `entry_points`: those of ours that the framework looks for itself, by group. `seeds_prompts`: the
    plugin seeds the order of the prompts, which no option does. `own_seeds`: the options that do.

    `meanings`: setting -> what it is in terms that all frameworks share. `aside`: prefixes of settings that affect no
    number. `engine_kwargs`: prefix of settings that are an engine's name followed by that engine's own argument; empty
    if there are none. `examine` reads a plain command. `unknown_option`: one that the framework's own parser refuses,
    where that takes it long. `configured` turns a `configuration` event, and the variables of
    the process that recorded it, into settings. `traps` judge the settings of both. `waits`: frames in which its
    processes wait for others.
    """

    name: str
    module: str
    commands: tuple[str, ...]
    starts: str
    engines: tuple[str, ...]
    unpaired: Mapping[str, str] = field(default_factory=dict)
    switch: str = ""
    beside: tuple[str, ...] = ()
    overrides: tuple[str, ...] = ()
    plugin: str = ""
    entry_points: Mapping[str, str] = field(default_factory=dict)
    seeds_prompts: bool = False
    own_seeds: str = ""
    meanings: Mapping[str, Meaning] = field(default_factory=dict)
    aside: tuple[str, ...] = ()
    engine_kwargs: str = ""
    examine: Callable[[Start, Installation | None], Examined] = lambda start, installed: Examined(Settings())
    unknown_option: Callable[[Start, Installation | None], UnknownOption | None] = lambda start, installed: None
    unhooked: Callable[[Start, Sequence[str], Installation | None], str] = lambda start, texts, installed: ""
    configured: Callable[[Mapping[str, Any], Mapping[str, str]], Settings] = lambda event, variables: Settings()
    traps: tuple[Trap, ...] = ()
    waits: tuple[FramePattern, ...] = ()

    def __post_init__(self) -> None:
        if isinstance(self.commands, str):
            raise TypeError("`commands` is a tuple of patterns")
        for pattern in (*self.commands, self.starts):
            re.compile(pattern)

    @property
    def adapter(self) -> Adapter:
        """The table of its hooks."""
        adapter: Adapter = importlib.import_module(self.module).ADAPTER
        return adapter

    @property
    def couples(self) -> bool:
        """Whether its engines can draw coupled samples."""
        return bool(self.overrides or self.plugin)

    @property
    def handed(self) -> str:
        """How the job's processes find the adapter: by its name in `probes`, or by the file of another package's
        module, which need not be installed there."""
        if self.module.startswith("probes."):
            return self.module
        module_spec = importlib.util.find_spec(self.module)
        if module_spec is None or not module_spec.origin:
            raise ModuleNotFoundError(f"the adapter {self.module} of {self.name} is not installed")
        return str(Path(module_spec.origin).resolve())


@functools.cache
def _loaded() -> tuple[dict[str, Framework], tuple[PluginError, ...]]:
    folder = str(Path(__file__).parent)
    built_in = [importlib.import_module(f"harness.frameworks.{module.name}").FRAMEWORK
           for module in pkgutil.iter_modules([folder]) if module.ispkg]  # fmt: skip
    by_name = {framework.name: framework for framework in built_in}
    homes: dict[str, object] = {name: f"the harness (harness.frameworks.{name})" for name in by_name}

    def take(plugin: Plugin, framework: Any) -> None:
        if not isinstance(framework, Framework):
            raise plugins.Unfit("it is no harness.frameworks.spec.Framework")
        if not re.fullmatch(r"\w[\w-]*", framework.name):
            raise plugins.Unfit(f"{framework.name!r} cannot be the name of a framework: letters, digits, - and _")
        if framework.name in by_name:
            raise plugins.name_taken(framework.name, homes[framework.name])
        if not isinstance(framework.adapter, Adapter):
            raise plugins.Unfit(f"{framework.module}.ADAPTER is no probes.adapters.table.Adapter")
        by_name[framework.name], homes[framework.name] = _guarded(framework, plugin), plugin

    refused = plugins.load(GROUP, take)
    return dict(sorted(by_name.items())), refused


def frameworks() -> dict[str, Framework]:
    """Every framework by name, in the order of the names. One that cannot be loaded is left out: see `refused`."""
    return _loaded()[0]


def refused() -> tuple[PluginError, ...]:
    """The plug-ins that bring no framework, and why."""
    return _loaded()[1]


def _guarded(framework: Framework, plugin: Plugin) -> Framework:
    """A framework of another package, guarded: an error of its code is reported as not checked, and ends nothing."""

    def examine(start: Start, installed: Installation | None) -> Examined:
        try:
            with plugin.guarded():
                examined = framework.examine(start, installed)
                return Examined(examined.settings, tuple(examined.options))
        except PluginError as error:
            return Examined(Settings(), (Unseen(str(error)),))

    def looked_by(trap: Trap) -> Trap:
        @functools.wraps(trap.look)
        def look(settings: Settings) -> Iterator[Outcome]:
            try:
                with plugin.guarded():
                    outcomes = tuple(trap.look(settings))
            except PluginError as error:
                outcomes = (Unseen(str(error)),)
            yield from outcomes

        return replace(trap, look=look)

    traps = tuple(map(looked_by, framework.traps))
    configured, unhooked = plugin.guard(framework.configured), plugin.guard(framework.unhooked)
    return replace(framework, examine=examine, configured=configured, unhooked=unhooked, traps=traps)


def names(named_frameworks: Sequence[Framework] | None = None, between: str = ", ") -> str:
    """The frameworks' names, as an error message lists them."""
    return between.join(
        framework.name for framework in (frameworks().values() if named_frameworks is None else named_frameworks)
    )
