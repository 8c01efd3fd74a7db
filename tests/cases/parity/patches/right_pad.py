"""Prompts of a batch are padded on the right where generation expects them on the left.

The shorter ones go on after pads.
"""

import inspect
import textwrap

import plant

LEFT, RIGHT = "width - len(request.prompt_ids) :", ": len(request.prompt_ids)"


def patch(module):
    good = module.HFEngine._batch
    source = textwrap.dedent(inspect.getsource(inspect.unwrap(good)))
    changed = source.replace(LEFT, RIGHT)
    assert changed.count(RIGHT) == 2, source
    scope = dict(vars(module))
    exec(changed, scope)

    def batch(original, self, *args, **options):
        if plant.SIDE["now"] != "candidate":
            return original(self, *args, **options)
        plant.mark("right padded")
        return scope["_batch"](self, *args, **options)

    plant.around(module.HFEngine, "_batch", batch)


PATCH = {"scenarios.engines.hf.engine": patch}
