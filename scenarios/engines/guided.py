"""Guided rollout: what an engine chooses at each position, given the baseline's tokens before it.

One harmless flip would end the comparison of two free-running samples. Under a guide the engine draws freely. Where
its token differs from the guide's, the token is kept as its choice and the engine continues from the guide's token.
So positions can be compared one to one.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from scenarios.engines.engine_interface import Completion, Request

# sample -> (response ids, finish reason) of the baseline
Guide = dict[int, tuple[tuple[int, ...], str]]
Generate = Callable[[list[Request]], list[Completion]]

# A correct engine needs one round more than it has flips. A broken one would need a round for each of its tokens. It
# is stopped after this many, and the rest of the sample counts as not compared.
MAX_ROUNDS = 12
# A sample that flipped this often, and at a quarter of its positions or more, does not come from a correct engine:
# ties are not that frequent. It is stopped at once, because every further round takes as long as the only round of a
# sound engine.
MANY_FLIPS, DENSE = 4, 0.25


@dataclass(frozen=True)
class Guided:
    completions: list[Completion]  # output_ids[t] is the engine's choice given the guide's tokens before t
    rounds: int  # calls to the engine
    uncompared: int  # guide positions that were not reached within the rounds


def rollout(requests: list[Request], guide: Guide, generate: Generate, rounds: int = MAX_ROUNDS) -> Guided:
    """Draw each request under its guide. Requests without a guide are drawn freely.

    A choice beyond the guide's length (the engine did not stop where the baseline stopped) ends the sample there: the
    difference shows in the last compared token or in the finish reason.
    """
    # Each round asks all samples that are not done. A sample is asked again behind its flip, with the guide's tokens
    # before it, so that every position is chosen in the guide's context.
    drawn: dict[int, Completion] = {}
    flips: Counter[int] = Counter()
    given_up: list[Request] = []
    pending = requests
    made = 0
    while pending and made < rounds:
        made += 1
        again: list[Request] = []
        for request, answer in zip(pending, generate(pending), strict=True):
            sample, before = request.sample, drawn.get(request.sample)
            completion = drawn[sample] = answer if before is None else _joined(before, answer)
            ids, _ = guide.get(sample, ((), ""))
            flip = _first_flip(completion.output_ids, ids, request.offset)
            if flip is None:
                continue
            # Keep the differing token as the engine's choice, then let the engine continue from the guide's tokens.
            kept = flip + 1
            drawn[sample] = replace(
                completion,
                output_ids=completion.output_ids[:kept],
                logprobs=completion.logprobs[:kept],
                finish_reason=completion.finish_reason if len(completion.output_ids) == kept else "flip",
            )
            flips[sample] += 1
            # A flip at the last position leaves nothing to continue.
            if kept < min(len(ids), request.offset + request.max_tokens):
                hopeless = flips[sample] >= max(MANY_FLIPS, DENSE * kept)
                (given_up if hopeless else again).append(_continued(request, ids[:kept]))
        pending = again
    uncompared = sum(len(guide[r.sample][0]) - len(drawn[r.sample].output_ids) for r in [*pending, *given_up])
    return Guided([drawn[request.sample] for request in requests], made, uncompared)


def _first_flip(output: Sequence[int], ids: Sequence[int], start: int) -> int | None:
    """Return the first position from `start` on at which an output differs from its guide; None without one."""
    return next((at for at in range(start, min(len(ids), len(output))) if output[at] != ids[at]), None)


def _continued(request: Request, ids: tuple[int, ...]) -> Request:
    """Return the request that goes on behind the first tokens of its guide."""
    prompt = request.prompt_ids[: len(request.prompt_ids) - request.offset]  # without the guide's tokens of before
    return replace(
        request,
        prompt_ids=prompt + ids,
        offset=len(ids),
        max_tokens=request.max_tokens + request.offset - len(ids),
    )


def _joined(before: Completion, after: Completion) -> Completion:
    """Return the earlier choices (up to and including the flip), then what was drawn after the guide's token.

    The prompt seen is that of the first call.
    """
    return replace(
        before,
        output_ids=before.output_ids + after.output_ids,
        logprobs=before.logprobs + after.logprobs,
        finish_reason=after.finish_reason,
    )
