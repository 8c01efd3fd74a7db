"""The verdict: one envelope for parity and triage, plain frozen data that round-trips through JSON.

Renderers read it, and nothing else decides. NaN and infinity are written as strings ("nan", "inf", "-inf").
"""

from __future__ import annotations

import functools
from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from typing import Any, Literal, NamedTuple

from probes import redaction
from reports import codec
from reports.codec import Number
from reports.text import agreeing

SCHEMA_VERSION = 1  # of the verdict's JSON

CheckState = Literal["ruled out", "confirmed", "not tested", "undecided"]
CHECK_STATES: dict[CheckState, str] = {
    "ruled out": "It was tested, and the recording shows no such difference.",
    "confirmed": "It was tested, and the recording shows the difference.",
    "not tested": "What it needs was not recorded, so it says nothing. That is no pass.",
    "undecided": "It was tested, and the recording shows neither that there is a difference nor that there is none.",
}
OPEN = ("not tested", "undecided")  # states of a check that neither found a difference nor ruled one out

# The user's eleven suspicions, by the names under which the report lists them. `Check.number` is the key.
SUSPICIONS = {
    1: "token-ids-not-text",
    2: "token-boundaries",
    3: "experience-matrix-shapes",
    4: "baseline-itself",
    5: "collective-backend",
    6: "engine-parameter-map",
    7: "sampling-parameter-map",
    8: "cache-hit-rate",
    9: "environment",
    10: "prompt-ids-in against prompt-ids-the-engine-saw",
    11: "per-step input sizes and times",
}


@dataclass(frozen=True)
class Answer:
    """The meaning of a verdict, and what to do about it."""

    exit_code: int
    meaning: str
    fix: str


VERDICTS = {  # of parity
    "EQUIVALENT": Answer(
        0,
        "Enough evidence, and every check is within the capped floor.",
        "read the coverage: it says how much was compared, and which parts of the engines the harness replaced",
    ),
    "DIVERGENT": Answer(
        1,
        "A difference beyond the floor.",
        "look at the first divergence, then at the causes; UNEXPLAINED means that no cause was found for the rest",
    ),
    "ERROR": Answer(
        2,
        "The comparison could not run: bad input, a missing environment.",
        "read the message: it holds the engine's own last words",
    ),
    "INCONCLUSIVE": Answer(
        3,
        "A run hung or was cut short (a process died, the disk was full), there are too few tokens, or a recording is "
        "empty or torn. Never a pass.",
        "supply what the verdict lists as missing, and run again",
    ),
    "CONFOUNDED": Answer(
        3,
        "The runs differ in what must be equal for a verdict on the engines: data, the learner's environment, the "
        "trainer's configuration, the initial weights.",
        "make equal what the verdict lists as confounders, and run again",
    ),
}
AUDIT_VERDICTS = {
    "SOUND": Answer(
        0,
        "One run by itself: its recording is whole, and every check of one run that it needs holds.",
        "read what was not tested; whether another engine does the same, only a second run says: harness parity, diff",
    ),
    "UNSOUND": Answer(
        1,
        "One run by itself: something is wrong in it.",
        "look at what is confirmed and at the causes; the fix of a cause says what to do",
    ),
    "ERROR": Answer(2, "The run could not be read: bad input.", "read the message"),
    "INCONCLUSIVE": Answer(
        3,
        "One run by itself: its recording is torn or cut short, or a check that it needs was not tested. Never a pass.",
        "supply what the verdict lists as missing, and record again",
    ),
}
TRIAGE_VERDICTS = {
    "HEALTHY": Answer(0, "Nothing is pending, everything progresses, or a process is in a debugger.", ""),
    "SLOW": Answer(
        0,
        "The process that the others have waited for, for long, advances, or a rank comes last to collective after "
        "collective: a straggler, not a hang.",
        "give it the time, or look at why it is slower than the others",
    ),
    "HUNG": Answer(
        1, "A process waits for something that will not come.", "look at the culprits, and at what to try with them"
    ),
    "ERROR": Answer(2, "The job could not be looked at: bad input.", "read the message"),
    "INSUFFICIENT": Answer(
        3,
        "The chain of waits ends at a process without evidence. Never a pass, never a guess.",
        "supply what the verdict lists as missing",
    ),
}
EXIT_CODES = {name: answer.exit_code for name, answer in VERDICTS.items()}
PASSES = ("EQUIVALENT", "SOUND")
IN_PART = "checks_tested_in_part"  # in `coverage`: how many lack a part of what they test, and rule out the rest
STRICT = 3  # exit code of a pass with reservations, with --strict
UNDECIDED = -1  # in place of an exit code while a watched command runs on, whose own code decides; it is not printed
AUDIT_EXIT_CODES = {name: answer.exit_code for name, answer in AUDIT_VERDICTS.items()}
TRIAGE_EXIT_CODES = {name: answer.exit_code for name, answer in TRIAGE_VERDICTS.items()}


@dataclass(frozen=True)
class CauseKey:
    """The identity of a cause: its family, and which one of it. Causes are compared by it; their text is for people.

    `parts`: tensors, parameters, or what happened to a prompt. `many`: the parts are counted, not named one by one.
    """

    family: str = ""
    parts: tuple[str, ...] = ()
    many: bool = False

    def __str__(self) -> str:
        return f"{self.family}({', '.join(self.parts)})" if self.parts else self.family


UNEXPLAINED = CauseKey("UNEXPLAINED")

# The subject of a finding. setting: the user asked for it, and it did not reach the engine as asked. scenario: a
# fault that the scenario could not have shown. recording: damage that could not have been noticed.
Subject = Literal["", "setting", "mapping", "scenario", "recording"]


@dataclass(frozen=True)
class Finding:
    """Something to know that does not by itself mean DIVERGENT: requested differs from resolved, environments
    differ.
    """

    name: str
    summary: str
    effect: str = ""  # measured effect, in words with its number; "none measured" is an effect
    severity: Literal["info", "warning"] = "info"  # warning: it limits what a pass means
    where: str = ""  # baseline, candidate, both, learner
    details: dict[str, Any] = field(default_factory=dict)
    cause: CauseKey | None = None  # for a parameter: the cause that it would be
    about: Subject = ""

    @property
    def reserves(self) -> bool:
        """Whether it limits what a pass means: a warning, or a setting that did not reach the engine as asked."""
        return self.severity == "warning" or self.about == "setting"


RESIDUE = 0.02  # share of a difference that a proof, or a reading, may leave: a flip changes the tokens after it
PROVEN = 1 - RESIDUE


@dataclass(frozen=True)
class Proof:
    """An intervention, and how much of the difference it removed. `before` and `after` count the same thing."""

    intervention: str  # what was done: "read one position further", "sync again", "temperature 0.9 in the reference"
    before: Number
    after: Number
    unit: str = "tokens"  # what is counted: tokens, samples, nats
    on: Literal["recordings", "live engines"] = "recordings"
    seconds: Number = 0.0

    @property
    def removed(self) -> float:
        """Return the share of the difference that the intervention removed, 0 to 1."""
        return (self.before - self.after) / self.before if self.before else 0.0


@dataclass(frozen=True)
class Cause:
    """A cause that the evidence supports, or UNEXPLAINED with the narrowest place. It is proven when it has a proof.

    `name`: its key as printed. `observed`: what excludes its rivals. `fix`: what to do about it.
    """

    name: str
    party: str  # baseline, candidate, mapping, trainer, comparison, unknown
    summary: str
    evidence: str = ""
    details: dict[str, Any] = field(default_factory=dict)
    proofs: list[Proof] = field(default_factory=list)
    key: CauseKey = CauseKey()
    observed: tuple[str, ...] = ()
    fix: str = ""

    @property
    def proven(self) -> bool:
        """Return whether an intervention or a reading removed the difference."""
        return any(proof.removed >= PROVEN for proof in self.proofs)

    @staticmethod
    def of(
        key: CauseKey,
        party: str,
        summary: str,
        evidence: str = "",
        details: dict[str, Any] | None = None,
        proofs: list[Proof] | None = None,
        observed: Iterable[str] = (),
    ) -> Cause:
        return Cause(
            name=str(key),
            party=party,
            summary=summary,
            evidence=evidence,
            details=details or {},
            proofs=proofs or [],
            key=key,
            observed=tuple(observed),
        )


@dataclass(frozen=True)
class Place:
    """The first divergence, with everything that is needed to look at it."""

    step: int
    phase: str
    rank: int
    sample: int
    position: int  # token position in the response; -1 where the field is not per token
    field: str
    baseline: Any
    candidate: Any
    margin: Number | None = None  # gap between the two best perturbed logits under the learner, in nats
    context: str = ""


# The place of a difference that is of no single sample. Its step is -1 where it is of no single step either.
place_of_step = functools.partial(Place, rank=0, sample=-1, position=-1)


@dataclass(frozen=True)
class Check:
    """A named check with a verdict of its own. `number`: its place among the eleven suspicions; 0 for others."""

    name: str
    state: CheckState
    evidence: str
    number: int = 0
    details: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class PhaseMemory:
    """The memory of the processes of one role in one phase, in bytes: the largest value over all processes and steps.

    Changes, from the beginning of the phase to its end, are medians: memory taken, or given back where negative.
    """

    role: str  # trainer, "rollout, VLLM::EngineCore"
    phase: str  # a span or a call of an engine: generate, sleep, wake, actor_train
    rss: Number | None = None
    rss_change: Number | None = None
    cuda_allocated: Number | None = None
    cuda_reserved: Number | None = None
    cuda_reserved_change: Number | None = None
    dev_shm: Number | None = None  # in use on the host, by all processes
    kv_usage: Number | None = None  # peak share of an engine's KV pool in use, 0 to 1


@dataclass(frozen=True)
class RunSummary:
    """One side of the comparison, as it is shown beside the other."""

    side: str  # baseline, candidate
    backend: str  # vllm, sglang@old, hf
    path: str
    rows: dict[str, Any] = field(default_factory=dict)  # row title -> value, same titles on both sides
    # name -> one value per step, for the plots. An optional series "step" holds the step numbers; otherwise they
    # count from 0.
    series: dict[str, list[Number]] = field(default_factory=dict)
    measured: dict[str, Any] = field(default_factory=dict)  # like rows, for what always differs (times, memory)
    memory: list[PhaseMemory] = field(default_factory=list)


BETWEEN = "candidate against baseline"  # the group of `Parity.metrics` between the engines


@dataclass(frozen=True)
class Parity:
    """The body of a parity verdict, and of an audit of one run.

    `not_applicable`: the names of checks that a replay cannot make, since it draws nothing.
    """

    first_divergence: Place | None
    floor: dict[str, Any]
    checks: list[Check]
    runs: list[RunSummary]
    metrics: dict[str, Any] = field(default_factory=dict)  # PARITY metrics: per token and per run
    series: dict[str, list[Number]] = field(default_factory=dict)  # one value a step: max |Δ logprob|, flips, ...
    not_applicable: list[str] = field(default_factory=list)

    @property
    def alone(self) -> bool:
        """Whether it is an audit of one run."""
        return len(self.runs) == 1


@dataclass(frozen=True)
class HangKind:
    """One kind of hang, in words: what shows it, which process is named as the culprit, and what to do about it."""

    name: str
    shows: str
    named: str
    fix: str


HANGS = {
    "K1": HangKind(
        "trip count",
        "at one place of a group's sequence the ranks run different operations, or a rank has left the loop in which "
        "the others still wait",
        "the minority; nobody where there is none (two against two)",
        "count the batches, microbatches and parameters with a gradient of one step on each rank, and make "
        "them equal: torch.distributed.algorithms.join.Join, or drop_last of the loader",
    ),
    "K2": HangKind(
        "order inversion",
        "a ring of waits over several groups, or every rank of the world stands in a collective, in a receive or in "
        "front of a key of its store for longer than a stall",
        "nobody, since it is a cycle, unless one rank alone departs from what it did every time before",
        "compare the two places that the members of the cycle show, and use the groups in one order on every "
        "rank: order by name, not by arrival",
    ),
    "K3": HangKind(
        "rank-local branch",
        "some ranks of one engine are in a collective, the others in their scheduler loop",
        "the fewer; of two ranks, the one that stays in its loop",
        "compare what the branch decides on (clocks, queue lengths, free memory) on both ranks; decide on one "
        "rank and broadcast the decision",
    ),
    "K4": HangKind(
        "absent peer",
        "a rank has ended, or is alive outside any collective and does nothing that would end the wait",
        "the rank with the first local error, not those whose waits timed out",
        "read the first error of the rank that ended, or `py-spy dump --pid PID` of the rank that did not come; "
        "let an error on one rank end the job, so that no peer waits for it",
    ),
    "K5": HangKind(
        "group never forms",
        "some processes are in init_process_group, new_group, a rendezvous or the group of a weight sync, and other "
        "members are not, mean another group, or give it another name",
        "the members that have not come, also those that never started; of ranks that mean different groups the fewer; "
        "nobody where they are as many, or where two claim one rank",
        "compare the ranks, the size, the name and the address of the group on every member, and why those "
        "that are named have not come; make the groups in one order on every rank",
    ),
    "K6": HangKind(
        "control-plane cycle",
        "a ring of ray.get, HTTP or engine requests; threads or asyncio tasks of one process that wait for each "
        "other's locks or results; or a child that is joined before its full pipe is read",
        "nobody, since it is a cycle; the process whose threads or tasks they are; or the one that joins too soon",
        "break one call of the cycle: make it asynchronous, give the callee a thread of its own (Ray: "
        "max_concurrency), take locks in one order everywhere, or read a child's pipe before it is joined",
    ),
    "K7": HangKind(
        "slow, not hung",
        "the job advances between two looks",
        "nobody; the straggler is shown",
        "wait, or profile the straggler: nothing is to be ended. `harness triage PID` again in a minute shows "
        "what has moved",
    ),
    "K8": HangKind(
        "sleep or wake stuck",
        "an open span, or a stack, of an engine's sleep or wake-up",
        "the process that is in it",
        "look at what the frame waits for, such as a lock that a failed call kept; drain or abort requests "
        "before the engine sleeps. Restart the engine to go on",
    ),
    "K9": HangKind(
        "process state",
        "a process is stopped, is in uninterruptible sleep, holds the interpreter lock (no heartbeat), waits for the "
        "lock file of a build of torch's extensions that nobody runs, or its device does not start what its "
        "host enqueued",
        "that process; of a build that stands still, the process that builds",
        "continue a stopped process (kill -CONT PID), or free what it waits for: the disk behind an "
        "uninterruptible sleep, the lock file of a build, the thread that keeps the interpreter lock, the "
        "device",
    ),
    "K10": HangKind(
        "rank-conditional collective",
        "a collective inside a checkpoint, an evaluation, or an `if` on the rank, while the others are in the next one",
        "the ranks in it",
        "take the collective out of the branch, or let every rank run it",
    ),
    "K11": HangKind(
        "environment mismatch",
        "`harness doctor` finds it before the run",
        "nobody",
        "run `harness doctor` on each machine, and do what it says of each problem, before the job starts",
    ),
    "K12": HangKind(
        "symmetric wedge",
        "all members are in the same operation, and none comes out",
        "no process: the fabric, or a device",
        "look for errors of the fabric and of the devices on every host: nvidia-smi, dmesg; `harness doctor "
        "--nodes DIR` compares the hosts",
    ),
    "K13": HangKind(
        "refused call",
        "an engine's last call failed at once, the engine is idle, and somebody waits for it",
        "the engine that refused, with its message",
        "fix what the engine's message says, and let the sender read each answer before it starts the next collective",
    ),
    "K14": HangKind(
        "no resources",
        "tasks, actors or placement groups of Ray ask for resources that no node has, or whose holders all wait",
        "nobody; what is asked, what the cluster has, and who holds it",
        "ask for less, or start the nodes that are lacking; let a holder give its resources back before it "
        "waits for others: ray status, ray list actors",
    ),
}


@dataclass(frozen=True)
class Party:
    """One process in a triage verdict: a culprit with the reason, or a victim with what it waits for."""

    key: str  # key of a node of the graph: host:pid, or the name of a dump
    why: str
    rank: int | None = None
    role: str = ""
    host: str = ""
    pid: int | None = None
    engine: str = ""
    frame: str = ""  # innermost frame of the user's code, "train.py:42 in step"


@dataclass(frozen=True)
class Node:
    """One process of the wait graph. `party`: culprit, victim, suspect or bystander."""

    key: str
    label: str  # "rank 1 (actor)"
    state: str  # in words: "in all_reduce #17 of group tp", "stopped (SIGSTOP)", ...
    party: str = "bystander"
    stack: list[str] = field(default_factory=list)  # of its main thread, innermost first: "train.py:42 in step"


@dataclass(frozen=True)
class Wait:
    """An edge of the wait graph: `waiter` waits for `target`.

    `operation`: what it waits in, where `because` says more than that; `because` then begins with it.
    """

    waiter: str
    target: str
    layer: str  # collective, store, ray, http, engine, lock, process, read
    because: str
    since_s: Number | None = None
    group: str = ""
    seq: int | None = None
    operation: str = ""

    @property
    def place(self) -> str:
        """Return what it waits in; where that is unknown, `because`."""
        return self.operation or self.because


@dataclass(frozen=True)
class Lateness:
    """How often one rank, or all ranks of one host, came last to the collectives of a group.

    ranks: their numbers in the group's world.
    host: their host; empty if it is not known.
    op: the operation, if it was the same each time that they came last.
    last: how often they came last.
    of: in how many collectives in which somebody waited.
    median_s: how long all others waited for them, in the median of those; 0 if they never came last.
    share: of the time from the first collective to the last, in which all others waited for them.
    bound_s: by how much the clocks that were compared may be off; 0 if only one was used, or none.
    slow: whether they are called slow, by the standard in docs/how-to/slow.md.
    group: the group, in words.
    keys: of the nodes of the graph.
    """

    ranks: tuple[int, ...]
    host: str
    op: str
    last: int
    of: int
    median_s: Number
    share: Number
    bound_s: Number = 0.0
    slow: bool = False
    group: str = ""
    keys: tuple[str, ...] = ()


@dataclass(frozen=True)
class Triage:
    """The body of a triage verdict. `hang`: a key of HANGS, or empty. A symmetric wedge or a cycle has no culprits."""

    hang: str
    culprits: list[Party]
    victims: list[Party]
    cycle: list[str]  # keys of nodes, in order; empty without a cycle
    nodes: list[Node]
    waits: list[Wait]
    next: list[str]  # what to try, most useful first
    place: str = ""  # where it hangs: group and operation, engine and transition, or call
    lateness: list[Lateness] = field(default_factory=list)  # who keeps the others waiting, most first; if nothing hangs

    @property
    def name(self) -> str:
        return HANGS[self.hang].name if self.hang in HANGS else ""


Reserved = Literal["setting", "mapping", "scenario", "recording", "warning", "untested", "undecided"]


@dataclass(frozen=True)
class Reservation:
    """A limit of a passing verdict: its kind, and the name of each item."""

    kind: Reserved
    items: list[str]

    @property
    def words(self) -> str:
        """Return text such as `3 settings did not reach the engine as asked`."""
        count, words = len(self.items), RESERVED[self.kind]
        return f"{count} {words.singular if count == 1 else words.plural}"


class ReservedWords(NamedTuple):
    """A kind of reservation in words."""

    singular: str
    plural: str
    meaning: str


RESERVATION = f"A pass that leaves something open: what follows. Exit code 0; {STRICT} with --strict."
RESERVED: dict[Reserved, ReservedWords] = {
    "setting": ReservedWords(
        "setting did not reach the engine as asked",
        "settings did not reach the engine as asked",
        "The engines were compared, and not as you asked for them: under 'Not as you asked' is what each got.",
    ),
    "mapping": ReservedWords(
        "function of the mapping was not called",
        "functions of the mapping were not called",
        "A file of --mapping has further functions that map, under names that no engine calls: nothing shows what they "
        "do.",
    ),
    "scenario": ReservedWords(
        "kind of fault could not have shown",
        "kinds of fault could not have shown",
        "The scenario gives such a fault no place to show, so its absence says nothing.",
    ),
    "recording": ReservedWords(
        "recording may have lost records unseen",
        "recordings may have lost records unseen",
        "Nothing lists what the recording should hold, so that a lost file or line would not be noticed.",
    ),
    "warning": ReservedWords("warning", "warnings", "Something that limits what a pass means; each is listed."),
    "untested": ReservedWords("check was not tested", "checks were not tested", CHECK_STATES["not tested"]),
    "undecided": ReservedWords("check is undecided", "checks are undecided", CHECK_STATES["undecided"]),
}


@dataclass(frozen=True)
class Verdict:
    """The verdict of a comparison, an audit or a triage.

    `reason`: the first line with the verdict, at most `reports.headline.MOST` words. `evidence`: what it rests on,
    one sentence each. `exit_code`: of the verdict, or 3 for a pass with reservations under --strict.
    """

    kind: Literal["parity", "audit", "triage"]
    verdict: str
    exit_code: int
    reason: str
    findings: list[Finding] = field(default_factory=list)
    causes: list[Cause] = field(default_factory=list)
    confounders: list[Finding] = field(default_factory=list)
    missing: list[str] = field(default_factory=list)
    coverage: dict[str, Any] = field(default_factory=dict)
    figures: dict[str, Any] = field(default_factory=dict)
    parity: Parity | None = None
    triage: Triage | None = None
    reproduce: str = ""  # the command that reproduces this verdict
    paths: dict[str, str] = field(default_factory=dict)
    fix: str = ""  # what to do where nothing could be compared, a run was cut short, or a mapping lost parameters
    evidence: list[str] = field(default_factory=list)
    schema_version: int = SCHEMA_VERSION

    @property
    def account(self) -> str:
        """Return the reason and its evidence as one text."""
        return "; ".join([self.reason, *self.evidence])

    @property
    def runs(self) -> list[RunSummary]:
        """Return the runs that were compared; none of a hang, or where nothing could be compared."""
        return self.parity.runs if self.parity else []

    @property
    def checks(self) -> list[Check]:
        return self.parity.checks if self.parity else []

    @property
    def first_divergence(self) -> Place | None:
        return self.parity.first_divergence if self.parity else None

    @property
    def reservations(self) -> list[Reservation]:
        """Return what a passing verdict leaves open, the gravest kind first; [] for any other verdict."""
        if self.verdict not in PASSES:
            return []
        settings = [f"{finding.cause or finding.name} ({finding.where})" for finding in self.reserving("setting")]
        kinds: dict[Reserved, list[str]] = {
            "setting": list(dict.fromkeys(settings)),  # counted once even if two checks find it
            "mapping": [finding.name for finding in self.reserving("mapping")],
            "scenario": [finding.name for finding in self.reserving("scenario")],
            "recording": [finding.where for finding in self.reserving("recording")],
            "warning": [finding.name for finding in self.reserving("")],
            "untested": self._checks_in("not tested"),
            "undecided": self._checks_in("undecided"),
        }
        return [Reservation(kind, items) for kind, items in kinds.items() if items]

    def reserving(self, about: Subject) -> list[Finding]:
        """Return the findings about a subject that limit a pass."""
        return [finding for finding in self.findings if finding.reserves and finding.about == about]

    def _checks_in(self, state: CheckState) -> list[str]:
        return [check.name for check in self.checks if check.state == state]

    @property
    def reserved(self) -> str:
        """Return the gravest reservation and a count of the others; empty without one."""
        if not self.reservations:
            return ""
        first, *further = self.reservations
        more = sum(len(reservation.items) for reservation in further)
        suffix = f" (and {more} more {agreeing(more, 'reservation', 'reservations')})" if more else ""
        return first.words + suffix

    @property
    def in_part(self) -> str:
        """Return how many checks of a pass lack a part of what they test, in words; empty where none does."""
        count = self.coverage.get(IN_PART) if self.verdict in PASSES else None
        if not isinstance(count, int) or not count:
            return ""
        return f"{count} {agreeing(count, 'check was', 'checks were')} tested in part"

    @property
    def headline(self) -> str:
        """Return the verdict with its reservations: `EQUIVALENT, but 2 warnings`."""
        return f"{self.verdict}, but {self.reserved}" if self.reserved else self.verdict

    @property
    def strict(self) -> Verdict:
        """Return the same verdict, with exit code 3 where it passes with reservations."""
        return replace(self, exit_code=STRICT) if self.reservations and not self.exit_code else self

    def to_dict(self) -> dict[str, Any]:
        """Return plain values without secrets, with the headline and the reservations that follow from them."""
        scrubbed = redaction.scrub(self)
        values: dict[str, Any] = codec.builtins(scrubbed)
        return values | {"headline": scrubbed.headline, "reservations": codec.builtins(scrubbed.reservations)}

    def to_json(self) -> str:
        return codec.dumps(self.to_dict())

    @staticmethod
    def from_dict(data: dict[str, Any]) -> Verdict:
        """Rebuild a verdict. Raises ValueError, one sentence, on another schema version or anything that does not
        fit.
        """
        derived = ("headline", "reservations")
        plain = {key: value for key, value in data.items() if key not in derived} if isinstance(data, dict) else data
        verdict = codec.convert(plain, Verdict, version=SCHEMA_VERSION)
        codes = {"parity": EXIT_CODES, "audit": AUDIT_EXIT_CODES, "triage": TRIAGE_EXIT_CODES}[verdict.kind]
        code = codes.get(verdict.verdict)
        if code is None:
            raise ValueError(f"verdict: {verdict.verdict!r} is none of {', '.join(codes)}")
        if verdict.exit_code != code and (code or verdict.exit_code != STRICT):
            raise ValueError(f"exit_code: {verdict.exit_code} is not that of {verdict.verdict}, which is {code}")
        return verdict
