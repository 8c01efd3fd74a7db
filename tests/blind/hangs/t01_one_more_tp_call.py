"""Two replicas of two tensor-parallel ranks. The last rank of all logs a mean over its replica before the gradient sum
of the step: one tensor-parallel all_reduce that its partner, rank 2, does not make. Rank 2 and the other replica are in
the gradient sum over all ranks."""
import time

from ranks import compute, main, say, world


def work(name):
    import torch, torch.distributed as dist

    rank = int(name[-1])
    world(rank, 4)
    tp = [dist.new_group([0, 1]), dist.new_group([2, 3])][rank // 2]
    for step in range(1000):
        for _ in range(4):  # layers
            hidden = torch.ones(64)
            compute(0.02)
            dist.all_reduce(hidden, group=tp)
        if step == 12 and rank == dist.get_world_size() - 1:
            mean = hidden.mean().reshape(1)
            dist.all_reduce(mean, group=tp)
            say("replica mean", float(mean))
        gradient = torch.ones(256)
        dist.all_reduce(gradient)
        say(name, "step", step)
        time.sleep(0.1)


if __name__ == "__main__":
    main(["rank0", "rank1", "rank2", "rank3"], work)
