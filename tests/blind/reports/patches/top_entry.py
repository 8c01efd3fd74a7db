"""vLLM returns a table of log-probabilities for each token; the caller takes the most probable entry instead of the drawn token's."""
import plant as b, inspect, textwrap
def patch(m):
    for name, old, new in (
        ("generate", '{"logprobs": 0,', '{"logprobs": 1,'),
        ("_completion", "float(entry[token].logprob)", "float(max(e.logprob for e in entry.values()))"),
    ):
        src = textwrap.dedent(inspect.getsource(getattr(m.VLLMEngine, name)))
        assert src.count(old) == 1, (name, old)
        scope = vars(m)
        exec(src.replace(old, new), scope)
        setattr(m.VLLMEngine, name, scope.pop(name))
    def completion(original, self, *a, **k):
        b.once("top entry")
        return original(self, *a, **k)
    b.around(m.VLLMEngine, "_completion", completion)
PATCH = {"scenarios.engines.vllm.engine": patch}
