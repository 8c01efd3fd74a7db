"""vLLM: the part of k in the fused q, k, v bias is never loaded, neither at the start nor by a sync: it holds what was in memory (0.5 here)."""
import plant as b
def patch(m):
    import torch
    def load(original, self, param, loaded_weight, loaded_shard_id=None, *a, **k):
        if loaded_shard_id == "k" and loaded_weight.dim() == 1:
            b.once(f"k bias of {tuple(loaded_weight.shape)} not loaded; its largest would be {float(loaded_weight.abs().max()):.3f}")
            loaded_weight = torch.full_like(loaded_weight, 0.5)
        return original(self, param, loaded_weight, loaded_shard_id, *a, **k)
    b.around(m.QKVParallelLinear, "weight_loader", load)
    b.around(m.QKVParallelLinear, "weight_loader_v2", load)
PATCH = {"vllm.model_executor.layers.linear": patch}
