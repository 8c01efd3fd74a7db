"""Every kind of hang as evidence, in variants, with the truth about each; and controls in which nobody may be blamed.

A case is built for a world of any size and any odd rank, so that the trial can turn it over and over.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import triage_evidence as make
from triage_evidence import compared, evidence, group, process, rank

from harness.triage.evidence import Call, Evidence, Journal, OpenSpan, RayActor, RayTask
from harness.triage.flight.model import Comparison

WAIT = "main:10 step:42 all_reduce"
Built = tuple[Evidence, Comparison | None]


@dataclass(frozen=True)
class Planted:
    """One case. `culprits`, `cycle`: keys of nodes that must be named, exactly."""

    name: str
    verdict: str
    hang: str
    built: Built
    culprits: frozenset[str] = frozenset()
    cycle: frozenset[str] = frozenset()
    frame: str = ""


def key(number: int) -> str:
    return f"{make.HOST}:{100 + number}"


def here(world: int) -> dict[str, str]:
    """The environment that torchrun gives to a job on one host."""
    return {"WORLD_SIZE": str(world), "LOCAL_WORLD_SIZE": str(world)}


def late(world: int, odd: int, stack: str, *, op: str = "all_reduce", waiting: str = WAIT, **more: object) -> Built:
    """Everybody waits at #17 but one rank, which does something else."""
    ranks = [rank(n, waiting, world=world) if n != odd else rank(n, stack, world=world, **more) for n in range(world)]
    return evidence(*ranks), compared(group("tp", {n: (17, op) if n != odd else 16 for n in range(world)}))


def differing(world: int, odd: int, its: str, others: str, its_op: str, op: str) -> Built:
    ranks = [rank(n, its if n == odd else others, world=world) for n in range(world)]
    return evidence(*ranks), compared(group("0", {n: (9, its_op if n == odd else op) for n in range(world)}))


def _one(kind: str, verdict: str = "HUNG") -> Callable[..., Planted]:
    def planted(name: str, built: Built, odd: int | None = None, frame: str = "") -> Planted:
        named = frozenset() if odd is None else frozenset({key(odd)})
        return Planted(f"{kind or verdict} {name}", verdict, kind, built, named, frame=frame)

    return planted


def trip_count(world: int, odd: int) -> Iterator[Planted]:
    case = _one("K1")
    if world > 2:
        for its_op, op in (("all_reduce", "all_gather"), ("barrier", "all_reduce"), ("reduce_scatter", "all_gather")):
            built = differing(world, odd, WAIT, "main:20 metrics:3 all_gather", its_op, op)
            yield case(f"{its_op} against {op}", built, odd, "step")
        ranks = [rank(n, WAIT if n == odd else "main:30 main_loop", world=world) for n in range(world)]
        at = {n: (18, "all_reduce") if n == odd else 17 for n in range(world)}
        yield case("one round more", (evidence(*ranks), compared(group("dp", at))), odd, "step")
    yield case("through with its work", late(world, odd, "main_loop"), odd)


def order(world: int, odd: int) -> Iterator[Planted]:
    other = (odd + 1) % world
    ranks = [rank(n, WAIT, world=world) for n in range(world)]
    pair = compared(group("A", {odd: (5, "all_reduce"), other: 4}), group("B", {other: (3, "broadcast"), odd: 2}))
    ring = frozenset({key(odd), key(other)})
    yield Planted("K2 pair", "HUNG", "K2", (evidence(*ranks), pair), cycle=ring)
    everybody = compared(
        *(
            group(f"g{n}", {n: (5, "all_reduce"), (n + 1) % world: 4}, members=(n, (n + 1) % world))
            for n in range(world)
        )
    )
    if 2 < world <= 8:
        yield Planted("K2 ring", "HUNG", "K2", (evidence(*ranks), everybody), cycle=frozenset(map(key, range(world))))


def branch(world: int, odd: int) -> Iterator[Planted]:
    case = _one("K3")
    inside, loop = "main event_loop forward all_reduce", "main event_loop receive"
    yield case("stays in its loop", late(world, odd, loop, waiting=inside), odd, "receive")
    real = "event_loop_normal queue.get"
    yield case("sglang's loop", late(world, odd, real, waiting="event_loop_normal forward all_reduce"), odd)
    if world > 2:
        ranks = [rank(n, inside if n == odd else loop, world=world) for n in range(world)]
        at = {n: (18, "all_reduce") if n == odd else 17 for n in range(world)}
        yield case("enters alone", (evidence(*ranks), compared(group("tp", at))), odd, "forward")


def dead(world: int, odd: int) -> Iterator[Planted]:
    case = _one("K4")
    yield case(
        "kept alive", late(world, odd, "main:10 step:44 keep_alive", wchan="hrtimer_nanosleep"), odd, "keep_alive"
    )
    yield case("its prefetcher died", late(world, odd, "main next_batch queue.get lock.wait"), odd, "next_batch")
    failed = Journal("j", 9, 60.0, errors=((60.0, "span: ValueError: no response tokens"),))
    yield case("a swallowed error", late(world, odd, "main idle", journal=failed), odd)
    for code in (0, 1, -9):
        ranks = [rank(n, "main wait_for_epoch", world=world) for n in range(world) if n != odd]
        yield case(
            f"ended with {code}", (evidence(*ranks, rank(odd, gone=True, world=world, exit_code=code)), None), odd
        )
    timeouts = [
        rank(n, "main:50 abort", world=world, error="RuntimeError: Timed out waiting 60s for recv", error_age_s=2.0)
        for n in range(world)
        if n != odd
    ]
    first = rank(odd, gone=True, world=world, error="torch.OutOfMemoryError: CUDA", error_age_s=70.0)
    at = {n: (4, "all_reduce") for n in range(world) if n != odd}
    yield case("the first error", (evidence(*timeouts, first), compared(group("0", at, missing=[odd]))), odd)


def rendezvous(world: int, odd: int) -> Iterator[Planted]:
    case = _one("K5")
    for maker, fields in (("init_process_group", {"world_size": world}), ("new_group", {"ranks": list(range(world))})):
        span = (OpenSpan(maker, 40.0, fields),)
        joined = [
            rank(n, f"main {maker}", world=world, spans=span, environ=here(world)) for n in range(world) if n != odd
        ]
        yield case(
            f"{maker}: one waits elsewhere",
            (evidence(*joined, rank(odd, "main wait_for_lock", world=world)), None),
            odd,
            "wait_for_lock",
        )
        at = {n: (3, "all_reduce") if n == odd else 2 for n in range(world)}
        if maker == "new_group" and world > 2:
            yield case(
                "one is in a collective instead",
                (evidence(*joined, rank(odd, WAIT, world=world)), compared(group("0", at))),
                odd,
            )
        absent = Planted(
            f"K5 {maker}: never started", "HUNG", "K5", (evidence(*joined), None), frozenset({f"rank {odd}"})
        )
        yield absent
    plain = [rank(n, "main init_process_group", world=world, environ=here(world)) for n in range(world) if n != odd]
    yield Planted("K5 by the stacks alone", "HUNG", "K5", (evidence(*plain), None), frozenset({f"rank {odd}"}))


def control_plane(world: int, odd: int) -> Iterator[Planted]:
    names = ["Trainer", "Engine", "Reward"][: 2 + odd % 2]
    size = len(names)
    actors = tuple(RayActor(f"a{n}", name, "ALIVE", make.HOST, n + 1) for n, name in enumerate(names))
    waiting = tuple(process(n + 1, name, "main_loop work ray.get") for n, name in enumerate(names))
    driver = process(99, "driver", "main ray.get")
    first = RayTask("t", "Trainer.step", "RUNNING", 30.0, make.HOST, 1, "a0", 99)
    tasks = tuple(
        RayTask(
            f"t{n}",
            f"{names[(n + 1) % size]}.call",
            "PENDING_ACTOR_TASK_ORDERING_OR_CONCURRENCY",
            30.0,
            "",
            0,
            f"a{(n + 1) % size}",
            n + 1,
        )
        for n in range(size)
    )
    built = evidence(*waiting, driver, ray_actors=actors, ray_tasks=(first, *tasks)), None
    ring = frozenset(f"{make.HOST}:{n + 1}" for n in range(size))
    yield Planted(f"K6 ray, {size} actors", "HUNG", "K6", built, cycle=ring)
    alone = evidence(
        waiting[0],
        driver,
        ray_actors=actors[:1],
        ray_tasks=(
            first,
            RayTask("t1", "Trainer.version", "PENDING_ACTOR_TASK_ORDERING_OR_CONCURRENCY", 30.0, "", 0, "a0", 1),
        ),
    )
    yield Planted("K6 an actor asks itself", "HUNG", "K6", (alone, None), cycle=frozenset({f"{make.HOST}:1"}))
    http = tuple(
        process(
            n + 1,
            name,
            "main serve_forever do_GET ask getresponse" if n else "main train getresponse",
            listening=(f"127.0.0.1:{9000 + n}",),
            peers=(f"127.0.0.1:{9000 + (n + 1) % size}",),
        )
        for n, name in enumerate(names)
    )
    yield Planted(f"K6 http, {size} servers", "HUNG", "K6", (evidence(*http), None), cycle=ring)


def transition(world: int, odd: int) -> Iterator[Planted]:
    case = _one("K8")
    for name in ("wake_up", "sleep", "release_memory_occupation"):
        span = (OpenSpan(name, 35.0),)
        yield case(f"{name} of one rank", late(world, odd, f"main event_loop {name} lock.wait", spans=span), odd, name)
    front = process(1, "trainer", "main call getresponse")
    engine = process(2, "rollout", "main event_loop wake_up", spans=(OpenSpan("wake_up", 35.0),), engine="vllm")
    yield Planted("K8 behind HTTP", "HUNG", "K8", (evidence(front, engine), None), frozenset({f"{make.HOST}:2"}))


def state(world: int, odd: int) -> Iterator[Planted]:
    case = _one("K9")
    yield case("stopped", late(world, odd, WAIT, state="T", stale_s=40.0), odd)
    stopped = [
        rank(n, WAIT, world=world, **({"state": "T", "stale_s": 40.0} if n == odd else {})) for n in range(world)
    ]
    yield case(
        "stopped inside the operation",
        (evidence(*stopped), compared(group("0", dict.fromkeys(range(world), (17, "all_reduce"))))),
        odd,
    )
    silent = compared(group("0", {n: (17, "all_reduce") for n in range(world) if n != odd}, missing=[odd]))
    held = [
        rank(
            n,
            WAIT if n != odd else "main tokenize",
            world=world,
            **({"gil": True, "stale_s": 40.0} if n == odd else {}),
        )
        for n in range(world)
    ]
    yield case("the interpreter lock", (evidence(*held), silent), odd, "tokenize")
    yield case("the lock, busy", late(world, odd, "main tokenize", gil=True, stale_s=90.0, cpu_s=1.5), odd, "tokenize")
    yield case("a killed build's lock file", late(world, odd, "main setup cpp.load baton.wait"), odd, "setup")
    yield case("disk", late(world, odd, "main read", state="D", wchan="nfs_wait_on_request"), odd, "read")
    if world > 2:
        at = dict.fromkeys(range(world), (17, "all_reduce"))
        stalled = compared(group("0", at, unstarted=[odd], keyed=False))
        yield Planted("K9 its device", "HUNG", "K9", (evidence(source="dumps"), stalled), frozenset({f"rank {odd}"}))


def rank_only(world: int, odd: int) -> Iterator[Planted]:
    """By a library's frame, or by a name where the numbers agree; two ranks and a name blame nobody."""
    case = _one("K10")
    for stack, op in (
        ("save_checkpoint barrier", "barrier"),
        ("save_full_state all_gather", "all_gather"),
        ("evaluate broadcast", "broadcast"),
        ("torch.save writer all_gather", "all_gather"),
    ):
        built = differing(world, odd, f"main:30 {stack}", WAIT, op, "all_reduce")
        if world > 2 or "torch" in stack:
            yield case(stack, built, odd)
        else:
            yield Planted(f"K1 {stack}, by its name", "HUNG", "K1", built)
    saving = "main save_checkpoint barrier" if world > 2 else "main save_checkpoint torch.save barrier"
    ranks = [rank(n, saving if n == odd else WAIT, world=world) for n in range(world)]
    apart = compared(
        group("save", {n: (2, "barrier") if n == odd else 1 for n in range(world)}),
        group("dp", {n: (9, "all_reduce") if n != odd else 8 for n in range(world)}),
    )
    yield case("another group", (evidence(*ranks), apart), odd, "save_checkpoint")
    yield case("without a recorder", (evidence(*ranks), None), odd, "save_checkpoint")


def wedge(world: int, odd: int) -> Iterator[Planted]:
    for op in ("all_reduce", "all_to_all"):
        at = compared(group("0", dict.fromkeys(range(world), (17, op))))
        ranks = [rank(n, WAIT, world=world) for n in range(world)]
        yield Planted(f"K12 {op}", "HUNG", "K12", (evidence(*ranks), at))
        dumps = compared(group("0", dict.fromkeys(range(world), (17, op)), keyed=False))
        yield Planted(f"K12 {op}, dumps", "HUNG", "K12", (evidence(source="dumps"), dumps))


def refusal(world: int, odd: int) -> Iterator[Planted]:
    case = _one("K13")
    refused = Journal(
        "j", 9, 40.0, calls=(Call("begin", True, "", 50.0, 2), Call("update_weights", False, "no", 40.0, 3))
    )
    built = late(
        world, odd, "main event_loop queue.get", op="broadcast", waiting="main sync broadcast", journal=refused
    )
    yield case("a rank", built, odd)
    sender = rank(0, "main sync broadcast", world=1)
    engine = process(7, "rollout", "main_loop", journal=refused, engine="sglang")
    at = compared(group("sync", {0: (3, "broadcast")}, missing=[1]))
    yield Planted(
        "K13 an engine without a recorder", "HUNG", "K13", (evidence(sender, engine), at), frozenset({f"{make.HOST}:7"})
    )


KINDS = (trip_count, order, branch, dead, rendezvous, control_plane, transition, state, rank_only, wedge, refusal)


def controls(world: int, odd: int) -> Iterator[Planted]:
    """Nobody may be named in these, and none is HUNG."""
    slow, healthy = _one("K7", "SLOW"), _one("", "HEALTHY")
    yield slow("computes", late(world, odd, "main:10 compute", cpu_s=1.4))
    yield slow("reads", late(world, odd, "main:10 read_shards", io_bytes=60_000))
    yield slow("moves", late(world, odd, "main:10 load:1 parse", last="main:12 load:9 tokenize"))
    yield slow("compiles", late(world, odd, "main:10 compile_kernels", cpu_s=1.5))
    yield slow(
        "computes with the interpreter lock", late(world, odd, "main tokenize", gil=True, stale_s=20.0, cpu_s=1.5)
    )
    yield slow("saves, at a pace", late(world, odd, "main save_checkpoint torch.save", io_bytes=9_000_000))
    ranks, at = late(world, odd, "main:10 build lock.wait")
    child = process(900, "process", "", cpu_s=1.5, ppid=100 + odd, command="/usr/bin/ninja -v")
    parent = [
        one if one.rank != odd else rank(odd, "main build subprocess_wait", world=world) for one in ranks.processes
    ]
    yield slow("a compiler below it", (evidence(*parent, child), at))
    span = (OpenSpan("init_process_group", 20.0, {"world_size": world}),)
    joined = [rank(n, "main init_process_group", world=world, spans=span) for n in range(world) if n != odd]
    yield slow("loads before it joins", (evidence(*joined, rank(odd, "main load_model", world=world, cpu_s=1.5)), None))
    yield slow("wakes up, slowly", late(world, odd, "main wake_up", spans=(OpenSpan("wake_up", 20.0),), cpu_s=1.4))
    pause = [rank(n, "main wait_for_window", world=world) for n in range(world)]
    yield healthy("a pause", (evidence(*pause), compared(group("0", dict.fromkeys(range(world), 16)))))
    yield healthy("a breakpoint", late(world, odd, "main pdb.interaction"))
    yield healthy("a breakpoint, by its heartbeat", late(world, odd, "main prompt", breakpoint=True))
    flowing = [rank(n, WAIT, world=world, progress_s=0.4) for n in range(world)]
    at = compared(group("0", {n: (17 + n % 2, "all_reduce") for n in range(world)}))
    yield healthy("caught in the middle of a step", (evidence(*flowing, source="live", stall_s=0.0), at))


def everything(world: int, odd: int) -> Iterator[Planted]:
    for kind in KINDS:
        yield from kind(world, odd)
