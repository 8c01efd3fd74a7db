"""The learner's side of an experiment as one actor: makes models, checks prompts, runs PPO steps, scores the native
stage.

The controller decides what runs when. Everything that needs torch happens here, in the learner's interpreter.
"""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

from probes import install
from probes.format import Flat, Ragged
from scenarios import memory_fit, models, prompts
from scenarios.bench.bench import Bench
from scenarios.bench.undo import Stand
from scenarios.engines import canonical_request
from scenarios.engines.engine_interface import Request, SyncReport
from scenarios.engines.guided import Guide
from scenarios.engines.recorded import Recorded
from scenarios.ppo.actor import NativeScored
from scenarios.ppo.batches import Sample
from scenarios.ppo.beginning import Beginning
from scenarios.ppo.native_scores import suspect
from scenarios.ppo.trainer import Trainer
from scenarios.ppo.weight_sync import WeightSync
from scenarios.remote import Actor, Future, call, gather
from scenarios.settings import Scenario

# The floor needs extremes, not means, so this many samples of the last step are drawn again in each variant.
FLOOR_SAMPLES = 32
# Native samples in one call to the engine. Each call is recorded, so that a stage of a thousand samples on a busy
# machine does not look like a hang; and what one part drew is scored while the next one is drawn.
NATIVE_PART = 256


@dataclasses.dataclass(frozen=True)
class NativeDraw:
    """A native draw in progress: the weight version, and the calls that draw each part of the requests.

    `opened`, `ended`: the calls that open and close the recording of the draw.
    """

    version: int
    opened: Future
    parts: list[tuple[list[Request], Future]]
    ended: tuple[Future, ...]


class Stage:
    """One process for a whole experiment: the trainers of both runs live here, one after the other."""

    def __init__(self, home: str) -> None:
        self._home = Path(home)
        self._trainer: Trainer | None = None
        self._session: Actor | None = None
        self._scenario = Scenario()
        self._policy = ""
        self._bench: Any = None
        self._recorded: Recorded | None = None  # the run that guides the open one, or is replayed by it
        self._replay = False
        self._views: dict[str, list[dict[str, Any]]] = {}  # run -> the learner's scores of its native samples
        self._drawing: dict[tuple[str, int], NativeDraw] = {}  # by run and number of the draw

    def prepare(self, scenario: dict[str, Any]) -> dict[str, Any]:
        """Make or find the models, encode every prompt, and refuse a context that cannot hold them. Return where the
        models are.
        """
        settings = Scenario.from_json(scenario)
        policy = models.policy_path(settings.model.path, seed=settings.seed, home=self._home)
        reward = (
            models.reward_path(settings.model.reward, seed=settings.seed, home=self._home) if settings.train else Path()
        )
        tokenizer = models.load_tokenizer(policy)
        batch = prompts.load(settings, tokenizer)
        from transformers import AutoConfig

        limit = int(
            getattr(AutoConfig.from_pretrained(policy), "max_position_embeddings", settings.engine.max_model_len)
        )
        canonical_request.check_room(batch.longest, settings, limit)
        if settings.engine.max_model_len > limit:
            raise canonical_request.ParameterRefused(
                f"engine.max_model_len = {settings.engine.max_model_len} exceeds the {limit} positions that "
                f"{settings.model.path} was made for",
                fix=canonical_request.with_room(batch.longest, settings, limit),
            )
        return {
            "policy": str(policy),
            "reward": str(reward),
            "prompts": len(batch.ids),
            "longest_prompt": batch.longest,
        }

    def open(
        self,
        scenario: dict[str, Any],
        roles: dict[str, list[Actor]],
        session: Actor,
        run_dir: str,
        beginning: Beginning,
    ) -> int:
        """Begin one run: fresh learners (or those of a checkpoint), recordings, first weight sync. Return the first
        step.

        Raises CheckpointError, also for a checkpoint whose weights are not those of the replayed run.
        """
        self._scenario = Scenario.from_json(scenario)
        self._session, self._policy = session, beginning.policy or ""
        call(session, "record_to", run_dir)
        self._trainer = Trainer(scenario, roles, session, run_dir, beginning)
        self._replay = beginning.replay is not None
        self._recorded = None if beginning.replay is None else Recorded(beginning.replay)
        if beginning.resume is not None:
            self._trainer.resume(beginning.resume)
            if self._recorded is not None:
                sent = call(roles["actor"][0], "weight_meta")
                self._recorded.check_weights(self._trainer.version, {meta.name: meta.digest for meta in sent})
        self._trainer.start()
        return self._trainer.version

    def step(self, index: int, guide_run: str | None = None) -> dict[str, float]:
        """Run one step of the open run, guided by a recorded run where one is named, and return its metrics."""
        guide = None if guide_run is None else self._guide(guide_run, index)
        if self._replay:
            guide = self._rollout(index)
        metrics: dict[str, float] = self._open.step(index, guide=guide)
        return metrics

    def no_room(self, actor: Actor, *, engines: int, share: float, workers: int, device: str) -> str:
        """Return why a lifted stage does not fit into memory, in one sentence; empty where it does or where memory is
        unknown.

        `share`: of an accelerator, that each of an engine's `workers` may use.
        """
        room = memory_fit.Room(device, memory_fit.free(), memory_fit.accelerator() if device == "cuda" else None)
        return memory_fit.no_room(call(actor, "parameters"), room, engines=engines, share=share, workers=workers)

    def lift(
        self,
        scenario: dict[str, Any],
        roles: dict[str, list[Actor]],
        session: Actor,
        run_dir: str,
        beginning: Beginning,
        guide_run: str | None,
    ) -> str:
        """Run the lifted stage of one side, and return a directory with the last weights, rounded as they were held.

        It makes one step with the initial weights and one with each adopted version, and records the floor at the
        last. `scenario`: made by `scenarios.lifted.lifted`. `beginning`: its first step is set here, from the number
        of weight versions.
        """
        settings = Scenario.from_json(scenario)
        first = settings.steps - 1 - len(beginning.adopted)
        beginning = dataclasses.replace(beginning, first=first)
        self.open(scenario, {"actor": roles["actor"][:1]}, session, run_dir, beginning)
        self.step(first, guide_run)
        last = beginning.policy or ""
        for index, last in enumerate(beginning.adopted, first + 1):
            self._open.adopt(last)
            self.step(index, guide_run)
        self.floor()
        if not beginning.adopted:  # the given directory may be wider; the learner saves its weights as it holds them
            last = str(Path(run_dir) / "policy")
            call(roles["actor"][0], "save_policy", last)
        self.finish()
        return last

    def floor(self) -> None:
        """Let the engine draw the last step's samples again with the final weights, and record both sides' floors."""
        trainer = self._open
        assert self._session is not None
        last = self._scenario.steps - 1
        requests = [Request(number, ids) for number, ids in trainer.prompts.batch(last)[:FLOOR_SAMPLES]]
        guide = self._rollout(last) if self._replay else None
        drawn = call(self._session, "floor", requests, step=last, version=trainer.version, guide=guide)
        trainer.floor(
            [r.prompt_ids + ids for r, ids in zip(requests, drawn, strict=True)], [r.sample for r in requests]
        )

    def finish(self) -> str:
        """Save the last state and close the recordings. Return the directory of the final policy."""
        trainer = self._open
        path = trainer.finish()
        assert self._session is not None
        call(self._session, "end_recording")
        self._trainer = None
        if not self._scenario.train:
            return self._policy
        return str(path / "policy")

    def draw_native(
        self, scenario: dict[str, Any], session: Actor, run_dir: str, policy: str, version: int, draw: int
    ) -> None:
        """Let the engine draw with its own sampler and the weights in `policy`, and record it.

        Returns at once; `score_native` waits. `draw`: counted from 1; each has other sample numbers.
        """
        settings = Scenario.from_json(scenario)
        batch = prompts.load(settings, models.load_tokenizer(policy))
        wanted = settings.native.sizes[draw - 1]
        # Steps beyond the run's own and those of earlier draws, so that no pair of prompt and number is used twice.
        first_step = settings.steps + sum(settings.native.sizes[: draw - 1])
        steps = range(first_step, first_step + wanted)
        numbered = [pair for step in steps for pair in batch.batch(step)][:wanted]
        requests = [Request(number, ids) for number, ids in numbered]
        opened = session.submit("record_to", run_dir)
        parts = [requests[start : start + NATIVE_PART] for start in range(0, len(requests), NATIVE_PART)]
        drawn = [(part, session.submit("native", part)) for part in parts]
        ended = session.submit("end_native", version=version, step=-draw), session.submit("end_recording")
        self._drawing[run_dir, draw] = NativeDraw(version, opened, drawn, ended)

    def score_native(
        self, scenario: dict[str, Any], roles: dict[str, list[Actor]], run_dir: str, policy: str, draw: int
    ) -> None:
        """Score what `draw_native` drew with the learner at the same weights, and record the scores."""
        settings = Scenario.from_json(scenario)
        drawing = self._drawing.pop((run_dir, draw))
        requested = dataclasses.asdict(settings.sampling)
        actor = roles["actor"][0]
        drawing.opened.result()
        call(actor, "adopt", policy)
        samples, scored, rewarded = list[Sample](), NativeScored([], [], []), list[Future]()
        for part, drawn in drawing.parts:
            part_samples = [
                Sample(completion.sample, request.prompt_ids, completion.output_ids)
                for request, completion in zip(part, drawn.result(), strict=True)
            ]
            if roles.get("reward"):
                rewarded.append(roles["reward"][0].submit("rewards", -1, part_samples))
            scored.add(call(actor, "score_native", part_samples, requested))
            samples += part_samples
        gather(drawing.ended)
        arrays: dict[str, Flat | Ragged] = {
            "sample": Flat.of([s.number for s in samples], "i8"),
            "learner_logprob": Ragged.of(scored.logprob, "f4"),
        }
        if scored.exact:
            arrays["exact_logprob"] = Ragged.of(scored.exact, "f4")
        for name in scored.views[0]:
            arrays[name] = Ragged.of([view[name] for view in scored.views], "f4")
        if rewarded:
            arrays["reward"] = Flat.of([reward for part in rewarded for reward in part.result()], "f4")
        # Fitting sampling parameters takes long. It is done only where the samples so far look as if others were used.
        so_far = self._views.setdefault(run_dir, [])
        so_far += scored.views
        fits = call(actor, "fit_native", samples, requested) if suspect(so_far) else []
        with install.start(run_dir, role="trainer", rank=1) as recorder:
            fields = {"weight_version": drawing.version, "sampling": requested, "fits": fits}
            recorder.frame("native_score", step=-draw, fields=fields, arrays=arrays)

    def apart(self, scenario: dict[str, Any], roles: dict[str, list[Actor]], session: Actor, policy: str) -> float:
        """Return how far an engine that loaded `policy` itself is from the learner with these weights, in nats.

        That is the largest difference of log-probabilities beyond what rounding explains.
        """
        settings, actor = Scenario.from_json(scenario), roles["actor"][0]
        call(actor, "adopt", policy)
        batch = prompts.load(settings, models.load_tokenizer(policy))
        return WeightSync(actor, session, batch, settings.seed).prove(SyncReport(True, "", 0.0)).excess

    def parted(self) -> list[str]:
        """Return what the last update of a replay left different from the replayed run: batch, actor, critic."""
        trainer = self._open
        if self._recorded is None or not trainer.digests:
            return []
        return self._recorded.parted(trainer.version - 1, trainer.digests)

    def open_bench(self, scenario: dict[str, Any], stands: dict[str, Any], **options: Any) -> None:
        """Open a bench with the engines of `stands`: {side: fields of `scenarios.bench.undo.Stand`}."""
        self._bench = Bench(scenario, {side: Stand(**fields) for side, fields in stands.items()}, **options)

    def bench(self, method: str, *args: Any, **kwargs: Any) -> Any:
        """Call one method of the open bench."""
        return getattr(self._bench, method)(*args, **kwargs)

    def _guide(self, run_dir: str, step: int) -> Guide:
        if self._recorded is None or self._recorded.path != run_dir or step == 0:
            self._recorded = Recorded(run_dir)
        return self._recorded.guide(step)

    def _rollout(self, step: int) -> Guide:
        """Return the responses with which the replayed run trained in `step`."""
        assert self._recorded is not None
        requests = [Request(number, ids) for number, ids in self._open.prompts.batch(step)]
        return self._recorded.rollout(step, requests, self._scenario.sampling.max_tokens)

    @property
    def _open(self) -> Trainer:
        if self._trainer is None:
            raise RuntimeError("no run is open")
        return self._trainer
