"""As second_engine, whose test of the rank never held: an engine learns its rank when it joins, not when it receives."""
import plant as b
def patch(m):
    import torch
    def join(original, self, group):
        self._joined_as = group.rank_offset
        return original(self, group)
    def receive(original, self, group, weights, *a, **k):
        if b.SIDE["now"] != "candidate" or self._joined_as < 2: return original(self, group, weights, *a, **k)
        held = {n: t.detach().clone() for n, t in self._model.named_parameters()}
        report = original(self, group, weights, *a, **k)
        with torch.no_grad():
            apart = max(float((t - held[n]).abs().max()) for n, t in self._model.named_parameters())
            for n, t in self._model.named_parameters():
                t.copy_(held[n])
        if apart: b.once("the second engine keeps its weights")
        return report
    b.around(m.HFEngine, "join", join)
    b.around(m.HFEngine, "receive", receive)
PATCH = {"scenarios.engines.hf.engine": patch}
