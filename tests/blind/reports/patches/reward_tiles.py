"""The trainer (of both sides) repeats prompts whole (a b a b) for the reward and samples interleaved (a a b b): each answer gets the reward of another."""
import plant as b
GROUP = 4
def patch(m):
    def rewards(original, self, step, samples):
        answer = original(self, step, samples)
        b.once("rewards tiled")
        return answer.reshape(-1, GROUP).T.flatten().copy()
    b.around(m.RewardRole, "rewards", rewards)
PATCH = {"scenarios.ppo.roles": patch}
