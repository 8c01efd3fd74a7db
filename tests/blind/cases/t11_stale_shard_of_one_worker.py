"""The second of two tensor-parallel vLLM workers keeps its shard of one layer's down projection as the first sync
brought it: later ones write into a buffer that nothing reads."""
from blind_sabotage import around, mark

NAME = "layers.2.mlp.down_proj.weight"
first = {}


def worker(module):
    def harness_receive(original, self, weights):
        if self.rank != 1:
            return original(self, weights)
        reload = self.model_runner.reload_weights

        def stale(weights_iterator):
            def stream():
                for name, tensor in weights_iterator:
                    if name.endswith(NAME):
                        mark("shard of the first sync kept", every=1)
                        tensor = first.setdefault(name, tensor.clone())
                    yield name, tensor

            return reload(weights_iterator=stream())

        self.model_runner.reload_weights = stale
        try:
            return original(self, weights)
        finally:
            del self.model_runner.reload_weights

    around(module.WeightReceiver, "harness_receive", harness_receive)


PATCH = {"scenarios.engines.vllm.worker": worker}
