"""The trainer (of both sides) scores and trains with dropout on: its old log-probabilities are noisy."""
import plant as b
def patch(m):
    def on(original, self, *a, **k):
        self.model.train()
        b.once("dropout on")
        try: return original(self, *a, **k)
        finally: self.model.eval()
    b.around(m.ActorRole, "score", on)
    b.around(m.ActorRole, "train", on)
PATCH = {"scenarios.ppo.actor": patch}
