"""Judges which settings arrive, by what the mapping returned when one setting alone was changed.

1. What follows the setting? Nothing: it is dropped. Another setting's argument: the two are tied.
2. What does its own argument mean in canonical terms, at both values? The opposite: inverted. A constant distance:
   shifted. Anything else: altered. A value that the engine does not accept: rejected.
   A number outside the range of the setting is rejected; one that changes against it, or is a fixed multiple of it, is
   altered, also where equal values have no equal effect or more loses nothing.
3. Which argument names does it return that the target engine does not accept, whatever is set?
4. What does it return if the setting is left out, and what would the source engine have done?
5. Does it still arrive at the ends of its range, at its special values and in between, where mappings clamp, round and
   replace?
"""

from __future__ import annotations

import dataclasses
import math
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from harness.errors import closest, nearest
from harness.mapping.carried_settings import ORDINARY, Edge, Setting, owners
from probes import limits
from reports.text import agreeing, counted
from scenarios.engines.accepted import Accepted
from scenarios.engines.canonical import BY_NAME
from scenarios.engines.mapping import PARTS
from scenarios.engines.native import Native, same, type_text
from scenarios.engines.parameter import Parameter
from scenarios.engines.spec import EngineSpec
from scenarios.settings import Sampling

Kind = Literal["inverted", "shifted", "altered", "tied", "renamed", "rejected", "refused", "unknown", "dropped"]

KINDS: dict[Kind, str] = {
    "inverted": "On is off in the target engine.",
    "shifted": "The target engine gets another number, by a constant.",
    "altered": "The target engine gets another value.",
    "tied": "An argument follows a setting that is not its own.",
    "renamed": "The setting follows under a name that the target engine does not have.",
    "rejected": "The target engine does not take the value.",
    "refused": "The function raised an error, though the target engine has the setting.",
    "unknown": "An argument that the installed engine does not take, whatever it follows.",
    "dropped": "Nothing that the function returns follows the setting.",
}
VERDICTS = {
    "MAPS ALL": "Every setting arrives. Exit code 0.",
    "DOES NOT MAP ALL": "A setting is dropped, or does not arrive as it was asked. Exit code 1.",
    "WRONG ARGUMENTS": "Every setting arrives, and the target engine is also given an argument that it does not take, "
    "or that follows the setting of another. Exit code 1.",
}
Part = Literal["engine", "sampling"]


@dataclass(frozen=True)
class Arrival:
    """One setting that does not arrive.

    `setting`: its name in the source engine, or an argument that the target engine does not accept. `parameter`: its
    canonical name; empty for such an argument. `asked`: what was asked for. `gets`: what the target engine would be
    given. `meaning`: what the parameter means there.
    """

    setting: str
    parameter: str
    part: Part
    kind: Kind
    asked: Any
    gets: dict[str, Any]
    text: str
    meaning: str
    fix: str


@dataclass(frozen=True)
class Mapping:
    """A judged mapping.

    `functions`: part -> the function of the file that maps it. `settings`: part -> the settings that were changed, by
    canonical name; the source engine may have one name in both parts, as `seed`. `left_out`: what happens if a setting
    is not given. `differs`: what no mapping can make equal.
    """

    file: str
    source: str
    engine: str
    functions: dict[str, str]
    settings: dict[str, dict[str, str]]
    findings: tuple[Arrival, ...]
    left_out: tuple[str, ...] = ()
    differs: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()

    @property
    def exit_code(self) -> int:
        return int(bool(self.findings))

    @property
    def arrived(self) -> dict[str, list[str]]:
        """Return part -> the source's names of the settings that arrive."""
        wrong = {(item.part, item.parameter) for item in self.findings}
        return {
            part: [name for parameter, name in names.items() if (part, parameter) not in wrong]
            for part, names in self.settings.items()
        }

    @property
    def verdict(self) -> str:
        """Return a key of VERDICTS."""
        if not self.findings:
            return "MAPS ALL"
        is_setting = [item.parameter in self.settings.get(item.part, ()) for item in self.findings]
        return "DOES NOT MAP ALL" if any(is_setting) else "WRONG ARGUMENTS"

    @property
    def reason(self) -> str:
        """One sentence for the first line: what is wrong, then what arrives. A setting counts once; `tied` and
        `unknown` arguments are no settings."""
        total = sum(map(len, self.settings.values()))
        unchecked = "".join(f"; {part} not checked" for part in PARTS if part not in self.settings)
        if not self.findings:
            return f"all {total} settings arrive{unchecked}"
        by_setting: dict[tuple[Part, str], set[Kind]] = {}
        beside: Counter[Kind] = Counter()
        for item in self.findings:
            if item.parameter in self.settings.get(item.part, ()):
                by_setting.setdefault((item.part, item.parameter), set()).add(item.kind)
            else:
                beside[item.kind] += 1
        dropped = sum(kinds == {"dropped"} for kinds in by_setting.values())
        numbers = {"wrong": len(by_setting) - dropped, "dropped": dropped}
        counts = [f"{counted(number, 'setting')} {what}" for what, number in numbers.items() if number]
        counts += [f"{counted(number, 'argument')} {kind}" for kind, number in beside.items()]
        arriving = f"{total - len(by_setting)} of" if by_setting else "all"
        return f"{', '.join(counts)}; {arriving} {total} settings arrive{unchecked}"


@dataclass(frozen=True)
class Trial:
    """The calls of one setting.

    `base`, `varied`: native arguments at its first and its second value. `error`: what the mapping raised at the
    second. `accepted`: whether the function can be given the setting at all. `at_edges`: (edge, native arguments) of
    the setting's edges.
    """

    setting: Setting
    base: dict[str, Any]
    varied: dict[str, Any]
    error: str
    accepted: bool
    at_edges: tuple[tuple[Edge, dict[str, Any]], ...] = ()

    @property
    def followers(self) -> list[str]:
        names = {*self.base, *self.varied}
        return sorted(name for name in names if not same(self.base.get(name), self.varied.get(name)))

    def outcomes(self, name: str) -> list[tuple[Any, Any]]:
        """(native value of the source, what an argument then is) for every value with which it was called."""
        values = [self.setting.source.write(value) for value in (self.setting.first, self.setting.second)]
        calls = [*zip(values, (self.base, self.varied), strict=True), *self._edge_values()]
        return [(value, native.get(name)) for value, native in calls]

    def tied(self) -> dict[str, tuple[Any, dict[str, Any]]]:
        """Argument that follows the setting -> (native value of the source, native arguments) of a call that shows it.

        Special values and ends of its range do not count: where a temperature of 0 is greedy, another filter loses its
        meaning. Nor does an argument that the value limits, such as a chunk of a prefill by the length of the context.
        """
        first, second = (self.setting.source.write(value) for value in (self.setting.first, self.setting.second))
        ties = {name: (first, self.base) if name in self.base else (second, self.varied) for name in self.followers}
        for edge, native in self.at_edges:
            for name in sorted({*self.base, *native}) if edge.why == ORDINARY else ():
                is_limited = native.get(name) == edge.native
                if not is_limited and not same(self.base.get(name), native.get(name)):
                    ties.setdefault(name, (edge.native, native))
        return ties

    def _edge_values(self) -> list[tuple[Any, dict[str, Any]]]:
        return [(edge.native, native) for edge, native in self.at_edges]


@dataclass(frozen=True)
class Takes:
    """Argument names that the installed engines accept; empty if not known."""

    source: Accepted
    target: Accepted


class Judge:
    """Judges trials of a mapping from `source` (None: canonical parameters) to `target`."""

    def __init__(self, source: EngineSpec | None, target: EngineSpec, takes: Takes) -> None:
        self.source, self.target, self.takes = source, target, takes
        self.owners = owners(target)
        self.source_title = "the scenario" if source is None else source.title

    def arrivals(self, trial: Trial) -> Iterator[Arrival]:
        """What is wrong with one setting, and with the settings that are tied to it."""
        setting, target = trial.setting, trial.setting.target
        if trial.error:
            if target is not None:
                yield self._arrival(trial, "refused", f"the mapping raised {trial.error}", {})
            return
        if target is None:
            yield self._without_image(trial)
        elif target.name in trial.followers or self._refusal(setting, target, trial.varied):
            yield from self._read_back(trial, target)
        else:
            yield self._dropped(trial, target)
        yield from self._ties(trial, setting.parameter)

    def at_edge(self, setting: Setting, edge: Edge, native: dict[str, Any]) -> Arrival | None:
        """What is wrong with a setting at an end of its range or at a special value; None if nothing is."""
        target = setting.target
        if target is None:
            return None
        want, refusal = setting.source.read(edge.native, {}), self._refusal(setting, target, native)
        read = None if refusal else target.value_in(native)
        if not refusal and (setting.parameter.fits(want, read) or not setting.parameter.comparable):
            return None
        given = {target.name: native[target.name]} if target.name in native else {}
        outcome = refusal or f"which is {setting.parameter.name} {read!r}"
        text = f"{'' if given else f'no {target.name}, '}{outcome}; {edge.native!r} is tried because: {edge.why}"
        return Arrival(
            setting=setting.source.name,
            parameter=setting.parameter.name,
            part=setting.parameter.part,
            kind="rejected" if refusal else "altered",
            asked=edge.native,
            gets=given,
            text=text,
            meaning=self._meaning(setting.parameter),
            fix=f"where {setting.source.name}={edge.native!r} give {target.name}={target.write(want)!r}",
        )

    def unknown(self, part: Part, native: dict[str, Any]) -> Iterator[Arrival]:
        """Arguments that the target engine accepts neither at its start nor for sampling: a function may map both,
        unless it is called with canonical parameters of one part.

        None if the engine's argument names are not known.
        """
        names = _names(self.takes.target) if self.source is not None else {*getattr(self.takes.target, part)}
        for name in sorted({*native} - names) if names else ():
            theirs = self.source is not None and name in _names(self.takes.source)
            near = nearest(name, names)
            text = f"{self.target.title} takes no such argument"
            text += f": it is one of {self.source_title}" if theirs else closest(name, names)
            yield Arrival(
                setting=name,
                parameter="",
                part=part,
                kind="unknown",
                asked=None,
                gets={name: native[name]},
                text=text,
                meaning="",
                fix=f"give {near} in its place, or leave {name} out" if near and not theirs else f"leave {name} out",
            )

    def unlisted(self, arguments: list[tuple[str, Any]], reported: set[str]) -> Iterator[Arrival]:
        """Words that the target engine does not list for an argument, whatever they follow, the first of each argument,
        without the arguments that are `reported`."""
        for name, value in arguments:
            refusal = "" if name in reported else self.takes.target.refusal(name, value)
            if not refusal:
                continue
            reported = {*reported, name}
            words = self.takes.target.choices[name]
            near = nearest(value, words)
            yield Arrival(
                setting=name,
                parameter="",
                part="engine",
                kind="rejected",
                asked=None,
                gets={name: value},
                text=f"{self.target.title} refuses it: {refusal}",
                meaning="",
                fix=f"give {name}={near!r}, or leave it out" if near else f"leave {name} out",
            )

    def too_large(self, part: Part, native: dict[str, Any], reported: set[str]) -> Iterator[Arrival]:
        """Whole numbers that no recording can hold, whatever they follow, without the arguments that are `reported`."""
        for name, value in native.items():
            if name in reported or not isinstance(value, int) or abs(value) <= limits.WHOLE:
                continue
            yield Arrival(
                setting=name,
                parameter="",
                part=part,
                kind="rejected",
                asked=None,
                gets={name: value},
                text=limits.BEYOND_WHOLE,
                meaning="",
                fix=f"give {name} a number of at most {limits.WHOLE}, or leave it out",
            )

    def surplus(self, trial: Trial) -> str:
        """What a setting gets beyond what was asked, where more loses nothing and the harness would give no more."""
        setting, target = trial.setting, trial.setting.target
        if target is None or trial.error or not setting.parameter.more:
            return ""
        requested, read = setting.requested(setting.first), target.value_in(trial.base)
        if not _is_number(read) or read <= requested or trial.base.get(target.name) == target.write(requested):
            return ""
        asked_text = f"{setting.source.name}={setting.source.write(setting.first)!r}"
        given = f"{target.name}={trial.base[target.name]!r}" if target.name in trial.base else f"no {target.name}"
        return f"{asked_text} -> {given}: {read - requested:g} more than is asked, which loses nothing"

    def left_out(self, setting: Setting, native: dict[str, Any]) -> str:
        """What differs if the setting is not given at all; empty if nothing does, or if it is not known."""
        if setting.target is None or setting.parameter.carried or self.source is None:
            return ""
        if setting.target.another_type(native, setting.target.write(setting.first)):
            return ""
        default, target_value = setting.source.value_in({}), setting.target.value_in(native)
        if default == target_value or default is None:
            return ""
        name, argument = setting.source.name, setting.target.name
        written = f"{argument}={native[argument]!r}" if argument in native else f"no {argument}"
        then = "decides itself" if target_value is None else f"then has {target_value!r}"
        return f"{name}: {self.source_title} has {default!r}; the mapping gives {written}, {self.target.title} {then}"

    def other_meaning(self, trial: Trial) -> str:
        """What a number means in each engine, where the same number is given and means something else."""
        setting, target = trial.setting, trial.setting.target
        if self.source is None or self.source is self.target or target is None or setting.parameter.comparable:
            return ""
        values = [setting.source.write(value) for value in (setting.first, setting.second)]
        if trial.error or [native.get(target.name) for native in (trial.base, trial.varied)] != values:
            return ""
        mine, theirs = (setting.parameter.note(spec.name) for spec in (self.source, self.target))
        trap = setting.parameter.trap
        return (
            f"{setting.source.name} is copied to {target.name}, and equal numbers mean something else: in "
            f"{self.source.title} {mine}; in {self.target.title} {theirs}. {trap[:1].upper()}{trap[1:]}"
        )

    def differs(self, of_sampling: Sequence[Setting]) -> tuple[str, ...]:
        """What the engines' own samplers do differently with equal parameters."""
        values = {item.parameter.name: item.second for item in of_sampling if not item.parameter.carried}
        full = {**dataclasses.asdict(Sampling()), **values}
        mine = {} if self.source is None else self.source.unlike(full)
        theirs = self.target.unlike(full)
        differences = [f"{name} in {self.target.title}: {what}" for name, what in theirs.items() if name not in mine]
        file = BY_NAME["generation_config"]
        if self.source is not None and self.source.defaults_at_endpoint_only != self.target.defaults_at_endpoint_only:
            notes = [f"{spec.title}: {file.note(spec.name)}" for spec in (self.source, self.target)]
            differences.append(f"{file.concept}: {'; '.join(notes)}")
        differences += [f"{name} in {self.source_title}: {what}" for name, what in mine.items() if name not in theirs]
        return tuple(differences)

    # --- one finding each -------------------------------------------------------------------------

    def _read_back(self, trial: Trial, target: Native) -> Iterator[Arrival]:
        setting = trial.setting
        for value, native in ((setting.first, trial.base), (setting.second, trial.varied)):
            if refusal := self._refusal(setting, target, native):
                yield self._arrival(trial, "rejected", refusal, native, value)
                return
        requested = [setting.requested(value) for value in (setting.first, setting.second)]
        read = [target.value_in(native) for native in (trial.base, trial.varied)]
        pairs = list(zip(requested, read, strict=True))
        outside = [_outside(setting.parameter, want, got) for want, got in pairs]
        wrong = [bool(why) for why in outside] if any(outside) else self._misfits(setting.parameter, pairs)
        if not any(wrong):
            return
        at = wrong.index(True)
        kind = "rejected" if outside[at] else _kind(pairs)
        value, native = (setting.first, setting.second)[at], (trial.base, trial.varied)[at]
        text = f"which is {setting.parameter.name} {read[at]!r}"
        if outside[at]:
            text += f": {outside[at]}"
        elif kind == "altered" and (factor := _factor(pairs)):
            text += f": {factor:g} times what is asked"
        elif kind == "shifted":
            distance = abs(read[at] - requested[at])
            text += f": {distance} {'less' if read[at] < requested[at] else 'more'}"
        yield self._arrival(trial, kind, text, native, value)

    def _refusal(self, setting: Setting, target: Native, native: dict[str, Any]) -> str:
        """Why the target engine does not take the value that it is given; empty where it may."""
        example = target.write(setting.first)
        if type_name := target.another_type(native, example):
            return f"{type_name} where {self.target.title} takes {type_text(example)}"
        why = target.rejects(native[target.name]) if target.name in native else ""
        if not why and setting.part == "engine":
            why = self.takes.target.refusal(target.name, native.get(target.name))
        return f"{self.target.title} refuses it: {why}" if why else ""

    def _misfits(self, parameter: Parameter, pairs: list[tuple[Any, Any]]) -> list[bool]:
        """Which of the two values (requested, read) is not what was asked for."""
        if not parameter.comparable and self.source is not self.target:
            (first_want, first), (second_want, second) = pairs
            return [False, (first_want < second_want) is not (first < second)]
        wrong = [not parameter.fits(want, got) for want, got in pairs]
        return wrong if any(wrong) else [bool(_factor(pairs))] * 2

    def _dropped(self, trial: Trial, target: Native) -> Arrival:
        unowned = {name for name in trial.followers if (trial.setting.part, name) not in self.owners}
        if unowned:
            named = ", ".join(sorted(unowned))
            is_not = agreeing(len(unowned), "is not its name", "are no names of it")
            text = f"{named} {is_not} in {self.target.title}"
            return self._arrival(trial, "renamed", text, trial.varied, trial.setting.second, show=unowned)
        if not trial.accepted:
            text = f"no {target.name}: the function takes no {trial.setting.source.name}"
        elif target.name in trial.varied:
            text = f"{target.name}={trial.varied[target.name]!r}{_range_of(trial, target)}"
        else:
            text = f"no {target.name}"
        setting, read = trial.setting, target.value_in(trial.varied)
        then = f"{self.target.title} decides by itself"
        if read is not None:
            then = f"{setting.parameter.name} is then {read!r} in {self.target.title}"
        # A constant that is right for one of the two values is wrong for the other one.
        is_right = read is not None and setting.parameter.fits(setting.requested(setting.second), read)
        value, native = (setting.first, trial.base) if is_right else (setting.second, trial.varied)
        is_constant = all(same(outcome, trial.varied.get(target.name)) for _, outcome in trial.outcomes(target.name))
        return self._arrival(trial, "dropped" if is_constant else "altered", f"{text}; {then}", native, value)

    def _without_image(self, trial: Trial) -> Arrival:
        kind: Kind = "renamed" if trial.followers else "dropped"
        text = f"{self.target.title} has no such setting"
        return self._arrival(trial, kind, text, trial.varied, show=set(trial.followers))

    def _ties(self, trial: Trial, parameter: Parameter) -> Iterator[Arrival]:
        for name, (value, native) in trial.tied().items():
            owner = self.owners.get((parameter.part, name))
            if owner is None or owner.name == parameter.name:
                continue
            owner_setting = owner.native(self.source.name) if self.source else ""
            source = trial.setting.source
            argument = f"{name}={native[name]!r}" if name in native else f"no {name}"
            text = f"{argument} where {source.name}={value!r}"
            yield Arrival(
                setting=owner_setting or name,
                parameter=owner.name,
                part=owner.part,
                kind="tied",
                asked=None,
                gets={name: native.get(name)},
                text=f"{text}: it follows {source.name}",
                meaning=self._meaning(owner),
                fix=f"make {name} follow its own setting only, or leave it out",
            )

    def _arrival(
        self,
        trial: Trial,
        kind: Kind,
        text: str,
        native: dict[str, Any],
        value: Any = None,
        *,
        show: set[str] | None = None,
    ) -> Arrival:
        setting, target = trial.setting, trial.setting.target
        value = setting.second if value is None else value
        if show is None:
            show = set() if target is None else {target.name}
        return Arrival(
            setting=setting.source.name,
            parameter=setting.parameter.name,
            part=setting.parameter.part,
            kind=kind,
            asked=setting.source.write(value),
            gets={name: native[name] for name in sorted(show) if name in native},
            text=text,
            meaning=self._meaning(setting.parameter),
            fix=self._fix(setting, value),
        )

    def _fix(self, setting: Setting, value: Any) -> str:
        setting_text = f"{setting.source.name}={setting.source.write(value)!r}"
        if setting.target is None:
            return f"raise an error where {setting.source.name} is set: {self.target.title} has none"
        if not setting.parameter.comparable:
            return f"give {setting.target.name}, with a share that leaves the same KV pool"
        values = (setting.first, setting.second)
        if all(setting.source.write(each) == setting.target.write(each) for each in values):
            return f"give {setting.target.name} the value that {setting.source.name} has"
        written = setting.target.write(value)
        text = f"where {setting_text} give {setting.target.name}={written!r}"
        read, want = setting.target.read(written, {setting.target.name: written}), setting.requested(value)
        surplus = read - want if setting.parameter.more and _is_number(read) and _is_number(want) else 0
        return f"{text}, {surplus} of which are in reserve" if surplus > 0 else text

    def _meaning(self, parameter: Parameter) -> str:
        return "; ".join(filter(None, (parameter.note(self.target.name), parameter.trap)))


def _range_of(trial: Trial, target: Native) -> str:
    """For which values an argument is what it is for the first two: all, those beyond a limit, or these two."""
    outcomes = trial.outcomes(target.name)
    given = trial.varied[target.name]
    (first, _), (second, _), *_ = outcomes
    is_constant = all(same(outcome, given) for _, outcome in outcomes)
    # A switch has two values, which were tried. Of any other setting, two values without edges show little.
    is_whole_range = bool(trial.at_edges) or isinstance(first, bool)
    if is_constant and is_whole_range:
        return " whatever is asked"
    if all(_is_number(value) and _is_number(outcome) for value, outcome in outcomes):
        results = [outcome for _, outcome in sorted(outcomes)]  # in the order of what is asked
        is_cut = [outcome == given for outcome in results]
        if given == max(results) and is_cut == sorted(is_cut):  # from some value on, all are cut
            return f": at most {given!r} for all values that were tried"
        if given == min(results) and is_cut == sorted(is_cut, reverse=True):
            return f": at least {given!r} for all values that were tried"
    return f" for each of {first!r} and {second!r}"


def _names(takes: Accepted) -> set[str]:
    return {*takes.engine, *takes.sampling}


def _kind(pairs: list[tuple[Any, Any]]) -> Kind:
    requested, read = zip(*pairs, strict=True)
    if all(isinstance(value, bool) for value in (*requested, *read)) and all(want is not got for want, got in pairs):
        return "inverted"
    if all(map(_is_number, (*requested, *read))) and len({got - want for want, got in pairs}) == 1:
        return "shifted"
    return "altered"


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _outside(parameter: Parameter, requested: Any, read: Any) -> str:
    """Why a value cannot be one of a setting that is a number; empty where it can, or where it means off or nothing."""
    if not _is_number(requested) or read is None or read == parameter.off:
        return ""
    if not _is_number(read):
        return "it is no number"
    low, high = parameter.low, parameter.high
    # Written so that NaN, of which no comparison holds, is outside.
    is_high_enough = (low is None or read >= low) and (read > 0 or not parameter.positive)
    if is_high_enough and (high is None or read <= high):
        return ""
    if low is None:
        return f"its range ends at {high:g}" if high is not None else "it has to be above 0"
    return f"its range begins at {low:g}" if high is None else f"its range is {low:g} to {high:g}"


def _factor(pairs: list[tuple[Any, Any]]) -> float:
    """By what both values were multiplied; 0 where by nothing, or not alike."""
    if not all(_is_number(value) and value for pair in pairs for value in pair):
        return 0
    first, second = (got / want for want, got in pairs)
    return first if first != 1 and math.isclose(first, second) else 0
