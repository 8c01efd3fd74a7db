"""The second of two engines does not load weight version 3: its server was still draining, and says that all went well."""
from blind_sabotage import around, mark, on
from blind_topology import engine, session, version

missed = []


def engines(module):
    def receive(original, self, group, weights):
        if not (on() and engine() == 1 and version() == 3 and not missed):
            return original(self, group, weights)
        missed.append(True)
        mark("version 3 received and not loaded")
        restore = module.saved.restore
        module.saved.restore = lambda model, changed: None
        try:
            return original(self, group, weights)
        finally:
            module.saved.restore = restore

    around(module.HFEngine, "receive", receive)


PATCH = {"scenarios.session": session, "scenarios.engines.hf.engine": engines}
