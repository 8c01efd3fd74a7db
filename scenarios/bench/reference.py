"""The reference: the learner's model at a policy's recorded weights. It draws as requested, or with one thing changed.

Its own draw is the guide of every reading. Given the guide, one teacher-forced forward pass yields the logits of
every position. So a change of the sampling costs a draw from existing logits and no forward pass. The embedded engine
only draws the guide, over modules of its own: an engine's mistake must not be the reference's too.
"""

from __future__ import annotations

import copy
import dataclasses
import math
from collections.abc import Callable, Container, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from scenarios import models
from scenarios.bench.case import Alteration, CaseSample, Drawn, PassedOver
from scenarios.bench.fit import Choices
from scenarios.engines import guided
from scenarios.engines.coupling import EDGE, Draw, gumbel, perturbed_with
from scenarios.engines.engine_interface import Completion, Request
from scenarios.engines.hf.engine import HFEngine
from scenarios.engines.hidden_states import HiddenStates
from scenarios.engines.layers import hidden_states_of
from scenarios.engines.penalties import PENALTIES, Occurred, penalised
from scenarios.engines.sampling import OUTSIDE_HALF, barred, filtered, ids_of
from scenarios.golden_section import peak
from scenarios.lifted import EXACT_LIMIT
from scenarios.models import saved
from scenarios.settings import Mode, Sampling, Scenario

ROUNDS = 4  # of every guided reading; flips after the fourth of a sample are not looked at
FITTED_LOGITS = 10_000_000  # most numbers to which sampling parameters are fitted
KEPT_LOGITS = 50_000_000  # most numbers that are kept; beyond, forward passes are repeated
NOTHING = Alteration()
COLDEST, HOTTEST = 0.2, 5.0  # the range of temperatures in which a reported one is searched
MOST, PRECISE, ROUNDED = 5.0, 1e-6, 1e-6  # largest penalty; precision; nats that rounding may cost
NEAREST = 0.25  # the share of positions whose two best tokens count as close
PRECISE_TEMPERATURE = 1e-8  # the relative precision of a fitted temperature


class _Drawer(HFEngine):
    """The embedded engine over a loaded model: the modules are its own, the tensors are the model's."""

    def __init__(self, model: Any, policy: str, scenario: Scenario, *, mode: Mode, device: str) -> None:
        self._given = model
        super().__init__(policy, scenario, mode=mode, device=device)

    def _loaded(self, path: str, dtype: str) -> Any:
        shared = {id(tensor): tensor for tensor in (*self._given.parameters(), *self._given.buffers())}
        return copy.deepcopy(self._given, shared)


class Reference:
    """One reference. `scenario`: what was requested. Coupled and greedy modes only: native draws have no common
    randomness.
    """

    def __init__(self, policy: str, scenario: Scenario, *, device: str) -> None:
        self.scenario = scenario
        self._policy, self._device = policy, device
        self.model: Any = models.load_policy(policy, dtype=scenario.model.dtype, device=device)
        self._tokenizer: Any = models.load_tokenizer(policy)
        self._eos = ids_of(self.model.generation_config.eos_token_id)
        self._exact: Any = None  # the same weights in float32, made when first needed
        self._rows: dict[tuple[int, ...], Tensor] = {}
        self._samples: dict[int, CaseSample] = {}
        self.guide: guided.Guide = {}

    @property
    def _edges(self) -> tuple[float, float]:
        """Return by how much an engine's filters may be narrower and wider, in nats of logits/T.

        It is the shift of two logits, each off by the largest rounding that half precision is believed to cause.
        """
        if self.model.dtype == torch.float32:
            return 0.0, 0.0
        reach = 2 * OUTSIDE_HALF / (self.scenario.sampling.temperature or 1.0)
        return -reach, reach

    def take(self, samples: list[CaseSample]) -> None:
        """Draw the case as requested: this is the guide of every reading that follows."""
        self._samples = {sample.number: sample for sample in samples}
        self._rows = {}
        # Always one batch: the reference is not an engine whose batch sizes could matter.
        engine = _Drawer(self.model, self._policy, self.scenario, mode=self.scenario.rollout.mode, device=self._device)
        drawn = engine.generate(self.requests(), self.scenario.sampling, seed=self.scenario.seed)
        self.guide = {completion.sample: (completion.output_ids, completion.finish_reason) for completion in drawn}

    def holding(self, tensors: dict[str, Tensor]) -> Reference:
        """Return another reference with the same guide that computes with these tensors in place of its own."""
        reference = Reference(self._policy, self.scenario, device=self._device)
        reference._samples, reference.guide = self._samples, self.guide
        with torch.no_grad():
            saved.restore(reference.model, {name: tensor.to(reference.model.dtype) for name, tensor in tensors.items()})
        return reference

    @torch.no_grad()
    def layers(self, sequence: tuple[int, ...]) -> HiddenStates:
        """Return the hidden states of a forward pass."""
        states = self.model(input_ids=torch.tensor([sequence], device=self.model.device), output_hidden_states=True)
        return hidden_states_of([layer_states[0] for layer_states in states.hidden_states])

    @torch.no_grad()
    def scores_of_states(self, sequence: tuple[int, ...], last: list[list[float]]) -> list[float] | None:
        """Return raw log-probabilities of the tokens that follow these states in a sequence, computed by the
        reference's own head.

        `last` [tokens][width]: what enters the head, of the last tokens. The last one predicts nothing. None where the
        final norm, whose output they replace, is not where Llama and Qwen have it.
        """
        norm = getattr(getattr(self.model, "model", None), "norm", None)
        if norm is None:
            return None
        states = torch.tensor(last, dtype=self.model.dtype, device=self._device)

        def replaced(module: Any, inputs: Any, output: Tensor) -> Tensor:
            return torch.cat([output[:, : -len(states)], states[None]], 1)

        handle = norm.register_forward_hook(replaced)
        try:
            ids = torch.tensor([sequence], device=self.model.device)
            logprobs = self.model(input_ids=ids).logits[0, :-1].float().log_softmax(-1)
        finally:
            handle.remove()
        row: list[float] = logprobs.gather(-1, ids[0, 1:, None])[:, 0].tolist()
        return row[len(sequence) - len(states) :]

    def requests(self) -> list[Request]:
        return [Request(sample.number, sample.prompt, max_tokens=0) for sample in self._samples.values()]

    def sequences(self) -> list[tuple[int, ...]]:
        """Return prompt and guide of each sample."""
        return [sample.prompt + self.guide[sample.number][0] for sample in self._samples.values()]

    @torch.no_grad()
    def scores(self) -> list[list[float]]:
        """Return teacher-forced raw log-probabilities of the guide's tokens, a row per sample."""
        rows = []
        for sample in self._samples.values():
            ids = torch.tensor(self.guide[sample.number][0])
            logprobs = self._logits(sample.prompt, sample.number).log_softmax(-1)
            rows.append(logprobs.gather(-1, ids[:, None])[:, 0].tolist())
        return rows

    @torch.no_grad()
    def rounding(self, alteration: Alteration) -> list[float]:
        """Return |Δ| in nats between the guide's log-probabilities and those of the same weights in float32.

        The prompts are those of the alteration. [] above `EXACT_LIMIT` parameters.
        """
        if self._exact is None:
            if sum(parameter.numel() for parameter in self.model.parameters()) > EXACT_LIMIT:
                return []
            self._exact = copy.deepcopy(self.model).float()
        rounding_errors: list[float] = []
        for sample in self._samples.values():
            prompt, guide = self._prompt(sample, alteration), self.guide[sample.number][0]
            ids = torch.tensor([[*prompt, *guide[:-1]]], device=self._exact.device)
            exact = self._exact(input_ids=ids).logits[0, len(prompt) - 1 :].cpu()
            rows = torch.tensor(guide)[:, None]
            apart = self._logits(prompt, sample.number).log_softmax(-1) - exact.log_softmax(-1)
            rounding_errors += apart.gather(-1, rows)[:, 0].abs().tolist()
        return rounding_errors

    def draw(self, alteration: Alteration = NOTHING, read: Iterable[Drawn] = ()) -> list[Drawn]:
        """Return what the reference chooses along the guide, under the same protocol by which engines are read.

        `read`: the reading that it will be compared with. Where the engine continued with the prompt that it was
        sent, the reference does too.
        """
        limit = self._sampling(alteration).max_tokens
        again = {response.number: self._went_on(response) for response in read}
        requests = [replace(request, max_tokens=limit) for request in self.requests()]
        result = guided.rollout(
            requests,
            self.guide,
            lambda pending: [self._answer(request, alteration, again) for request in pending],
            ROUNDS,
        )
        return [
            Drawn(
                completion.sample,
                completion.prompt_seen,
                completion.output_ids,
                completion.logprobs,
                completion.finish_reason,
            )
            for completion in result.completions
        ]

    def gap(self, number: int, position: int, token: int, alteration: Alteration = NOTHING) -> float:
        """Return by how much the reference prefers its own choice to `token`, in nats of logits/T.

        0 for its own choice, inf for a token that the filters bar. In half precision, tokens near the edge of a
        filter may be on either side of it.
        """
        sample = self._samples[number]
        gaps = [float("inf")]
        for prompt in {self._prompt(sample, alteration), sample.prompt}:  # a continuation may have had either one
            logits = self._penalised(prompt, number, alteration)[position : position + 1]
            kept, wide = (scores[0] for scores in self._perturbed(logits, number, position, alteration, self._edges))
            if (number, position) in alteration.passed_over:
                kept[kept.argmax()] = float("-inf")
            if 0 <= token < len(wide):
                gaps.append(max(0.0, float(kept.max() - wide[token])))
        return min(gaps)

    def support(self, number: int, position: int, token: int, alteration: Alteration) -> list[float]:
        """Return the least and the largest log-probability of `token` over what the filters keep, for both positions
        of their edges.
        """
        logits = self._logits(self._prompt(self._samples[number], alteration), number)[position : position + 1]
        draw = self._draw(number, alteration)
        return sorted(float(filtered(logits, draw, by).log_softmax(-1)[0, token]) for by in self._edges)

    def choices(self, drawn: list[Drawn], alteration: Alteration, margin: float) -> Choices | None:
        """Return what an engine chose along the guide, with the logits and the noise that should have decided.

        None where it chose nothing, or where the mode has no noise.
        """
        if self.scenario.rollout.mode == "greedy":
            return None
        logits, noise, chosen, occurred = [], [], [], []
        numbers = 0
        for response in drawn:
            prompt, draw = (
                self._prompt(self._samples[response.number], alteration),
                self._draw(response.number, alteration),
            )
            rows = self._penalised_from(self._went_on(response), response.number, alteration)[: len(response.output)]
            # Whole samples are left out beyond that many logits, which the search holds in memory.
            numbers += rows.numel()
            if not response.output or numbers > FITTED_LOGITS:
                continue
            positions = torch.arange(len(rows), dtype=torch.int64)
            logits.append(barred(rows, positions, draw.min_tokens, draw.end_ids))
            noise.append(gumbel(draw.seed, torch.full_like(positions, draw.sample), positions, rows.shape[-1]))
            chosen.append(torch.tensor(response.output[: len(rows)]))
            occurred.append(Occurred.of(prompt, self.guide[response.number][0], len(rows), rows.shape[-1]))
        if not chosen:
            return None
        first_draw = self._draw(drawn[0].number, alteration)
        return Choices(
            torch.cat(logits), torch.cat(noise), torch.cat(chosen), first_draw, margin, Occurred.joined(occurred),
            edge=EDGE / first_draw.temperature if self._edges[1] else 0.0, farthest=self._edges[1],
        )  # fmt: skip

    def passed_over(self, drawn: list[Drawn], alteration: Alteration, margin: float) -> PassedOver:
        """Return where an engine did not choose the best token: how often it took the second best, and whether close
        ties explain it.
        """
        choices = self.choices(drawn, alteration, margin)
        if choices is None:
            return PassedOver()
        places = [(each.number, position) for each in drawn for position in range(len(each.output))][
            : len(choices.chosen)
        ]
        scores = filtered(choices.logits, choices.requested)
        best, ids = (scores + choices.noise).topk(2, dim=-1)
        first, second = best.T
        chosen_scores = (scores + choices.noise).gather(-1, choices.chosen[:, None])[:, 0]
        # Passed over: the engine's choice is beaten by the best token by more than the margin, and ties with the
        # second best.
        wrong = first - chosen_scores > margin
        passed = wrong & (second - chosen_scores <= margin) & second.isfinite()
        log_p = scores.log_softmax(-1).gather(-1, ids)
        # If close ties or unlikely best tokens were the reason, these places would be among the closest or the least
        # likely quarter of all positions.
        likely = passed & (log_p[:, 0] > log_p[:, 0].quantile(NEAREST))
        log_p = log_p[passed]
        chance = (log_p[:, 1] - torch.log1p(-log_p[:, 0].exp().clamp(max=1 - 1e-12))).clamp(max=0.0)
        ahead = first - second
        wide = passed & (ahead > ahead[second.isfinite()].quantile(NEAREST))
        return PassedOver(
            tuple(places[at] for at in passed.nonzero()[:, 0].tolist()), int((wrong & ~passed).sum()), len(places),
            int(wide.sum()), int(likely.sum()), float(chance.sum()),
        )  # fmt: skip

    @torch.no_grad()
    def temperature_of(self, drawn: list[Drawn], alteration: Alteration) -> float:
        """Return the temperature of the reference's logits that explains the reported log-probabilities best.

        Best is the least median |Δ|, found by golden section over the logarithm of T. 1.0 where there is nothing to
        fit.
        """
        logits, logprobs, chosen = [], [], []
        for response in drawn:
            ids = torch.tensor(response.output, dtype=torch.int64)
            guide = torch.tensor(self.guide[response.number][0][: len(ids)], dtype=torch.int64)
            matching = (ids[: len(guide)] == guide).nonzero()[:, 0]
            rows = self._logits_from(self._went_on(response), response.number, alteration)
            logits.append(rows[matching].double())
            logprobs.append(torch.tensor(response.logprobs, dtype=torch.float64)[matching])
            chosen.append(ids[matching])
        if not sum(map(len, logprobs)):
            return 1.0
        table, reported_logprobs, tokens = torch.cat(logits), torch.cat(logprobs), torch.cat(chosen)[:, None]

        def near(temperature: float) -> float:
            rows = torch.log_softmax(table / temperature, -1).gather(-1, tokens)[:, 0]
            return -float((rows - reported_logprobs).abs().nanmedian())

        return peak(near, COLDEST, HOTTEST, PRECISE_TEMPERATURE)

    @torch.no_grad()
    def penalty_of(self, name: str, drawn: list[Drawn], alteration: Alteration) -> tuple[float, float]:
        """Return the value of one penalty that fits the reported log-probabilities best, and the mean |Δ| that
        remains, in nats.
        """
        rows, logprobs, chosen, occurred = [], [], [], []
        for response in drawn:
            prompt = self._prompt(self._samples[response.number], alteration)
            logits = self._logits_from(self._went_on(response), response.number, alteration)[: len(response.output)]
            guide = torch.tensor(self.guide[response.number][0][: len(logits)])
            ids = torch.tensor(response.output[: len(logits)], dtype=torch.int64)
            matching = ids == guide
            occurrences = Occurred.of(prompt, self.guide[response.number][0], *logits.shape)
            rows.append(logits[matching])
            logprobs.append(torch.tensor(response.logprobs[: len(logits)], dtype=torch.float64)[matching])
            chosen.append(ids[matching])
            occurred.append(Occurred(occurrences.prompt[matching], occurrences.output[matching]))
        table, reported_logprobs, tokens = torch.cat(rows).double(), torch.cat(logprobs), torch.cat(chosen)[:, None]
        joined = Occurred.joined(occurred)
        finite = reported_logprobs.isfinite()
        if not finite.any():
            return PENALTIES[name], math.inf

        def near(value: float) -> float:
            scores = (
                penalised(table, joined, *{**PENALTIES, name: value}.values()).log_softmax(-1).gather(-1, tokens)[:, 0]
            )
            return -float((scores - reported_logprobs)[finite].abs().mean())

        if name == "repetition_penalty":
            best = peak(near, COLDEST, HOTTEST, PRECISE)
        else:  # this penalty is subtracted, so the search runs over its exponential
            best = math.log(peak(lambda factor: near(math.log(factor)), math.exp(-MOST), math.exp(MOST), PRECISE))
        # People set round values: prefer the fewest digits that fit as well as the best value.
        simple = next(
            (value for digits in (1, 2, 3) if (near(value := round(best, digits))) >= near(best) - ROUNDED), best
        )
        return simple, -near(simple)

    def _went_on(self, response: Drawn) -> int:
        """Return the first position of a continuation: the one after the first choice that is not the guide's."""
        pairs = enumerate(zip(response.output, self.guide[response.number][0], strict=False), start=1)
        return next((after for after, (choice, guide) in pairs if choice != guide), len(response.output))

    # --- one answer -------------------------------------------------------------------------------------------------

    @torch.no_grad()
    def _answer(self, request: Request, alteration: Alteration, again: Mapping[int, int]) -> Completion:
        """Return the reference's answer to one request, up to its first token that is not the guide's, that token
        included.

        `again`: sample -> position from which it continued with the prompt as sent. For samples that are not in it,
        every request but the first uses that prompt.
        """
        # An alteration of the prompt holds for the first request of a sample. A continuation sends the prompt anew, and
        # repeats the mistake only where the alteration is `everywhere`.
        sample, sampling = self._samples[request.sample], self._sampling(alteration)
        changed = request.offset == 0 or alteration.everywhere
        prompt = self._prompt(sample, alteration) if changed else sample.prompt
        guide = self.guide[sample.number][0]
        sent = again.get(sample.number, 0 if request.offset else len(guide))
        logits = self._logits_from(sent, sample.number, alteration)[request.offset :]
        penalised_logits = self._penalised_from(sent, sample.number, alteration)[request.offset :]
        [scores] = self._perturbed(penalised_logits, sample.number, request.offset, alteration)
        passed_over = {position for number, position in alteration.passed_over if number == sample.number}
        seconds = scores.topk(2, dim=-1).indices[:, 1].tolist() if passed_over else []
        ends, limit = self._ends(sampling), sampling.max_tokens
        if alteration.context is not None:
            limit = min(limit, max(1, alteration.context - len(prompt)))
        choices = scores.argmax(-1).tolist()
        for place in passed_over.intersection(range(request.offset, request.offset + len(choices))):
            choices[place - request.offset] = seconds[place - request.offset]
        output, finish = _followed(
            choices, guide[request.offset :], drawn=request.offset, ends=ends, least=sampling.min_tokens, limit=limit
        )
        reported_logits = penalised_logits if alteration.report == "penalised" else logits
        reported = self._reported(
            reported_logits[: len(output)], scores[: len(output)], output, sample.number, alteration
        )
        if alteration.output == "without end" and finish == "stop":
            output, reported = output[:-1], reported[:-1]
        if alteration.output == "again":
            output, reported = self._again(output, reported)
        return Completion(sample.number, prompt, tuple(output), tuple(reported), finish)

    def _reported(
        self, logits: Tensor, scores: Tensor, output: list[int], number: int, alteration: Alteration
    ) -> list[float]:
        if not output:
            return []
        how, _, value = alteration.report.partition(":")
        chosen = logits.argmax(-1, keepdim=True) if how == "top" else torch.tensor(output)[:, None]
        if how == "temper":
            table = torch.log_softmax(logits.double() / float(value), -1)
        elif how == "support":
            table = torch.log_softmax(filtered(logits, self._draw(number, alteration)), -1)
        else:
            table = torch.log_softmax(logits, -1)
        row: list[float] = table.gather(-1, chosen)[:, 0].tolist()
        if how == "scale":
            return [float(value) * logprob for logprob in row]
        if how == "shift":  # the neighbour beyond the end of the guide is unknown
            unknown = [float("nan")] * min(abs(int(value)), len(row))
            return [*row[len(unknown) :], *unknown] if int(value) < 0 else [*unknown, *row[: len(row) - len(unknown)]]
        return row

    def _again(self, output: list[int], reported: list[float]) -> tuple[list[int], list[float]]:
        text = self._tokenizer.decode(output, skip_special_tokens=False)
        again = list(self._tokenizer(text, add_special_tokens=False)["input_ids"])
        return again, reported if len(again) == len(output) else [float("nan")] * len(again)

    # --- what is changed --------------------------------------------------------------------------------------------

    def _sampling(self, alteration: Alteration) -> Sampling:
        changed: dict[str, Any] = {
            name: tuple(value) if isinstance(value, list) else value for name, value in alteration.sampling
        }
        return dataclasses.replace(self.scenario.sampling, **changed)

    def _prompt(self, sample: CaseSample, alteration: Alteration) -> tuple[int, ...]:
        return dict(alteration.prompts).get(sample.number, sample.prompt)

    def texts(self, rows: list[list[int]]) -> list[str]:
        return [str(self._tokenizer.decode(row, skip_special_tokens=False)) for row in rows]

    def reprompted(self, number: int, how: str) -> tuple[int, ...]:
        """Return a sample's prompt as a faulty path would send it.

        `how`: "text" (decoded and tokenized again, specials added), "again" (the same without specials), "left:N" or
        "right:N" (the last or the first N ids), "no generation prompt", "no BOS".
        """
        sample = self._samples[number]
        how, _, size = how.partition(":")
        if how == "text":
            text = self._tokenizer.decode(list(sample.prompt), skip_special_tokens=False)
            return tuple(self._tokenizer(text)["input_ids"])
        if how == "again":
            text = self._tokenizer.decode(list(sample.prompt), skip_special_tokens=False)
            return tuple(self._tokenizer(text, add_special_tokens=False)["input_ids"])
        if how == "left":
            return sample.prompt[-int(size) :]
        if how == "right":
            return sample.prompt[: int(size)]
        if how == "no generation prompt":
            tail = self._generation_prompt()
            return sample.prompt[: -len(tail)] if tail and sample.prompt[-len(tail) :] == tail else sample.prompt
        if how == "no BOS":
            first = self._tokenizer.bos_token_id
            return sample.prompt[1:] if first is not None and sample.prompt[0] == first else sample.prompt
        return sample.prompt

    def _generation_prompt(self) -> tuple[int, ...]:
        """Return the ids that the chat template appends for the answer to come; () without a template."""
        if not getattr(self._tokenizer, "chat_template", None):
            return ()
        message = [{"role": "user", "content": "a"}]
        with_, without = (
            self._tokenizer.apply_chat_template(message, add_generation_prompt=flag, tokenize=True, return_dict=False)
            for flag in (True, False)
        )
        return tuple(with_[len(without) :]) if with_[: len(without)] == without else ()

    def _draw(self, number: int, alteration: Alteration) -> Draw:
        sampling = self._sampling(alteration)
        number = dict(alteration.streams).get(number, number)
        seed = self.scenario.seed if alteration.seed is None else alteration.seed
        return Draw.of(sampling, seed=seed, sample=number, ends=self._ends(sampling), joint=alteration.joint)

    def _ends(self, sampling: Sampling) -> frozenset[int]:
        return frozenset(sampling.stop_token_ids) | (frozenset() if sampling.ignore_eos else self._eos)

    def _perturbed(
        self, logits: Tensor, number: int, start: int, alteration: Alteration, slacks: Sequence[float] = (0.0,)
    ) -> list[Tensor]:
        """Return the scores whose argmax is the draw, for each slack of the filters."""
        draw = self._draw(number, alteration)
        positions = torch.arange(start, start + len(logits), dtype=torch.int64)
        if self.scenario.rollout.mode == "greedy":
            return [barred(logits.double(), positions, draw.min_tokens, draw.end_ids) for _ in slacks]
        return perturbed_with(logits, draw, positions, slacks)

    def _penalised_from(self, again: int, number: int, alteration: Alteration) -> Tensor:
        """Return `_logits_from` after the penalties of an alteration."""
        return self._from(again, number, alteration, lambda prompt: self._penalised(prompt, number, alteration))

    def _logits_from(self, again: int, number: int, alteration: Alteration) -> Tensor:
        """Return raw logits behind the altered prompt and, from the position `again` on, behind the prompt as sent."""
        return self._from(again, number, alteration, lambda prompt: self._logits(prompt, number))

    def _from(
        self, again: int, number: int, alteration: Alteration, rows: Callable[[tuple[int, ...]], Tensor]
    ) -> Tensor:
        sample = self._samples[number]
        prompt = self._prompt(sample, alteration)
        altered_rows = rows(prompt)
        if prompt == sample.prompt or alteration.everywhere or again >= len(altered_rows):
            return altered_rows
        return torch.cat([altered_rows[:again], rows(sample.prompt)[again:]])

    def _penalised(self, prompt: tuple[int, ...], number: int, alteration: Alteration) -> Tensor:
        """Return `_logits` after the penalties of an alteration."""
        logits = self._logits(prompt, number)
        if not alteration.penalties:
            return logits
        occurred = Occurred.of(prompt, self.guide[number][0], *logits.shape)
        return penalised(logits, occurred, *(PENALTIES | dict(alteration.penalties)).values())

    @torch.no_grad()
    def _logits(self, prompt: tuple[int, ...], number: int) -> Tensor:
        """Return raw logits that predict each token of the guide behind this prompt, [response, vocabulary] on the
        CPU.
        """
        guide = self.guide[number][0]
        key = prompt + guide
        if key not in self._rows:
            model = self.model
            ids = torch.tensor([key[:-1]], device=model.device)
            logits = model(input_ids=ids).logits[0, len(prompt) - 1 :].float().cpu()
            if sum(kept_logits.numel() for kept_logits in self._rows.values()) + logits.numel() > KEPT_LOGITS:
                self._rows.clear()
            self._rows[key] = logits
        return self._rows[key]


def _followed(
    choices: list[int], guide: Sequence[int], *, drawn: int, ends: Container[int], least: int, limit: int
) -> tuple[list[int], str]:
    """Return the choices up to the one that ends the sample or is not the guide's, that one included, and why there.

    `drawn`: tokens of the sample before the first of them. `least`: an end token ends it only beyond so many.
    """
    for count, (choice, wanted) in enumerate(zip(choices, guide, strict=False), start=1):
        tokens = drawn + count
        if choice in ends and tokens > least:
            return choices[:count], "stop"
        if tokens >= limit:
            return choices[:count], "length"
        if choice != wanted:
            return choices[:count], "flip"
    return choices, "longer"  # it would continue where the guide ended
