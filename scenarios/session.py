"""One live engine behind one actor, used by PPO, the floor, the interventions and the planted faults.

Several engines of one run are a `scenarios.fleet.Fleet` of these. The actor runs in the interpreter of the engine's
own environment. A watch thread ends the actor when a process of the engine dies, because a dead scheduler would let
its caller wait forever.
"""

from __future__ import annotations

import contextlib
import dataclasses
import multiprocessing
import multiprocessing.process
import os
import threading
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from probes import install, memory
from probes.lines import without_none
from scenarios import memory_fit
from scenarios.engines import canonical_request, frames, guided, last_words, leftovers, registry
from scenarios.engines.engine_interface import (
    Completion,
    Engine,
    EngineError,
    Misloaded,
    Part,
    Request,
    SyncGroup,
    SyncReport,
    WeightMeta,
)
from scenarios.engines.engine_processes import descendants, first_to_end, title
from scenarios.engines.hidden_states import HiddenStates
from scenarios.engines.make import EngineOptions, make_engine, resolve_device
from scenarios.engines.mapping import ParameterMap, sampling_event
from scenarios.plants import Injection
from scenarios.settings import Sampling, Scenario
from scenarios.shared_memory import Segments

REPEATS = 16  # native samples that are drawn twice
TOLD_S = 1.0  # a choice: a fork server reports an end within milliseconds
DEFAULTS = EngineOptions()
PROBE_DRAWN = 8  # tokens that are drawn to prove that the cache of an engine that stayed up is empty
PROBE_VOCABULARY = 64  # ids of its prompt are below this, which every tokenizer has


@dataclass(frozen=True)
class RolloutResult:
    """The result of a rollout.

    `completions`: what the engine drew. `used`: (sample, response ids, finish reason) with which training continues.
    `rounds`: calls to the engine. `uncompared`: guide positions that were not reached.
    """

    completions: list[Completion]
    used: list[tuple[int, tuple[int, ...], str]]
    rounds: int = 1
    uncompared: int = 0


class EngineSession:
    """One live engine.

    `backend`: an engine's name. `rank`: its number among the engines of a run. `wrap`: wraps the engine, as
    `scenarios.plants.Plants.engine`; None in every real run.
    """

    def __init__(
        self,
        backend: str,
        model_path: str,
        scenario: dict[str, Any],
        options: EngineOptions = DEFAULTS,
        *,
        rank: int = 0,
        wrap: Injection | None = None,
    ) -> None:
        self.backend = backend
        self._model_path = model_path
        self._scenario = Scenario.from_json(scenario)
        self._device = resolve_device(options.device)
        self._rank = rank
        self._wrap = wrap
        self._mapping = ParameterMap.of(options.mapping)
        self._recorder = install.OFF  # until `record_to`
        self._pure = options.pure  # true in the native stage: an engine with nothing of ours loaded
        self._natively_drawn: list[tuple[Request, Completion]] = []  # of the native draw in progress
        self._closing, self._closing_router = threading.Event(), threading.Event()
        self._started_s = 0.0
        self._starts = (0, 0.0)  # number of starts, and their total seconds
        self._up = False  # whether an engine must be closed
        self._router = ""  # the address of the router through which rollouts go
        self._asleep: set[Part] = set()
        self._engine = self._start()

    def _start(self) -> Engine:
        started = time.perf_counter()
        self._segments = Segments()
        self._begun = last_words.sizes(last_words.own_output())
        try:
            self._bare = engine = make_engine(
                self.backend,
                self._model_path,
                self._scenario,
                device=self._device,
                pure=self._pure,
                mapping=self._mapping,
            )
        except EngineError as error:
            cause = last_words.explain(error.reason, self._begun, ended=1)  # it reported that it failed
            if cause == error.reason or cause in error.what:
                raise
            raise EngineError(error.what, cause) from error
        self._asleep, self._router = set(), ""
        self._started_s = time.perf_counter() - started
        self._starts = self._starts[0] + 1, self._starts[1] + self._started_s
        self._up = True
        self._closing = threading.Event()
        children = {pid: title(pid) for pid in engine.info().pids if pid != os.getpid()}
        self._processes = children
        threading.Thread(target=self._watch, args=(children, self._closing), daemon=True, name="engine-watch").start()
        return self._wrapped()

    def _wrapped(self) -> Engine:
        if self._wrap is None:
            return self._bare
        wrapped: Engine = self._wrap(
            self._bare, model_path=self._model_path, scenario=self._scenario, number=self._rank
        )
        return wrapped

    def _watch(self, children: dict[int, str], closing: threading.Event) -> None:
        forked = multiprocessing.active_children()  # their fork server reports exits to this process only
        if (ended := first_to_end(children, closing)) is None:
            return
        pid, code = ended
        if code is None:
            code = exit_code_of(pid, forked)
        name = f" ({children[pid]})" if children[pid] else ""
        cause = last_words.root_cause(self._begun, code) or (last_words.COLLECTED if code is None else "")
        message = f"{self.backend}: engine process {pid} died{name}" + (f": {cause}" if cause else "")
        self._recorder.event("engine_died", pid=pid, message=message)
        _exit(message)

    def record_to(self, run_dir: str) -> None:
        """Close the previous recording, and record into this run from now on."""
        self._recorder.close()
        self._recorder = recorder = install.start(run_dir, role="rollout", rank=self._rank)
        recorder.states["engine"] = lambda: self._bare.load.now
        recorder.environment()
        info = self._engine.info()
        recorder.event("engine_info", **dataclasses.asdict(info), start_seconds=self._started_s)
        sampling, mode = self._scenario.sampling, self._scenario.rollout.mode
        mapped = self._bare.mapped(sampling)
        recorder.event("sampling", **sampling_event(self._mapping, self.backend, sampling, mapped, mode))

    def _limited(self, requests: list[Request]) -> list[Request]:
        """Return the requests with how many tokens a sample may have, as the engine was given it."""
        limit = int(self._bare.mapped(self._scenario.sampling).canonical.max_tokens)
        return [dataclasses.replace(request, max_tokens=request.max_tokens or limit) for request in requests]

    def _check_sampling(self) -> None:
        ours = self._mapping.ours(self.backend, "sampling")
        canonical_request.check_sampling(self.backend, self._scenario.sampling, self._scenario.rollout.mode, ours=ours)

    def _read_at_start(self) -> tuple[Any, ...]:
        """What a live engine cannot take anew."""
        return _read_at_start(self._scenario, self._mapping)

    def end_recording(self) -> None:
        self._recorder.close()
        self._recorder = install.OFF

    def _generate(self, requests: list[Request], step: int) -> list[Completion]:
        return self._called(
            "generate", step, lambda: self._engine.generate(requests, self._scenario.sampling, seed=self._scenario.seed)
        )

    def _generate_routed(self, requests: list[Request], step: int) -> list[Completion]:
        """Draw the requests, through the router where the run has one."""
        if not self._router:
            return self._generate(requests, step)
        bare: Any = self._bare
        bare.through = self._router
        try:
            return self._generate(requests, step)
        finally:
            bare.through = ""

    def listen(self) -> str:
        """Serve requests of a router too, and return the address. Every answer is recorded."""
        bare: Any = self._bare

        def answered(sample: int, offset: int) -> None:
            self._recorder.event("answered", sample=sample, offset=offset)

        address: str = bare.listen(answered)
        return address

    def start_router(self, engines: list[str], policy: str) -> str:
        """Start a router in front of the engines at these addresses, and return its address.

        If it dies, this actor ends, as it does when its engine dies.
        """
        bare: Any = self._bare
        self._closing_router.set()  # ends the watch of an earlier run's router
        address, pid = bare.start_router(engines, policy)
        self._closing_router = threading.Event()
        threading.Thread(target=self._watch, args=({pid: title(pid)}, self._closing_router), daemon=True).start()
        return str(address)

    def draw_through(self, router: str) -> None:
        """Let rollouts go through the router at this address from now on."""
        self._router = router

    def _called(self, name: str, step: int, work: Callable[[], Any], fields: Mapping[str, Any] | None = None) -> Any:
        """Run one engine call and record its status with `fields`; its exception is raised to the caller."""
        started = time.perf_counter()
        ok, message = True, ""
        try:
            if name in ("generate", "rescore"):
                self._awake(name)
            with registry.guarded(self.backend):
                return work()
        except Exception as error:
            # "See the stack trace above" is of no use to a caller who does not see the engine's output: look there.
            ok, message = False, f"{type(error).__name__}: {error}"
            if not last_words.is_pointer(str(error)):
                raise
            message = last_words.explain(str(error), self._begun)
            raise EngineError(f"{self.backend} failed in {name}", message) from error
        finally:
            seconds = time.perf_counter() - started
            if self._recorder is not install.OFF:
                with self._recorder.own_time():
                    memory_fields = self._memory()
                self._recorder.event(
                    "call",
                    name=name,
                    step=step,
                    ok=ok,
                    message=message,
                    seconds=seconds,
                    **(fields or {}),
                    **memory_fields,
                )

    def _memory(self) -> dict[str, Any]:
        """Return the memory of this process, the engine's own processes and /dev/shm: fields of a `call` event."""
        processes = [
            {"pid": pid, "title": name[:80], **resident_memory}
            for pid, name in self._processes.items()
            if (resident_memory := memory.resident(pid))
        ]
        return memory.in_use() | {"processes": processes} | without_none(dev_shm=memory.shm_used())

    def rollout(
        self,
        requests: list[Request],
        *,
        step: int,
        version: int,
        guide: guided.Guide | None = None,
        rounds: int = guided.MAX_ROUNDS,
    ) -> RolloutResult:
        """Draw every request. With a guide, choose at each position given the guide's tokens, and train on the
        guide's.

        `rounds`: most calls to the engine.
        """
        requests = self._limited(requests)
        self._engine.stats()  # drops the figures of earlier calls, such as a floor
        if guide is None:
            completions, made, uncompared = self._generate_routed(requests, step), 1, 0
            used = [(c.sample, c.output_ids, c.finish_reason) for c in completions]
        else:
            result = guided.rollout(requests, guide, lambda pending: self._generate_routed(pending, step), rounds)
            completions, made, uncompared = result.completions, result.rounds, result.uncompared
            used = [
                (c.sample, *guide[c.sample]) if c.sample in guide else (c.sample, c.output_ids, c.finish_reason)
                for c in completions
            ]
        if self._recorder is not install.OFF:
            fields = {
                "weight_version": version,
                "rounds": made,
                "uncompared": uncompared,
                "guided": guide is not None,
                "mode": self._scenario.rollout.mode,
            }
            frames.samples(self._recorder, "rollout", requests, completions, step=step, fields=fields)
            self._recorder.event("engine_stats", step=step, **self._engine.stats())
        return RolloutResult(completions, used, made, uncompared)

    def replay(self, requests: list[Request], *, step: int, version: int, guide: guided.Guide) -> RolloutResult:
        """Score the responses of `guide` instead of drawing; training continues with them."""
        self._engine.stats()
        completions = self._scored(requests, guide, step)
        if self._recorder is not install.OFF:
            frames.samples(
                self._recorder,
                "rollout",
                requests,
                completions,
                step=step,
                fields={"weight_version": version, "guided": False, "mode": "replay"},
            )
            self._recorder.event("engine_stats", step=step, **self._engine.stats())
        return RolloutResult(completions, [(r.sample, *guide[r.sample]) for r in requests])

    def _scored(self, requests: list[Request], guide: guided.Guide, step: int) -> list[Completion]:
        """Return the responses of `guide` with this engine's log-probabilities.

        Engines refuse to score other ids than they were given (`check_scored`), so the prompts were seen as sent.
        """
        scores = self.rescore([r.prompt_ids + guide[r.sample][0] for r in requests], step=step)
        return [
            Completion(r.sample, r.prompt_ids, ids, tuple(row[len(r.prompt_ids) - 1 :]), finish)  # type: ignore[arg-type]
            for r, row in zip(requests, scores, strict=True)
            for ids, finish in [guide[r.sample]]
        ]

    def rescore(self, sequences: list[tuple[int, ...]], *, step: int = -1) -> list[list[float]]:
        """Return teacher-forced raw log-probabilities: n - 1 numbers for n ids, because nothing predicts the first."""
        scores: list[list[float]] = self._called("rescore", step, lambda: self._engine.rescore(sequences))
        for sequence, row in zip(sequences, scores, strict=True):
            if len(row) != len(sequence) - 1:
                raise EngineError(f"{self.backend}: rescore returned {len(row)} numbers for {len(sequence)} ids")
        return scores

    def layers(self, sequence: tuple[int, ...]) -> HiddenStates | None:
        """Return the hidden states of a forward pass; None where the engine does not show them."""
        show_layers: Any = getattr(self._bare, "layers", None)
        return None if show_layers is None else show_layers(sequence)

    def held(self, order: bytes) -> list[bytes] | None:
        """Return what each worker of the live engine holds (`scenarios.engines.engine_tensors.answer`), by rank.

        None where the engine does not show it.
        """
        show_held: Any = getattr(self._bare, "held", None)
        return None if show_held is None else show_held(order)

    def flush(self) -> None:
        self._called("flush", -1, self._engine.flush)

    def sleep(self, level: int, *, step: int) -> None:
        """Put the engine to sleep. Until both parts were woken it refuses to draw."""
        before = memory_fit.unused()
        fields: dict[str, Any] = {"level": level}

        def put() -> None:
            self._engine.sleep(level)
            if before is not None:
                fields["freed"] = (memory_fit.unused() or before) - before

        self._called("sleep", step, put, fields)
        self._asleep = set(Part)

    def wake(self, part: str, *, step: int) -> None:
        engine_part = Part(part)
        self._called("wake", step, lambda: self._engine.wake(engine_part), {"part": part})
        self._asleep.discard(engine_part)

    def _awake(self, what: str) -> None:
        """Refuse calls that an engine must not get while it sleeps: some answer from released memory, some never
        answer.
        """
        if self._asleep:
            parts = " and ".join(sorted(self._asleep))
            raise EngineError(f"{self.backend} is asleep and was asked to {what}: its {parts} must be woken first")

    def join(self, group: SyncGroup) -> None:
        self._called("join", -1, lambda: self._engine.join(group))

    def sync(self, group: SyncGroup, weights: list[WeightMeta], *, step: int, version: int) -> SyncReport:
        """Receive one broadcast of `weights`. A refusal raises EngineError, and the trainer then aborts the sender."""
        report: SyncReport = self._called("sync", step, lambda: self._engine.receive(group, weights))
        if not report.ok:
            raise EngineError(f"{self.backend} refused weight version {version}: {report.message}")
        self._recorder.weights(step=step, version=version, digests=report.received, source="received")
        return self._with_loaded(report)

    def _with_loaded(self, report: SyncReport) -> SyncReport:
        """Return the report, extended by what each worker holds of what it was sent."""
        from scenarios.engines import engine_tensors

        workers = [
            engine_tensors.unpacked(reply)["loaded"]
            for reply in self.held(engine_tensors.packed({"loaded": True})) or []
        ]
        if not workers or None in workers:
            return report
        wrong: list[Misloaded] = []
        for rank, worker in enumerate(workers):
            named_rank = rank if len(workers) > 1 else None
            wrong += [Misloaded(name, kept, named_rank) for name, kept in worker["otherwise"].items()]
        # A tensor counts as read back only where every worker could read its part.
        everywhere = set.intersection(*(set(worker["read"]) for worker in workers))
        return dataclasses.replace(report, loaded=len(everywhere), misloaded=tuple(wrong))

    def floor(
        self, requests: list[Request], *, step: int, version: int, guide: guided.Guide | None = None
    ) -> list[tuple[int, ...]]:
        """Record the engine against itself with fixed weights and equal randomness, and return the response ids.

        The variants are: smaller batches, reverse order, and prefill instead of decode. With a guide, its responses
        are scored and none is drawn, so there is no decode.
        """

        def draw(batch: list[Request]) -> list[Completion]:
            return self._generate(batch, step) if guide is None else self._scored(batch, guide, step)

        requests = self._limited(requests)
        base = draw(requests)
        quarter = max(1, len(requests) // 4)
        in_parts: list[Completion] = []
        for begin in range(0, len(requests), quarter):
            in_parts += draw(requests[begin : begin + quarter])
        variants = {"base": base, "batch": in_parts, "order": draw(requests[::-1])[::-1]}
        if guide is None:
            drawn = {r.sample: (c.output_ids, c.finish_reason) for r, c in zip(requests, base, strict=True)}
            # Some engines, such as SGLang, refuse to score what filled their KV pool. A `call` event has the error.
            # The floor then lacks this variant, and the recorded runs stay valid.
            with contextlib.suppress(Exception):
                variants["prefill"] = self._scored(requests, drawn, step)
        if self._recorder is install.OFF:
            return [c.output_ids for c in base]
        for variant, rows in variants.items():
            frames.floor(self._recorder, rows, step=step, variant=variant, version=version)
        return [c.output_ids for c in base]

    def native(self, requests: list[Request]) -> list[Completion]:
        """Draw a part of a native stage with the engine's own sampler, and keep it until `end_native`.

        The session must be in native mode.
        """
        if not self._pure:
            raise EngineError("the native stage needs an engine with nothing of ours loaded: call become_pure() first")
        requests = self._limited(requests)
        completions = self._generate(requests, -1)
        self._natively_drawn += zip(requests, completions, strict=True)
        return completions

    def end_native(self, *, version: int, step: int) -> None:
        """Record under `step` what was drawn since the last end. The first draw (-1) draws a few samples twice."""
        drawn, self._natively_drawn = self._natively_drawn, []
        if self._recorder is install.OFF or not drawn:  # of a fleet, an engine may have got no prompt
            return
        requests = [request for request, _ in drawn]
        engine_seed = self._scenario.engine.seed
        frames.samples(
            self._recorder,
            "native",
            requests,
            [completion for _, completion in drawn],
            step=step,
            fields={"weight_version": version, "engine_seed": engine_seed},
        )
        if step == -1:
            repeated = requests[:: -(-len(requests) // REPEATS)]
            seeds = self._engine.info().resolved.get("request_seed", "not reported")
            frames.samples(
                self._recorder,
                "repeat",
                repeated,
                self._generate(repeated, -1),
                step=-1,
                fields={"weight_version": version, "request_seed": seeds},
            )

    def set(self, name: str, value: Any) -> None:
        """Change one canonical parameter, such as `sampling.temperature`.

        An engine parameter restarts the engine, and its synced weights are lost.
        """
        section, _, key = name.partition(".")
        if section not in ("sampling", "engine") or not hasattr(getattr(self._scenario, section), key):
            raise canonical_request.ParameterRefused(
                f"{name!r} is no parameter of a live session; sampling.* and engine.* are",
                fix="name a parameter of sampling or engine",
            )
        changed = dataclasses.replace(getattr(self._scenario, section), **{key: value})
        self._scenario = dataclasses.replace(self._scenario, **{section: changed})
        if section == "engine":
            self.restart()
        else:
            assert isinstance(changed, Sampling)
            self._check_sampling()

    def configure(
        self, scenario: dict[str, Any], wrap: Injection | None, mapping: dict[str, Any] | None = None
    ) -> None:
        """Serve another run, with new settings, another wrapper or none, and another mapping.

        The engine restarts only if it reads a changed setting at its start.
        """
        before = self._read_at_start()
        self._scenario, self._mapping = Scenario.from_json(scenario), ParameterMap.of(mapping)
        if self._engine is not self._bare:
            wrapper: Any = self._engine
            wrapper.remove()
        self._wrap = wrap
        if self._pure and self._scenario.rollout.mode != "native":  # a suite continues after a native stage
            self._pure = False
        if before == self._read_at_start() and not self._asleep:
            self._check_sampling()
            self._bare.remap(self._mapping)
            self._engine = self._wrapped()
        else:
            self.restart()

    def adopt(
        self, scenario: dict[str, Any], wrap: Injection | None = None, mapping: dict[str, Any] | None = None
    ) -> list[str]:
        """Serve another run with an engine that stayed up, and return sentences about what is left of earlier runs.

        With any sentence, this session must not be used. The first call notes the state of a fresh engine.
        """
        wanted, maps = Scenario.from_json(scenario), ParameterMap.of(mapping)
        if self._read_at_start() != _read_at_start(wanted, maps):
            return ["it was left with other parameters than it was started with"]
        self.configure(scenario, None, mapping)
        self.end_recording()
        sentences = self._leftovers()
        self._wrap = wrap
        self._engine = self._wrapped()
        return sentences

    def _leftovers(self) -> list[str]:
        from scenarios.engines import engine_tensors

        if self._bare.load.busy:
            return ["a request of an earlier run is still running"]
        try:
            self._bare.flush()
        except Exception as error:  # engines refuse this while requests run
            return [f"its cache could not be emptied: {error}"]
        sentences = self._cached()
        package = type(self._bare).__module__.partition(".")[0]
        sentences += leftovers.of_methods("the session", self) + leftovers.of_methods("the engine", self._bare)
        sentences += leftovers.of_settings("the engine", self._bare, self._model_path)
        answers = self.held(engine_tensors.packed({"leftovers": True}))
        if answers is None:
            sentences += leftovers.of_process(package)
        else:  # workers usually report the same
            sentences += dict.fromkeys(
                sentence for answer in answers for sentence in engine_tensors.unpacked(answer)["leftovers"]
            )
        self._bare.flush()
        self._engine.stats()
        return sentences

    def _cached(self) -> list[str]:
        """Return whether the emptied cache still serves something, as a list of none or one sentence.

        The prompt that every such check draws from must give the same result as with a cache key that the engine has
        never seen.
        """
        sampling = self._scenario.sampling
        if self._scenario.rollout.mode == "native":  # native random generators have advanced
            sampling = dataclasses.replace(sampling, temperature=0.0)
        prompt = leftovers.probe_prompt(PROBE_VOCABULARY)[: max(1, self._scenario.engine.max_model_len - PROBE_DRAWN)]
        requests = [Request(0, prompt, max_tokens=PROBE_DRAWN, salt=salt) for salt in ("", os.urandom(8).hex())]
        plain, salted = (self._bare.generate([request], sampling, seed=self._scenario.seed)[0] for request in requests)
        if plain.cached_tokens or salted.cached_tokens:
            return ["its cache serves tokens of an earlier run after it was emptied"]
        if (plain.output_ids, plain.logprobs) != (salted.output_ids, salted.logprobs):
            return ["it gives another answer to a prompt of an earlier run than to the same prompt with a new salt"]
        return []

    def load(self, model_path: str, scenario: dict[str, Any]) -> None:
        """Load the weights in this directory for a native stage. The engine stays up where it can reload by itself."""
        self._scenario = Scenario.from_json(scenario)
        reload: Any = getattr(self._bare, "reload", None)
        if reload is None:
            self._model_path = model_path
            self.restart()
        else:
            reload(model_path)
            self._bare.flush()

    def become_pure(self, model_path: str, scenario: dict[str, Any] | None = None) -> None:
        """Start a fresh engine for the native stage: its own sampler, the weights of `model_path`, nothing of ours.

        Restored parameters are dropped too. `scenario`: the run's, where another stage came between.
        """
        self._pure = True
        if scenario is not None:
            self._scenario = Scenario.from_json(scenario)
        self._mapping = dataclasses.replace(self._mapping, restored=())
        self._scenario = dataclasses.replace(
            self._scenario, rollout=dataclasses.replace(self._scenario.rollout, mode="native")
        )
        self._model_path = model_path
        self.restart()

    def serve(self, model_path: str) -> None:
        """Load the weights in this directory at the engine's next start."""
        self._model_path = model_path

    def put_back(self, names: list[str]) -> None:
        """Start a fresh engine with these canonical engine parameters as our own mapping passes them."""
        self._mapping = dataclasses.replace(self._mapping, restored=tuple(names))
        self.restart()

    def restart(self) -> None:
        """Start a fresh engine with the weights of the model path. It must be synced again before it draws."""
        self._close()
        self._engine = self._start()

    def snapshot(self) -> dict[str, Any]:
        """Return the present state: engine info, statistics, pid, seconds that the start took."""
        info = dataclasses.asdict(self._engine.info())
        return info | {
            "stats": self._engine.stats(),
            "pid": os.getpid(),
            "start_seconds": self._started_s,
            "device": self._device,
        }

    def workers(self) -> int:
        """Return how many processes of the engine a weight sync reaches."""
        return registry.get(self.backend).workers(self._scenario.engine)

    def pids(self) -> tuple[int, ...]:
        return self._engine.info().pids

    def starts(self) -> tuple[int, float]:
        """Return how often the engine was started in this session's life, and the total seconds of the starts."""
        return self._starts

    def close(self) -> None:
        self.end_recording()
        self._close()

    def _close(self) -> None:
        self._closing.set()
        self._closing_router.set()
        if self._up:
            self._up = False
            self._segments.look(pid for pid in descendants(os.getpid()) if pid != os.getpid())
            try:
                self._engine.close()
            finally:
                self._segments.unlink_unused()


def _read_at_start(scenario: Scenario, mapping: ParameterMap) -> tuple[Any, ...]:
    edits = mapping.edits.get("engine")
    return scenario.engine, scenario.model, scenario.rollout.mode, edits, mapping.source, mapping.restored


def exit_code_of(pid: int, processes: Iterable[multiprocessing.process.BaseProcess]) -> int | None:
    """Return the exit code of a process that has ended, where it is one of these; else None."""
    for process in processes:
        if process.pid == pid:
            process.join(TOLD_S)
            return process.exitcode
    return None


def _exit(message: str) -> None:
    # The actor may be blocked inside the dead engine's call, holding its event loop, so only the end of the process
    # frees the caller.
    import sys

    print(message, file=sys.stderr, flush=True)
    os._exit(70)
