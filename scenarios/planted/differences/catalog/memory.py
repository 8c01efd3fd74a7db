"""Leaks: memory that one process of a run never frees, and a control that fills up once and then stays constant.

A leak changes no number, so the verdict stays. The check `memory-growth` names the process.
"""

from __future__ import annotations

from scenarios.planted.differences.fault import Fault

LONG = ("steps=20",)  # the number of steps in which the check promises to find a leak
GROWTH = "memory growth"

FAULTS = (
    Fault(
        "leak-of-the-actor",
        "the actor keeps 4 MiB in each update, two of which make a step",
        scenario=LONG,
        trainer={"rank": 0, "leak": {"mib": 4}},
        expected="EQUIVALENT",
        findings=(GROWTH,),
        told={GROWTH: "resident memory of actor, rank 0"},
    ),
    Fault(
        "leak-of-an-engine",
        "the actor of the engine keeps 8 MiB in each step",
        scenario=LONG,
        engine={"leak": {"mib": 8}},
        expected="EQUIVALENT",
        findings=(GROWTH,),
        told={GROWTH: "resident memory of rollout, rank 0"},
    ),
    Fault(
        "memory-that-fills-up",
        "actor and engine keep 8 MiB in each of the first four steps, as caches do that warm up, and no more",
        scenario=LONG,
        trainer={"rank": 0, "leak": {"mib": 4, "until": 8}},
        engine={"leak": {"mib": 8, "until": 4}},
        expected="EQUIVALENT",
        absent=(GROWTH,),
    ),
)
