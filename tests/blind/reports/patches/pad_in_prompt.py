"""The trainer (of both sides) makes its attention mask of ids that are not the pad token, which is the end token here: end tokens of earlier turns in a prompt are hidden."""
import plant as b, dataclasses
END = 2
def patch(m):
    import torch
    def make(original, samples, *, dtype=torch.float32, **k):
        batch = original(samples, dtype=dtype, **k)
        if batch.mask is not None or not (batch.ids == END).any(): return batch
        rows, length = batch.ids.shape
        seen = torch.ones(length, length).tril().bool()[None] & (batch.ids != END)[:, None, :]
        seen = seen | torch.eye(length).bool()
        b.once("end tokens hidden")
        mask = torch.zeros(seen.shape, dtype=dtype).masked_fill(~seen, torch.finfo(dtype).min)[:, None]
        return dataclasses.replace(batch, mask=mask, positions=torch.arange(length).expand(rows, length).contiguous())
    b.around(m, "make", make)
PATCH = {"scenarios.ppo.batches": patch}
