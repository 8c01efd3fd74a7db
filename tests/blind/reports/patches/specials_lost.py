"""Prompts reach the engine as text that was decoded without special tokens, and are encoded again: the turns' markers are gone. It says what it saw."""
import plant as b, dataclasses
def patch(m):
    def generate(original, self, requests, *a, **k):
        if b.SIDE["now"] != "candidate": return original(self, requests, *a, **k)
        tokenizer = m.transformers.AutoTokenizer.from_pretrained(self._model.config._name_or_path)
        b.once("special tokens lost")
        again = []
        for r in requests:
            ids = r.prompt_ids[: len(r.prompt_ids) - r.offset]
            text = tokenizer.decode(ids, skip_special_tokens=True)
            again.append(dataclasses.replace(r, prompt_ids=(*tokenizer.encode(text), *r.prompt_ids[len(ids):])))
        return original(self, again, *a, **k)
    b.around(m.HFEngine, "generate", generate)
PATCH = {"scenarios.engines.hf.engine": patch}
