"""SGLang: without renormalising, experts are weighted by raw router logits instead of probabilities."""

import plant


def patch(module):
    def topk(original, hidden_states, gating_output, topk, renormalize, *args, **options):
        weights, experts = original(hidden_states, gating_output, topk, renormalize, *args, **options)
        if not renormalize:
            if not getattr(module, "_case_acted", 0):
                plant.mark("raw")
            module._case_acted = 1
            weights = gating_output.float().gather(1, experts.long())
        return weights, experts

    for name in ("fused_topk_torch_native", "fused_topk_native", "fused_topk"):
        plant.around(module, name, topk)


PATCH = {"sglang.srt.layers.moe.topk": patch}
