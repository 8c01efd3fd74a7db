"""Sound: of two tensor-parallel vLLM workers the second comes 3 ms late to each sum."""
import time

from blind_sabotage import around, mark


def linear(module):
    def late(original, partial):
        import torch.distributed as dist

        if dist.get_rank() == 1:
            mark("late")
            time.sleep(0.003)
        return original(partial)

    around(module, "tensor_model_parallel_all_reduce", late)


PATCH = {"vllm.model_executor.layers.linear": linear}
