"""The trainer (of both sides) packs several samples in a row and lets each see the ones before it.

Positions restart as they should.
"""

import plant


def patch(module):
    import torch

    def visible(original, segment, dtype):
        length = segment.shape[1]
        seen = torch.ones(length, length).tril().bool() & (segment >= 0)[:, :, None]
        seen |= torch.eye(length).bool()
        plant.mark("leak")
        return torch.zeros(seen.shape, dtype=dtype).masked_fill(~seen, torch.finfo(dtype).min)[:, None]

    plant.around(module, "_block_diagonal", visible)


PATCH = {"scenarios.ppo.batches": patch}
