"""A control: the candidate's engine draws one request at a time and computes log-softmax in float64."""
import plant as b
def patch(m):
    import torch
    def reported(original, logits, draws):
        if b.SIDE["now"] != "candidate": return original(logits, draws)
        b.once("float64")
        return torch.log_softmax(logits.double(), dim=-1).float()
    def generate(original, self, *a, **k):
        own = self._batch_size
        self._batch_size = 1 if b.SIDE["now"] == "candidate" else own
        try: return original(self, *a, **k)
        finally: self._batch_size = own
    b.around(m, "reported", reported)
    b.around(m.HFEngine, "generate", generate)
PATCH = {"scenarios.engines.hf.engine": patch}
