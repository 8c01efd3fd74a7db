"""Rank 1 of the actor loses Adam's moments before step 4: they were offloaded and not fetched again. Its weights part
from rank 0's."""
from blind_sabotage import around, mark, on


def actor(module):
    def train(original, self, step, shares):
        if on() and self.parallel.rank == 1 and step == 4:
            mark("moments dropped")
            self.optimizer._adam.state.clear()
        return original(self, step, shares)

    around(module.ActorRole, "train", train)


PATCH = {"scenarios.ppo.actor": actor}
