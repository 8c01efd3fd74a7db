"""SGLang: the norms of q and k inside attention get no eps, and fall back to the class's 1e-6."""
import plant as b
def patch(m):
    def init(original, self, *a, **k):
        original(self, *a, **k)
        b.once(f"eps {self.q_norm.variance_epsilon} became 1e-06")
        self.q_norm.variance_epsilon = self.k_norm.variance_epsilon = 1e-6
    b.around(m.Qwen3Attention, "__init__", init)
PATCH = {"sglang.srt.models.qwen3": patch}
