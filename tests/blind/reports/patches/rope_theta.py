"""vLLM: the model hands get_rope parameters without rope_theta, and the base falls back to 10000."""
import plant as b
def patch(m):
    def rope(original, *a, rope_parameters=None, **k):
        rope_parameters = {n: v for n, v in (rope_parameters or {}).items() if n != "rope_theta"}
        b.once("no rope_theta")
        return original(*a, rope_parameters=rope_parameters, **k)
    b.around(m, "get_rope", rope)
PATCH = {"vllm.model_executor.models.llama": patch}
