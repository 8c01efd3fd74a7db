"""vLLM: the prefix cache is not reset after a weight update; shared prompt prefixes keep keys and values of older weights."""
import plant as b
def patch(m):
    state = {"receiving": False}
    def receive(original, self, *a, **k):
        state["receiving"] = True
        try: return original(self, *a, **k)
        finally: state["receiving"] = False
    def flush(original, self):
        if state["receiving"]: b.once("no reset"); return None
        return original(self)
    b.around(m.VLLMEngine, "receive", receive)
    b.around(m.VLLMEngine, "flush", flush)
PATCH = {"scenarios.engines.vllm.engine": patch}
