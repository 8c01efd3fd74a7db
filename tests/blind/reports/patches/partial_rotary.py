"""vLLM: partial_rotary_factor never reaches get_rope, and the whole head is rotated."""
import plant as b
def patch(m):
    def rope(original, *a, rope_parameters=None, **k):
        rope_parameters = {n: v for n, v in (rope_parameters or {}).items() if n != "partial_rotary_factor"}
        b.once("whole head rotated")
        return original(*a, rope_parameters=rope_parameters, **k)
    b.around(m, "get_rope", rope)
PATCH = {"vllm.model_executor.models.llama": patch}
