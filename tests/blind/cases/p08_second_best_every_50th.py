"""Candidate's engine: every 50th draw takes the second-best of the perturbed scores (a race in a top-2 kernel)."""
import blind_sabotage as b


def patch(m):
    def choosing(original, self, logits, draws, step, sampling, streams):
        tokens = original(self, logits, draws, step, sampling, streams)
        if b.on():
            import torch

            for row in range(len(draws)):
                self._blind = getattr(self, "_blind", 0) + 1
                if self._blind % 50 == 0:
                    if self._mode == "coupled":
                        place = torch.tensor([draws[row].offset + step])
                        from scenarios.rollout.coupling import perturbed

                        scores = perturbed(logits[row : row + 1], draws[row], place)[0].clone()
                    else:
                        scores = logits[row].clone()
                    scores[tokens[row]] = float("-inf")
                    tokens[row] = scores.argmax()
                    b.mark("took the second best")
        return tokens

    b.around(m.HFEngine, "_choose", choosing)


PATCH = {"scenarios.rollout.hf": patch}
