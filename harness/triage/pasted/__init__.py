"""Evidence from what people paste: stacks and log lines, in files of any name.

A paste is one look without a time. What it lacks is named in the evidence, and no stall is read into it.
"""

from __future__ import annotations

import json
import os
import re
import shlex
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import lru_cache
from pathlib import Path
from typing import Any, NoReturn

from harness import exit_cleanup
from harness.errors import BadInput
from harness.triage import compressed
from harness.triage.collect import redact
from harness.triage.collect.proc import Facts
from harness.triage.collect.roles import engine_of, role_of
from harness.triage.directory import MAX_PROCESSES, loose
from harness.triage.evidence import PASTED, Evidence, LogError, Process, Sample
from harness.triage.flight.filenames import named_rank
from harness.triage.flight.log_counters import OF_LOG
from harness.triage.pasted import naming, torchrun, watchdog
from harness.triage.pasted.dumps import Dump
from harness.triage.pasted.naming import Name
from harness.triage.pasted.nccl_ranks import NcclRanks
from harness.triage.pasted.opened_files import plain_files
from harness.triage.pasted.reader import Look, Reader
from harness.triage.pasted.text import NO_TEXT
from harness.triage.stacks import trail
from probes.files import write_whole

STDIN, STANDARD_INPUT = "-", "standard input"
# What is read of text.
WANTED = (
    "wanted are stacks of Python processes (py-spy dump, pystack, gdb with py-bt, faulthandler), or the lines of a log "
    "about an error or a timeout"
)
PASTES = "py-spy dump --pid PID | harness triage -"
LACKS = "pasted stacks: one look without a time, and nothing of /proc, sockets, heartbeats or recorders"
NO_MEMBERS = "the members of a group are not in a log: of ranks that wrote no line about a timeout nothing is known"
MAX_RUN_FOLDERS = 3  # folders of torchrun that a note names
EARLIER = (
    "the log has {count} incidents: only the lines of the last one are used, and dumps beside it are taken for its own"
)


def evidence(words: Sequence[str]) -> Evidence | None:
    """The evidence in files, folders and `-`, the standard input; None if they hold no text, or are one recorder dump
    or one folder of them.

    Flight recorder dumps that lie beside become part of it, in place of what a log says of the recorders. Raises
    BadInput for the one text that is an answer of the harness itself, and for a standard input that is no text.
    """
    reader = Reader()
    skipped: list[str] = []
    for name, file in _named(words, skipped):
        if not reader.take(name, file):
            break
    if not reader.has_read and reader.recorded:
        return _dumps_alone(reader, words, skipped)
    _refuse_unread(reader, words)
    if not reader.has_read and not reader.ends:
        return None
    reader.take_interrupted()
    earlier_errors = reader.keep_last_incident()
    dumps = reader.log.dumps()
    counted_alone = bool(dumps) and not reader.recorded
    looks = list(_named_looks(reader.looks, reader.nccl_ranks))
    processes, repeated = _processes(looks)
    processes = _with_kernel_waits(processes, reader.in_kernel)
    stacked = {process.rank for process in processes if process.rank is not None}
    logged = _errors(reader, stacked)
    failed = torchrun.processes(reader.failures.rows)
    processes += [_with_words(process, reader.errors.entries) for process in failed if process.rank not in stacked]
    waiting = {rank for rank, _ in reader.log.waiting}
    processes += _held_by_the_kernel(logged, {process.key for process in processes})
    processes += _failed(logged, {process.rank for process in processes} | waiting)
    lacks = [LACKS] if reader.looks else []
    return Evidence(
        path=words[0] if len(words) == 1 and words[0] != STDIN else "",
        source=PASTED,
        taken="",
        stall_s=0.0,
        processes=tuple(processes),
        ras=reader.answers,
        ray_actors=tuple(reader.lists.actors.values()),
        ray_tasks=tuple(reader.lists.tasks.values()),
        ray_groups=tuple(reader.lists.groups.values()),
        ray_demands=tuple(reader.lists.demands.values()),
        dumps=reader.recorded | _written(dumps),
        expected_world=_world(reader.looks),
        errors=tuple(logged),
        recorder_findings=tuple(reader.findings),
        log_ends=tuple(reader.ends),
        log_phases=tuple(reader.phases),
        timed_out_s=reader.log.waited_s if counted_alone else 0.0,
        dump_signals=tuple(reader.log.signals.values()) if not reader.recorded else (),
        watchdog_ended=tuple(sorted(reader.log.ended)) if counted_alone else (),
        directories=_folders_of_jobs(looks),
        rank_hosts=tuple(
            sorted((rank, host) for rank, hosts in reader.hosts.items() if len(hosts) == 1 for host in hosts)
        ),
        pasted_files=tuple(words) if STDIN not in words else (),
        notes=(*lacks, *repeated, *reader.notes, *skipped, *_log_notes(reader, dumps, earlier_errors)),
    )


def _dumps_alone(reader: Reader, words: Sequence[str], skipped: Sequence[str]) -> Evidence | None:
    """The evidence in dumps beside which nothing was recognised; None if they are all that one word names."""
    ranked = {name: file for name, file in reader.recorded.items() if named_rank(Path(file).name)[1] is not None}
    alone = len(words) == 1 and all(
        Path(words[0]).resolve() in (Path(file), Path(file).parent) for file in ranked.values()
    )
    if not ranked or alone:
        return None
    return replace(loose(ranked), pasted_files=tuple(words), notes=(*reader.notes, *skipped))


def _refuse_unread(reader: Reader, words: Sequence[str]) -> None:
    """Raise BadInput where nothing was read of the one text that is an answer of the harness, of the standard input
    because it is no text, or of what zstd packed."""
    if reader.has_read:
        return
    if len(words) == 1 and len(reader.own_answers) == 1:
        _refuse_own_answer(*reader.own_answers.popitem())
    if packed := [note for note in reader.notes if note.endswith(compressed.NO_ZSTD)]:
        file = Path(packed[0].removesuffix(f": {compressed.NO_ZSTD}"))
        then = shlex.join(["harness", "triage", str(file.with_suffix(""))])
        stream = "zstd -dc FILE | harness triage -"
        raise BadInput(
            packed[0], fix=stream if STDIN in words else f"zstd -d {shlex.quote(str(file))}   # then: {then}"
        )
    no_text = f"{STANDARD_INPUT}: {NO_TEXT}"
    if not reader.ends and STDIN in words and any(note.startswith(no_text) for note in reader.notes):
        raise BadInput(f"the {STANDARD_INPUT} is no text: {WANTED}", fix=PASTES)


def _refuse_own_answer(file: str, answer: tuple[str, str]) -> NoReturn:
    """Raise BadInput that says what the answer is."""
    title, reason = answer
    raise BadInput(
        f"{file} is an answer of the harness itself, not evidence; it says {title}{f': {reason}' if reason else ''}",
        fix=f"harness explain {shlex.quote(title)}",
    )


def _world(looks: Iterable[Look]) -> int | None:
    """The size of the world that command lines name, if they agree."""
    worlds = {world for look in looks if (world := naming.world_in(look.dump.command))}
    return worlds.pop() if len(worlds) == 1 else None


def _errors(reader: Reader, stacked: set[int]) -> list[LogError]:
    """The errors of all logs; of a rank that wrote none what torchrun's table says of its end.

    Of a rank whose stack was pasted, `stacked`, the table gives no process. So its pid in another line, as of the
    kernel's log, gets that rank here.
    """
    table = list(torchrun.errors(reader.failures.rows))
    ranks = {error.pid: error.rank for error in table if error.pid and error.rank in stacked}
    logged = [
        replace(error, rank=ranks[error.pid]) if error.rank is None and error.pid in ranks else error
        for error in (*reader.errors.entries, *reader.log.unranked)
    ]
    with_error = {error.rank for error in logged if not error.echo}
    return [*logged, *(error for error in table if error.rank not in with_error)]


def _failed(logged: Iterable[LogError], ranks: set[int | None]) -> list[Process]:
    """A process for each rank beyond `ranks` that wrote an error of its own, after which it did no more work."""
    errors: dict[int, LogError] = {}
    for error in logged:
        if error.rank is not None and error.rank not in ranks and not (error.echo or error.survived):
            errors.setdefault(error.rank, error)
    return [
        Process(host=error.host or PASTED, pid=error.pid, ppid=-1, rank=rank, error=error.text)
        for rank, error in errors.items()
    ]


def _with_words(process: Process, logged: Iterable[LogError]) -> Process:
    """A process of torchrun's table with the last error that the log has of its rank, its own before an echo, if the
    table has none. An error without a rank is its own if the log has no other."""
    last_errors = [error for error in logged if not error.survived]
    errors = [error for error in last_errors if error.rank == process.rank]
    unnamed = [error for error in last_errors if error.rank is None and not error.pid and not error.echo]
    if not errors and len({error.text for error in unnamed}) == 1:
        errors = unnamed
    errors = [error for error in errors if not error.echo] or errors
    is_explained = process.error or (process.exit_code or 0) < 0 or not errors
    return process if is_explained else replace(process, error=errors[-1].text)


def _with_kernel_waits(processes: Sequence[Process], in_kernel: Mapping[int, str]) -> list[Process]:
    """The processes with the kernel function in which each sleeps, and one for each pid of which only that is known."""
    numbers = Counter(process.pid for process in processes)
    with_waits = [
        replace(process, samples=(replace(process.samples[-1], wchan=in_kernel[process.pid]),))
        if process.pid in in_kernel and numbers[process.pid] == 1 and process.samples else process
        for process in processes
    ]  # fmt: skip
    return with_waits + [
        Process(host=PASTED, pid=pid, ppid=-1, samples=(Sample(0.0, "", wchan=function),))
        for pid, function in in_kernel.items()
        if pid not in numbers
    ]


def _held_by_the_kernel(logged: Iterable[LogError], keys: set[str]) -> list[Process]:
    """A process for each one that the kernel holds, by its own report, and of which no stack was pasted."""
    by_key = {
        process.key: process
        for error in logged
        if error.stalled_s and error.pid and not error.survived
        for process in [Process(host=error.host or PASTED, pid=error.pid, ppid=-1, command=error.role)]
    }
    return [process for key, process in by_key.items() if key not in keys]


def _log_notes(reader: Reader, dumps: Mapping[int, Mapping[str, Any]], earlier_errors: Sequence[LogError]) -> list[str]:
    """What lines about timeouts do not say. `dumps`: their counters, if they are used. `earlier_errors`: of earlier
    incidents, which are not."""
    if reader.log.several:
        return [watchdog.SEVERAL]
    ends = reader.log.earlier_ends
    earlier = [EARLIER.format(count=len(ends) + 1)] if ends else []
    if earlier_errors:
        first, count = earlier_errors[0], len(earlier_errors)
        number = f"{count} errors of earlier incidents are" if count > 1 else "an error of an earlier incident is"
        earlier.append(f"{number} not used: {first.file}:{first.line}: {first.of} {first.what}")
    if reader.recorded:
        return earlier
    groups = {config["name"]: False for dump in dumps.values() for config in dump["pg_config"].values()}
    groups |= {config["name"]: True for dump in dumps.values() for config in dump["pg_config"].values()
               if "ranks" in config}  # fmt: skip
    return [*earlier, *([NO_MEMBERS] if not all(groups.values()) else [])]


def _written(dumps: dict[int, dict[str, Any]]) -> dict[str, str]:
    """Write the dumps into a temporary folder, which goes when this process ends. Name -> path."""
    if not dumps:
        return {}
    folder = exit_cleanup.temporary_folder("harness-pasted-")
    for rank, dump in dumps.items():
        write_whole(folder / f"rank_{rank}", json.dumps(dump).encode())
    return {f"{OF_LOG}rank {rank}": str(folder / f"rank_{rank}") for rank in dumps}


def _named(words: Sequence[str], skipped: list[str]) -> Iterator[tuple[str, Path | None]]:
    """The files of all words, by name. A sentence for each folder of which something was left out joins `skipped`."""
    for word in words:
        if word == STDIN:
            yield STANDARD_INPUT, None
        else:
            yield from ((str(file), file) for file in _last_attempts(plain_files(Path(word), skipped), skipped))


def _last_attempts(files: Sequence[Path], skipped: list[str]) -> list[Path]:
    """The files without those of attempts of torchrun after which it started its workers again, by their folders."""
    attempts = {file: match for file in files if (match := naming.LOG_DIR.fullmatch(str(file)))}
    last: dict[str, int] = {}
    for match in attempts.values():
        last[match["run"]] = max(int(match["attempt"]), last.get(match["run"], 0))
    early = {file for file, match in attempts.items() if int(match["attempt"]) < last[match["run"]]}
    if early:
        runs = sorted(
            {f"{match['run']}/attempt_{last[match['run']]}" for file, match in attempts.items() if file in early}
        )
        skipped.append(
            f"{len(early)} logs of earlier attempts of torchrun were not read: only {', '.join(runs[:MAX_RUN_FOLDERS])}"
        )
    return [file for file in files if file not in early]


def _processes(looks: Iterable[tuple[Look, Name]]) -> tuple[list[Process], list[str]]:
    """A process for each one that was dumped, from its last dump, and notes about those that were dumped again."""
    by_identity: dict[tuple[object, ...], list[tuple[Look, Name]]] = {}
    for look, name in looks:
        pid = look.dump.pid or name.pid
        apart = () if pid or name.rank is not None else (look.file, _main_tid(look.dump))
        by_identity.setdefault((name.host, pid, name.rank, *apart), []).append((look, name))
    processes: list[Process] = []
    notes: list[str] = []
    used: Counter[str] = Counter()
    for named in list(by_identity.values())[:MAX_PROCESSES]:
        if len(named) > 1 and all(look.dump.bare for look, _ in named):
            named = [(_joined([look for look, _ in named]), named[0][1])]
        process = _process(*named[-1])
        used[process.key] += 1
        if used[process.key] > 1:  # the same pid on another host, which nothing names
            process = replace(process, host=f"{process.host}-{used[process.key]}")
        processes.append(process)
        if len(named) > 1:
            moved = len({trail(look.dump.threads, look.dump.pid) for look, _ in named}) > 1
            what = "its main thread stood at different places" if moved else "its main thread stood at one place"
            notes.append(f"{process.key} was dumped {len(named)} times, {what}: the last dump is used")
    if len(by_identity) > MAX_PROCESSES:
        notes.append(f"{len(by_identity):,} processes: the first {MAX_PROCESSES:,} are read")
    return processes, notes


def _folders_of_jobs(looks: Iterable[tuple[Look, Name]]) -> tuple[str, ...]:
    """The folders of which each holds the stacks of a job, where several processes have one rank, each in a folder of
    its own; empty otherwise."""
    folders: dict[int, dict[str, set[int]]] = {}  # rank -> folder -> pids
    for look, name in looks:
        if name.rank is not None:
            its = folders.setdefault(name.rank, {})
            its.setdefault(os.path.dirname(look.file), set()).add(look.dump.pid or name.pid)
    within = all(len(pids) == 1 for its in folders.values() for pids in its.values())
    across = any(len(set.union(*its.values())) > 1 for its in folders.values())
    return tuple(sorted(set().union(*folders.values()))) if within and across else ()


def _joined(looks: Sequence[Look]) -> Look:
    """Stacks that were pasted one by one, as the threads of one process. The first is taken for its main thread."""
    threads = tuple(replace(thread, main=at == 0) for at, thread in enumerate(
        thread for look in looks for thread in look.dump.threads))  # fmt: skip
    return replace(looks[0], dump=replace(looks[0].dump, threads=threads))


def _named_looks(looks: list[Look], nccl_ranks: NcclRanks) -> Iterator[tuple[Look, Name]]:
    """Each look with its name: by the prefix of its lines, then by its command line, then by its file, then by its pid
    in a log of NCCL.

    A file names a rank only if it holds the dumps of one process beside launchers.
    """
    writers: dict[str, set[tuple[int, Name]]] = {}
    for look in looks:
        if _role(look.dump) != "launcher":
            writers.setdefault(look.file, set()).add((look.dump.pid, look.writer))
    of_pids = nccl_ranks.of({look.dump.pid for look in looks} - {0})
    for look in looks:
        rank = look.writer.rank if look.writer.rank is not None else naming.rank_in(look.dump.command)
        of_path = naming.of_path(look.file)
        if rank is None and len(writers.get(look.file, ())) == 1 and _role(look.dump) != "launcher":
            rank = of_path.rank
        host = look.writer.host or of_path.host
        if rank is None and look.dump.pid in of_pids and host in ("", of_pids[look.dump.pid][0]):
            host, rank = of_pids[look.dump.pid]
        yield look, look.writer._replace(rank=rank, host=host)


def _process(look: Look, name: Name) -> Process:
    dump = look.dump
    pid = dump.pid or name.pid
    role = _role(dump)
    return Process(
        host=name.host or (PASTED if pid or name.rank is not None else Path(look.file).name),
        pid=pid,
        ppid=-1,  # not known; 0 would be the parent's pid in another dump without a pid
        command=_shown(dump.command),
        role=name.role if role == "process" and name.role else role,
        engine=_engine_of(dump.command),
        rank=name.rank,
        world_size=naming.world_in(dump.command) if role != "launcher" else None,
        samples=(Sample(0.0, "", threads=dump.threads),),
    )


def _role(dump: Dump) -> str:
    return _role_of(dump.command) if dump.command else "process"


# The processes of a job have few command lines, and each is asked for several times.
@lru_cache(maxsize=1024)
def _shown(command: str) -> str:
    return redact.command(command.split())


@lru_cache(maxsize=1024)
def _role_of(command: str) -> str:
    return role_of(_facts(command))


@lru_cache(maxsize=1024)
def _engine_of(command: str) -> str:
    return engine_of(_facts(command))


def _facts(command: str) -> Facts:
    argv = tuple(command.split())
    if argv[:1] and re.search(r"(^|/)python[\d.]*$", argv[0]):
        argv = tuple(word for word in argv if not (word.startswith("-") and word in ("-u", "-m", "-X", "-I", "-E")))
    title = command if argv and "::" in argv[0] else ""
    return Facts(0, argv=argv, title=title)


def _main_tid(dump: Dump) -> int:
    return next((thread.tid for thread in dump.threads if thread.main), 0)
