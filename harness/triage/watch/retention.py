"""What a watch keeps on disk: one evidence directory per look with its verdict, within a number and a size.

No method raises because of the disk. Evidence that cannot be kept is still judged, and a line says what is missing.
"""

from __future__ import annotations

import contextlib
import errno
import json
import os
import shutil
import tempfile
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from harness import dates
from harness.verdict_file import NAME as VERDICT
from probes.files import FOLDER_MODE, make_folder, open_new, write_whole

if TYPE_CHECKING:
    from reports.model import Verdict

EVIDENCE = "evidence"
GRAVITY = {"SLOW": 1, "INSUFFICIENT": 2, "HUNG": 3}  # evidence of the lighter verdict is dropped first
FULL = (errno.ENOSPC, errno.EDQUOT)
TRIED_BYTES = 1 << 16  # test bytes for a new folder: mkdir may succeed on a full disk
SHARED_MEMORY = "/dev/shm"  # where evidence goes if neither the watch directory nor TMPDIR takes it
MAX_VERDICTS = 1_000  # verdicts that are kept without evidence: each has some KiB
MAX_GONE = 64  # removed folders that are watched: an abandoned collector may still write into them


@dataclass(frozen=True)
class Limits:
    """Limits on the evidence of one watch: how many directories (at least 2), and how many bytes on disk.

    A look at 1,000 processes without recorders left 0.6 MiB; the recorders' dumps come on top. The defaults are chosen:
    enough for a night of trouble, and no more disk than one checkpoint.
    """

    count: int = 32
    size: int = 1 << 30


@dataclass
class _Look:
    """One evidence directory. `complete`: its evidence is there; otherwise only its verdict is."""

    folder: Path
    kind: str  # the verdict; empty where the look failed
    subject: str
    displayed: bool
    complete: bool = True
    size: int = 0


class Retention:
    """The evidence of one watch, below `directory`. `say` takes one line for the user, each line once.

    Over the limits, evidence of the lightest verdict goes first, then the oldest. The newest never goes. Of the others,
    the first HUNG goes last (the very first if none hung). The verdict of every look that was shown stays when its
    evidence goes.
    """

    def __init__(self, directory: Path, say: Callable[[str], object], limits: Limits | None = None) -> None:
        self.directory, self.limits, self._say = directory, limits or Limits(), say
        self._looks: list[_Look] | None = None  # oldest first
        self._gone: deque[Path] = deque(maxlen=MAX_GONE)
        self._elsewhere: dict[str, Path] = {}
        self._last = "", 0  # second and number in the name of the last folder
        self._top = 0  # gravity of the verdict in OUT/verdict.json

    def __bool__(self) -> bool:
        """Whether there is evidence that the user was shown."""
        return any(look.displayed for look in self._looks or ())

    def folder(self) -> Path:
        """Return a new directory for one look.

        It is elsewhere if the watch directory cannot be written. If no place can be written, it is a path that does not
        exist.
        """
        before = [order(look.folder.name)[0] for look in self._adopted()]
        stamp = max([dates.stamp(), self._last[0], *before])  # names stay in order even if the clock was set back
        failed: OSError | None = None
        for base in self._places():
            try:
                look_folder = self._made(base, stamp)
            except OSError as error:
                failed = failed or error
                continue
            if failed is not None:
                self._say(f"{self.directory / EVIDENCE} cannot be written ({failed.strerror}): evidence goes to {base}")
            return look_folder
        why = failed.strerror if failed else "no folder"
        self._say(f"evidence cannot be written anywhere ({why}): stalls are judged from what is in memory")
        return self.directory / EVIDENCE / stamp

    def keep(self, folder: Path, verdict: Verdict | None, *, subject: str, displayed: bool) -> None:
        """Take in the evidence of a look. `verdict`: None if the look failed. `subject`: what is said about whom.

        Of looks that were not shown, only the last of each subject is kept: it says no more than the one before.
        """
        looks = self._adopted()
        look = _Look(folder, verdict.verdict if verdict else "", subject, displayed)
        for outdated_look in [
            earlier_look
            for earlier_look in looks
            if earlier_look.subject == subject and not (earlier_look.displayed or displayed)
        ]:
            self._forget(outdated_look)
        looks.append(look)
        if verdict is not None:
            self._write(folder / VERDICT, verdict, displayed=displayed)
        look.size = _size(folder)
        self._thin()
        for ghost in self._gone:  # an abandoned collector came back and wrote into a removed folder
            if ghost.exists():
                shutil.rmtree(ghost, ignore_errors=True)

    @property
    def published(self) -> bool:
        """Whether there is a verdict of the watch, OUT/verdict.json."""
        return self._top > 0

    def publish(self, verdict: Verdict, *, final: bool = False) -> None:
        """Make `verdict` the verdict of the watch, OUT/verdict.json. Unless `final`, a less grave one replaces
        nothing."""
        if final or GRAVITY.get(verdict.verdict, 0) >= self._top:
            self._top = GRAVITY.get(verdict.verdict, 0)
            self._write(self.directory / VERDICT, verdict, displayed=True)

    def discard(self, folder: Path) -> None:
        """Remove the evidence of a look that nobody needs."""
        shutil.rmtree(folder, ignore_errors=True)
        self._gone.append(folder)

    def close(self) -> None:
        """Remove empty folders that were made outside the watch directory."""
        for base in self._elsewhere.values():
            with contextlib.suppress(OSError):
                base.rmdir()

    def _places(self) -> Iterator[Path]:
        yield self.directory / EVIDENCE
        for parent in (tempfile.gettempdir, lambda: SHARED_MEMORY):
            with contextlib.suppress(OSError):
                name = parent()
                if name not in self._elsewhere or not self._elsewhere[name].is_dir():
                    self._elsewhere[name] = Path(tempfile.mkdtemp(prefix="rlhf-evidence-", dir=name))
                yield self._elsewhere[name]

    def _made(self, base: Path, stamp: str) -> Path:
        """Make a new folder below `base` and test that it takes bytes. On a full disk, earlier evidence makes room
        for it."""
        number = self._last[1] + 1 if self._last[0] == stamp else 1
        while True:
            self._last = stamp, number
            folder = base / (stamp if number == 1 else f"{stamp}-{number}")
            if folder in self._gone:  # an abandoned collector may still write into the removed folder of that name
                number += 1
                continue
            try:
                make_folder(base)
                folder.mkdir(mode=FOLDER_MODE)
                tried = folder / ".tried"
                with open_new(tried) as trial:
                    trial.write(bytes(TRIED_BYTES))
                tried.unlink()
                return folder
            except FileExistsError:
                if not base.is_dir():  # a file has the name of `base`
                    raise
                number += 1
            except OSError as error:
                shutil.rmtree(folder, ignore_errors=True)
                if error.errno not in FULL or not self._make_room():
                    raise

    def _write(self, path: Path, verdict: Verdict, *, displayed: bool) -> None:
        while True:
            try:
                make_folder(path.parent)
                write_whole(path, verdict.to_json().encode())
                return
            except OSError as error:
                if error.errno in FULL and displayed and self._make_room():
                    continue
                self._say(f"{path.name} cannot be written to {path.parent}: {error.strerror}")
                return

    def _thin(self) -> None:
        """Drop evidence until the rest is within the limits, and then verdicts without evidence beyond their number."""
        looks = self._adopted()
        while True:
            complete_looks = [look for look in looks if look.complete]
            over = (
                len(complete_looks) > max(2, self.limits.count) or sum(look.size for look in looks) > self.limits.size
            )
            if not over or not self._make_room():
                break
        bare = [look for look in looks if not look.complete]
        for look in bare[: max(0, len(bare) - MAX_VERDICTS)]:
            self._forget(look)

    def _make_room(self) -> bool:
        """Drop the least valuable evidence. Returns False if none can be spared."""
        complete_looks = [look for look in self._adopted() if look.complete]
        if len(complete_looks) <= 2:
            return False
        # Most valuable are the newest look and the first HUNG one; then the first look of all and the last HUNG one.
        hung = [look for look in complete_looks if look.kind == "HUNG"]
        worth = {id(look): 1 for look in (complete_looks[0], *hung[-1:])}
        worth |= {id((hung or complete_looks)[0]): 2, id(complete_looks[-1]): 3}
        least = min(complete_looks, key=lambda look: (worth.get(id(look), 0), GRAVITY.get(look.kind, 0)))
        if least.displayed and least.kind:
            _strip(least.folder)
            least.complete, least.size = False, _size(least.folder)
        else:
            self._forget(least)
        return True

    def _forget(self, look: _Look) -> None:
        self.discard(look.folder)
        self._adopted().remove(look)

    def _adopted(self) -> list[_Look]:
        """The looks so far, including those that were in the watch directory before."""
        if self._looks is None:
            self._looks = []
            with contextlib.suppress(OSError):
                for folder in sorted((self.directory / EVIDENCE).iterdir(), key=lambda entry: order(entry.name)):
                    kind = _kind(folder / VERDICT)
                    only = [file.name for file in folder.iterdir()] == [VERDICT]
                    self._looks.append(_Look(folder, kind, "", kind != "", not only, _size(folder)))
        return self._looks


def order(name: str) -> tuple[str, int]:
    """The sort key by age of evidence folders: `<second>`, `<second>-2`, ..., `<second>-10`."""
    head, _, number = name.rpartition("-")
    return (head, int(number)) if head.count("-") == 1 and number.isdecimal() else (name, 1)


def _kind(file: Path) -> str:
    try:
        kind = json.loads(file.read_bytes())["verdict"]
    except (OSError, ValueError, KeyError, TypeError):
        return ""
    return str(kind)


def _size(folder: Path) -> int:
    """Bytes that a folder occupies on disk."""
    total = 0
    for path, _, names in os.walk(folder):
        for name in names:
            with contextlib.suppress(OSError):
                total += os.lstat(os.path.join(path, name)).st_blocks * 512
    return total


def _strip(folder: Path) -> None:
    """Remove everything in a folder except the verdict."""
    with contextlib.suppress(OSError):
        for entry in list(os.scandir(folder)):
            if entry.is_dir(follow_symlinks=False):
                shutil.rmtree(entry.path, ignore_errors=True)
            elif entry.name != VERDICT:
                with contextlib.suppress(OSError):
                    os.unlink(entry.path)
