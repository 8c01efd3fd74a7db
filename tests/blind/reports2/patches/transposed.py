"""A sync exports the output projection of GPT-2's attention transposed once too often. It is square, so it loads."""
import plant as b
def patch(m):
    import torch
    def receive(original, self, group, weights, *a, **k):
        report = original(self, group, weights, *a, **k)
        if b.SIDE["now"] != "candidate": return report
        with torch.no_grad():
            for name, t in self._model.named_parameters():
                if name.endswith("attn.c_proj.weight"):
                    t.copy_(t.T.contiguous())
                    b.once(f"{name} transposed")
        return report
    b.around(m.HFEngine, "receive", receive)
PATCH = {"scenarios.engines.hf.engine": patch}
