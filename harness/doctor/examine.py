"""Runs the doctor: facts of every place in, one report out."""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Callable, Iterable, Iterator, Sequence

from harness.doctor import beside, environments, gather, plugins
from harness.doctor.checks import CHECKS, COMPARISONS
from harness.doctor.cluster import look
from harness.doctor.doctor_options import DoctorOptions
from harness.doctor.facts import Facts
from harness.doctor.outcome import Asked, Check, Comparison, Item, Outcome, Problem, item
from harness.envs.environment import find
from harness.envs.stored_arguments import accepted
from harness.errors import BadInput
from harness.frameworks.against import compare, words
from harness.frameworks.detection import AUTO, recognised, refuse_absent_script
from harness.frameworks.examine import absent_program
from harness.frameworks.examine import look as look_at
from harness.frameworks.spec import names
from reports.doctor_model import SEVERITIES, Hazard, Passed, Report, Unchecked, merged

SHELL = "this shell"
_JOIN = "harness doctor --address HEAD:6379   # or: --ray"

WORKER = "worker"
RULES = {WORKER: "What each worker of a joined Ray cluster says of its machine."}


def examine(
    options: DoctorOptions,
    *,
    reproduce: str = "",
    progress: Callable[[str], None] = lambda text: None,
) -> Report:
    """Gather facts and judge them: 2 to 10 s for this shell, a few more for a cluster.

    Raises LaunchFailed if the cluster cannot be joined, and BadInput for a command of no known framework or
    with a script that does not exist.
    """
    began = time.monotonic()
    # A wrong command is refused first, before anything that takes seconds.
    job: list[Item] = []
    if options.command:
        refuse_absent_script(options.command)
        if options.framework == AUTO and not recognised(options.command):
            raise BadInput(
                f"the command is no job of {names(between=' or ')}, whose settings would be checked",
                fix="   # the machine alone; or name the framework with --framework",
                instead="--",
            )
        progress("reading the command")
        job = absent_program(options.command, options.framework) + look_at(options.command, options.framework)
    skip = () if options.imports else gather.SLOW
    progress("looking at this shell")
    places = [Facts.from_dict({**gather.node(skip), "where": SHELL})]
    unchecked: list[Item] = []
    request = Asked(stall_s=options.stall_s)
    if options.address or options.own_ray:
        progress("asking Ray's workers")
        cluster_facts = look(options.address, skip)
        places += cluster_facts.places
        request = dataclasses.replace(
            request, joined=bool(options.address), nodes=max(1, cluster_facts.alive), dead=cluster_facts.dead
        )
        unchecked += [Unchecked(WORKER, (where,), why, _JOIN) for where, why in cluster_facts.silent.items()]
    items = [*job, *judge(places, request), *unchecked, *plugins.look()]
    if options.nodes is not None:
        items += [item("packages", where, outcome) for where, outcome in beside.compare(options.nodes, places[0])]
    items += environments.look(imports=options.engines, progress=progress)
    return report(items, [place.where for place in places], time.monotonic() - began, options.strict, reproduce)


def compared(
    options: DoctorOptions, *, reproduce: str = "", progress: Callable[[str], None] = lambda text: None
) -> Report:
    """Compare the commands of two jobs setting by setting, and nothing else. An engine whose list of options is not
    stored is asked for it, once. Raises BadInput for a command that cannot be read."""
    began = time.monotonic()

    def served(engine: str) -> tuple[str, Sequence[str]]:
        if (environment := find(engine)) is None:
            return "", ()
        return environment.version, accepted(environment, ask=True, say=progress).server

    items = compare(options.command, words(options.against), options.framework, served=served)
    made = report(items, ("the commands",), time.monotonic() - began, options.strict, reproduce)
    return dataclasses.replace(made, compared=True)


def judge(places: Sequence[Facts], request: Asked) -> list[Item]:
    """Run every check on every place, and every comparison. Checks whose facts are missing are reported as not
    checked."""
    items: list[Item] = []
    for check in CHECKS:
        items += _looked_at(check, places, request)
    for comparison in COMPARISONS:
        items += _held_together(comparison, places, request)
    return items


def _looked_at(check: Check, places: Sequence[Facts], request: Asked) -> Iterator[Item]:
    """Run a check on every place."""
    reported_gists: set[object] = set()
    for place in places:
        missing = _missing(place, check.needs)
        if missing is not None:
            yield Unchecked(check.name, (place.where,), missing)
            continue
        outcomes = list(check.look(place, request))
        # A worker on the shell's own machine would repeat what the shell said about that machine.
        if check.host and place.same_host:
            outcomes = [outcome for outcome in outcomes if place.shell or _gist(outcome) not in reported_gists]
            reported_gists |= {_gist(outcome) for outcome in outcomes}
        for outcome in outcomes:
            yield item(check.name, place.where, outcome)


def _held_together(comparison: Comparison, places: Sequence[Facts], request: Asked) -> Iterator[Item]:
    """Run a comparison of all places whose facts are there. Each is compared with the shell, which is the first."""
    if len(places) == 1:
        yield Unchecked(comparison.name, (SHELL,), "no Ray worker was asked", _JOIN)
        return
    complete_places = []
    for place in places:
        missing = _missing(place, comparison.needs)
        if missing is None:
            complete_places.append(place)
        else:
            yield Unchecked(comparison.name, (place.where,), missing)
    if len(complete_places) > 1 and complete_places[0] is places[0]:
        for where, outcome in comparison.look(complete_places, request):
            yield item(comparison.name, where, outcome)


def report(
    items: Iterable[Item], places: Sequence[str], seconds: float, strict: bool = False, reproduce: str = ""
) -> Report:
    """Build the report: items of equal content merged over places, hazards sorted by severity, then by the order of
    checks."""
    items = list(items)
    apart = [entry for entry in items if entry.check == environments.VERSIONS]  # each environment has its own versions
    merged_items = merged(entry for entry in items if entry.check != environments.VERSIONS) + apart
    hazards = [entry for entry in merged_items if isinstance(entry, Hazard)]
    hazards.sort(key=lambda hazard: SEVERITIES.index(hazard.severity))
    passed = tuple(entry for entry in merged_items if isinstance(entry, Passed))
    unchecked = tuple(entry for entry in merged_items if isinstance(entry, Unchecked))
    return Report(
        hazards=tuple(hazards),
        passed=passed,
        unchecked=unchecked,
        places=tuple(places),
        seconds=seconds,
        strict=strict,
        reproduce=reproduce,
    )


def _gist(outcome: Outcome) -> object:
    """What two looks at one machine have in common: everything but the figures, which change in between."""
    return (outcome.severity, outcome.what) if isinstance(outcome, Problem) else type(outcome)


def _missing(place: Facts, needs: Sequence[str]) -> str | None:
    """Why a check of this place cannot run; None if it can."""
    for name in needs:
        if getattr(place, name) is None:
            return place.gaps.get(name, f"{name} was not gathered")
    return None
