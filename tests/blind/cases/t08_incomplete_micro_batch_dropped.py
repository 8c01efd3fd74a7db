"""The actor trains on complete micro-batches only (drop_last): two of a rank's eight samples are in none."""
from blind_sabotage import around, mark, on

training = []


def role(module):
    def micro(original, self, samples):
        parts = list(original(self, samples))
        if training:
            mark("incomplete micro-batch dropped")
            parts = [part for part in parts if part.stop <= len(samples)]
        return parts

    around(module.Role, "_micro", micro)


def actor(module):
    def train(original, self, step, shares):
        if not on():
            return original(self, step, shares)
        training.append(step)
        try:
            return original(self, step, shares)
        finally:
            training.clear()

    around(module.ActorRole, "train", train)


PATCH = {"scenarios.ppo.role": role, "scenarios.ppo.actor": actor}
