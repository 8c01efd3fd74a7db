"""Sound: at two steps the engine ranks compute for 14 s before they answer, and the trainers wait for the rollouts."""
from ranks import compute, main, metrics_thread, say, world


def work(name):
    import torch, torch.distributed as dist

    rank = ["E0", "E1", "T0", "T1"].index(name)
    metrics_thread(name)
    world(rank, 4)
    tp, trainers, rollouts = dist.new_group([0, 1]), dist.new_group([2, 3]), dist.new_group([0, 2, 3])
    for step in range(30):
        if rank < 2:
            compute(14 if step in (8, 16) else 0.3)
            dist.all_reduce(torch.ones(64), group=tp)
        if rank != 1:
            dist.broadcast(torch.ones(128), src=0, group=rollouts)
            dist.barrier(group=rollouts)
        if rank > 1:
            compute(0.3)
            dist.all_reduce(torch.ones(512), group=trainers)
        say(name, "step", step)
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main(["E0", "E1", "T0", "T1"], work)
