"""Ranks that listen at an interface which the other hosts do not reach: what their sockets say of it."""

from __future__ import annotations

import dataclasses

import pytest
from triage_evidence import samples, wording

from harness.triage.evidence import Evidence, Process
from harness.triage.judge import triage
from reports.model import Verdict

A, B, BRIDGE = "10.213.77.1", "10.213.77.2", "10.42.0.1"
FORMING = "main:10 init_process_group"
# Seen in the hang lab (hosts-wrong-nic): gloo told the bridge of the second host, which the first does not reach.
SEEN = (
    Process("hosta", 6, role="launcher", command="torchrun --nnodes 2", listening=("[::]:29500", f"{A}:29500"),
            peers=(f"{B}:36654", f"{A}:29500"), samples=samples("main:1 select")),
    *(Process("hosta", 18 + rank, 6, rank=rank, world_size=4, listening=(f"{A}:{42393 + rank}",),
              peers=(f"{A}:29500",), asked=(f"{BRIDGE}:40351",), samples=samples(FORMING)) for rank in (0, 1)),
    Process("hostb", 6, role="launcher", command="torchrun --nnodes 2", peers=(f"{A}:29500",),
            samples=samples("main:1 select")),
    *(Process("hostb", 15 + rank, 6, rank=rank, world_size=4, listening=(f"{BRIDGE}:{40349 + rank}",),
              peers=(f"{A}:29500", f"{BRIDGE}:40351"), samples=samples(FORMING),
              environ={"GLOO_SOCKET_IFNAME": "cni0", "MASTER_ADDR": A}) for rank in (2, 3)),
)  # fmt: skip


def verdict(processes: tuple[Process, ...]) -> Verdict:
    return triage(Evidence("", "watch", "2026-01-01T00:00:00+00:00", 30.0, processes, expected_world=4))


def ranks(said: Verdict) -> set[int | None]:
    assert said.triage is not None
    return {one.rank for one in said.triage.culprits}


def changed(host: str, **fields: object) -> tuple[Process, ...]:
    """What was seen, with other fields of the ranks of one host."""
    return tuple(
        dataclasses.replace(one, **fields) if one.host == host and one.rank is not None else one  # type: ignore[arg-type]
        for one in SEEN
    )


@pytest.mark.parametrize("variable", ["GLOO_SOCKET_IFNAME", "NCCL_SOCKET_IFNAME"])
@pytest.mark.parametrize("stack", [FORMING, "main:10 all_reduce"])
def test_the_ranks_of_the_host_are_named_with_the_variable(variable: str, stack: str) -> None:
    """NCCL makes its communicator in the first collective."""
    processes = changed("hostb", environ={variable: "cni0", "MASTER_ADDR": A}, samples=samples(stack))
    processes = tuple(
        dataclasses.replace(one, samples=samples(stack)) if one.rank is not None else one for one in processes
    )
    said = verdict(processes)
    assert (said.verdict, ranks(said)) == ("HUNG", {2, 3}), said.reason
    assert said.triage is not None and said.triage.hang == "K5" and f"{variable}=cni0" in wording(said)
    assert f"ip route get {A}" in said.triage.next[0] and f"on hostb set {variable}" in said.triage.next[0]


@pytest.mark.parametrize(
    "processes",
    [
        # a firewall: the address is the one by which the host is connected
        tuple(
            dataclasses.replace(
                one,
                listening=tuple(at.replace(BRIDGE, B) for at in one.listening),
                asked=tuple(at.replace(BRIDGE, B) for at in one.asked),
            )
            for one in SEEN
        ),
        changed("hosta", listening=("10.99.0.1:42393",)),  # a second network of all hosts, which is down
        changed("hosta", asked=()),  # nobody asks in vain
        changed("hosta", asked=(f"{BRIDGE}:1",)),  # somebody else is asked
        # cut off: nothing shows that the host reaches the others
        tuple(dataclasses.replace(one, peers=()) if one.host == "hostb" else one for one in SEEN),
        tuple(one for one in SEEN if one.host == "hostb"),  # one host's evidence alone
    ],
    ids=["firewall", "second network", "nobody asks", "another port", "cut off", "one host"],
)
def test_nobody_is_named_where_the_evidence_does_not_prove_it(processes: tuple[Process, ...]) -> None:
    said = verdict(processes)
    assert not ranks(said), said.reason
