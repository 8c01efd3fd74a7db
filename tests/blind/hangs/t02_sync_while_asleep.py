"""Two engine ranks (a tensor-parallel world), two trainer ranks (another world), a sync group of trainer 0 and the
engine. Engine ranks sleep while the trainers train. At step 8 the second engine rank does not get its order to wake,
drops the order to sync because it sleeps, and waits for the order to wake; the others are in the sync."""
import time

from ranks import compute, connect, custom_group, listen, main, metrics_thread, say, world


def engine(name, rank):
    import torch, torch.distributed as dist

    orders = listen(2 + rank)
    world(rank, 2, 0)
    sync = custom_group(1 + rank, 3, "weights", 4)
    weights = torch.zeros(4096)
    while True:
        order = orders.recv()
        if order == "generate":
            for _ in range(6):
                hidden = torch.ones(64)
                compute(0.02)
                dist.all_reduce(hidden)
            orders.send("done")
        elif order == "sleep":
            orders.send("asleep")
            wait_for_wake(orders)
        elif order == "sync":
            for _ in range(4):
                dist.broadcast(weights, group=sync, group_src=0)
            dist.barrier(group=sync)
            orders.send("synced")


def wait_for_wake(orders):
    while orders.recv() != "wake":
        say("asleep: order ignored")
    orders.send("awake")


def trainer(name, rank):
    import torch, torch.distributed as dist

    engines = [connect(2), connect(3)] if rank == 0 else []
    world(rank, 2, 1)
    sync = custom_group(0, 3, "weights", 4) if rank == 0 else None
    weights = torch.zeros(4096)

    def tell(order, some=engines):
        for one in some:
            one.send(order)
        return [one.recv() for one in some]

    for step in range(1000):
        tell("generate")
        tell("sleep")
        dist.barrier()
        for _ in range(3):
            gradient = torch.ones(512)
            compute(0.05)
            dist.all_reduce(gradient)
        if rank == 0:
            awake = engines if step != 8 else engines[:1]  # the other's flag says that it never fell asleep
            tell("wake", awake)
            for one in engines:
                one.send("sync")
            for _ in range(4):
                dist.broadcast(weights, group=sync, group_src=0)
            dist.barrier(group=sync)
            for one in engines:
                one.recv()
        dist.barrier()
        say(name, "step", step)


def work(name):
    metrics_thread(name)
    (engine if name[0] == "E" else trainer)(name, int(name[1]))


if __name__ == "__main__":
    main(["E0", "E1", "T0", "T1"], work, ports=5)
