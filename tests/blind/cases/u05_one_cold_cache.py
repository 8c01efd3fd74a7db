"""Sound: the second of two SGLang engines empties its cache before each batch, the first one keeps it until a sync."""
from blind_sabotage import around, mark
from blind_topology import engine, session


def engines(module):
    def generate(original, self, requests, sampling, *, seed):
        if engine() == 1:
            mark("cache emptied before a batch")
            self.flush()
        return original(self, requests, sampling, seed=seed)

    around(module.SGLangEngine, "generate", generate)


PATCH = {"scenarios.session": session, "scenarios.engines.sglang.engine": engines}
