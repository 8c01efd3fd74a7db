"""Candidate's engine: a double buffer that is swapped before the new weights are in it: the engine always serves the update
before."""
import blind_sabotage as b


def patch(m):
    def receive(original, self, group, weights):
        report = original(self, group, weights)
        if b.on():
            state = self._model.state_dict()
            fresh = {n: t.clone() for n, t in state.items()}
            before = getattr(self, "_blind", None)
            if before is not None:
                moved = sum(int(not (fresh[n] == t).all()) for n, t in before.items())
                for name, tensor in before.items():
                    state[name].copy_(tensor)
                b.mark(f"served the update before; {moved} tensors differ", every=1)
            self._blind = fresh
        return report

    b.around(m.HFEngine, "receive", receive)


PATCH = {"scenarios.rollout.hf": patch}
