"""A control: the candidate's engine computes attention without the fused kernel, and draws seven requests at once. Nothing but rounding differs."""
import plant as b
def patch(m):
    def change(model, on):
        model.set_attn_implementation("eager" if on else "sdpa")
        if on: b.once("eager")
    b.on_model(m, change)
    def generate(original, self, *a, **k):
        own = self._batch_size
        self._batch_size = 7 if b.SIDE["now"] == "candidate" else own
        try: return original(self, *a, **k)
        finally: self._batch_size = own
    b.around(m.HFEngine, "generate", generate)
PATCH = {"scenarios.engines.hf.engine": patch}
