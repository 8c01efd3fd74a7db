"""Checks of names, interfaces, ports and proxies: how ranks, engines and Ray find each other."""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Iterator

from harness.doctor.facts import Facts
from harness.doctor.gather.network import Interface, Listener, Network
from harness.doctor.outcome import Asked, Fine, Outcome, Problem, check

_RAY_PORTS = {6379: "Ray's head", 8265: "Ray's dashboard and jobs", 10001: "Ray's client server"}
_RAY_WORKERS = range(10_002, 20_000)  # worker ports of `ray start` by default
_RAY = re.compile(r"gcs_server|raylet|ray::|ray[/.](dashboard|util|_private)|/ray start")


@check("hostname", "network", "software", host=True)
def hostname(facts: Facts, request: Asked) -> Iterator[Outcome]:
    """Resolves the host's own name. Error when it does not resolve, or, with several nodes, only to loopback:
    gloo offers that address to the other ranks (gloo/transport/tcp/device.cc). Warning when the look-up takes
    more than 2 s."""
    network, variables = _network_and_variables(facts)
    chosen = variables.get("GLOO_SOCKET_IFNAME")
    address_text = f"{network.hostname} is {', '.join(network.resolved) or 'not resolved'}"
    if network.resolve_error:
        yield Problem(
            "error",
            "the host's own name does not resolve",
            f"{network.hostname}: {network.resolve_error}",
            "gloo and torch's store look it up at every start: init_process_group fails or waits",
            f"echo 'ADDRESS {network.hostname}' | sudo tee -a /etc/hosts",
        )
    elif not network.resolved or not all(map(_is_loopback, network.resolved)):
        yield Fine(address_text)
    elif chosen:
        yield Fine(f"{address_text}, but GLOO_SOCKET_IFNAME={chosen} decides")
    else:
        yield _loopback_name(network, address_text, several_nodes=_many_nodes(variables, request))
    if network.resolve_s > 2:
        yield Problem(
            "warning",
            "looking up the host's own name is slow",
            f"{network.resolve_s:.1f} s",
            "every rank does it at every start, one after the other in some launchers",
            f"echo 'ADDRESS {network.hostname}' | sudo tee -a /etc/hosts",
        )


def _is_loopback(address: str) -> bool:
    return ipaddress.ip_address(address.partition("%")[0]).is_loopback  # fe80::1%eth0 names its interface


def _loopback_name(network: Network, address_text: str, *, several_nodes: bool) -> Problem:
    outside = _usable(network)
    why = (
        "gloo, and the rendezvous of every CPU process group, offer that address to the other ranks: from another "
        "node nothing answers there and the group never forms"
    )
    return Problem(
        "error" if several_nodes else "info",
        "the host's own name is a loopback address",
        address_text,
        why if several_nodes else f"{why}; on a single node it does no harm",
        f"export GLOO_SOCKET_IFNAME={outside[0] if outside else 'INTERFACE'}   # or correct /etc/hosts",
    )


def _usable(network: Network) -> list[str]:
    """The interfaces by which another node can be reached."""
    return [item.name for item in network.interfaces if item.up and not item.loopback and item.addresses]


@check("interfaces", "network", "software")
def interfaces(facts: Facts, request: Asked) -> Iterator[Outcome]:
    """Compares NCCL_, GLOO_ and TP_SOCKET_IFNAME with the interfaces. Error when one names an interface that is
    absent, down, or loopback with several nodes. Warning when, with several nodes, NCCL could choose a virtual
    interface (NCCL's user guide, NCCL_SOCKET_IFNAME)."""
    network, variables = _network_and_variables(facts)
    interfaces_by_name = {item.name: item for item in network.interfaces}
    several = _many_nodes(variables, request)
    outcomes: list[Outcome] = []
    for name in ("NCCL_SOCKET_IFNAME", "GLOO_SOCKET_IFNAME", "TP_SOCKET_IFNAME"):
        if name in variables:
            outcomes += _misnamed(name, variables[name], interfaces_by_name, several_nodes=several)
    usable = _usable(network)
    virtual = [name for name in usable if re.match(r"docker|virbr|cni|flannel|cali|veth|br-|tun|tailscale", name)]
    if virtual and several and "NCCL_SOCKET_IFNAME" not in variables:
        real = [name for name in usable if name not in virtual]
        outcomes.append(
            Problem(
                "warning",
                "a virtual interface could be chosen for NCCL's bootstrap",
                f"up are {', '.join(usable)}; NCCL_SOCKET_IFNAME is not set",
                "nodes that choose the container bridge advertise an address that others cannot reach",
                f"export NCCL_SOCKET_IFNAME={real[0] if real else 'INTERFACE'}",
            )
        )
    yield from outcomes or [Fine(f"up: {', '.join(usable) or 'loopback only'}")]


def _misnamed(
    name: str, wanted: str, interfaces_by_name: dict[str, Interface], *, several_nodes: bool
) -> Iterator[Problem]:
    """Yield what is wrong with the interfaces that the variable `name` asks for: absent, down, or loopback."""
    exact = not name.startswith("NCCL")  # NCCL takes prefixes, as `_matching` reads them
    matched = [interfaces_by_name[item] for item in _matching(wanted, list(interfaces_by_name), exact=exact)]
    missing = [item for item in wanted.split(",") if item not in ("", *interfaces_by_name)] if exact else []
    measured = f"{name}={wanted}; here are {', '.join(sorted(interfaces_by_name)) or 'none'}"
    # The fix proposes an interface that is up and leads out of this machine.
    up = [item.name for item in interfaces_by_name.values() if item.up and not item.loopback]
    export = f"export {name}={up[0] if up else 'INTERFACE'}"
    if not matched or missing:
        yield Problem(
            "error",
            f"{name} names an interface that does not exist here",
            measured,
            "this node's ranks fail to bootstrap, and the other nodes' ranks wait for them",
            export,
        )
    elif not any(item.up for item in matched):
        yield Problem(
            "error",
            f"{name} names an interface that is down",
            measured,
            "this node's ranks fail to bootstrap, and the other nodes' ranks wait for them",
            f"sudo ip link set {matched[0].name} up",
        )
    elif several_nodes and all(item.loopback for item in matched):
        yield Problem(
            "error",
            f"{name} is the loopback interface on a cluster of several nodes",
            measured,
            "each node reaches only itself: the group never forms",
            export,
        )


@check("infiniband", "network", "software", host=True)
def infiniband(facts: Facts, request: Asked) -> Iterator[Outcome]:
    """Compares NCCL_IB_HCA with the RDMA devices. Error when it names none of them, warning when some are
    missing (NCCL's user guide, NCCL_IB_HCA)."""
    network, variables = _network_and_variables(facts)
    wanted = variables.get("NCCL_IB_HCA", "")
    here = ", ".join(network.infiniband) or "none"
    if not wanted or variables.get("NCCL_IB_DISABLE", "0") == "1":
        yield Fine(f"devices: {here}; NCCL_IB_HCA={wanted or 'not set'}")
    elif not _matching(wanted, list(network.infiniband)):
        yield Problem(
            "error",
            "NCCL_IB_HCA names no RDMA device of this node",
            f"NCCL_IB_HCA={wanted}; here are {here}",
            "NCCL falls back to sockets here while the other nodes use RDMA: it fails or crawls",
            "ls /sys/class/infiniband   # then: export NCCL_IB_HCA=NAME",
        )
    elif not wanted.startswith("^") and (absent := _absent(wanted, network.infiniband)):
        yield Problem(
            "warning",
            "NCCL_IB_HCA names RDMA devices that are not here",
            f"missing {', '.join(absent)}; here are {here}",
            "ranks of this node have fewer rails than the others: rings are uneven or fail to connect",
            "ls /sys/class/infiniband   # then: export NCCL_IB_HCA=NAME",
        )
    else:
        yield Fine(f"devices: {here}")


@check("ports", "network", "software", host=True)
def ports(facts: Facts, request: Asked) -> Iterator[Outcome]:
    """Looks for listeners on 6379, 8265, 10001 (`ray start`'s defaults) and MASTER_PORT. Error when MASTER_PORT
    or 6379 is taken, info when a Ray cluster holds it. Warning when another of Ray's is, or when MASTER_PORT is
    among the ports of Ray's workers, 10002 to 19999. Info when it is ephemeral (ip_local_port_range)."""
    network, variables = _network_and_variables(facts)
    wanted, master = dict(_RAY_PORTS), variables.get("MASTER_PORT", "")
    if master.isdigit():
        wanted[int(master)] = "MASTER_PORT"
    outcomes: list[Outcome] = []
    # Within a cluster, its own processes hold Ray's ports, and rightly.
    in_cluster = request.joined or not facts.shell
    for listener in network.listening:
        name = wanted.pop(listener.port, None)  # one report for a port with listeners of IPv4 and of IPv6
        if name and not (in_cluster and listener.port in _RAY_PORTS):
            outcomes.append(_port_problem(listener, name))
    if master.isdigit():
        outcomes += _master_port(int(master), network.ephemeral)
    free = f"free: {', '.join(map(str, sorted(wanted)))}" if wanted else "held by the cluster itself"
    yield from outcomes or [Fine(free)]


def _port_problem(listener: Listener, name: str) -> Problem:
    """Return the problem that a port is taken. `name`: whose port it is."""
    holder = f"pid {listener.pid} ({listener.command})" if listener.pid else "a process of another user or container"
    measured = f"port {listener.port} on {listener.address}: {holder}"
    end = f"kill {listener.pid}" if listener.pid else f"sudo ss -ltnp 'sport = :{listener.port}'"
    if name == "MASTER_PORT":
        return Problem(
            "error", "MASTER_PORT is taken", measured,
            "rank 0 fails with EADDRINUSE, or the ranks join a store of an earlier run and wait",
            f"{end}   # or export another MASTER_PORT",
        )  # fmt: skip
    if _RAY.search(listener.command):
        return Problem(
            "info", "a Ray cluster already runs here", measured,
            "`ray start --head` fails, and ray.init(address='auto') joins that one",
            "harness doctor --address auto   # to examine it",
        )  # fmt: skip
    return Problem(
        "error" if listener.port == 6379 else "warning", f"the port of {name} is taken", measured,
        "`ray start --head` fails, or its next port is not the one that your job asks",
        f"{end}   # or ray start --head --port=PORT --dashboard-port=PORT",
    )  # fmt: skip


def _master_port(port: int, ephemeral: tuple[int, int]) -> Iterator[Outcome]:
    """Report ranges of ports of which something else may take MASTER_PORT."""
    low, high = ephemeral
    if port in _RAY_WORKERS:
        yield Problem(
            "warning", "MASTER_PORT lies among the ports of Ray's workers", f"MASTER_PORT={port}",
            "`ray start` gives 10002 to 19999 to its workers: now and then rank 0 finds it taken",
            "export MASTER_PORT=29500",
        )  # fmt: skip
    if low <= port <= high:
        yield Problem(
            "info", "MASTER_PORT lies among the ephemeral ports", f"MASTER_PORT={port}, ephemeral {low} to {high}",
            "an outgoing connection may hold it when rank 0 wants it", "export MASTER_PORT=29500",
        )  # fmt: skip


@check("ray-address", "network", "software")
def ray_address(facts: Facts, request: Asked) -> Iterator[Outcome]:
    """Connects to RAY_ADDRESS, or to the address that the last `ray start` left in ray_current_cluster. Error
    when nothing listens there: ray.init() tries it before it starts a cluster (ray/_private/services.py)."""
    network, variables = _network_and_variables(facts)
    if network.ray_address_open is False:
        yield Problem(
            "error",
            "nothing listens at RAY_ADDRESS",
            f"RAY_ADDRESS={variables.get('RAY_ADDRESS', '')}",
            "every ray.init() of this shell tries it for minutes instead of starting a cluster",
            "unset RAY_ADDRESS",
        )
    elif "RAY_ADDRESS" not in variables and facts.shell and network.ray_remembered_open is False:
        yield Problem(
            "error",
            "Ray remembers a cluster that is gone",
            f"{network.ray_remembered} in {network.ray_remembered_file}",
            "ray.init() without an address tries to join it and fails, or refuses num_cpus, instead of starting a "
            "cluster; a `ray start` that was killed can leave it behind",
            f"rm {network.ray_remembered_file}",
        )
    else:
        yield Fine(
            f"RAY_ADDRESS={variables['RAY_ADDRESS']}" if "RAY_ADDRESS" in variables else "RAY_ADDRESS is not set"
        )


@check("proxy", "software")
def proxy(facts: Facts, request: Asked) -> Iterator[Outcome]:
    """Reads the names of proxy variables. Warning when one is set and no_proxy leaves out neither localhost nor
    127.0.0.1."""
    assert facts.software is not None
    names, outside = facts.software.proxies, facts.software.no_proxy
    if names and not {"*", "localhost", "127.0.0.1"} & set(outside):
        yield Problem(
            "warning",
            "a proxy is set, and local addresses are not left out of it",
            f"{', '.join(names)} set; no_proxy={','.join(outside) or 'not set'}",
            "requests to an engine's server or to Ray's jobs on this machine go to the proxy and fail or hang",
            "export no_proxy=localhost,127.0.0.1,$(hostname -i)",
        )
    else:
        yield Fine(f"{', '.join(names)} set, local addresses left out" if names else "none set")


def _matching(wanted: str, names: list[str], exact: bool = False) -> list[str]:
    """The names that a value in NCCL's syntax matches: prefixes, `=` exact names, `^` all others. A port after `:`
    is ignored."""
    # The order of the marks is NCCL's: `^=eth0` excludes exactly eth0.
    excluded, wanted = wanted.startswith("^"), wanted.removeprefix("^")
    is_exact, wanted = exact or wanted.startswith("="), wanted.removeprefix("=")
    parts = [part.partition(":")[0] for part in wanted.split(",") if part]
    hit = [name for name in names if (name in parts if is_exact else name.startswith(tuple(parts)))]
    return [name for name in names if name not in hit] if excluded else hit


def _absent(wanted: str, names: tuple[str, ...]) -> list[str]:
    parts = [part.partition(":")[0] for part in wanted.removeprefix("=").split(",") if part]
    return [part for part in parts if not any(name.startswith(part) for name in names)]


def _many_nodes(variables: dict[str, str], request: Asked) -> bool:
    slurm = variables.get("SLURM_JOB_NUM_NODES") or variables.get("SLURM_NNODES") or "1"
    return request.nodes > 1 or (slurm.isdigit() and int(slurm) > 1)


def _network_and_variables(facts: Facts) -> tuple[Network, dict[str, str]]:
    assert facts.network is not None
    return facts.network, facts.variables
