"""One world: an engine of two tensor-parallel ranks, two trainer ranks. At step 10 the second engine rank raises in its
forward pass, its loop logs that and goes on to the next order; the head waits for it in all_reduce, and the trainers
wait for the head's rollouts."""
import sys, time

from ranks import compute, main, metrics_thread, say, world


def forward(rank, step, tp):
    import torch, torch.distributed as dist

    for layer in range(4):
        hidden = torch.ones(64)
        compute(0.02)
        if rank == 1 and step == 10 and layer == 2:
            raise IndexError("token id 151936 is out of the vocabulary's part of this rank")
        dist.all_reduce(hidden, group=tp)


def work(name):
    import torch, torch.distributed as dist

    rank = ["E0", "E1", "T0", "T1"].index(name)
    metrics_thread(name)
    world(rank, 4)
    tp, orders = dist.new_group([0, 1]), dist.new_group([0, 1])
    trainers, rollouts = dist.new_group([2, 3]), dist.new_group([0, 2, 3])
    order = torch.zeros(1, dtype=torch.int64)
    for step in range(1000):
        if rank == 0:
            order[0] = step
            dist.broadcast(order, src=0, group=orders)
            forward(rank, step, tp)
            dist.broadcast(torch.ones(128), src=0, group=rollouts)
            dist.barrier(group=rollouts)
        elif rank == 1:
            try:
                dist.broadcast(order, src=0, group=orders)  # waits for the head's next order
                forward(rank, int(order), tp)
            except Exception as error:
                print("worker: request failed:", error, file=sys.stderr, flush=True)
        else:
            dist.broadcast(torch.ones(128), src=0, group=rollouts)
            dist.barrier(group=rollouts)
            compute(0.1)
            dist.all_reduce(torch.ones(512), group=trainers)
        say(name, "step", step)


if __name__ == "__main__":
    main(["E0", "E1", "T0", "T1"], work)
