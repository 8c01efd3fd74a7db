"""The rules about hangs, in the order in which they are asked. The first rule that answers decides.

0. *The evidence of several nodes*. A directory that is missing, or of another time, says nothing about its ranks.
   Stacks that were pasted are one look without a time: they show who stands where, and prove nothing. Lines of a
   watchdog that counts time are history, and prove that something stood.
1. *A person, a run in motion, a lost process*. A debugger is no hang, nor is a run that moved a moment ago. A process
   that refused a call, that is held by the kernel or the interpreter lock, or that has died explains its waiters,
   whatever they wait in. So the first local error is found before its peers' timeouts.
2. *Certain divergence*: an engine in a transition, a group that does not form, operations that differ, rings.
3. *Motion*. If waiting ends at something that advances, the run is slow and nobody is blamed. Nobody is blamed either
   if only stacks were seen and data went through a moment ago.
4. *Absence*: which rank has not come, and why. Then operations that never end, with nobody to name.
5. Nothing is pending: healthy. Otherwise the evidence is insufficient, and the ruling says what is missing.

A rule is a function Case -> Ruling | None. To add one, write it, test it with a planted case and a control, and put it
in its place here. One that proves a hang by "nobody is seen who could end this wait" is `alive.unaided`: its ruling
falls where a thread, a handler, a child, a timer or somebody outside may still act.
"""

from __future__ import annotations

from harness.triage.rules import absence as absence
from harness.triage.rules import (
    alive,
    alone,
    apart,
    builds,
    calls,
    closed,
    engines,
    forming,
    lock_rings,
    locks,
    makers,
    mute,
    nodes,
    one_place,
    outsiders,
    over,
    own_loops,
    pasted,
    pauses,
    pipes,
    polls,
    pools,
    processes,
    ras,
    ray_lists,
    recorder_findings,
    resources,
    routes,
    shared_locks,
    store_keys,
    tasks,
    together,
)
from harness.triage.rules import groups as groups
from harness.triage.rules.ruling import Case, Rule, Ruling

RULES: tuple[Rule, ...] = (
    nodes.incomplete,  # INSUFFICIENT
    over.over,
    nodes.unlooked,  # INSUFFICIENT
    nodes.moments,  # INSUFFICIENT
    pauses.debugger,
    pauses.question,  # INSUFFICIENT
    ras.pasted,  # INSUFFICIENT
    ray_lists.pasted,  # INSUFFICIENT
    recorder_findings.analysed,  # INSUFFICIENT
    pasted.stalled,  # HUNG, K9
    pasted.first_error,  # INSUFFICIENT
    pasted.in_kernel,  # INSUFFICIENT
    pasted.one_look,  # INSUFFICIENT
    pasted.signalled,  # INSUFFICIENT
    pasted.last_lines,  # INSUFFICIENT
    pauses.flowing,
    engines.refused,  # K13
    processes.blocked,  # K9
    processes.died,  # K4
    alive.unaided(processes.unwritten),  # K4
    alive.unaided(processes.kept_open),  # K4
    pools.lost,  # K4
    own_loops.awaited,  # K6
    alive.unaided(own_loops.unserved),  # K6
    alive.unaided(alone.locked),  # K4
    alive.unaided(shared_locks.orphaned),  # K4
    lock_rings.ring,  # K6, K4
    alive.unaided(together.locked),  # K6, K4
    tasks.ring,  # K6
    alive.unaided(tasks.unfilled, excludes=alive.event_loop),  # K4
    builds.locked,  # K9
    engines.transition,  # K8
    nodes.unreachable,  # K5
    alive.unaided(forming.unformed),  # K5
    groups.diverged,  # K10, K3, K1: operations differ
    groups.conditional,  # K10
    alive.unaided(groups.inverted),  # K2
    alive.unaided(pipes.undrained),  # K6
    alive.unaided(calls.ring),  # K6
    alive.unaided(locks.ring),  # K6
    pauses.slow,  # K7
    locks.worked,  # K7
    makers.at_work,  # K7
    pauses.fresh,  # INSUFFICIENT
    alive.unaided(tasks.owed, excludes=alive.event_loop),  # K4
    routes.closed,  # K4
    makers.stopped,  # K4, K9
    resources.starved,  # K14
    nodes.between,  # K12, or INSUFFICIENT
    engines.branch,  # K3
    absence.left_loop,  # K1
    alive.unaided(absence.outside),  # K4
    absence.device,  # K9
    groups.wedged,  # K12
    pasted.first_error_of_waiters,  # INSUFFICIENT
    pasted.without_dump,  # INSUFFICIENT
    pasted.timed_out,  # INSUFFICIENT
    one_place.one_place,  # K2 or K5 by the text, INSUFFICIENT
    apart.apart,  # K1, K2 without recorders, INSUFFICIENT
    closed.closed,  # K2 without recorders
    store_keys.unset,  # K2, INSUFFICIENT
    ras.live,  # K4, INSUFFICIENT
    calls.read_ring,  # INSUFFICIENT
    nodes.lost,  # INSUFFICIENT
    locks.unreleased,  # K4, K6, K7, INSUFFICIENT
    resources.unmet,  # INSUFFICIENT
    outsiders.unopened,  # INSUFFICIENT
    makers.undecided,  # INSUFFICIENT
    together.idle,  # INSUFFICIENT
    alone.unreleased,  # INSUFFICIENT
    polls.undecided,  # INSUFFICIENT
    mute.unread,  # INSUFFICIENT
    alive.undecided,  # INSUFFICIENT
    absence.unseen,  # INSUFFICIENT
    pauses.healthy,
    over.ending,  # K7
)

__all__ = ["RULES", "Case", "Rule", "Ruling"]
