"""Sound: one replica sums over its tensor-parallel group first and then over the data-parallel one, the other replica
the other way round. No two groups are shared by two ranks in opposite orders, so nothing can stand still; at two steps
the first replica computes for 13 s and the second waits for it in the data-parallel groups."""
from ranks import compute, main, metrics_thread, say, world


def work(name):
    import torch, torch.distributed as dist

    rank = int(name[-1])
    metrics_thread(name)
    world(rank, 4)
    tps = [dist.new_group([0, 1]), dist.new_group([2, 3])]
    dps = [dist.new_group([0, 2]), dist.new_group([1, 3])]
    order = [tps[rank // 2], dps[rank % 2]]
    for step in range(28):
        if rank < 2:
            compute(13 if step in (10, 20) else 0.3)
        for group in order if rank < 2 else order[::-1]:
            dist.all_reduce(torch.ones(64), group=group)
        say(name, "step", step)
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main(["rank0", "rank1", "rank2", "rank3"], work)
