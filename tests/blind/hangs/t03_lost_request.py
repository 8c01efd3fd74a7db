"""A driver and two engines of two tensor-parallel ranks each. At round 8 the head of the second engine forgets one of
its four requests (its table says that it was aborted) and waits for further ones; the driver waits for its answer."""
import time

from ranks import compute, connect, listen, main, metrics_thread, say, world


def engine(name):
    import torch, torch.distributed as dist

    number, rank = "ab".index(name[1]), int(name[2])
    requests = listen(2 + number) if rank == 0 else None
    world(rank, 2, number)
    seen = 0
    while True:
        size = torch.zeros(1, dtype=torch.int64)
        batch = []
        if rank == 0:
            batch.append(requests.recv())  # waits for work
            while len(batch) < 4 and requests.poll(0.05):
                batch.append(requests.recv())
            size[0] = len(batch)
        dist.broadcast(size, src=0)
        for _ in range(4):
            hidden = torch.ones(64)
            compute(0.02)
            dist.all_reduce(hidden)
        for request in batch:
            seen += 1
            if number == 1 and seen == 8 * 4 + 3:
                continue
            requests.send(("answer", request))


def driver(name):
    engines = [connect(2), connect(3)]
    for turn in range(1000):
        for number, one in enumerate(engines):
            for request in range(4):
                one.send((turn, number, request))
        for one in engines:
            for _ in range(4):
                one.recv()
        say(name, "round", turn)
        time.sleep(0.1)


def work(name):
    metrics_thread(name)
    driver(name) if name == "driver" else engine(name)


if __name__ == "__main__":
    main(["driver", "Ea0", "Ea1", "Eb0", "Eb1"], work, ports=4)
