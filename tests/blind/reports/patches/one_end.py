"""vLLM reads no end tokens of generation_config.json: only the tokenizer's own ends an answer."""
import plant as b
def patch(m):
    def update(original, self, generation_config, *a, **k):
        b.once(f"ends {generation_config.get('eos_token_id')} dropped")
        return original(self, {n: v for n, v in generation_config.items() if n != "eos_token_id"}, *a, **k)
    b.around(m.SamplingParams, "update_from_generation_config", update)
PATCH = {"vllm.sampling_params": patch}
