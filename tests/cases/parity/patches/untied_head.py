"""A tied model: the receiver made its own copy of the head once, and updates reach the embedding only."""

import plant


def patch(module):
    import torch

    def receive(original, self, *args, **options):
        model = self._model
        if plant.SIDE["now"] == "candidate" and not getattr(model, "_case_acted", False):
            model._case_acted = True
            head = model.lm_head.weight.detach().clone()
            model.lm_head.weight = torch.nn.Parameter(head, requires_grad=False)
            plant.mark("head untied")
        return original(self, *args, **options)

    plant.around(module.HFEngine, "receive", receive)


PATCH = {"scenarios.engines.hf.engine": patch}
