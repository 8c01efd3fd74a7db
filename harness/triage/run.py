"""`harness triage WHAT`: finds out what WHAT is, takes or reads the evidence, judges it, and writes the verdict
down."""

from __future__ import annotations

import contextlib
import dataclasses
import errno
import os
import pwd
import shlex
import socket
import tempfile
import time
import zipfile
from collections.abc import Callable, Iterable, Iterator, Mapping
from itertools import islice
from pathlib import Path
from typing import NoReturn

from harness import dates, exit_cleanup, extras
from harness.bundle.opening import is_bundle, resolve
from harness.errors import BadInput
from harness.nearest_run import what_there_is
from harness.other_paths import another_out, free_path, similar_path
from harness.triage import archive, directory, judge, pasted
from harness.triage.collect import CollectOptions, Scope, collect, endings, live, may_live
from harness.triage.collect.scope import RAY_CLIENT
from harness.triage.collect.stacks import NO_PY_SPY
from harness.triage.evidence import PASTED, Evidence, Process, Silence
from harness.triage.flight.filenames import named_rank
from harness.triage.flight.flight import FlightError, NotADump
from harness.triage.flight.loading import load
from harness.triage.nodes import unite
from harness.triage.pasted.opened_files import unpacked_archives
from harness.triage.program_source import interpreter_of
from harness.triage.remote import gather, token
from harness.triage.watch.retention import EVIDENCE, order
from harness.verdict_file import NAME as VERDICT
from harness.verdict_file import read as read_verdict
from harness.verdict_file import recorded
from probes import redaction
from probes.files import folder_or_nothing, make_folder, make_new_folder, remove_empty, write_whole
from probes.format import INDEX as INDEX_OF_RUN
from probes.format import SIDES
from reports import displayed_paths
from reports.model import Verdict
from reports.sections.answer import of

LIVE = "events", "beats"
MAX_DRIVERS = 4  # drivers named in the line that says what was looked at
MOST_NAMED = 16  # dumps that a command names one by one; with more of them it names their folder
# A first look that does not decide is followed by one of so many seconds, which makes ten seconds in all.
LONGER_S = 7.0
NEXT_RUN = "for the next run: harness watch -- COMMAND, and look at its processes while they stand"
NEXT_WATCH = "in the next run, look at its processes while they stand"
MOST_NESTED, MOST_BELOW = 4, 10_000  # folders within each other, and evidence below one, that are looked for
WATCH = "watch"  # watch folder in a directory of harness parity


def triage(
    what: list[str],
    out: str | os.PathLike[str] | None = None,
    *,
    token_file: str = "",
    tell: Callable[[str], None] = lambda line: None,
    longer_s: float = LONGER_S,
) -> Verdict:
    """Return the verdict on `what`. `auto` or an empty list is the Ray cluster of this host.

    Live processes are looked at now, and for `longer_s` more if the first look does not decide. Their evidence is kept
    under `out` (by default a new directory under runs/). So is evidence that watches serve, with the token in
    `token_file`, and with an `out` evidence that was read from recorder dumps or pasted text. Existing evidence is
    read, and nothing is written into it. `tell` takes a line for the user. Raises BadInput for anything else.
    """
    if out:
        _check_writable(Path(out))
    began = time.monotonic()
    cluster = None if what else live(["auto"])
    evidence, made = _evidence(what, Path(out) if out else None, token_file, tell)
    next_run = NEXT_WATCH if evidence.is_watched else NEXT_RUN
    verdict: Verdict = judge.triage(evidence, afterwards="" if made is not None or _lives(evidence) else next_run)
    given_paths = any(not word.isdigit() and os.path.exists(word) for word in what)
    if made is not None and longer_s and not given_paths and _may_decide_later(verdict, evidence):
        tell(f"two looks do not decide; looking for {longer_s:.0f} s more")
        evidence = _looked_longer(what, evidence, made, longer_s, seen_s=time.monotonic() - began)
        verdict = judge.triage(evidence)
    if made is None:
        verdict = _with_last_words(verdict, evidence)
    if cluster is not None:
        whose = f"this is {_whose(cluster, evidence)}"
        verdict = dataclasses.replace(verdict, evidence=[whose, *verdict.evidence])
    verdict = displayed_paths.displayed(_with_neighbours(verdict, evidence))
    again = what if made is None else evidence.directories or [evidence.path]
    verdict = dataclasses.replace(verdict, reproduce=_command(again))
    folder = Path(out) if out else made
    return verdict if folder is None else _written(verdict, folder, evidence, what, is_made=made is not None)


def _looked_longer(what: list[str], evidence: Evidence, made: Path, longer_s: float, *, seen_s: float) -> Evidence:
    """Look at the same processes again, for `longer_s`. `seen_s`: how long ago the first look began."""
    options = CollectOptions(gap_s=longer_s, deadline_s=CollectOptions.deadline_s + longer_s)
    return collect(_scope_again(what, evidence), options, out=made, after=(evidence, seen_s))


def _written(verdict: Verdict, folder: Path, evidence: Evidence, what: list[str], *, is_made: bool) -> Verdict:
    """Write the verdict, and evidence of plain files beside it, and return it with its path; a full disk does not cost
    the answer. `is_made`: the evidence was collected now, into this folder."""
    path = folder / VERDICT
    written = dataclasses.replace(verdict, paths={**verdict.paths, "verdict": str(path)})
    try:
        with folder_or_nothing(folder, whole=True):
            if not is_made and _of_plain_files(evidence):
                directory.keep(evidence, folder)
            write_whole(path, written.to_json().encode())
    except OSError as error:
        remove_empty(folder)
        note = f"the verdict could not be written to {path}: {error.strerror or error}"
        verdict = dataclasses.replace(verdict, evidence=[note, *verdict.evidence], missing=[*verdict.missing, note])
        is_kept = not is_made or directory.is_evidence(folder)
        return verdict if is_kept else dataclasses.replace(verdict, paths={}, reproduce=_command(what))
    return written


def _command(words: Iterable[str]) -> str:
    return shlex.join(redaction.arguments(["harness", "triage", *words]))


def _lives(evidence: Evidence) -> bool:
    """Whether a process of the evidence may live still: it is of another host, or there is one of its pid. Dumps alone
    do not say."""
    here = socket.gethostname()
    return not evidence.processes or any(
        each.host != here or Path("/proc", str(each.pid)).exists() for each in evidence.processes
    )


def _of_plain_files(evidence: Evidence) -> bool:
    """Whether it was read from dumps or pasted text, so that no evidence directory holds it yet."""
    plain = not evidence.path or evidence.source in ("dumps", PASTED)
    return plain and not (evidence.path and directory.is_evidence(evidence.path))


def look(what: list[str], *, tell: Callable[[str], None] = lambda line: None) -> Evidence:
    """Return the evidence in `what`, or of live processes now; what is taken now goes when this process ends.

    Raises BadInput for anything else, and for evidence without a stack.
    """
    try:
        evidence = _evidence(what, exit_cleanup.temporary_folder("harness-stacks-"), "", tell)[0]
    except BadInput as error:  # the fix has commands that take the same words
        fix = (error.fix or "").replace("harness triage", "harness stacks")
        raise BadInput(error.message, fix=fix, instead=error.instead) from error
    if any(thread.frames for process in evidence.processes for look in process.samples for thread in look.threads):
        return evidence
    why = next((note for process in evidence.processes for note in process.notes), "")
    again = _command(what)
    if evidence.source == PASTED and not evidence.processes:
        again = "harness stacks PID   # of a process of the job, while it stands"
    raise BadInput(
        f"no Python stack in {' '.join(what[:MAX_DRIVERS])}: {why or pasted.WANTED}",
        fix=extras.repair_command("py-spy") if NO_PY_SPY in why else again,
    )


def _may_decide_later(verdict: Verdict, evidence: Evidence) -> bool:
    """Whether a longer look may decide: at live processes of one host, of which stacks were seen."""
    return (
        verdict.verdict == "INSUFFICIENT"
        and evidence.source == "live"
        and not evidence.directories
        and len({process.host for process in evidence.processes}) == 1
        and sum(node.alive for node in evidence.ray_nodes) < 2
        and any(process.threads for process in evidence.processes)
    )


def _scope_again(what: list[str], evidence: Evidence) -> Scope:
    """The scope of a second look; the same processes where what was named has ended meanwhile."""
    try:
        return live(what or ["auto"])
    except BadInput:
        return Scope(tuple(process.pid for process in evidence.processes), ray_address="")


def _check_writable(out: Path) -> None:
    """Raise BadInput if nothing can be written into `out`, before anything is looked at. `out` is not created yet."""
    existing = next(path for path in (out, *out.absolute().parents) if os.path.lexists(path))
    if not existing.is_dir():
        raise _unwritable(out, f"{existing} is no directory")
    if recorded(out):
        raise _unwritable(out, "it holds a recording, and a verdict never overwrites another")
    if not os.access(existing, os.W_OK | os.X_OK):
        read_only = os.statvfs(existing).f_flag & os.ST_RDONLY
        raise _unwritable(out, os.strerror(errno.EROFS if read_only else errno.EACCES))
    try:
        with tempfile.TemporaryFile(dir=existing):  # root may write by its rights where the file system takes no file
            pass
    except OSError as error:
        raise _unwritable(out, error.strerror or str(error)) from error


def _unwritable(out: Path, why: str) -> BadInput:
    return BadInput(f"{out} cannot be written: {why}", fix="   # or --out with another folder", instead="--out")


def _evidence(
    what: list[str], out: Path | None, token_file: str, tell: Callable[[str], None]
) -> tuple[Evidence, Path | None]:
    """The evidence, and the folder that it was taken into now; None where it was there before."""
    if urls := [word for word in what if gather.is_url(word)]:
        return _served(urls, [Path(word) for word in what if word not in urls], out, token_file)
    refused: list[str] = []
    opened = [pair for word in what for pair in _with_archives(word, _opened(word), refused)]
    try:
        evidence, made = _of_paths([word for word, _ in opened], [path for _, path in opened], out, tell)
    except BadInput as error:
        raise BadInput(f"{error.message}; {refused[0]}", fix=error.fix) if refused else error from None
    return dataclasses.replace(evidence, notes=(*evidence.notes, *refused)), made


def _of_paths(
    what: list[str], paths: list[Path], out: Path | None, tell: Callable[[str], None]
) -> tuple[Evidence, Path | None]:
    """The evidence in `paths`, which the words of `what` name; of live processes where the words name no files."""
    existing_paths = [path for path in paths if path.exists() and not str(path).isdigit()]
    if pasted_evidence := _pasted(what, paths):
        return pasted_evidence, None
    if existing_paths and len(what) > 1:
        if absent := [word for word, path in zip(what, paths, strict=True) if path not in existing_paths]:
            raise _beside_evidence(absent[0], str(existing_paths[0])) if absent[0].isdigit() else _absent(absent[0])
        return _nodes(paths, out)
    if existing_paths and (nodes := _of_nodes(existing_paths[0])):
        return _nodes(nodes, out) if len(nodes) > 1 else _recorded(str(nodes[0]), nodes[0], out)
    if existing_paths:
        return _recorded(what[0], existing_paths[0], out)
    if len(what) == 1 and _pathlike(what[0]):
        raise _absent(what[0])
    evidence = _live(what, out, tell)
    return evidence, Path(evidence.path)


def _beside_evidence(pid: str, folder: str) -> BadInput:
    """The error for a process that is named beside evidence that was recorded."""
    fix = f"{shlex.join(['harness', 'triage', folder])}   # and the process as it is now: harness triage {pid}"
    return BadInput(f"{pid} is the pid of a process, and {folder} was recorded: they are judged apart", fix=fix)


def _opened(word: str) -> Path:
    """The path that a word names: of a bundle its side, of other archives without evidence what they unpack to, of the
    folder in which a watch keeps its evidence the directory of that watch."""
    path = resolve(word)
    if path.is_dir() and path.resolve().name == EVIDENCE and newest(path.resolve().parent) is not None:
        return path.parent if path.name == EVIDENCE else path.resolve().parent
    packed = path.is_file() and (archive.is_tar(path) or (zipfile.is_zipfile(path) and not archive.is_evidence(path)))
    return _root(archive.unpack(path)) if packed else path


def _root(folder: Path) -> Path:
    """The folder that holds all that an archive unpacked to, if it is evidence or a run; else `folder`."""
    inner = folder
    while len(below := [*inner.iterdir()]) == 1 and below[0].is_dir():
        inner = below[0]
        if _holds_evidence(inner):
            return inner
    return folder


def _with_archives(word: str, path: Path, refused: list[str]) -> list[tuple[str, Path]]:
    """The path that a word names, and of a folder that is neither evidence nor a run what the archives in it unpack to,
    each with a word. Evidence of nodes stands alone. A sentence for each archive that is refused joins `refused`."""
    if str(path).isdigit() or not path.is_dir() or _is_read_whole(path):
        return [(word, path)]
    unpacked = {
        file: _root(folder)
        for file, folder in unpacked_archives(path, lambda below: not _is_read_whole(below), refused).items()
    }
    nodes = [folder for file, folder in unpacked.items() if _holds_evidence(folder) and not archive.bare(file).is_dir()]
    if nodes:
        below = [folder for folder in sorted(path.iterdir()) if folder.is_dir() and _holds_evidence(folder)]
        return [(str(node), node) for node in (*below, *nodes)]
    return [(word, path), *((str(folder), folder) for folder in unpacked.values())]


def _is_read_whole(folder: Path) -> bool:
    """Whether a folder is evidence, a run with or without evidence, or a pair of them."""
    return _is_node(folder) or any((folder / name).is_dir() for name in SIDES)


def _is_node(folder: Path) -> bool:
    """Whether a folder is evidence, or a run with or without evidence."""
    return _holds_evidence(folder) or newest(folder) is not None


def _pasted(words: list[str], paths: list[Path]) -> Evidence | None:
    """The evidence in pasted stacks; None if the words are something else: pids, evidence, a watch, recorder dumps."""
    files = [path for word, path in zip(words, paths, strict=True) if word != pasted.STDIN]
    from_stdin = len(files) < len(words)
    absent = [path for path in files if not path.exists()]
    if not words or any(map(is_bundle, words)) or (absent and not from_stdin) or _are_evidence(files):
        return None
    if absent:
        raise _absent(str(absent[0]))
    if len(files) > 1 and all(map(directory.is_dump, files)):
        return directory.loose({str(file): str(file.resolve()) for file in files})
    if len(files) == 1:
        _refuse_source(files[0], words[0])
    names = [word if word == pasted.STDIN else str(path) for word, path in zip(words, paths, strict=True)]
    stacks = pasted.evidence(names)
    if stacks is None and (from_stdin or (len(files) > 1 and any(path.is_file() for path in files))):
        raise _no_stacks(words)
    if stacks is not None and len(files) == 1 and not _recognised_text(stacks):
        _refuse_own_file(files[0], words[0])
    return stacks


def _are_evidence(files: list[Path]) -> bool:
    """Whether these are something else than text. Raises BadInput where only some are."""
    evidence = [path for path in files if _recognised(path)]
    plain = [path for path in files if path not in evidence and path.is_file()]
    if evidence and plain:
        raise BadInput(
            f"{evidence[0]} is evidence, and {plain[0]} was pasted: they are judged apart",
            fix=shlex.join(["harness", "triage", str(evidence[0])]),
        )
    return bool(evidence)


def _recognised_text(evidence: Evidence) -> bool:
    """Whether a stack, an error, a timeout or a table was found in what was pasted."""
    of_ray = evidence.ray_actors, evidence.ray_tasks, evidence.ray_demands, evidence.ray_groups
    return any((evidence.processes, evidence.errors, evidence.dumps, evidence.ras, *of_ray))


def _recognised(path: Path) -> bool:
    """Whether it is something else than text that was pasted: a pid, evidence, a zip, a watch."""
    if str(path).isdigit() or directory.is_evidence(path):
        return True
    if path.is_file():
        return zipfile.is_zipfile(path)
    return bool(_of_nodes(path)) or any((path / name).exists() for name in (*LIVE, *SIDES))


def _no_stacks(words: list[str]) -> BadInput:
    if empty := [word for word in words if word != pasted.STDIN and not os.path.getsize(word)]:
        return _empty(empty[0])
    if words == [pasted.STDIN]:
        return BadInput(f"the standard input is empty: {pasted.WANTED}", fix=pasted.PASTES)
    names = " ".join(words[:MAX_DRIVERS])
    return BadInput(f"nothing was recognised in {names}: {pasted.WANTED}", fix=directory.READS)


def _empty(path: str | os.PathLike[str]) -> BadInput:
    return BadInput(
        f"{path} is empty: {pasted.WANTED}",
        fix="harness triage --help   # what it reads, such as the output of py-spy dump --pid PID",
    )


def _refuse_source(path: Path, word: str) -> None:
    """Raise BadInput for the source of a program. A log that quotes code is none: as a whole it is no Python."""
    interpreter = interpreter_of(path)
    if interpreter:
        watch = shlex.join(["harness", "watch", "--", interpreter, word])
        raise BadInput(
            f"{word} is the source of a program: triage judges processes that run, their stacks, or their log",
            fix=f"{watch}   # runs it and looks when it stalls; if it runs already: harness triage PID",
        )


def _refuse_own_file(path: Path, word: str) -> None:
    """Raise BadInput for a file that the harness wrote: a verdict, or one of the files of a recording."""
    quoted = shlex.quote(word)
    folder = next((folder for folder in path.absolute().parents if _holds_evidence(folder)), None)
    try:
        answer = of(read_verdict(path))
    except BadInput:
        pass
    else:
        also = f"   # triage judges evidence: harness triage {shlex.quote(str(folder))}" if folder else ""
        raise BadInput(
            f"{path} is a verdict, not evidence; it says {answer.title}: {answer.reason}",
            fix=f"harness report {quoted}{also}",
        )
    if folder is not None:
        message = f"{path} is one file of {folder}, which is judged as a whole"
        raise BadInput(message, fix=shlex.quote(str(folder)), instead=word)


def _holds_evidence(folder: Path) -> bool:
    return directory.is_evidence(folder) or any((folder / name).is_dir() for name in LIVE)


def _absent(word: str) -> BadInput:
    """The error for a path that does not exist. Its fix names a similar path, else the last folder of the path that
    exists. A word that ends with a slash means a folder."""
    path = Path(word)
    parent = next(folder for folder in (path.parent, *path.parent.parents, Path("/")) if folder.is_dir())
    try:
        entries = [*parent.iterdir()] if parent == path.parent else []
    except OSError:
        entries = []
    near = similar_path(path, [entry for entry in sorted(entries) if entry.is_dir() or not word.endswith(os.sep)])
    message = f"{path}: no such file or directory"
    if near is not None:
        return BadInput(f"{message}; did you mean {near.name}?", fix=shlex.quote(str(near)), instead=word)
    return BadInput(message, fix=f"ls {shlex.quote(str(parent))}")


def _recorded(word: str, path: Path, out: Path | None) -> tuple[Evidence, Path | None]:
    """The evidence in the file or directory `path`, which the user calls `word`; of a run whose processes may live, new
    evidence."""
    if path.is_file():
        if path.suffix == ".zip" or zipfile.is_zipfile(path):
            return _read(path), None
        if os.access(path, os.R_OK) and path.stat().st_size and directory.is_dump(path):
            return _one_dump(path), None
        _refuse_file(path)
    if directory.is_evidence(path):
        return _read(path), None
    path = _watched(path)
    latest = newest(path)
    if latest is None and is_bundle(word) and (path / LIVE[0]).is_dir():  # the pids of a bundle are of another machine
        raise BadInput(
            f"{word} holds a recorded run and no evidence of a hang",
            fix=f"harness report {shlex.quote(word)}",
        )
    if is_bundle(word) or not any((path / name).is_dir() for name in LIVE):
        return _read(latest or path), None
    return _run(path, latest, out)


def _refuse_file(path: Path) -> NoReturn:
    if not os.access(path, os.R_OK):
        raise BadInput(
            f"{path} cannot be read: permission denied", fix=f"ls -l {shlex.quote(str(path))}   # whose it is"
        )
    if not path.stat().st_size:
        raise _empty(path)
    raise BadInput(
        f"{path} is one file without stacks or lines about a timeout: triage reads those, the directory with the "
        "recorder dumps of every rank, or evidence",
        fix=directory.READS,
    )


def _one_dump(path: Path) -> Evidence:
    """The evidence in the recorder dump of one rank. Raises BadInput where it is none, or its rank is not known."""
    try:
        loaded = load(path)
    except NotADump:
        _refuse_file(path)
    except FlightError as error:
        raise BadInput(error.message, fix=_with_others(path)) from error
    if loaded.rank is None:
        named = path.with_name(f"rank_N{path.suffix}")
        copy = shlex.join(["cp", str(path), str(named)])
        raise BadInput(
            f"{path} is a recorder dump, and neither its name nor its groups say of which rank",
            fix=f"{copy}   # N: its rank; then: {_command([str(named)])}",
        )
    return directory.loose({str(path): str(path.resolve())})


def _with_neighbours(verdict: Verdict, evidence: Evidence) -> Verdict:
    """The verdict on one dump alone, which advises first to judge it together with the dumps beside it."""
    if evidence.path or evidence.processes or len(evidence.dumps) != 1 or verdict.triage is None:
        return verdict
    path = Path(next(iter(evidence.dumps)))
    folder = _command([str(path.parent)])
    steps = [step for step in verdict.triage.next if step.partition("   #")[0] != folder]
    return dataclasses.replace(verdict, triage=dataclasses.replace(verdict.triage, next=[_with_others(path), *steps]))


def _with_others(path: Path) -> str:
    """The command that judges a dump together with those of the other ranks, and with nothing else beside it."""
    series, beside = named_rank(path.name)[0], sorted(path.parent.iterdir())
    dumps = [file for file in beside if directory.is_dump(file) and named_rank(file.name)[0] == series]
    if len(dumps) < 2:
        return f"ls {shlex.quote(str(path.parent))}   # are the dumps of the other ranks elsewhere?"
    if len(dumps) == len(beside) or len(dumps) > MOST_NAMED:
        return shlex.join(["harness", "triage", str(path.parent)])
    return shlex.join(["harness", "triage", *map(str, dumps)])


def _served(urls: list[str], beside: list[Path], out: Path | None, token_file: str) -> tuple[Evidence, Path]:
    """The evidence that watches serve, and what lies here of other nodes."""
    if absent := [path for path in beside if not path.is_dir()]:
        raise BadInput(f"{absent[0]}: no such directory; a directory of each node beside the watches that serve theirs",
                       fix=f"ls {shlex.quote(str(absent[0]))}")  # fmt: skip
    secret = token.read(token_file)
    folder = out or _new_folder()
    try:
        gathered = gather.gather(urls, secret, folder)
    except BadInput:
        if out is None:
            folder.rmdir()
        raise
    return _nodes([*gathered.folders, *beside], folder, gathered.silent)[0], folder


def _of_nodes(path: Path) -> list[Path]:
    """The evidence and watch directories below one that is neither: of the nodes of a job, of several jobs, or one in
    folders that hold nothing else. Empty for others."""
    if not path.is_dir() or _is_read_whole(path):
        return []
    below = list(islice(_evidence_below(path, MOST_NESTED), MOST_BELOW))
    alone = len(below) == 1 and not any(entry.is_file() for entry in path.iterdir())
    return below if len(below) > 1 or alone else []


def _evidence_below(folder: Path, depth: int) -> Iterator[Path]:
    try:
        below = sorted(entry for entry in folder.iterdir() if entry.is_dir() and not entry.is_symlink())
    except OSError:
        return
    for entry in below:
        if _is_node(entry):
            yield entry
        elif depth > 1 and not _is_read_whole(entry):
            yield from _evidence_below(entry, depth - 1)


def _nodes(
    paths: list[Path], out: Path | None, unreached: Mapping[str, Silence] | None = None
) -> tuple[Evidence, Path | None]:
    """The newest evidence of each node's directory, as of one job; where none was taken, the last words of its
    processes: that they have ended by now says nothing of the time at which the others were looked at. With the folder
    that holds what was taken now, None where all was there before."""
    parts: dict[Path, Evidence] = {}
    ended: set[Path] = set()
    made: Path | None = None
    for path in paths:
        if path in parts:
            raise BadInput(f"{path} is given twice", fix="", instead=str(path))
        latest = path if directory.is_evidence(path) else newest(path)
        if latest is None and any((path / name).is_dir() for name in LIVE):
            made = made or out or _new_folder()
            parts[path] = _live([str(path)], free_path(made / path.resolve().name))
            ended |= set() if judge.lived(parts[path]) else {path}
        else:
            parts[path] = _read(latest or path)
    # If every node has ended, the run is over and its end is the answer; otherwise the nodes were seen at different
    # times.
    if len(ended) < len(parts):
        for path in ended:
            last_words = tuple(dataclasses.replace(process, samples=()) for process in parts[path].processes)
            parts[path] = dataclasses.replace(parts[path], processes=last_words)
    directories = tuple(
        part.path if made and Path(part.path).parent == made else str(path) for path, part in parts.items()
    )
    return dataclasses.replace(unite(parts, unreached), directories=directories), made


def _watched(path: Path) -> Path:
    """For a directory of `harness parity`, its `watch/`, where both runs are watched. Any other path unchanged."""
    sides = [path / name for name in SIDES]
    if not path.is_dir() or any((path / name).is_dir() for name in LIVE) or not any(side.is_dir() for side in sides):
        return path
    watch = path / WATCH
    if any((watch / name).is_dir() for name in LIVE) or newest(watch) is not None:
        return watch
    recorded = [side for side in sides if (side / "events").is_dir()]
    fix = f"harness triage {shlex.quote(str(recorded[-1]))}" if recorded else "harness triage PID"
    file = displayed_paths.displayed(str(path))
    if file != str(path):  # within an archive a run is no path that triage takes
        fix = f"harness report {shlex.quote(file)}" if is_bundle(file) else _unpacked(Path(file))
    elif not (path / VERDICT).exists():
        raise _interrupted(path, recorded)
    raise BadInput(
        f"{path} is of harness parity and has no {WATCH}/: both runs ended without a hang, or no watchdog was on",
        fix=fix,
    )


def _interrupted(pair: Path, recorded: list[Path]) -> BadInput:
    """The error for a comparison that was ended before its verdict, while nothing hung: says what there is of it."""
    whole = [side for side in recorded if (side / INDEX_OF_RUN).is_file()]
    states = [f"the {side.name} is {'whole' if side in whole else 'not whole'}" for side in recorded]
    states += [f"the {name} is missing" for name in SIDES if name not in {side.name for side in recorded}]
    message = f"{pair} is a comparison that was ended before its verdict, and no hang was seen"
    return BadInput(f"{message}: {', '.join(states)}", fix=what_there_is(pair))


def _unpacked(file: Path) -> str:
    """The command that unpacks an archive beside it."""
    archived = next((each for each in (file, *file.parents) if each.is_file()), file)
    folder = free_path(archived.with_suffix(""))
    module = "zipfile" if zipfile.is_zipfile(archived) else "tarfile"
    unpack = shlex.join(["python3", "-m", module, "-e", str(archived), str(folder)])
    return f"{unpack}   # then harness diff of the pair in it"


def _run(run: Path, latest: Path | None, out: Path | None) -> tuple[Evidence, Path | None]:
    """A run directory: looked at now while any of its processes may live, else its newest evidence, else the last words
    of its processes, which are in the run and are not kept a second time."""
    if may_live(live(str(run))):
        evidence = _live([str(run)], out)
        if judge.lived(evidence) or latest is None:
            return evidence, Path(evidence.path)
    if latest is not None:
        return _read(latest), None
    if out is not None:
        return _live([str(run)], out), out
    return _last_words(run), None


def _last_words(run: Path) -> Evidence:
    """What the processes of a run that has ended left in it; copies of dumps go when this process ends."""
    folder = exit_cleanup.temporary_folder("harness-last-words-")
    evidence = collect(live(str(run)), out=folder)
    return dataclasses.replace(
        evidence,
        path=str(run),
        source="directory",
        processes=tuple(
            dataclasses.replace(process, dump=str(folder / process.dump)) if process.dump else process
            for process in evidence.processes
        ),
        dumps={name: str(folder / dump) for name, dump in evidence.dumps.items()},
    )


def _with_last_words(verdict: Verdict, evidence: Evidence) -> Verdict:
    """The verdict on evidence that a watch took before its job ended, on this host, in another way than well: how the
    processes ended is the answer, unless they hung or a user ended them."""
    watch = Path(evidence.path).absolute().parent.parent
    is_of_here = evidence.path and {process.host for process in evidence.processes} == {socket.gethostname()}
    if verdict.verdict == "HUNG" or evidence.ended_by or evidence.command_exit_code == 0 or not is_of_here:
        return verdict
    if not endings.has_watch(watch) or not judge.lived(evidence) or may_live(live(str(watch))):
        return verdict
    before = judge.triage(dataclasses.replace(evidence, command_exit_code=None))
    end = judge.triage(dataclasses.replace(_last_words(watch), stall_s=evidence.stall_s), afterwards=NEXT_RUN)
    if not end.coverage["processes"]:
        return verdict
    return dataclasses.replace(end, evidence=[*end.evidence, judge.standstill(before)], paths=verdict.paths)


def _read(path: Path) -> Evidence:
    """The evidence in a file or directory; of one that lies in the directory of a watch, with how its command ended."""
    return endings.with_end_of_command(directory.read(path), path.absolute().parent.parent)


def newest(run: Path) -> Path | None:
    """The newest evidence directory of a run; None where it has none."""
    try:
        evidence_paths = [path for path in (run / EVIDENCE).iterdir() if directory.is_evidence(path)]
    except OSError:  # no such folder: no evidence was ever taken
        return None
    return max(evidence_paths, key=lambda path: order(path.name), default=None)


def _live(what: list[str], out: Path | None, tell: Callable[[str], None] = lambda line: None) -> Evidence:
    scope = live(what or ["auto"])
    if out is None:
        out = _new_folder()
    elif (out / archive.INDEX).exists():
        raise BadInput(
            f"{out} already holds evidence: another look needs another directory",
            fix=another_out(out),
        )
    try:
        make_folder(out)
    except OSError as error:
        raise _unwritable(out, error.strerror or str(error)) from error
    evidence = collect(scope, out=out)
    if not what:
        tell(f"no target given: {_whose(scope, evidence)}")
    return evidence


def _whose(scope: Scope, evidence: Evidence) -> str:
    """Whose job was looked at when no target was given, and how to name another."""
    drivers = [f"driver pid {process.pid}{_user_of(process)}, command {process.command}"
               for process in evidence.processes if process.role == "driver"]  # fmt: skip
    jobs = "; ".join(drivers[:MAX_DRIVERS]) or "which has no driver on this host"
    return f"the Ray cluster at {scope.ray_address}: {jobs}; for another job: harness triage PID, or HOST:PORT"


def _user_of(process: Process) -> str:
    """The user of a process on this host, in words; empty where it is not known."""
    if process.host != socket.gethostname():
        return ""
    try:
        return f" of user {pwd.getpwuid(os.stat(f'/proc/{process.pid}').st_uid).pw_name}"
    except (OSError, KeyError):  # it has ended, or its user has no name here
        return ""


def _new_folder() -> Path:
    name = f"triage-{dates.stamp()}-{os.getpid()}"
    folder = Path("runs") / name
    try:
        make_new_folder(folder)
    except OSError:  # a working directory that cannot be written: evidence of a hang is not lost for that
        with contextlib.suppress(OSError):
            return Path(tempfile.mkdtemp(prefix=f"harness-{name}-"))
    return folder


def _pathlike(word: str) -> bool:
    if word.startswith(RAY_CLIENT):
        return False
    return "/" in word or word.endswith((".zip", ".json", ".pkl", ".pickle")) or word.startswith(".")
