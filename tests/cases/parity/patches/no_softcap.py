"""vLLM: the final soft cap of Gemma 2's logits is not applied."""

import plant


def patch(module):
    def init(original, self, *args, **options):
        original(self, *args, **options)
        if self.soft_cap:
            plant.mark(f"soft cap {self.soft_cap} dropped")
            self.soft_cap = None

    plant.around(module.LogitsProcessor, "__init__", init)


PATCH = {"vllm.model_executor.layers.logits_processor": patch}
