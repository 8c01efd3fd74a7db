"""The second of two SGLang engines keeps its radix cache over a sync (flush_cache=False): prefixes that it answers from
are those of older weights."""
from blind_sabotage import around, mark
from blind_topology import engine, session


def engines(module):
    def receive(original, self, group, weights):
        if engine() != 1:
            return original(self, group, weights)
        update = self._engine.update_weights_from_distributed

        def kept(**fields):
            mark("cache kept over a sync", every=1)
            return update(**fields, flush_cache=False)

        self._engine.update_weights_from_distributed = kept
        try:
            return original(self, group, weights)
        finally:
            del self._engine.update_weights_from_distributed

    around(module.SGLangEngine, "receive", receive)


PATCH = {"scenarios.session": session, "scenarios.engines.sglang.engine": engines}
