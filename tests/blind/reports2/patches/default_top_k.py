"""vLLM: the layer above forwards top_k only where it is above 0, and vLLM fills in generation_config.json's."""
import plant as b
def patch(m):
    def generate(original, self, prompts, sampling_params=None, *a, **k):
        top_k = (self.llm_engine.model_config.try_get_generation_config() or {}).get("top_k")
        for params in sampling_params if isinstance(sampling_params, list) else [sampling_params]:
            if params is not None and params.temperature > 0 and params.top_k <= 0 and top_k:
                params.top_k = top_k
                b.once(f"top_k {top_k}")
        return original(self, prompts, sampling_params, *a, **k)
    b.around(m.LLM, "generate", generate)
PATCH = {"vllm.entrypoints.llm": patch}
