"""Options that the installed version does not know, or not as they are written: looked up in its source.

verl's in its Hydra reference, OpenRLHF's in its calls of argparse, TRL's in its configuration classes (`trl_options`).
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path

from harness.doctor.frameworks import files, trl_options
from harness.doctor.frameworks.arguments import Options
from harness.doctor.frameworks.arguments import options as arguments
from harness.doctor.frameworks.options import Option
from harness.doctor.frameworks.parameters import Parameter, parsed
from harness.doctor.frameworks.plan import Plan
from harness.doctor.frameworks.words import SHELL
from harness.doctor.outcome import Fine, Outcome, Problem, Unseen
from harness.frameworks.installed import Installation

_HYDRA_OWN = ("hydra",)
# Hydra's own options (`hydra._internal.utils.get_args_parser`): those that stand alone, and those with a value.
_HYDRA_ALONE = {"help", "hydra-help", "version", "resolve", "run", "multirun", "shell-completion"}
_HYDRA_VALUED = {"cfg", "package", "config-path", "config-name", "config-dir", "experimental-rerun", "info"}
_BUILT_ON = "ppo_trainer"
_SHOWN = 4  # settings of a file, by name
_NOTHING = "the command has no option, and its script no configuration of TRL's, that could be looked up"


def known(plan: Plan) -> Iterator[Outcome]:
    """Each option of the command against those of the installed version."""
    framework = plan.job.adapter.framework
    installed = plan.job.installed
    if installed is None or not installed.version:
        yield Unseen(f"the {framework} that will run is not known: its options cannot be looked up")
    elif framework == "trl":
        yield from _trl(plan, installed)
    elif framework == "verl":
        yield from _verl(plan, installed)
    else:
        yield from _openrlhf(plan, installed)


def _verl(plan: Plan, installed: Installation) -> Iterator[Outcome]:
    config = files.named(plan.given, "--config-name", "-cn")
    if not plan.entry:
        yield Unseen("the command does not start a module of verl's whose configuration is known")
        return
    if any(word.startswith(("--config-path", "--config-dir", "-cp", "-cd")) for word in plan.given):
        told = next((why for why in plan.unread if "settings come from" in why or "does not build on" in why), "")
        if told:
            yield Unseen(f"the command brings a configuration of its own: {told}")
            return
        config = ""
    package = installed.source("verl")
    folder = package.parent / "trainer" / "config" if package else Path()
    name = (config or _BUILT_ON).removesuffix(".yaml")
    engine = plan.get("model_engine", "dp")
    if SHELL.search(engine) or "model_engine" in plan.unsure:
        yield Unseen(plan.unsure.get("model_engine", f"model_engine is {engine}, which only the shell knows"))
        return
    if name == _BUILT_ON and engine != "dp" and (folder / "model_engine").is_dir():
        name = f"ppo_{engine}_trainer"
    reference = folder / f"_generated_{name}.yaml"
    paths = _paths(reference)
    if not paths:
        yield Unseen(f"verl {installed.version} has no {reference.name} to look options up in")
        return
    own = [one.name for one in plan.filed if not _within(one.name, paths)]
    wrong, unsure = _overridden(plan, paths, folder)
    wrong = [*_no_overrides(plan), *wrong]
    why = [f"{_listed(unsure)} may be in what the command puts in as a whole, which is not taken apart"] * bool(unsure)
    yield from _told(
        plan, wrong, "verl's configuration", "Hydra refuses it and the job ends before its first step", why
    )
    if own:
        yield Unseen(f"the configuration file sets {_listed(own)}, which verl's own does not have: Hydra takes any, "
                     "and whether anything reads it is not known")  # fmt: skip


def _no_overrides(plan: Plan) -> Iterator[tuple[Option, str]]:
    """Words of main_ppo's that are neither overrides nor options of Hydra's: `--name`, and a NAME without `=VALUE`."""
    if not re.search(r"\bmain_ppo\b", plan.entry):
        return
    before = ""
    for word in plan.given:
        name = word[2:].partition("=")[0]
        if re.fullmatch(r"--[A-Za-z][\w.-]*(=.*)?", word, re.DOTALL) and name not in _HYDRA_ALONE | _HYDRA_VALUED:
            yield Option("--", name, "", bare=True), "no such option: settings of verl are written NAME=VALUE"
        elif re.fullmatch(r"[A-Za-z_]\w*(\.\w+)+", word) and not before.startswith("-"):
            yield Option("", word, "", bare=True), "it has no value: Hydra takes NAME=VALUE"
        before = word


def _overridden(plan: Plan, paths: Mapping[str, object], folder: Path) -> tuple[list[tuple[Option, str]], list[str]]:
    """(overrides that Hydra refuses, with why; those below a group's choice or a mapping, which is not taken apart).
    Hydra takes them one after the other (`ConfigLoaderImpl._apply_overrides_to_config`)."""
    held = dict(paths)
    for one in plan.filed:
        _put(held, one.name, one.value)
    whole = {one.name.partition("@")[2] for one in plan.options if "@" in one.name}
    wrong, unsure = [], []
    for option in plan.options:
        name = option.name
        if "@" in name or "/" in name or name.split(".")[0] in _HYDRA_OWN or name in plan.unsure:
            continue
        if "." not in name and option.sign == "" and (folder / name).is_dir():  # a choice of a group, as model_engine
            continue
        if option.sign in ("", "~") and name not in held:
            if any(name.startswith(f"{one}.") for one in whole):
                unsure.append(name)
            else:
                wrong.append((option, f"it is not in the configuration{_nearest(name, set(held))}"))
        elif option.sign == "+" and name in held and _stands(held[name], option.value):
            wrong.append((option, "it is there already: leave the + out"))
        if option.sign == "~":
            held = {one: value for one, value in held.items() if one != name and not one.startswith(f"{name}.")}
        elif option.sign or name in held:
            _put(held, name, option.value)
            whole |= {name} if re.match(r"\{\s*[^\s}]", option.value) else set()
    return wrong, unsure


def _put(held: dict[str, object], name: str, value: object) -> None:
    parts = name.split(".")
    for at in range(1, len(parts)):
        held.setdefault(".".join(parts[:at]), ...)
    held[name] = value


def _stands(there: object, value: str) -> bool:
    """Does Hydra refuse to add this value to a key that has one? Not to one that is nothing, nor mappings and lists."""
    nothing = there is None or there in ("null", "None", "???") or (isinstance(there, str) and "${" in there)
    return not nothing and not value.startswith(("{", "[")) and not SHELL.search(value)


def _openrlhf(plan: Plan, installed: Installation) -> Iterator[Outcome]:
    found = re.search(r"(?:^|[./])openrlhf[./]cli[./](\w+?)(?:\.py)?$", plan.entry)
    module = f"openrlhf.cli.{found[1]}" if found else ""
    file = installed.source(module) if module else None
    added = arguments(parsed(file)) if file else Options()
    if not added.names:
        yield Unseen("the command does not name a module of openrlhf.cli whose options could be looked up")
        return
    wrong, unsure = _against(plan.options, added.names, module)
    if added.unknown:
        left = [one.name for one, _ in wrong if one.name not in added.names]
        wrong = [each for each in wrong if each[0].name in added.names]
        unsure += [f"{module} adds an option whose name is not written out ({added.unknown}): whether it takes "
                   f"{_listed(left)} is not known"] if left else []  # fmt: skip
    yield from _told(plan, wrong, f"{module}'s options", "argparse ends the job before it starts", unsure)


def _trl(plan: Plan, installed: Installation) -> Iterator[Outcome]:
    if trl_options.replaced(plan):
        yield Unseen(trl_options.replaced(plan))
        return
    told = trl_options.taken(plan, installed) if plan.options or plan.yamls else trl_options.Taken()
    calls = list(trl_options.built(plan, installed))
    wrong, unsure = _against([one for one in plan.options if one.name != "config"], told.names, told.where)
    if told.unknown:
        wrong = [each for each in wrong if each[0].name in told.names]
        unsure = []
    yield from _told(plan, wrong, f"those of {told.where}" if told.where else "what TRL takes",
                     "its parser ends the job before it starts", unsure, quiet=True)  # fmt: skip
    refused = [*_unknown_keywords(plan, calls), *_unknown_keys(plan, told)]
    yield from refused
    if told.unknown and (plan.options or plan.yamls):
        yield Unseen(f"the command's options: {told.unknown}")
    elif not (wrong or refused or unsure):
        counted = [f"{len(plan.options)} options"] * bool(plan.options) + [f"{len(calls)} configurations"] * bool(calls)
        if said := [*counted, *plan.yamls]:
            yield Fine(f"{' and '.join(said)} are as trl {installed.version} takes them")
        else:
            yield Unseen(plan.unread[0] if plan.unread else _NOTHING)


def _unknown_keywords(plan: Plan, calls: Iterable[trl_options.Built]) -> Iterator[Outcome]:
    for call in calls:
        for name in call.unknown:
            yield _refused(plan, f"{name}=…", f"{call.name} has no such argument{_nearest(name, set(call.taken))}",
                           "the script ends with a TypeError where it builds its configuration")  # fmt: skip


def _unknown_keys(plan: Plan, told: trl_options.Taken) -> Iterator[Outcome]:
    """Keys of TRL's YAML file: its parser refuses those that it does not know, the `trl` command hands them on."""
    for file, names in plan.yamls.items():
        for name in names if not told.unknown else ():
            if name in told.names:
                continue
            if told.drops:
                yield Unseen(f"{name} of {file} is no option of {told.where}, which drops it: nobody may read it")
            else:
                yield _refused(plan, f"{name}: of {file}", f"{told.where} has no such option"
                               f"{_nearest(name, set(told.names))}", "it ends the job before it starts")  # fmt: skip


def _refused(plan: Plan, shown: str, what: str, why: str) -> Problem:
    version = f"trl {plan.job.installed.version if plan.job.installed else ''}".strip()
    fix = "take it out, or write it as this version does"
    return Problem("error", f"{version} does not know {shown}", what, why, fix)


def _against(
    options: Iterable[Option], names: Mapping[str, Parameter], where: str
) -> tuple[list[tuple[Option, str]], list[str]]:
    """(options that the parser refuses, with why; those whose form cannot be told)."""
    wrong, unsure = [], []
    for option in options:
        if option.name == "help":
            continue
        whole = [one for one in names if one.startswith(option.name)]  # argparse takes prefixes
        if option.name not in names and len(whole) != 1:
            near = f": it may be {_listed(whole)}" if whole else _nearest(option.name, set(names))
            wrong.append((option, f"{where} has no such option{near}"))
            continue
        values = names[option.name if option.name in names else whole[0]].values
        if SHELL.search(option.value):
            if values == "0" and not option.bare:
                unsure.append(f"--{option.name} takes no value, and {option.value} may be one or more options")
        elif values == "0" and not option.bare:
            wrong.append(
                (option, f"it takes no value: --{option.name} alone switches, and {option.value!r} is refused")
            )
        elif values in ("1", "+") and option.bare:
            wrong.append((option, "a value has to stand behind it"))
    return wrong, unsure


def _within(name: str, paths: Mapping[str, object]) -> bool:
    """Is it in the configuration, or below a mapping that is empty there, which holds what anybody puts in?"""
    parts = name.split(".")
    return name in paths or any(paths.get(".".join(parts[:at])) == {} for at in range(1, len(parts)))


def _listed(names: Sequence[str]) -> str:
    more = f" and {len(names) - _SHOWN} more" if len(names) > _SHOWN else ""
    return ", ".join(names[:_SHOWN]) + more


def _told(
    plan: Plan, wrong: Sequence[tuple[Option, str]], where: str, why: str, unsure: Sequence[str] = (), *,
    quiet: bool = False,
) -> Iterator[Outcome]:  # fmt: skip
    """`quiet`: nothing where all is well."""
    installed = plan.job.installed
    version = f"{plan.job.adapter.framework} {installed.version if installed else ''}".strip()
    for option, what in wrong:
        shown = f"{option.sign}{option.name}" + ("" if option.sign == "--" or option.bare else "=…")
        verb = "does not know" if "no such option" in what or option.sign != "--" else "does not take"
        yield Problem("error", f"{version} {verb} {shown}", what, why, "take it out, or write it as this version does")
    yield from map(Unseen, unsure)
    if not wrong and not unsure and not quiet:
        yield Fine(f"all {len(plan.options)} options are among {where}")


def _paths(reference: Path) -> dict[str, object]:
    """Every dotted path of a YAML file -> its value, `...` for a node; nothing where there is no file."""
    held, why = files.mapping(reference)
    found: dict[str, object] = {}
    for name, value in files.leaves(held) if not why else ():
        _put(found, name, value)
    return found


def _nearest(name: str, names: set[str]) -> str:
    """`; perhaps X`, of the name whose words are most alike."""
    plain = {re.sub(r"[._-]", "", one): one for one in sorted(names)}
    found = difflib.get_close_matches(re.sub(r"[._-]", "", name), plain, n=1, cutoff=0.6)
    return f"; perhaps {plain[found[0]]}" if found else ""
