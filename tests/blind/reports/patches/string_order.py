"""vLLM's answers are sorted by the number of their request as text ("10" before "2") before they are handed back."""
import plant as b
def patch(m):
    def generate(original, self, *a, **k):
        llm = self._llm
        plain = llm.generate
        def sorted_as_text(*x, **y):
            done = plain(*x, **y)
            if len(done) > 10: b.once("other order")
            return [done[i] for i in sorted(range(len(done)), key=str)]
        llm.generate = sorted_as_text
        try: return original(self, *a, **k)
        finally: del llm.generate
    b.around(m.VLLMEngine, "generate", generate)
PATCH = {"scenarios.engines.vllm.engine": patch}
