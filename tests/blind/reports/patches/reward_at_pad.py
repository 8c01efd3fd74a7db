"""The trainer (of both sides) adds the reward one place behind the end token, where the loss mask removes it: answers that stopped get no reward, those that were cut off do."""
import plant as b
def patch(m):
    import numpy as np
    now = {}
    def make(original, samples, finish, *a, **k):
        now["finish"] = list(finish)
        return original(samples, finish, *a, **k)
    def token_rewards(original, kl, reward, kl_coef):
        b.once("reward at the pad")
        kept = np.array([r if f == "length" else 0.0 for r, f in zip(reward, now["finish"], strict=True)], dtype=np.float32)
        return original(kl, kept, kl_coef)
    b.around(m, "make", make)
    b.around(m.advantages, "token_rewards", token_rewards)
PATCH = {"scenarios.ppo.experience": patch}
