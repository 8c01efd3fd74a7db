"""The trainer: runs one PPO step after another over roles and an engine session, and records what happened.

rollout -> experience (reward, reference, actor, critic at once; KL, GAE, whitening) -> training -> weight sync with
its proof

It holds handles only. Roles and the session are `scenarios.remote.Actor`s, in this process or anywhere on a Ray
cluster. Weights of version v are those after v steps: step i draws with version i, and its sync sends version i + 1.
"""

from __future__ import annotations

import dataclasses
import itertools
import random
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np

from probes import install, weights
from probes.format import Flat, Ragged
from scenarios import models, prompts
from scenarios.engines import canonical_request
from scenarios.engines.engine_interface import EngineError, Part, Request
from scenarios.engines.guided import Guide
from scenarios.ppo import batches, checkpoint, experience
from scenarios.ppo.actor import Scored
from scenarios.ppo.batches import Sample
from scenarios.ppo.beginning import Beginning
from scenarios.ppo.experience import Experience
from scenarios.ppo.hooks import SYNC, Hooks
from scenarios.ppo.role import MiniBatch, Rows, Trained
from scenarios.ppo.weight_sync import Synced, WeightSync
from scenarios.remote import Actor, Future, call, gather
from scenarios.settings import Scenario

TRAINED = ("actor", "critic")
CLOSE_LIMIT_S = 5.0  # for a role that may hang after a failure


class Trainer:
    """PPO over `roles` (by name, one handle per rank; rollout-only needs just the actor) and one engine session.

    A checkpoint is loaded by `resume`. Raises PromptError, ModelError and ParameterRefused.
    """

    def __init__(
        self,
        scenario: dict[str, Any],
        roles: Mapping[str, Sequence[Actor]],
        session: Actor,
        run_dir: Path | str,
        beginning: Beginning,
    ) -> None:
        self.scenario = Scenario.from_json(scenario)
        self.run_dir = Path(run_dir)
        self.version = beginning.first
        self.digests: dict[str, str] = {}  # digests of the last update: batch, actor, critic
        self._json = scenario
        self._roles = {name: list(actors) for name, actors in roles.items() if actors}
        self._session = session
        self._hooks: Hooks = Hooks() if beginning.plants is None else beginning.plants()
        self._sync_backend = beginning.sync_backend
        # The method of the session (`scenarios/session.py`) that gives the samples of a step.
        self._draw = "rollout" if beginning.replay is None else "replay"
        self._recorder = install.OFF
        self._resumed = False
        self._asleep = False
        self._saved = -1  # the version that the last checkpoint holds
        policy = beginning.policy or call(self._roles["actor"][0], "policy_path")
        self._tokenizer: Any = models.load_tokenizer(policy)
        self._specials = set(self._tokenizer.all_special_ids)
        self.prompts = prompts.load(self.scenario, self._tokenizer)
        canonical_request.check_room(self.prompts.longest, self.scenario)
        self._sync = WeightSync(self._roles["actor"][0], session, self.prompts, self.scenario.seed)

    # --- life -------------------------------------------------------------------------------------------------------

    def start(self) -> None:
        """Reset the roles, open the recordings, form the sync group, and send the weights. Raises SyncFailed.

        So engines never depend on weights that they loaded themselves. The owner of the session opens the session's
        recording.
        """
        self._recorder = install.start(self.run_dir, role="trainer")
        if not self._resumed:
            gather([actor.submit("reset") for actor in self._actors()])
        self._plant()
        gather([actor.submit("record_to", str(self.run_dir)) for actor in self._actors()])
        self._recorder.event("tokenizer", **prompts.described(self._tokenizer))
        workers: int = call(self._session, "workers")
        self._sync.connect(world_size=1 + workers, backend=self._sync_backend)
        self._send(step=self.version - 1)

    def resume(self, path: Path | str) -> None:
        """Continue from a checkpoint, before or after `start`. Raises CheckpointError, SyncFailed."""
        saved = checkpoint.load(Path(path), self._json)
        loading = []
        for name in TRAINED:
            arguments = (str(saved.policy), saved.state[name]) if name == "actor" else (saved.state[name],)
            loading += [actor.submit("load_learner", *arguments) for actor in self._roles[name]]
        gather(loading)
        self.version, self._resumed = saved.version, True
        if self._recorder is not install.OFF:
            self._send(step=self.version - 1)

    def adopt(self, policy: str) -> None:
        """Continue with the weights in the directory `policy`, as after an update. Raises SyncFailed."""
        gather([actor.submit("adopt", policy) for actor in self._roles["actor"]])
        self.version += 1
        self._send(step=self.version - 1)

    def save(self, path: Path | str) -> Path:
        """Write a checkpoint of the weights, the optimizers and the step."""
        with self._recorder.span("checkpoint", step=self.version - 1):
            lead = {name: self._roles[name][0] for name in TRAINED if name in self._roles}
            state = {name: call(actor, "learner_state") for name, actor in lead.items()}
            saved = checkpoint.save(
                Path(path), write_policy=lambda target: call(lead["actor"], "save_policy", target), state=state,
                step=self.version, version=self.version, scenario=self._json,
            )  # fmt: skip
        self._saved = self.version
        return saved

    def finish(self) -> Path:
        """Save the last state under `checkpoints/`, close all recordings but the session's, and return the
        checkpoint's path.

        A rollout-only run has nothing to save.
        """
        path = self._checkpoint_path()
        if self.scenario.train and self._saved != self.version:
            self.save(path)
        self.close()
        return path

    def close(self, ok: bool = True, reason: str = "") -> None:
        """Close every recording. After a failure (`ok=False`, with a `reason`) only those of processes that still
        answer.
        """
        self._recorder.close(ok=ok, reason=reason)
        self._recorder = install.OFF
        for future in [actor.submit("end_recording") for actor in self._actors()]:
            try:
                future.result(timeout=None if ok else CLOSE_LIMIT_S)
            except Exception:  # a dead or hung actor's recording ends where it stopped, without a `close` event
                if ok:
                    raise

    # --- one step ---------------------------------------------------------------------------------------------------

    def step(self, index: int, guide: Guide | None = None) -> dict[str, float]:
        """Run one PPO step and return its metrics. Raises EngineError, SyncFailed and DivergedError.

        `guide`: {sample: (response ids, finish reason)} to continue with.
        """
        seconds: dict[str, float] = {}
        began = time.perf_counter()
        with _timed(seconds, "rollout"):
            samples, finish, cached = self._rollout(index, guide)
            self._sleep(index)
        with _timed(seconds, "experience"), self._recorder.span("experience", step=index):
            made = self._experience(index, samples, finish)
        metrics = experience.metrics(made) | {"cached_tokens": float(cached)}
        if self.scenario.train:
            with _timed(seconds, "train"), self._recorder.span("train", step=index):
                metrics |= self._train(index, made)
            # The version counts updates: what is drawn in the next step is drawn with it.
            self.version = index + 1
            with _timed(seconds, "sync"):
                synced = self._send(step=index)
            if synced is not None and synced.shift is not None and synced.shift_max is not None:
                metrics |= {"update_logprob_shift": synced.shift, "update_logprob_shift_max": synced.shift_max}
            if synced is not None:
                metrics["proof_max_delta"] = synced.max_delta
            interval = self.scenario.ppo.checkpoint_every
            if interval and self.version % interval == 0:
                self.save(self._checkpoint_path())
        elif self._asleep:
            self._wake(index, tuple(Part))
        metrics |= {f"seconds_{phase}": value for phase, value in seconds.items()}
        metrics["seconds"] = time.perf_counter() - began
        metrics = {name: value for name, value in metrics.items() if np.isfinite(value)}  # absent roles give NaN
        self._recorder.event("step", step=index, metrics=metrics)
        self._recorder.event("probe_cost", step=index, self_ns=self._recorder.self_ns)
        return metrics

    def _rollout(self, step: int, guide: Guide | None) -> tuple[list[Sample], list[str], int]:
        requests = [Request(sample, ids) for sample, ids in self.prompts.batch(step)]
        self._record_prompts(step, requests)
        with self._recorder.span("rollout", step=step):
            answers = call(self._session, self._draw, requests, step=step, version=self.version, guide=guide)
        result = self._hooks.joined(answers)
        used, completions = result.used, result.completions
        _check_answers(step, requests, used)
        # In a guided run the trainer takes the guide's tokens, and keeps beside them what the engine itself chose.
        drawn = {} if guide is None else {completion.sample: tuple(completion.output_ids) for completion in completions}
        samples = [
            Sample(r.sample, r.prompt_ids, tuple(ids), drawn.get(r.sample, ()))
            for r, (_, ids, _) in zip(requests, used, strict=True)
        ]
        self._shapes("rollout", step, samples, {
            "prompt": np.concatenate([np.array(s.prompt, np.int32) for s in samples]),
            "response": np.concatenate([np.array(s.response, np.int32) for s in samples]),
        })  # fmt: skip
        for completion in completions:
            self._recorder.boundaries(
                step=step, sample=completion.sample, prompt=completion.prompt_seen, output=completion.output_ids,
                finish=completion.finish_reason, specials=self._specials, decode=self._tokenizer.decode,
            )  # fmt: skip
        return samples, [reason for _, _, reason in used], sum(c.cached_tokens for c in completions)

    def _record_prompts(self, step: int, requests: list[Request]) -> None:
        tokens = [token for request in requests for token in request.prompt_ids]
        lengths = [len(request.prompt_ids) for request in requests]
        parts = {"tokens": np.array(tokens, np.int32), "lengths": np.array(lengths, np.int32)}
        digest = weights.combine(weights.digests(parts))
        self._recorder.event("data", step=step, prompts=digest, samples=[request.sample for request in requests])

    def _experience(self, step: int, samples: list[Sample], finish: list[str]) -> Experience:
        # Submit everything before waiting for anything, so that the roles compute concurrently.
        reward = self._submit("reward", "rewards", step, samples)
        reference = self._submit("reference", "logprobs", step, samples)
        value = self._submit("critic", "values", step, samples)
        scores: list[Scored] = gather(self._submit("actor", "score", step, samples))
        scored = Scored.joined(scores)
        scored = dataclasses.replace(scored, logprob=self._hooks.logprobs(scored.logprob, samples, step))
        # A rollout-only run may lack all roles but the actor.
        absent: Rows = [np.full(len(s.response), np.nan, np.float32) for s in samples]
        gathered = self._hooks.gathered
        rewards = gathered("reward", gather(reward)) or [float("nan")] * len(samples)
        references: Rows = gathered("reference", gather(reference)) or absent
        values: Rows = gathered("critic", gather(value)) or absent
        with self._recorder.span("advantages", step=step):
            role_scores = experience.Scores(scored, references, values, np.array(rewards, dtype=np.float32))
            made = experience.make(
                samples,
                finish,
                role_scores,
                self.scenario.ppo,
                whiten=lambda rows: self._hooks.whiten(rows, len(self._roles["actor"])),
                rewarded=lambda rewards: self._hooks.rewarded(rewards, finish, step),
            )
        self._shapes("experience", step, samples, {
            "actor_logprob": np.concatenate(made.scored.logprob), "reference_logprob": np.concatenate(made.reference),
            "value": np.concatenate(made.value), "advantage": np.concatenate(made.advantage),
            "return": np.concatenate(made.returns), "reward": made.reward,
        })  # fmt: skip
        self._recorder.frame("experience", step=step, fields={"weight_version": self.version}, arrays=made.arrays())
        return made

    def _train(self, step: int, made: Experience) -> dict[str, float]:
        ppo = self.scenario.ppo
        plan = list(mini_batches(len(made.samples), ppo.epochs, ppo.train_batch_size, self.scenario.seed, step))
        futures: dict[str, list[Future]] = {}
        micro_batches: list[list[int]] = []  # samples of each, in the first update
        for name, old, target in (("actor", made.scored.logprob, made.advantage), ("critic", made.value, made.returns)):
            actors = self._roles[name]
            shares = self._shares(step, plan, made, old, target, ranks=len(actors))
            futures[name] = [actor.submit("train", step, share) for actor, share in zip(actors, shares, strict=True)]
            first_shares = [[sample.number for sample in share[0].samples] for share in shares]
            micro_batches = [
                share[part] for share in first_shares for part in batches.micro(share, ppo.micro_batch_size)
            ]
        # Both roles train at the same time, each on its own processes.
        trained: dict[str, list[Trained]] = {name: gather(waiting) for name, waiting in futures.items()}
        self.digests = {name: ranks[0].digest for name, ranks in trained.items()} | {"batch": made.digest()}
        grad_norms = {name: ranks[0].grad_norms for name, ranks in trained.items()}
        first = {
            "parts": micro_batches,
            "losses": {name: sum(rank.losses[0] for rank in ranks) for name, ranks in trained.items()},
        }
        self._recorder.event("learner", step=step, **self.digests, norms=grad_norms, first=first)
        # Ranks and mini-batches report sums, so that one division gives means over tokens whatever the cut.
        trained_tokens = float(sum(made.lengths[mini].sum() for mini in plan))
        sums: dict[str, float] = {}
        for rank in itertools.chain.from_iterable(trained.values()):
            for metric, total in rank.sums.items():
                sums[metric] = sums.get(metric, 0.0) + total
        return {name: value / trained_tokens for name, value in sums.items()} | {
            "grad_norm": float(np.mean(grad_norms["actor"])),
            "critic_grad_norm": float(np.mean(grad_norms["critic"])),
        }

    def _shares(
        self, step: int, plan: list[list[int]], made: Experience, old: Rows, target: Rows, *, ranks: int
    ) -> list[list[MiniBatch]]:
        """Deal each mini-batch of the plan to the ranks: for each rank, its part of every mini-batch."""
        shares: list[list[MiniBatch]] = [[] for _ in range(ranks)]
        for mini in plan:
            tokens = int(made.lengths[mini].sum())
            for number, part in enumerate(self._hooks.dealt(mini, ranks, step)):
                divisor = self._hooks.count(tokens, int(made.lengths[part].sum()), ranks)
                shares[number].append(made.share(part, old, target, divisor))
        return shares

    def floor(self, sequences: list[tuple[int, ...]], samples: list[int]) -> None:
        """Record the learner's own rounding of each log-probability of `sequences` (prompt and response).

        With tensor-parallel engines, also record the effect of layers that are cut as the engines cut them.
        """
        actor, parts = self._roles["actor"][0], self.scenario.engine.tensor_parallel
        moved = {"rounding": call(actor, "rounding", sequences)}
        if parts > 1:
            moved["sharding"] = call(actor, "sharding", sequences, parts)
        for variant, rows in moved.items():
            if rows:
                self._recorder.frame(
                    "floor", step=self.scenario.steps - 1, fields={"variant": variant, "weight_version": self.version},
                    arrays={"sample": Flat.of(samples, "i8"), variant: Ragged.of(rows, "f4")},
                )  # fmt: skip

    # --- parts ------------------------------------------------------------------------------------------------------

    def _send(self, step: int) -> Synced | None:
        """Send the weights to the engines, which wake up for it where they sleep. None where the hooks skip the sync.

        A sync needs the engines' weights, its proof their cache.
        """
        hooks, version = self._hooks, self.version
        order = hooks.waking(version) if self._asleep else (SYNC,)
        if SYNC not in order:
            self._wake(step, order)
            return None
        at = order.index(SYNC)
        self._wake(step, order[:at])
        return self._sync(
            self._recorder, step=step, version=version, omit=hooks.omitted(version), change=hooks.change(version),
            loaded=lambda: self._wake(step, order[at + 1 :]),
        )  # fmt: skip

    def _sleep(self, step: int) -> None:
        level = self.scenario.engine.sleep_level
        if level and self._hooks.sleeps(step):
            call(self._session, "sleep", level, step=step)
            self._asleep = True

    def _wake(self, step: int, parts: Sequence[str]) -> None:
        for part in parts:
            call(self._session, "wake", part, step=step)
        self._asleep = False

    def _plant(self) -> None:
        for name, actors in self._roles.items():
            for rank, actor in enumerate(actors):
                change = self._hooks.inside(name, rank)
                if change is not None:
                    call(actor, "plant", change)

    def _actors(self) -> list[Actor]:
        return [actor for actors in self._roles.values() for actor in actors]

    def _submit(self, role: str, method: str, step: int, samples: list[Sample]) -> list[Any]:
        actors = self._roles.get(role, [])
        shares = self._hooks.split(samples, len(actors))
        return [a.submit(method, step, part) for a, part in zip(actors, shares, strict=True)]

    def _shapes(self, phase: str, step: int, samples: list[Sample], arrays: dict[str, Any]) -> None:
        longest = max(map(len, samples))
        self._recorder.shapes(phase, arrays, step=step, padded_tokens=len(samples) * longest, longest=longest,
                              real_tokens=sum(map(len, samples)), samples=len(samples))  # fmt: skip

    def _checkpoint_path(self) -> Path:
        return self.run_dir / "checkpoints" / f"step-{self.version}"


def _check_answers(step: int, requests: list[Request], used: list[tuple[int, tuple[int, ...], str]]) -> None:
    """Raise EngineError for answers that cannot be trained on. `used`: (sample, response ids, finish reason)."""
    if [number for number, _, _ in used] != [request.sample for request in requests]:
        raise EngineError("the engine answered other samples than those it was asked for, or in another order")
    for number, ids, reason in used:
        if not ids or reason not in ("stop", "length"):
            raise EngineError(f"sample {number} of step {step} came back as {reason!r}; it cannot be trained on")


def mini_batches(samples: int, epochs: int, size: int, seed: int, step: int) -> Iterator[list[int]]:
    """Yield the indices of each mini-batch. Every epoch is shuffled again, as a function of seed, step and epoch
    alone.
    """
    for epoch in range(epochs):
        order = list(range(samples))
        random.Random(f"mini-batches-{seed}-{step}-{epoch}").shuffle(order)
        yield from (order[part] for part in batches.micro(order, size))


@contextmanager
def _timed(seconds: dict[str, float], phase: str) -> Iterator[None]:
    began = time.perf_counter()
    yield
    seconds[phase] = time.perf_counter() - began
