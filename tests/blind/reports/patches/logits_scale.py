"""SGLang: Granite's logits are not divided by logits_scaling."""
import plant as b
def patch(m):
    def init(original, self, *a, **k):
        original(self, *a, **k)
        if self.logit_scale is not None:
            b.once(f"scale {self.logit_scale} dropped"); self.logit_scale = None
    b.around(m.LogitsProcessor, "__init__", init)
PATCH = {"sglang.srt.layers.logits_processor": patch}
