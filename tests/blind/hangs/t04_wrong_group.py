"""Two replicas of two tensor-parallel ranks. At step 12 rank 3 makes the second all_reduce of its layers without
group=: it waits among all ranks, where the other replica soon waits too, for its gradients. Rank 2 alone is in the
tensor-parallel group, where the call of rank 3 never comes."""
import time

from ranks import compute, main, say, world


def work(name):
    import torch, torch.distributed as dist

    rank = int(name[-1])
    world(rank, 4)
    tp = [dist.new_group([0, 1]), dist.new_group([2, 3])][rank // 2]
    for step in range(1000):
        for layer in range(4):
            hidden = torch.ones(256)
            compute(0.02)
            if step == 12 and layer == 1 and rank == 3:
                dist.all_reduce(hidden)
            else:
                dist.all_reduce(hidden, group=tp)
        gradient = torch.ones(256)
        dist.all_reduce(gradient)
        say(name, "step", step)
        time.sleep(0.1)


if __name__ == "__main__":
    main(["rank0", "rank1", "rank2", "rank3"], work)
