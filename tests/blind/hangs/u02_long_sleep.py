"""Sound: the engine ranks sleep for 20 s, waiting for their order to wake, while the trainers make updates of 1 s; then
they wake, all sync, and it begins again."""
from ranks import compute, connect, custom_group, listen, main, metrics_thread, say, world


def engine(name, rank):
    import torch, torch.distributed as dist

    orders = listen(2 + rank)
    world(rank, 2, 0)
    sync = custom_group(1 + rank, 3, "weights", 4)
    while True:
        order = orders.recv()
        if order == "stop":
            return
        if order == "generate":
            for _ in range(6):
                compute(0.05)
                dist.all_reduce(torch.ones(64))
        elif order == "sleep":
            wait_for_wake(orders)
        elif order == "sync":
            dist.broadcast(torch.ones(4096), group=sync, group_src=0)
            dist.barrier(group=sync)
        orders.send("done")


def wait_for_wake(orders):
    while orders.recv() != "wake":
        pass


def trainer(name, rank):
    import torch, torch.distributed as dist

    engines = [connect(2), connect(3)] if rank == 0 else []
    world(rank, 2, 1)
    sync = custom_group(0, 3, "weights", 4) if rank == 0 else None
    for step in range(2):
        for order in ("generate", "sleep", "wake", "sync"):
            for one in engines:
                one.send(order)
            if order == "sleep":
                for update in range(20):
                    compute(1)
                    dist.all_reduce(torch.ones(512))
                    say(name, "update", update)
                continue  # the answer comes when they have woken
            if order == "sync" and rank == 0:
                dist.broadcast(torch.ones(4096), group=sync, group_src=0)
                dist.barrier(group=sync)
            for one in engines:
                one.recv()
        dist.barrier()
        say(name, "step", step)
    for one in engines:
        one.send("stop")


def work(name):
    metrics_thread(name)
    (engine if name[0] == "E" else trainer)(name, int(name[1]))


if __name__ == "__main__":
    main(["E0", "E1", "T0", "T1"], work, ports=5)
