"""Both replicas count their requests from the same number: the second of two vLLM engines draws each of its samples
with the random numbers of the first one's."""
import dataclasses

from blind_sabotage import around, mark
from blind_topology import engine, session


def engines(module):
    def draw_of(original, request, mapped, seed):
        draw = original(request, mapped, seed)
        if engine() == 1:
            mark("drawn with the numbers of the first engine's sample")
            draw = dataclasses.replace(draw, sample=request.sample - 4)
        return draw

    around(module, "draw_of", draw_of)


PATCH = {"scenarios.session": session, "scenarios.engines.vllm.engine": engines}
