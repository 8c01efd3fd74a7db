"""Candidate's engine: from the third update on the rotary frequencies are built anew with another base (theta of a long
context: 1.3 times)."""
import blind_sabotage as b


def patch(m):
    def receive(original, self, group, weights):
        report = original(self, group, weights)
        if b.on():
            self._blind = getattr(self, "_blind", 0) + 1
            if self._blind == 3:
                import torch

                rotary = self._model.model.rotary_emb
                size = rotary.inv_freq.numel()
                rotary.inv_freq.mul_(torch.pow(torch.tensor(1.3), -torch.arange(size) / size))
                b.mark("rotary base times 1.3 from here on")
        return report

    b.around(m.HFEngine, "receive", receive)


PATCH = {"scenarios.rollout.hf": patch}
