"""SGLang: the router casts its weight to float32 once, at the first forward pass, and goes on with that copy after weight updates."""
import plant as b
def patch(m):
    import torch
    def init(original, self, *a, **k):
        original(self, *a, **k)
        gate, kept = self.gate, {}
        def forward(hidden, *x, **y):
            if "weight" not in kept:
                kept["weight"] = gate.weight.detach().float().clone()
                b.once(f"router cast {tuple(gate.weight.shape)}")
            elif not torch.equal(kept["weight"], gate.weight.detach().float()):
                b.once("router goes on with the first weights")
            return torch.nn.functional.linear(hidden.float(), kept["weight"]).to(hidden.dtype), None
        gate.forward = forward
    b.around(m.Qwen3MoeSparseMoeBlock, "__init__", init)
PATCH = {"sglang.srt.models.qwen3_moe": patch}
