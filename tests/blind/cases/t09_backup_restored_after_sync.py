"""Sleep level 1: the first of two engines puts the weights of its backup back when its cache wakes, after the sync has
loaded the new ones; from version 4 on."""
from blind_sabotage import around, mark, on
from blind_topology import engine, session, version

kept = {}


def engines(module):
    def sleep(original, self, level):
        original(self, level)
        if on() and engine() == 0:
            kept.update({name: tensor.clone() for name, tensor in self._model.state_dict().items()})

    def wake(original, self, part):
        original(self, part)
        if part == "cache" and on() and engine() == 0 and version() >= 4 and kept:
            mark("weights of before the sync restored", every=1)
            self._model.load_state_dict(kept)

    around(module.HFEngine, "sleep", sleep)
    around(module.HFEngine, "wake", wake)


PATCH = {"scenarios.session": session, "scenarios.engines.hf.engine": engines}
