"""Control: the candidate's logits get zero-mean relative noise of about one unit of bfloat16's last place, anew in every call."""
import blind_sabotage as b


def patch(m):
    def init(original, self, *args, **kwargs):
        original(self, *args, **kwargs)
        forward = self._model.forward

        def noisy(*a, **k):
            out = forward(*a, **k)
            if b.on():
                import torch

                noise = (torch.rand(out.logits.shape) - 0.5) * 2.0**-7
                out.logits = (out.logits.float() * (1 + noise)).to(out.logits.dtype)
                b.mark("noise on logits")
            return out

        self._model.forward = noisy

    b.around(m.HFEngine, "__init__", init)


PATCH = {"scenarios.rollout.hf": patch}
