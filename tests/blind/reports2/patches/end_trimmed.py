"""The engine trims the end token from the ids of an answer that stopped; its log-probability goes with it."""
import plant as b, dataclasses
def patch(m):
    def completion(original, self, *a, **k):
        c = original(self, *a, **k)
        if b.SIDE["now"] != "candidate" or c.finish_reason != "stop" or len(c.output_ids) < 2: return c
        b.once("end trimmed")
        return dataclasses.replace(c, output_ids=c.output_ids[:-1], logprobs=c.logprobs[:-1])
    b.around(m.HFEngine, "_completion", completion)
PATCH = {"scenarios.engines.hf.engine": patch}
