"""The titles of the sections of a report, and what stands below each; without those that are terms or reservations."""

from __future__ import annotations

from reports.model import RESERVED
from reports.sections.bisect import FIRST_BAD, LAST_GOOD, ONE_IS_FIRST_BAD
from reports.sections.doctor import COMPARED
from reports.sections.doctor import TITLES as SEVERITIES
from reports.sections.parity import ELEVEN, NOT_AS_ASKED, NOT_CALLED, NOT_SHOWN, OTHERS, UNNOTICED

# of `harness mapping`
WRONG, DROPPED = "Wrong", "Dropped"
LEFT_OUT, NEVER_EQUAL, NOTES = "Where a setting is left out", "What no mapping makes equal", "Notes"

LINES = {
    "first": "The first place: where two runs first differ, or where the culprit of a hang stands.",
    "seen": "What was measured.",
    "why": "What follows from what was measured.",
    "fix": "What to type or to change.",
    "there": "What a setting means in the target engine.",
    "unequal": "What has to be equal in both runs and is not.",
    "in reserve": "Tokens of a context that an engine keeps for itself.",
    "info": "A finding that breaks nothing.",
}
"""Words that begin a line of a report, or stand in one."""

MEANINGS = {
    # of a comparison or an audit
    ELEVEN: "Eleven usual reasons for a difference between engines, each ruled out, confirmed or not tested.",
    OTHERS: "What else was looked at, confirmed ones first.",
    NOT_AS_ASKED: "The settings that the engine did not get as you asked, with what it got.",
    NOT_CALLED: f"Functions. {RESERVED['mapping'].meaning}",
    NOT_SHOWN: f"Kinds of fault. {RESERVED['scenario'].meaning}",
    UNNOTICED: f"Recordings. {RESERVED['recording'].meaning}",
    "First divergence": "The first place at which the runs differ beyond the tolerance, with both values.",
    "Samples": "Responses of both runs, token by token.",
    "The runs side by side": "What the runs say of themselves; what differs comes first.",
    "Step by step": "Charts of what was measured in each step.",
    "Memory by role and phase": "The largest memory of all processes and steps.",
    "Metrics": "What was measured, beside the limits that others publish.",
    "Beyond published limits": "The metrics outside the limits that others publish.",
    "Floor and tolerance": "How far an engine is from itself, and how far two numbers may be apart.",
    "Coverage": "How much was compared.",
    "Figures": "Other numbers of the command, such as the seconds that its parts took.",
    "Findings": "What was noticed and limits no pass.",
    "Not tested, or missing": "What nothing can be said about, and which evidence is not there.",
    "Missing": "What nothing can be said about, and which evidence is not there.",
    # of a triage
    "Processes": "Every process of the evidence, what it is in the answer, and its state.",
    "Stacks": "The stack of each main thread, innermost frame first.",
    "Waiting": "The victims, by what they wait for. They would go on if the culprit did.",
    "Cycle": "Processes of which each waits for the next one, so that nobody is the single culprit.",
    "Who waits for whom": "The wait graph: processes, with an arrow from each waiter to whom it waits for.",
    "What to try": "Commands and changes, the most useful first.",
    # of a doctor
    SEVERITIES["error"]: "Each breaks the run, with its fix.",
    SEVERITIES["warning"]: "Each may break the run, or make it slow or wrong, with its fix.",
    SEVERITIES["info"]: "What to know of this machine; it breaks nothing.",
    COMPARED["error"]: "Settings that make the two jobs other runs.",
    COMPARED["warning"]: "Settings that may make the two jobs other runs.",
    COMPARED["unknown"]: "Settings that differ, of which nobody knows here what they change.",
    COMPARED["info"]: "The engine or framework that differs on purpose, and settings that change no result.",
    "Passed": "The checks that found nothing.",
    "Not checked": "The checks that could not look, and why. It is not a pass.",
    # of a mapping
    WRONG: "Settings that do not arrive as they were given, and what the target engine gets.",
    DROPPED: "Settings of which nothing that the function returns is a trace.",
    LEFT_OUT: "What the target engine takes by its own default where your framework gives no value.",
    NEVER_EQUAL: "Settings that mean something else in the target engine, whatever value they get.",
    NOTES: "What limits the answer.",
    # of a night, a bisection and a recorded run
    "Night": "One run of all cells of a matrix; the changed cells come first.",
    "Bisection": "The comparisons of a search, in the order in which they were made.",
    FIRST_BAD: "The release or commit from which on the comparison shows what is searched for.",
    ONE_IS_FIRST_BAD: "The first bad release or commit is among these; no comparison tells which it is.",
    LAST_GOOD: "The release or commit before the first bad one.",
    "Recorded run": "The steps of one recording, with the metrics of each.",
    # of all
    "Paths": "Where the recordings, the evidence and the verdict are.",
    "Reproduce": "The command that gives this verdict again.",
}
