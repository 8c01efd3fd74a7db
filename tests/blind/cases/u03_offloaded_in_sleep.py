"""Sound: only the candidate sleeps. Its weights are really gone meanwhile (zeros), and come back from their backup
before the sync."""
from blind_sabotage import around, mark, on

kept = {}


def engines(module):
    import torch

    def sleep(original, self, level):
        original(self, level)
        if on():
            mark("weights given up")
            with torch.no_grad():
                for name, tensor in self._model.state_dict().items():
                    kept[name] = tensor.clone()
                    tensor.zero_()

    def wake(original, self, part):
        original(self, part)
        if part == "weights" and on() and kept:
            mark("weights put back")
            self._model.load_state_dict(kept)

    around(module.HFEngine, "sleep", sleep)
    around(module.HFEngine, "wake", wake)


PATCH = {"scenarios.engines.hf.engine": engines}
