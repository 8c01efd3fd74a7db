"""Both sides sample with top-p 0.9; the candidate's engine reports log-probabilities renormalised over what top-p leaves."""
import blind_sabotage as b


def patch(m):
    def reporting(original, logits, draws):
        if not b.on():
            return original(logits, draws)
        import torch

        rows = original(logits, draws)
        for row, draw in enumerate(draws):
            rows[row] = torch.log_softmax(m.filtered(logits[row : row + 1], draw), dim=-1)[0].to(rows.dtype)
        b.mark("reported log-probabilities after top-p")
        return rows

    b.around(m, "reported", reporting)


PATCH = {"scenarios.rollout.hf": patch}
