"""The engine's log-probabilities are sliced [1:] like the masks beside them, and padded: each token has the number of the next one, the last has 0.0."""
import plant as b, dataclasses
def patch(m):
    def completion(original, self, *a, **k):
        c = original(self, *a, **k)
        b.once("shifted")
        return dataclasses.replace(c, logprobs=(*c.logprobs[1:], 0.0))
    b.around(m.SGLangEngine, "_completion", completion)
PATCH = {"scenarios.engines.sglang.engine": patch}
