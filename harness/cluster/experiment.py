"""One experiment on one cluster: learners that both runs share, the engines of each side, and a recording of each
run."""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from harness.cluster.engine_actors import called, engine_seat, natively, session
from harness.cluster.launch import Cluster
from harness.cluster.learners import Learners, LearnerSet, learner_settings
from harness.cluster.seats import Seats
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
from scenarios.ppo.beginning import Beginning
from scenarios.remote import Actor, Future, Remote
from scenarios.settings import Placement, Scenario

if TYPE_CHECKING:
    from harness.parity.interventions.bench import Bench
    from harness.warm.pool import Pool


@dataclass
class _Running:
    """What runs for one side: its learners, and its engine in the stage that it is in.

    learners: the set that the side trains. session: its engine, or a fleet of them. policy: the directory of its last
    policy. lifted: the side in its lifted stage, once that has begun; lifted_start: the start of its engine.
    native_start: the start of the engine for the native stage, until it was waited for. native_look: a look at a warm
    native engine, until it was waited for; native_engine: that engine, once it passed.
    """

    side: Side
    learners: LearnerSet = field(init=False)
    session: Actor = field(init=False)
    policy: str = ""
    lifted: Side | None = None
    lifted_start: Future | None = None
    native_start: Future | None = None
    native_look: tuple[Remote | None, Future | None] | None = None
    native_engine: Actor | None = None

    @property
    def engines(self) -> list[Actor]:
        return members(self.session)

    @property
    def now(self) -> Side:
        """Return the side as its engine is now: in its lifted stage once that has begun."""
        return self.lifted or self.side


class Experiment:
    """Drives recorded runs on an open cluster.

    Call `begin` once, then `record` for each side, then `native` for each. In between, each side may have a lifted
    stage (`begin_lifted`, `lift`) with a bench of its own. With a `guard`, a call that hangs ends with the guard's
    verdict. `warm`: engines that are already up; the cluster is theirs.
    """

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
        self._running = {side.name: _Running(side) for side in sides}
        self._progress = progress
        self._waiting = Waiting(guard, self.tell)
        self._wait = self._waiting.result
        self._seats = Seats(cluster, device, guard)
        self._learners = Learners(cluster, self._seats, self._wait, warm)

    @property
    def _sides(self) -> list[Side]:
        return [running.side for running in self._running.values()]

    def begin(self, spare: int = 0) -> None:
        """Reserve room, make the models, start every actor, and write each run's manifest.

        `spare`: reserve room for so many more actors than the sides need.
        """
        first = self._sides[0]
        for side in self._sides:
            self.tell(side, "preparing the model and the prompts")
        self._seats.reserve(
            self._sides,
            spare,
            self._own_learners,
            lambda line: self._progress(ProgressEvent("", "", message=line)),
        )
        if self._seats.hosts:
            self._cluster.check_shared([*(side.run_dir for side in self._sides), home.directory("models")])
        seat = self._seats.take("trainer", first)
        self._stage = self._learners.actor("scenarios.stage:Stage", seat, str(home.directory("models")))
        self._models: dict[str, str] = self._wait(
            self._stage.submit("prepare", first.scenario.to_json()), first, "preparing the scenario"
        )
        for side in self._sides[1:]:
            if side.scenario != first.scenario:
                self._wait(self._stage.submit("prepare", side.scenario.to_json()), side, "preparing the scenario")
        looks = {side.name: self._warm.look(side, "coupled") for side in self._sides} if self._warm is not None else {}
        for running in self._running.values():
            side = running.side
            if self._warm is None:
                self._manifest(side)
                self._start_session(side)
            own = self._own_learners(side)
            running.learners = self._learners.start(side, self._models) if own else self._running[first.name].learners
        if self._warm is not None:
            for running in self._running.values():
                side = running.side
                self.tell(side, "looking at the engine")
                running.session = self._warm.adopt(self._cluster, side, "coupled", looks[side.name], self._waiting)
                self._manifest(side)
            for future in self._warm.becoming:  # the stage calls the other learners
                self._wait(future, first, "starting the learners")

    def record(
        self, side: Side, *, guide: Path | None = None, resume: str | None = None, replay: Path | None = None
    ) -> str:
        """Record one whole run. Returns the directory of its final policy.

        `replay`: the rollouts of this recorded run drive it; the first step after which the learner differs from the
        recorded one is reported. Raises RunCut if the run ends early.
        """
        self.tell(side, "waiting for the engine")
        running = self._running[side.name]
        self._wait(running.session.submit("pids"), side, f"starting {side.backend}")
        self._start_router(side)
        self._learners.teach(running.learners, side)
        self.tell(side, "first weight sync")
        beginning = Beginning(
            policy=self._models["policy"],
            plants=side.plants.trainer,
            sync_backend=self._seats.backend,
            resume=resume,
            replay=None if replay is None else str(replay),
        )
        opened = self._stage.submit(
            "open", side.scenario.to_json(), running.learners.actors, running.session, str(side.run_dir), beginning
        )
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
        running.policy = policy
        self._seal(side.run_dir, side)
        return policy

    def _tell_parted(self, side: Side, step: int) -> bool:
        wrong = self._wait(self._stage.submit("parted"), side, "comparing the learner with the recorded one")
        if wrong:
            message = f"after the update of step {step} the learner is not the recorded one: {', '.join(wrong)}"
            self._progress(ProgressEvent(side.name, side.backend, step, side.scenario.steps, message=message))
        return bool(wrong)

    def vary(self, side: Side, *, manifest: bool = True) -> None:
        """From now on let the side of that name be another one on the same engine.

        This is how a suite of faults keeps its engines warm. `manifest`: whether it is a run of its own, and not a
        stage of one that was begun.
        """
        running = self._running[side.name]
        running.side, running.lifted, running.lifted_start = side, None, None
        if manifest:
            self._manifest(side)
        if len(running.engines) != side.scenario.engine.engines:
            self._wait(running.session.submit("close"), side, f"closing {side.backend}")
            running.session.stop()
            self._start_session(side)
        self._wait(self._configure(side), side, f"configuring {side.backend}")
        running.learners = self._learners.of_size(side, self._models)

    def _configure(self, side: Side) -> Future:
        """Restart a side's engine where its settings need it. Returns at once."""
        return self._running[side.name].session.submit(
            "configure", side.scenario.to_json(), side.plants.engine, side.parameter_map or None
        )

    def revive(self) -> None:
        """Start a new session for each side whose session is dead. A suite does this after a run that was cut short."""
        for running in self._running.values():
            try:
                self._wait(running.session.submit("pids"), running.side, "looking for the engine")
            except HarnessError:
                self._start_session(running.side)

    def engine_starts(self) -> tuple[int, float]:
        """The number of starts of the living engines since each session began, and the seconds that they took."""
        number, seconds = 0, 0.0
        for running in self._running.values():
            with contextlib.suppress(HarnessError):
                starts = self._wait(running.session.submit("starts"), running.side, "asking the engine")
                number, seconds = number + starts[0], seconds + starts[1]
        return number, seconds

    def exchange(self) -> None:
        """Swap the sessions of the two sides: from the next `vary` on the baseline has the candidate's engine, and
        vice versa."""
        first, second = self._running.values()
        first.session, second.session = second.session, first.session

    def no_room(self, *sides: Side) -> str:
        """Why the lifted stage of these sides does not fit into memory, in one sentence; empty if it does."""
        actor = self._running[sides[0].name].learners.actors["actor"][0]
        engine = sides[0].scenario.engine
        future = self._stage.submit(
            "no_room", actor, engines=len(sides), share=engine.memory_fraction,
            workers=sides[0].spec.workers(engine), device=self._seats.device,
        )  # fmt: skip
        reason: str = self._wait(future, sides[0], "looking for memory")
        return reason

    def skip_lifted(self, side: Side, why: str) -> None:
        """Record that this side has no lifted stage."""
        self._manifest(side.lift(skipped=why))
        self._seal(side.run_dir, side)

    def begin_lifted(self, side: Side) -> None:
        """Restart the engine in float32, otherwise as for the run. Returns at once."""
        lifted_side = side.lift()
        self._manifest(lifted_side)
        self._seal(side.run_dir, side)
        running = self._running[side.name]
        running.session.submit("serve", self._models["policy"])
        running.lifted, running.lifted_start = lifted_side, self._configure(lifted_side)
        self._by_itself(running.lifted_start, side)

    def lift(self, side: Side, policy: str, *, guide: Path | None = None) -> Path:
        """Run the lifted stage of one side at the weights in `policy`, after `begin_lifted`. Returns its recording.

        `guide`: the recording of the baseline's lifted stage.
        """
        running = self._running[side.name]
        lifted_side = running.lifted
        assert lifted_side is not None
        assert running.lifted_start is not None
        self.tell(side, "lifted stage", step=side.scenario.steps - 1)
        self._wait(running.lifted_start, side, f"starting {side.backend} in float32")
        self._start_router(lifted_side)
        self._learners.teach(running.learners, lifted_side)
        beginning = Beginning(
            policy=self._models["policy"],
            plants=lifted_side.plants.trainer,
            sync_backend=self._seats.backend,
            adopted=(policy,) if side.scenario.train else (),
        )
        future = self._stage.submit(
            "lift", lifted_side.scenario.to_json(), running.learners.actors, running.session,
            str(lifted_side.run_dir), beginning, guide_run=None if guide is None else str(guide),
        )  # fmt: skip
        running.policy = self._wait(future, side, "the lifted stage")
        self._seal(lifted_side.run_dir, side)
        self._seal(side.run_dir, side)
        return lifted_side.run_dir

    def bench(self, *names: str, engine: int = 0) -> Bench:
        """The sides of these names on a bench, with their engines as the runs, or their lifted stages, left them. Each
        must have been recorded and not have gone native. `engine`: which one of each side, where there are several."""
        chosen = [running for running in self._running.values() if running.side.name in names]
        stands = {}
        for running in chosen:
            side = running.now
            stands[side.name] = {
                "session": running.engines[min(engine, len(running.engines) - 1)],
                "actor": running.learners.actors["actor"][0],
                "policy": running.policy,
                "version": side.scenario.steps if side.scenario.train else 0,
                "workers": side.spec.ranks(side.scenario.engine),
            }
        first, last = next(iter(self._running.values())).now, chosen[-1].now
        opened = self._stage.submit(
            "open_bench", first.scenario.to_json(), stands,
            device=self._seats.device, sync_backend=self._seats.backend,
        )  # fmt: skip
        self._wait(opened, last, "opening the bench")

        def call(method: str, *args: Any, **kwargs: Any) -> Any:
            future = self._stage.submit("bench", method, *args, **kwargs)
            return self._wait(future, last, f"on the bench: {method}")

        return OnStage(call)

    def _by_itself(self, started: Future, side: Side) -> None:
        """If engines share a GPU, wait until this one has started before another one starts.

        An engine measures what the GPU has left, and would count memory that another one allocates meanwhile as its own
        (vLLM's `memory_profiling` reads the memory of the whole device). An error is reported where the result is asked
        for.
        """
        if self._seats.shared:
            with contextlib.suppress(HarnessError):
                self._wait(started, side, f"starting {side.backend}")

    def begin_native(self, side: Side, policy: str) -> None:
        """Restart the engine with the weights in `policy` and without any code of ours, or look at a warm one.
        Returns at once."""
        running = self._running[side.name]
        if self._warm is not None and self._warm.has(side, "native"):
            running.native_look = self._warm.look(side, "native")
            return
        running.native_start = running.session.submit("become_pure", policy, side.scenario.to_json())
        self._by_itself(running.native_start, side)

    def native(self, *sides: Side, policy: str, draw: int = 1) -> None:
        """Run the native stages of these sides, after `begin_native` of each.

        Engines that are up draw while another side is scored. `draw`: counted from 1; each draw has fresh samples.
        """
        for side in sides:
            self._unseal(side)
        up_already = [side for side in sides if self._running[side.name].native_start is None]
        for side in up_already:
            self._draw_native(side, policy, draw)
        for side in sides:
            if side not in up_already:
                self._draw_native(side, policy, draw)
            self.tell(side, self._native_phase(side, draw), step=side.scenario.steps - 1)
            learners = self._running[side.name].learners
            self._learners.teach(learners, side)
            scored = self._stage.submit(
                "score_native", natively(side.scenario).to_json(), learners.actors, str(side.run_dir), policy, draw
            )
            self._wait(scored, side, "the native stage")
        for side in sides:
            self._seal(side.run_dir, side)

    def _draw_native(self, side: Side, policy: str, draw: int) -> None:
        """Let the engine of one side begin to draw, once it is up."""
        running = self._running[side.name]
        self.tell(side, self._native_phase(side, draw), step=side.scenario.steps - 1)
        self._learners.teach(running.learners, side)
        scenario = natively(side.scenario)
        if running.native_look is not None:
            running.native_engine = self._warm_native(side, policy, scenario)
            running.native_look = None
        elif running.native_start is not None:
            self._wait(running.native_start, side, f"starting {side.backend} for the native stage")
            running.native_start = None
        engine = running.native_engine or running.session
        begun = self._stage.submit(
            "draw_native", scenario.to_json(), engine, str(side.run_dir), policy,
            version=side.scenario.steps, draw=draw,
        )  # fmt: skip
        self._wait(begun, side, "the native stage")

    @staticmethod
    def _native_phase(side: Side, draw: int) -> str:
        most = len(side.scenario.native.sizes)
        return "native stage" if draw == 1 else f"native stage: draw {draw} of at most {most}"

    def _warm_native(self, side: Side, policy: str, scenario: Scenario) -> Remote:
        """The warm native engine with the weights in `policy`, which is proven by the learner's log-probabilities."""
        from harness.parity.subjects.precision.observed_floor import CAPS  # the judge's libraries, which no run needs

        running = self._running[side.name]
        assert self._warm is not None
        assert running.native_look is not None
        scenario_json = scenario.to_json()

        def load(actor: Remote) -> str:
            try:
                self._wait(actor.submit("load", policy, scenario_json), side, "loading the weights")
            except HarnessError as error:
                return error.message
            apart: float = self._wait(
                self._stage.submit("apart", scenario_json, running.learners.actors, actor, policy),
                side,
                "proving the weights",
            )
            return "" if apart <= CAPS[scenario.model.dtype] else f"its weights are {apart:.2g} nats from the learner's"

        actor = self._warm.adopt(self._cluster, side, "native", running.native_look, self._waiting, load)
        if self._warm.renewed(side, "native"):
            self._wait(actor.submit("load", policy, scenario_json), side, "loading the weights")
        return actor

    def _own_learners(self, side: Side) -> bool:
        """Whether this side needs learners of its own: its learner settings differ (a confounded comparison or a
        planted fault)."""
        first = self._sides[0]
        return side is first or learner_settings(side.scenario) != learner_settings(first.scenario)

    def _start_session(self, side: Side) -> None:
        engines: list[Actor] = []
        for number in range(side.scenario.engine.engines):
            seat = self._seats.take("rollout", side, called(side, number))
            seat = engine_seat(side, seat, self._seats.guarded, number)
            options = EngineOptions(device=self._seats.device)
            engine = session(self._cluster, side, self._models["policy"], seat, options, rank=number)
            if self._seats.shared:
                self._by_itself(engine.submit("pids"), side)
            engines.append(engine)
        per_prompt = side.scenario.rollout.samples_per_prompt
        self._running[side.name].session = engines[0] if len(engines) == 1 else Fleet(engines, per_prompt)

    def _start_router(self, side: Side) -> None:
        """Start a router in front of this side's engines, if its scenario asks for one."""
        policy, engines, what = side.scenario.engine.router, self._running[side.name].engines, "starting the router"
        if policy:
            urls = [self._wait(engine.submit("listen"), side, what) for engine in engines]
            router = self._wait(engines[0].submit("start_router", urls, policy), side, what)
            for engine in engines:
                self._wait(engine.submit("draw_through", router), side, what)

    def tell(self, side: Side, phase: str, step: int = 0) -> None:
        """Report what one side does now."""
        self._progress(ProgressEvent(side.name, side.backend, step, side.scenario.steps, phase=phase))

    def _manifest(self, side: Side) -> None:
        warm = self._warm.facts(side) if self._warm is not None else None
        placement = {
            kind: {"label" if Placement.label(place) else "resource": place, "hosts": self._seats.hosts[place]}
            for kind, place in dataclasses.asdict(side.scenario.placement).items()
            if place
        }
        manifest = side.manifest(gpus=self._seats.gpus, warm=warm, placement=placement)
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
