"""One world of two engine ranks and two trainer ranks. The data of the second trainer rank are one micro-batch shorter
in the last epoch: it leaves its loop and waits in the barrier at the end of the job, while the first trainer rank waits
for its gradients and the engine for the first one's weights."""
import time

from ranks import compute, main, metrics_thread, say, world


def work(name):
    import torch, torch.distributed as dist

    rank = ["E0", "E1", "T0", "T1"].index(name)
    metrics_thread(name)
    world(rank, 4)
    tp, trainers, sync = dist.new_group([0, 1]), dist.new_group([2, 3]), dist.new_group([0, 1, 2])
    weights = torch.zeros(4096)
    epochs = [6, 6, 6 if name != "T1" else 5]
    for batches in epochs if rank > 1 else [6, 6, 6]:
        for batch in range(batches):
            if rank > 1:
                compute(0.1)
                gradient = torch.ones(512)
                dist.all_reduce(gradient, group=trainers)
            else:
                for _ in range(4):
                    hidden = torch.ones(64)
                    compute(0.02)
                    dist.all_reduce(hidden, group=tp)
            if name != "T1":
                dist.broadcast(weights, src=2, group=sync)
                dist.barrier(group=sync)
            say(name, "batch", batch)
    finish()


def finish():
    import torch.distributed as dist

    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main(["E0", "E1", "T0", "T1"], work)
