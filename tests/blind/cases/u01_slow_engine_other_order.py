"""Sound: the second of two engines is slow, takes its requests in the opposite order, and answers each with its own."""
import time

from blind_sabotage import around, mark, on
from blind_topology import engine, session


def engines(module):
    def generate(original, self, requests, sampling, *, seed):
        if not (on() and engine() == 1):
            return original(self, requests, sampling, seed=seed)
        mark("slow, and in the opposite order")
        time.sleep(0.3)
        return original(self, requests[::-1], sampling, seed=seed)[::-1]

    around(module.HFEngine, "generate", generate)


PATCH = {"scenarios.session": session, "scenarios.engines.hf.engine": engines}
