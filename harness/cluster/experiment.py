"""One experiment on one cluster: learners shared by both runs, the engines of each side, each run recorded into a
directory of its own."""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from harness import envs
from harness.cluster.launch import Cluster, Seat, driver_seat
from harness.cluster.sharing import check_memory, shares
from harness.cluster.side import Side
from harness.cluster.waiting import RunCut, Waiting, free_space
from harness.envs import home
from harness.errors import HarnessError
from harness.parity.interventions.bench import OnStage
from harness.triage.watch.guard import Guard
from probes import format as recording
from reports.progress import ProgressEvent
from scenarios.engines.make import EngineOptions
from scenarios.fleet import Fleet, members
from scenarios.forkserver import CHILDREN
from scenarios.plants import INSIDE
from scenarios.ppo.beginning import Beginning
from scenarios.remote import Actor, Future, Remote
from scenarios.settings import Engine, Placement, Scenario

if TYPE_CHECKING:
    from harness.parity.interventions.bench import Bench
    from harness.warm.pool import Pool

ROLES = ("actor", "critic", "reward", "reference")
URGENT = ("abort_sync",)  # what a learner must do beside a call that it is in


class Experiment:
    """Drives recorded runs on an open cluster. Call `begin` once, then `record` for each side, then `native` for
    each. Between them may come a lifted stage of each (`begin_lifted`, `lift`), with a bench of its own. With a
    `guard`, a call that hangs ends with the guard's verdict. `warm`: engines that
    are up already; the cluster is theirs."""

    def __init__(
        self,
        cluster: Cluster,
        sides: list[Side],
        *,
        progress: Callable[[ProgressEvent], None],
        device: str = "auto",
        guard: Guard | None = None,
        warm: Pool | None = None,
    ) -> None:
        self._warm = warm
        if warm is not None and guard is not None:
            guard.follow(warm.raylet)
        self._cluster = cluster
        self._guard = guard
        self._sides = sides
        self._progress = progress
        self._gpus = cluster.gpus()
        self._device = device if device != "auto" else ("cuda" if self._gpus else "cpu")
        self._roles: dict[str, tuple[Scenario, dict[str, list[Actor]]]] = {}
        self._sessions: dict[str, Actor] = {}
        self._policies: dict[str, str] = {}
        self._native: dict[str, Future] = {}
        self._looks: dict[str, tuple[Remote | None, Future | None]] = {}  # at warm native engines, by side
        self._warm_natives: dict[str, Actor] = {}  # those that passed it
        self._lifted: dict[str, tuple[Side, Future]] = {}  # sides in their lifted stage, and the start of their engines
        self._pool: dict[tuple[int, tuple[str, ...]], dict[str, list[Actor]]] = {}  # of suites: by size and names
        self._taught: dict[int, Scenario] = {}  # id of a set of roles -> what they learn by
        # Place ("" for any node) and GPUs of its own -> bundles on nodes that have it.
        self._free: dict[tuple[str, int], list[int]] = {}
        self._shares: list[float] = []  # of a GPU, by bundle
        self._hosts: dict[str, list[str]] = {}  # place -> hosts that have it
        self._waiting = Waiting(guard, self.tell)
        self._wait = self._waiting.result

    def begin(self, spare: int = 0) -> None:
        """Reserve room (for `spare` more actors than the sides need), make the models, start every actor, and write
        each run's manifest."""
        first = self._sides[0]
        for side in self._sides:
            self.tell(side, "preparing the model and the prompts")
        wanted_seats = [
            (first.scenario.placement.learner, 1),
            *[("", 1)] * spare,
        ]  # place, and GPUs of its own if several
        for side in self._sides:
            scenario = side.scenario
            roles = len(roles_of(scenario)) * scenario.ppo.world_size if self._own_roles(side) else 0
            wanted_seats += [(scenario.placement.learner, 1)] * roles
            wanted_seats += [(scenario.placement.engine, self._ranks(side))] * scenario.engine.engines
        places = [place for place, _ in wanted_seats]
        self._hosts = {place: self._cluster.offering(place) for place in {*places} - {""}}
        check_memory(self._gpus, [(side.spec, side.scenario.engine) for side in self._sides if self._on_gpu(side)])
        self._shares = shares(self._gpus, [ranks for _, ranks in wanted_seats])
        bundles = [{"CPU": self._cluster.actor_cpus} | ({"GPU": share} if share else {}) for share in self._shares]
        self._cluster.reserve(bundles, places, lambda line: self._progress(ProgressEvent("", "", message=line)))
        for number, wanted_seat in enumerate(wanted_seats):
            self._free.setdefault(wanted_seat, []).append(number)
        if self._hosts:
            self._cluster.check_shared([*(side.run_dir for side in self._sides), home.directory("models")])

        seat = self._seat("trainer", first)
        self._stage = self._learner_actor("scenarios.stage:Stage", seat, str(home.directory("models")))
        self._prepared = self._wait(
            self._stage.submit("prepare", first.scenario.to_json()), first, "preparing the scenario"
        )
        for side in self._sides[1:]:
            if side.scenario != first.scenario:
                self._wait(self._stage.submit("prepare", side.scenario.to_json()), side, "preparing the scenario")
        looks = {side.name: self._warm.look(side, "coupled") for side in self._sides} if self._warm is not None else {}
        for side in self._sides:
            if self._warm is None:
                self._manifest(side)
                self._start_session(side)
            if self._own_roles(side):
                self._roles[side.name] = (side.scenario, self._start_roles(side))
            else:
                self._roles[side.name] = self._roles[first.name]
        if self._warm is not None:
            for side in self._sides:
                self.tell(side, "looking at the engine")
                look = looks[side.name]
                self._sessions[side.name] = self._warm.adopt(self._cluster, side, "coupled", look, self._waiting)
                self._manifest(side)
            for future in self._warm.becoming:  # the stage calls the others
                self._wait(future, first, "starting the learners")

    def record(
        self, side: Side, *, guide: Path | None = None, resume: str | None = None, replay: Path | None = None
    ) -> str:
        """One whole run; returns the directory of its final policy. `replay`: the rollouts of this recorded run drive
        it, and the first step is said after which its learner is another one than recorded. Raises RunCut when it ends
        early.
        """
        self.tell(side, "waiting for the engine")
        session = self._sessions[side.name]
        self._wait(session.submit("pids"), side, f"starting {side.backend}")
        self._start_router(side)
        _, roles = self._roles[side.name]
        self._teach(side)
        self.tell(side, "first weight sync")
        beginning = Beginning(
            policy=self._prepared["policy"],
            plants=side.plants.trainer,
            sync_backend=self._backend,
            resume=resume,
            replay=None if replay is None else str(replay),
        )
        opened = self._stage.submit("open", side.scenario.to_json(), roles, session, str(side.run_dir), beginning)
        first: int = self._wait(opened, side, "the first weight sync")
        parted = False
        for step in range(first, side.scenario.steps):
            self._progress(ProgressEvent(side.name, side.backend, step, side.scenario.steps, phase="step"))
            future = self._stage.submit("step", step, None if guide is None else str(guide))
            metrics = self._wait(future, side, f"step {step}", step=step)
            self._progress(ProgressEvent(side.name, side.backend, step, side.scenario.steps, metrics=metrics))
            if replay is not None and not parted:
                parted = self._tell_parted(side, step)
        self.tell(side, "measuring the floor", step=side.scenario.steps - 1)
        self._wait(self._stage.submit("floor"), side, "measuring the floor")
        policy: str = self._wait(self._stage.submit("finish"), side, "saving the last checkpoint")
        self._policies[side.name] = policy
        self._seal(side.run_dir, side)
        return policy

    def _tell_parted(self, side: Side, step: int) -> bool:
        wrong = self._wait(self._stage.submit("parted"), side, "comparing the learner with the recorded one")
        if wrong:
            message = f"after the update of step {step} the learner is not the recorded one: {', '.join(wrong)}"
            self._progress(ProgressEvent(side.name, side.backend, step, side.scenario.steps, message=message))
        return bool(wrong)

    def vary(self, side: Side, *, manifest: bool = True) -> None:
        """Let the side of that name be another one from now on, on the same engine: how a suite of faults keeps its
        engines warm. `manifest`: it is a run of its own, and no stage of one that was begun."""
        self._sides = [side if current.name == side.name else current for current in self._sides]
        self._lifted.pop(side.name, None)
        if manifest:
            self._manifest(side)
        if len(members(self._sessions[side.name])) != side.scenario.engine.engines:
            self._wait(self._sessions[side.name].submit("close"), side, f"closing {side.backend}")
            self._sessions[side.name].stop()
            self._start_session(side)
        configured = self._sessions[side.name].submit(
            "configure", side.scenario.to_json(), side.plants.engine, side.parameter_map or None
        )
        self._wait(configured, side, f"configuring {side.backend}")
        self._roles[side.name] = (side.scenario, self._learners(side))

    def revive(self) -> None:
        """A new session for each side whose own is dead: what a suite does after a run that was cut short."""
        for side in self._sides:
            try:
                self._wait(self._sessions[side.name].submit("pids"), side, "looking for the engine")
            except HarnessError:
                self._start_session(side)

    def engine_starts(self) -> tuple[int, float]:
        """Starts of the engines that are alive, and their seconds, since each session began."""
        number, seconds = 0, 0.0
        for side in self._sides:
            with contextlib.suppress(HarnessError):
                starts = self._wait(self._sessions[side.name].submit("starts"), side, "asking the engine")
                number, seconds = number + starts[0], seconds + starts[1]
        return number, seconds

    def exchange(self) -> None:
        """The two sessions change sides: from the next `vary` on the baseline's engine is the candidate's."""
        first_name, second_name = (side.name for side in self._sides)
        self._sessions[first_name], self._sessions[second_name] = (
            self._sessions[second_name],
            self._sessions[first_name],
        )

    def no_room(self, *sides: Side) -> str:
        """Why the lifted stage of these sides does not fit into memory, in one sentence; empty where it does."""
        roles = self._roles[sides[0].name][1]
        engine = sides[0].scenario.engine
        future = self._stage.submit(
            "no_room", roles["actor"][0], engines=len(sides), share=engine.memory_fraction,
            workers=sides[0].spec.workers(engine), device=self._device,
        )  # fmt: skip
        reason: str = self._wait(future, sides[0], "looking for memory")
        return reason

    def skip_lifted(self, side: Side, why: str) -> None:
        """Record that this side has no lifted stage."""
        self._manifest(side.lift(skipped=why))
        self._seal(side.run_dir, side)

    def begin_lifted(self, side: Side) -> None:
        """Start the engine anew, in float32, as the run's own was started; returns at once."""
        lifted_side = side.lift()
        self._manifest(lifted_side)
        self._seal(side.run_dir, side)
        session = self._sessions[side.name]
        session.submit("serve", self._prepared["policy"])
        started = session.submit(
            "configure", lifted_side.scenario.to_json(), lifted_side.plants.engine, lifted_side.parameter_map or None
        )
        self._lifted[side.name] = lifted_side, started
        self._by_itself(started, side)

    def lift(self, side: Side, policy: str, *, guide: Path | None = None) -> Path:
        """The lifted stage of one side at the weights in `policy`, after `begin_lifted`; returns its recording.
        `guide`: the recording of the baseline's."""
        lifted_side, started = self._lifted[side.name]
        self.tell(side, "lifted stage", step=side.scenario.steps - 1)
        self._wait(started, side, f"starting {side.backend} in float32")
        self._start_router(lifted_side)
        roles = self._roles[side.name][1]
        self._teach(lifted_side)
        beginning = Beginning(
            policy=self._prepared["policy"],
            plants=lifted_side.plants.trainer,
            sync_backend=self._backend,
            adopted=(policy,) if side.scenario.train else (),
        )
        future = self._stage.submit(
            "lift", lifted_side.scenario.to_json(), roles, self._sessions[side.name], str(lifted_side.run_dir),
            beginning, guide_run=None if guide is None else str(guide),
        )  # fmt: skip
        self._policies[side.name] = self._wait(future, side, "the lifted stage")
        self._seal(lifted_side.run_dir, side)
        self._seal(side.run_dir, side)
        return lifted_side.run_dir

    def bench(self, *names: str, engine: int = 0) -> Bench:
        """The sides of these names on a bench, with their engines as the runs, or their lifted stages, left them. Each
        must have been recorded and not have gone native. `engine`: which one of each side, where there are several."""
        sides = [self._now(side) for side in self._sides if side.name in names]
        stands = {}
        for side in sides:
            _, roles = self._roles[side.name]
            engines = members(self._sessions[side.name])
            stands[side.name] = {
                "session": engines[min(engine, len(engines) - 1)],
                "actor": roles["actor"][0],
                "policy": self._policies[side.name],
                "version": side.scenario.steps if side.scenario.train else 0,
                "workers": side.spec.ranks(side.scenario.engine),
            }
        scenario_json = self._now(self._sides[0]).scenario.to_json()
        options = {"device": self._device, "sync_backend": self._backend}
        self._wait(self._stage.submit("open_bench", scenario_json, stands, **options), sides[-1], "opening the bench")

        def call(method: str, *args: Any, **kwargs: Any) -> Any:
            future = self._stage.submit("bench", method, *args, **kwargs)
            return self._wait(future, sides[-1], f"on the bench: {method}")

        return OnStage(call)

    def _now(self, side: Side) -> Side:
        """The side as its engine is: in its lifted stage, once that has begun."""
        return self._lifted[side.name][0] if side.name in self._lifted else side

    @property
    def _backend(self) -> str:
        """Of every process group: NCCL refuses two ranks on one GPU ("Duplicate GPU detected", `init.cc` of NCCL), so
        actors that share a GPU exchange through gloo."""
        return "nccl" if self._device == "cuda" and not self._shared else "gloo"

    @property
    def _shared(self) -> bool:
        """Whether processes share a GPU."""
        return bool(self._gpus) and min(self._shares) < 1.0

    def _by_itself(self, started: Future, side: Side) -> None:
        """Let an engine start before another does where they share a GPU: it measures what the GPU has left, and takes
        for its own what another allocates meanwhile (vLLM's `memory_profiling` reads the memory of the whole device).
        What goes wrong is told where the result is asked for."""
        if self._shared:
            with contextlib.suppress(HarnessError):
                self._wait(started, side, f"starting {side.backend}")

    def begin_native(self, side: Side, policy: str) -> None:
        """Start the engine anew with the weights in `policy` and nothing of ours loaded, or look at the one that is up
        so; returns at once."""
        if self._warm is not None and self._warm.has(side, "native"):
            self._looks[side.name] = self._warm.look(side, "native")
            return
        started = self._sessions[side.name].submit("become_pure", policy, side.scenario.to_json())
        self._native[side.name] = started
        self._by_itself(started, side)

    def native(self, *sides: Side, policy: str, draw: int = 1) -> None:
        """The native stages of these sides, after `begin_native` of each. What is up draws while another side is
        scored. `draw`: from 1 on; each is of fresh samples."""
        for side in sides:
            self._unseal(side)
        for side in sides:
            if side.name not in self._native:
                self._draw_native(side, policy, draw)
        for side in sides:
            if side.name in self._native:
                self._draw_native(side, policy, draw)
            self.tell(side, self._native_phase(side, draw), step=side.scenario.steps - 1)
            self._teach(side)
            scenario, roles = natively(side.scenario), self._roles[side.name][1]
            scored = self._stage.submit("score_native", scenario.to_json(), roles, str(side.run_dir), policy, draw)
            self._wait(scored, side, "the native stage")
        for side in sides:
            self._seal(side.run_dir, side)

    def _draw_native(self, side: Side, policy: str, draw: int) -> None:
        """Let the engine of one side begin to draw, once it is up."""
        self.tell(side, self._native_phase(side, draw), step=side.scenario.steps - 1)
        self._teach(side)
        scenario = natively(side.scenario)
        if side.name in self._looks:
            self._warm_natives[side.name] = self._warm_native(side, policy, scenario)
            del self._looks[side.name]
        elif side.name in self._native:
            self._wait(self._native.pop(side.name), side, f"starting {side.backend} for the native stage")
        session = self._warm_natives.get(side.name) or self._sessions[side.name]
        begun = self._stage.submit(
            "draw_native", scenario.to_json(), session, str(side.run_dir), policy, side.scenario.steps, draw
        )
        self._wait(begun, side, "the native stage")

    @staticmethod
    def _native_phase(side: Side, draw: int) -> str:
        most = side.scenario.native.draws
        return "native stage" if draw == 1 else f"native stage: draw {draw} of at most {most}"

    def _warm_native(self, side: Side, policy: str, scenario: Scenario) -> Remote:
        """The native engine that is up, with the weights in `policy`, which the learner's log-probabilities prove."""
        from harness.parity.subjects.precision.observed_floor import CAPS  # the judge's libraries, which no run needs

        assert self._warm is not None
        _, roles = self._roles[side.name]
        scenario_json = scenario.to_json()

        def load(actor: Remote) -> str:
            try:
                self._wait(actor.submit("load", policy, scenario_json), side, "loading the weights")
            except HarnessError as error:
                return error.message
            apart: float = self._wait(
                self._stage.submit("apart", scenario_json, roles, actor, policy), side, "proving the weights"
            )
            return "" if apart <= CAPS[scenario.model.dtype] else f"its weights are {apart:.2g} nats from the learner's"

        actor = self._warm.adopt(self._cluster, side, "native", self._looks[side.name], self._waiting, load)
        if self._warm.renewed(side, "native"):
            self._wait(actor.submit("load", policy, scenario_json), side, "loading the weights")
        return actor

    def _own_roles(self, side: Side) -> bool:
        """Learners are shared unless this side's settings of them differ (a confounded comparison, or a planted
        fault)."""
        first = self._sides[0]
        return side is first or _learner(side.scenario) != _learner(first.scenario)

    def _learners(self, side: Side) -> dict[str, list[Actor]]:
        """Role processes for `side`: those that there are, taught its scenario, where their number fits."""
        key = (side.scenario.ppo.world_size, roles_of(side.scenario))
        if key not in self._pool:
            for scenario, roles in self._roles.values():
                self._pool.setdefault((scenario.ppo.world_size, roles_of(scenario)), roles)
        if key not in self._pool:
            self._pool[key] = self._start_roles(side)
        return self._pool[key]

    def _teach(self, side: Side) -> None:
        """Let the roles of `side` learn by its scenario, which `vary` or a lifted stage may have changed since they
        were made."""
        roles = self._roles[side.name][1]
        wanted = _learner(side.scenario)
        if self._taught[id(roles)] != wanted:
            for actors in roles.values():
                for actor in actors:
                    self._wait(actor.submit("configure", side.scenario.to_json()), side, "configuring the learner")
            self._taught[id(roles)] = wanted

    def _start_roles(self, side: Side) -> dict[str, list[Actor]]:
        size = side.scenario.ppo.world_size
        started: dict[str, list[Actor]] = {}
        for name in roles_of(side.scenario):
            seats = [self._seat(name, side) for _ in range(size)]
            address, port = self._cluster.rendezvous(seats[0]) if size > 1 else ("127.0.0.1", 0)
            started[name] = [
                self._learner_actor(
                    f"scenarios.ppo.roles:{name.capitalize()}Role",
                    seat,
                    side.scenario.to_json(),
                    {
                        "policy": self._prepared["policy"],
                        "reward": self._prepared["reward"],
                        "rank": rank,
                        "world_size": size,
                        "master_addr": address,
                        "master_port": port,
                        "device": self._device,
                        "backend": self._backend,
                    },
                    urgent=URGENT if name == "actor" else (),
                )
                for rank, seat in enumerate(seats)
            ]
        self._taught[id(started)] = _learner(side.scenario)
        return started

    def _learner_actor(self, target: str, seat: Seat, *args: Any, **kwargs: Any) -> Remote:
        if self._warm is None:
            return self._cluster.actor(target, seat, *args, **kwargs)
        return self._warm.learner(self._cluster, target, seat, *args, **kwargs)

    def _start_session(self, side: Side) -> None:
        engines: list[Actor] = []
        for number in range(side.scenario.engine.engines):
            seat = engine_seat(side, self._seat("rollout", side, called(side, number)), self._guarded, number)
            options = EngineOptions(device=self._device)
            engine = session(self._cluster, side, self._prepared["policy"], seat, options, rank=number)
            if self._shared:
                self._by_itself(engine.submit("pids"), side)
            engines.append(engine)
        per_prompt = side.scenario.rollout.samples_per_prompt
        self._sessions[side.name] = engines[0] if len(engines) == 1 else Fleet(engines, per_prompt)

    def _start_router(self, side: Side) -> None:
        """Let a router stand before the engines of this side, where its scenario asks for one."""
        policy, engines, what = side.scenario.engine.router, members(self._sessions[side.name]), "starting the router"
        if policy:
            urls = [self._wait(engine.submit("listen"), side, what) for engine in engines]
            router = self._wait(engines[0].submit("start_router", urls, policy), side, what)
            for engine in engines:
                self._wait(engine.submit("draw_through", router), side, what)

    def _seat(self, role: str, side: Side, name: str = "") -> Seat:
        ranks = self._ranks(side) if role == "rollout" else 1
        free = self._free.get((side.scenario.placement.of(role), ranks)) or self._free["", 1]
        number = free.pop(0)
        seat = driver_seat(self._shares[number], number)
        return dataclasses.replace(seat, env=self._guarded(seat.env, name or role))

    def _on_gpu(self, side: Side) -> bool:
        """Whether the engines of this side run on GPUs."""
        return (self._device if side.spec.embedded else side.environment.device) == "cuda"

    def _ranks(self, side: Side) -> int:
        """GPUs that one engine of this side needs for itself; 1 where it may share one."""
        return side.spec.ranks(side.scenario.engine) if self._on_gpu(side) else 1

    def _guarded(self, variables: dict[str, str], role: str) -> dict[str, str]:
        return self._guard.environment(variables, role) if self._guard is not None else variables

    def tell(self, side: Side, phase: str, step: int = 0) -> None:
        """Say what one side does now."""
        self._progress(ProgressEvent(side.name, side.backend, step, side.scenario.steps, phase=phase))

    def _manifest(self, side: Side) -> None:
        warm = self._warm.facts(side) if self._warm is not None else None
        placement = {
            kind: {"label" if Placement.label(place) else "resource": place, "hosts": self._hosts[place]}
            for kind, place in dataclasses.asdict(side.scenario.placement).items()
            if place
        }
        manifest = side.manifest(gpus=self._gpus, warm=warm, placement=placement)
        with self._writing(side, "beginning the recording"):
            recording.write_manifest(side.run_dir, manifest)

    def _seal(self, run_dir: Path, side: Side) -> None:
        """Index a recording of this side, which is at rest: what is read of it now is all of it."""
        with self._writing(side, "ending the recording"):
            recording.seal(run_dir)

    def _unseal(self, side: Side) -> None:
        """Let the recording of this side go on."""
        with self._writing(side, "going on with the recording"):
            recording.unseal(side.run_dir)

    @contextlib.contextmanager
    def _writing(self, side: Side, doing: str) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            raise RunCut(f"{side.name} ({side.backend}), {doing}: {error}", fix=free_space(side.run_dir)) from error


def engine_seat(
    side: Side,
    seat: Seat,
    guarded: Callable[[dict[str, str], str], dict[str, str]] = lambda variables, role: variables,
    rank: int = 0,
) -> Seat:
    """The seat of one side's engine, in the interpreter of its environment; an embedded one sits with the learner."""
    environment = side.environment
    if side.spec.embedded:
        return seat
    variables = dict(environment.env, PYTHONPATH=str(envs.bundle(plugins=True)), OMP_NUM_THREADS="1")
    if side.plants.inside:
        variables[INSIDE] = side.plants.inside
    if side.spec.preload and environment.device == "cpu":
        variables[CHILDREN] = "1"
    return dataclasses.replace(seat, python=environment.python, env=guarded(variables, called(side, rank)))


def session(
    cluster: Cluster, side: Side, policy: str, seat: Seat, options: EngineOptions, rank: int = 0, **actor: Any
) -> Remote:
    """The actor of one side's engine, with the weights in `policy`. `seat`: an `engine_seat`. `options`: its device is
    that of an embedded engine. `actor`: options of `Cluster.actor`."""
    device = options.device if side.spec.embedded else side.environment.device
    return cluster.actor(
        "scenarios.session:EngineSession",
        seat,
        side.environment.engine,
        policy,
        side.scenario.to_json(),
        dataclasses.replace(options, device=device, mapping=side.parameter_map or None),
        wrap=side.plants.engine,
        rank=rank,
        **actor,
    )


def called(side: Side, engine: int) -> str:
    """The role of one engine of a side, as the watch names it: with its number where there are several."""
    return "rollout" if side.scenario.engine.engines == 1 else f"rollout-{engine}"


def roles_of(scenario: Scenario) -> tuple[str, ...]:
    """The learner's roles of a run, by name."""
    return ROLES if scenario.train else ("actor",)


def natively(scenario: Scenario) -> Scenario:
    """The scenario as the engine of its native stage is started."""
    return dataclasses.replace(scenario, rollout=dataclasses.replace(scenario.rollout, mode="native"))


def _learner(scenario: Scenario) -> Scenario:
    """What the learners are made from: everything but the engine's own parameters and its place."""
    placement = dataclasses.replace(scenario.placement, engine="")
    return dataclasses.replace(scenario, engine=Engine(), placement=placement)
