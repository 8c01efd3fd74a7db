"""SGLang is sent the last 40 tokens of each prompt (the generator truncates to a maximal prompt length); the trainer keeps the whole prompt."""
import plant as b, dataclasses
def patch(m):
    def generate(original, self, requests, *a, **k):
        b.once("cut")
        cut = []
        for r in requests:
            n = len(r.prompt_ids) - r.offset
            cut.append(dataclasses.replace(r, prompt_ids=(*r.prompt_ids[:n][-40:], *r.prompt_ids[n:])))
        return original(self, cut, *a, **k)
    b.around(m.SGLangEngine, "generate", generate)
PATCH = {"scenarios.engines.sglang.engine": patch}
