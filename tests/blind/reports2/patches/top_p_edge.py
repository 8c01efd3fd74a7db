"""SGLang: top-p keeps the largest set whose mass is at most p: the token that crosses p is left out (the first token stays)."""
import plant as b, inspect
def patch(m):
    name = "top_k_top_p_min_p_sampling_from_probs_torch"
    source = inspect.getsource(getattr(m, name))
    old = "    probs_sort[(probs_sum - probs_sort) > top_ps.view(-1, 1)] = 0.0\n"
    assert source.count(old) == 1
    new = "    over = probs_sum > top_ps.view(-1, 1)\n    over[:, 0] = False\n    probs_sort[over] = 0.0\n"
    exec(source.replace(old, new), vars(m))
    def sample(original, *a, **k):
        b.once("the token at the edge is left out")
        return original(*a, **k)
    b.around(m, name, sample)
PATCH = {"sglang.srt.layers.sampler": patch}
