"""Which rank on which host wrote a line: by the prefix of the line, by a command line, by the path of a file."""

from __future__ import annotations

import re
from functools import lru_cache
from pathlib import PurePath
from typing import NamedTuple

from probes import limits

NUMBER = r"\d{1,7}"  # of a rank, in any prefix
# torchrun and torch's own log lines; Ray's and vLLM's; mpirun --tag-output and Open MPI 5; srun -l
_PREFIX = re.compile(
    rf"\[rank(?P<torch>{NUMBER})\]:? ?"
    rf"|\((?P<actor>[\w.:<>-]{{1,100}})(?: rank=(?P<worker>{NUMBER}))? pid=(?P<pid>\d{{1,10}})"
    r"(?:, ip=(?P<host>[\w.:-]{1,100}))?\) ?"
    rf"|\[(?:[\w.-]{{1,100}}@)?{NUMBER},(?P<mpi>{NUMBER})\]<std(?:out|err)>: ?"
    rf"|(?=.{{1,3}}:)(?P<srun>  ?\d{{1,2}}): "  # padded to the width of the largest; backtraces of Rust pad to four
    rf"|(?P<task>{NUMBER}): "
)
_RANK = re.compile(rf"(?:^|\s)(?:RANK=|--rank[= ])({NUMBER})(?=\s|$)")
_WORLD = re.compile(rf"(?:^|\s)(?:WORLD_SIZE=|--world[-_]size[= ])({NUMBER})(?=\s|$)")
_PER_NODE = re.compile(rf"(?:^|\s)--nproc[-_]per[-_]node[= ]({NUMBER})(?=\s|$)")
_NODES = re.compile(r"(?:^|\s)--nnodes[= ](\S+)")
_PATH_RANK = re.compile(rf"(?<![a-z])(local[-_.])?rank[-_.=]?({NUMBER})(?!\d)", re.IGNORECASE)
_PATH_HOST = re.compile(r"(?<![a-z])((?:node|host)[-_.=]?\d{1,7})(?!\d)", re.IGNORECASE)
# torchrun --log-dir: FOLDER/RUN/attempt_0/3/stderr.log, where 3 is the local rank.
LOG_DIR = re.compile(rf"(?P<run>.*?)(?:^|/)attempt_(?P<attempt>\d{{1,4}})/(?P<local>{NUMBER})/(?:stdout|stderr)\.log")
# What torch.distributed.debug's server writes before the stacks of each rank, with the address of its worker server.
_SECTION = re.compile(
    rf"=== Rank ({NUMBER}): (?:https?://)?\[?([\w.:-]{{1,200}}?)\]?(?::\d{{1,5}})?(?:/.{{0,500}})? ==="
)


class Name(NamedTuple):
    """Who wrote it, as far as the place says. Zero, empty and None mean that it does not say."""

    rank: int | None = None
    host: str = ""
    pid: int = 0
    role: str = ""


NOBODY = Name()


def split(line: str) -> tuple[Name, str]:
    """The writer that the prefix of a log line names, and the line without the prefix."""
    if line[:1] not in "[( 0123456789" or line.startswith("   ") or not (prefix := _PREFIX.match(line)):
        return NOBODY, line
    return _of_prefix(prefix[0]), line[prefix.end() :]


@lru_cache(maxsize=4096)  # one process writes many lines
def _of_prefix(prefix: str) -> Name:
    match = _PREFIX.fullmatch(prefix)
    assert match is not None
    number = match["torch"] or match["mpi"] or match["srun"] or match["task"] or match["worker"]
    return Name(
        limits.rank(number.strip() if number else None),
        match["host"] or "",
        int(match["pid"] or 0),
        match["actor"] or "",
    )


def section(line: str) -> Name | None:
    """The rank whose lines begin here, as torch.distributed.debug's server writes it; None for any other line."""
    header = _SECTION.fullmatch(line) if line.startswith("=== Rank ") else None
    return Name(limits.rank(header[1]), header[2]) if header else None


def rank_in(command: str) -> int | None:
    """The rank that a command line sets; None if it sets none, or several."""
    numbers = set(_RANK.findall(command))
    return limits.rank(numbers.pop()) if len(numbers) == 1 else None


def world_in(command: str) -> int | None:
    """The number of ranks that a command line asks for."""
    if explicit := _WORLD.search(command):
        return limits.rank(explicit[1])
    if not (per_node := _PER_NODE.search(command)):
        return None
    nodes = _NODES.search(command)
    if nodes is not None and not re.fullmatch(NUMBER, nodes[1]):
        return None  # elastic: from two to four nodes, say
    return limits.rank(str(int(per_node[1]) * int(nodes[1] if nodes else 1)))


@lru_cache(maxsize=4096)  # each file is asked for by several readers
def of_path(path: str) -> Name:
    """The rank and host that a path names, by its last part that names one.

    A local rank is the rank where the path names no host: of a job on one host.
    """
    rank, host, local = None, "", False
    if logged := LOG_DIR.fullmatch(path):
        rank, local = limits.rank(logged["local"]), True
    for part in reversed(PurePath(path).parts):
        if rank is None and (number := _PATH_RANK.search(part)):
            rank, local = limits.rank(number[2]), bool(number[1])
        if not host and (place := _PATH_HOST.search(part)):
            host = place[1]
    return Name(None if local and host else rank, host)
