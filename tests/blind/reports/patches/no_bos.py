"""vLLM is sent the prompt without its first token (BOS: encoded with add_special_tokens=False); the layer above reports the trainer's own prompt ids."""
import plant as b, dataclasses
def patch(m):
    def generate(original, self, requests, *a, **k):
        b.once("no BOS")
        done = original(self, [dataclasses.replace(r, prompt_ids=r.prompt_ids[1:]) for r in requests], *a, **k)
        return [dataclasses.replace(c, prompt_seen=tuple(r.prompt_ids)) for c, r in zip(done, requests)]
    b.around(m.VLLMEngine, "generate", generate)
PATCH = {"scenarios.engines.vllm.engine": patch}
