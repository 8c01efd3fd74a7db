"""The second of two engines shares its node and came up with a shorter context (LIMIT), as an engine does that fits its
context to the memory that is left. It says so when asked."""
import dataclasses

from blind_sabotage import around, mark, on
from blind_topology import engine, session

LIMIT = 80


def cut(request, one):
    room = max(1, LIMIT - len(request.prompt_ids))
    if len(one.output_ids) <= room:
        return one
    mark("a sample cut at the context")
    return dataclasses.replace(one, output_ids=one.output_ids[:room], logprobs=one.logprobs[:room], finish_reason="length")


def engines(module):
    def generate(original, self, requests, sampling, *, seed):
        done = original(self, requests, sampling, seed=seed)
        if on() and engine() == 1:
            done = [cut(*pair) for pair in zip(requests, done, strict=True)]
        return done

    def info(original, self):
        told = original(self)
        if on() and engine() == 1:
            told = dataclasses.replace(told, resolved={**told.resolved, "max_model_len": LIMIT})
        return told

    around(module.HFEngine, "generate", generate)
    around(module.HFEngine, "info", info)


PATCH = {"scenarios.session": session, "scenarios.engines.hf.engine": engines}
