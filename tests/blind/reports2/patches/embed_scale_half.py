"""vLLM: Gemma's factor of the embeddings is rounded to bfloat16 although the model computes in float32."""
import plant as b
def patch(m):
    import torch
    def init(original, self, *a, **k):
        original(self, *a, **k)
        own = float(self.normalizer)
        self.normalizer.copy_(self.normalizer.to(torch.bfloat16).to(self.normalizer.dtype))
        b.once(f"{own:.5f} became {float(self.normalizer):.5f}")
    b.around(m.Gemma3Model, "__init__", init)
PATCH = {"vllm.model_executor.models.gemma3": patch}
