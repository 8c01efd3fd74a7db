"""Candidate's engine: from its fourth update on, layer 2 keeps its old weights (a bucket that is no longer flushed)."""
import blind_sabotage as b


def patch(m):
    def receive(original, self, group, weights):
        if not b.on():
            return original(self, group, weights)
        self._blind = getattr(self, "_blind", 0) + 1
        state = self._model.state_dict()
        kept = {n: t.clone() for n, t in state.items() if n.startswith("model.layers.2.")} if self._blind >= 4 else {}
        report = original(self, group, weights)
        changed = 0
        for name, tensor in kept.items():
            changed += int(not (state[name] == tensor).all())
            state[name].copy_(tensor)
        if kept:
            b.mark(f"kept {len(kept)} old tensors of layer 2, of which {changed} had changed", every=1)
        return report

    b.around(m.HFEngine, "receive", receive)


PATCH = {"scenarios.rollout.hf": patch}
