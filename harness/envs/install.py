"""Run `uv pip install` for one environment: find the CPU build of torch, and leave no orphaned processes.

This module imports the standard library only: it is used to make the project's own environment before anything is
installed.
"""

from __future__ import annotations

import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from harness.errors import EnvironmentUnusable

# uv's exit codes as observed: 1 when no package satisfies the requirements, 2 when it could not reach the index.
UNSATISFIABLE = 1
ASK_S = 10.0  # chosen; 0.3 to 0.7 s were seen
_GRACE_S = 5.0  # a choice: the time for an installer to end by itself


class CommandFailed(Exception):
    """A command that ended with the exit code `status`. `tail` holds the last lines of its output."""

    def __init__(self, argv: Sequence[str], status: int, tail: list[str]) -> None:
        super().__init__(f"{Path(argv[0]).name} ended with {status}")
        self.argv = argv
        self.status = status
        self.tail = tail

    def reason(self) -> str:
        """Return what a person needs: uv's error with its first and its root cause, or else the last line."""
        lines = [line.strip() for line in self.tail if line.strip()]
        causes = [line.partition(":")[2].strip() for line in lines if line.startswith(("error:", "cause:"))]
        if not causes:
            return lines[-1] if lines else str(self)
        return "; ".join(dict.fromkeys([*causes[:2], causes[-1]]))

    def is_of_a_full_disk(self) -> bool:
        return any(words in line for line in self.tail for words in ("No space left on device", "quota exceeded"))

    def lacks_release_of(self, package: str) -> bool:
        """Whether the indexes have the package, and not in the version that was asked for, in the words of uv 0.9."""
        text = " ".join(" ".join(self.tail).split())
        return re.search(rf"(?:only|no versions? of) {re.escape(package)}[\s=<>!~]", text) is not None

    def unreached(self) -> str:
        """Return the address that uv could not fetch from; empty where the network was not the problem."""
        lines = (line.partition("Failed to fetch:")[2].strip(" `") for line in self.tail)
        return next(filter(None, lines), "")


@dataclass(frozen=True)
class Uv:
    """The uv binary, its environment, and the function that gets its output.

    `keep_open`: file descriptors that uv inherits, such as a lock.
    """

    binary: str
    environ: Mapping[str, str]
    say: Callable[[str], None]
    keep_open: tuple[int, ...] = ()

    def run(self, *arguments: str, cwd: Path | None = None) -> None:
        run([self.binary, *arguments], self.environ, self.say, keep_open=self.keep_open, cwd=cwd)

    def install(
        self,
        python: Path,
        requirements: Sequence[str],
        *,
        overrides: Sequence[str] = (),
        cpu: bool,
        torch: str = "",
        extra: Sequence[str] = (),
    ) -> None:
        """Install into the environment of `python`. Raises CommandFailed.

        With `cpu`, the requirements or the overrides need a torch+cpu, which PyPI does not have. It comes from the
        configured sources (find-links, a mirror) where they have it, else from PyTorch's CPU index. Where the
        requirement of torch is known, only torch is installed from that index: otherwise uv would look for triton
        there too, and nowhere else.
        """
        # uv runs in a directory of its own, so that no project's uv.toml or pyproject.toml applies.
        with tempfile.TemporaryDirectory(prefix="harness-uv-") as scratch:
            file = Path(scratch) / "overrides.txt"
            file.write_text("\n".join(overrides) + "\n", encoding="utf-8")
            argv = install_argv(python, requirements, overrides=file if overrides else None, extra=extra)
            missing = self._unsatisfied(argv, Path(scratch)) if cpu else None
            if missing is None:
                return self.run(*argv, cwd=Path(scratch))
            if missing.lacks_release_of(re.split(r"[^\w.-]", requirements[0])[0]):
                raise missing  # PyTorch's index has no engines
            try:
                if torch:
                    self.run(*install_argv(python, [torch]), "--torch-backend", "cpu", cwd=Path(scratch))
                self.run(*argv, *([] if torch else ["--torch-backend", "cpu"]), cwd=Path(scratch))
            except CommandFailed as failure:
                reasons = [f"from the configured indexes: {missing.reason()}", f"with PyTorch's: {failure.reason()}"]
                tail = missing.tail if missing.reason() == failure.reason() else ["; ".join(reasons)]
                raise CommandFailed(failure.argv, failure.status, tail) from failure

    def _unsatisfied(self, argv: Sequence[str], cwd: Path) -> CommandFailed | None:
        """Return why the configured sources lack a requirement, or None where they have all. Takes seconds to
        resolve.
        """
        try:
            self.run(*argv, "--dry-run", "--quiet", cwd=cwd)
        except CommandFailed as failure:
            if failure.status != UNSATISFIABLE:
                raise
            return failure
        return None


def lacks_release(binary: str, environ: Mapping[str, str], requirement: str, python: str) -> bool:
    """Whether the indexes have the package of a requirement and no such release of it. False where that cannot be
    asked within `ASK_S`: whoever installs it then learns why.
    """
    argv = [binary, *install_argv(Path(python), [requirement], extra=["--dry-run", "--no-deps"])]
    try:
        answer = subprocess.run(
            argv, env={**environ, "NO_COLOR": "1", "UV_HTTP_RETRIES": "0"}, cwd="/", timeout=ASK_S, text=True,
            errors="replace", stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
        )  # fmt: skip
    except (OSError, subprocess.TimeoutExpired):
        return False
    failure = CommandFailed(argv, answer.returncode, answer.stdout.splitlines())
    return answer.returncode == UNSATISFIABLE and failure.lacks_release_of(re.split(r"[^\w.-]", requirement)[0])


def install_argv(
    python: Path, requirements: Sequence[str], *, overrides: Path | None = None, extra: Sequence[str] = ()
) -> list[str]:
    """Return the arguments of uv for one installation, without the binary."""
    argv = ["pip", "install", "--python", str(python), *extra, *requirements]
    return argv + (["--overrides", str(overrides)] if overrides else [])


def uv_binary() -> str:
    """Return the uv of the driver's environment, or else the one on PATH. Raises EnvironmentUnusable."""
    try:
        import uv

        return str(uv.find_uv_bin())
    except (ImportError, FileNotFoundError):
        if path := shutil.which("uv"):
            return path
    raise EnvironmentUnusable("uv, which installs the engines, is not here", fix=f"{sys.executable} -m pip install uv")


def nvidia_gpu(environ: Mapping[str, str] = os.environ) -> bool:
    """Whether a process started from here would see an NVIDIA GPU. torch is not imported."""
    if environ.get("CUDA_VISIBLE_DEVICES", "0").strip() in ("", "-1", "NoDevFiles"):
        return False
    lister = shutil.which("nvidia-smi")
    if lister is None:
        return Path("/dev/nvidia0").exists()
    answer = subprocess.run([lister, "-L"], capture_output=True, text=True, stdin=subprocess.DEVNULL)
    return answer.returncode == 0 and "GPU" in answer.stdout


def run(
    argv: Sequence[str],
    environ: Mapping[str, str],
    say: Callable[[str], None],
    *,
    keep_open: tuple[int, ...] = (),
    cwd: Path | None = None,
    grace_s: float = _GRACE_S,
) -> None:
    """Run a command to its end, and pass each line of its output to `say`. Raises CommandFailed.

    The command runs in a session of its own. So Ctrl-C reaches this process alone, which ends the command and all of
    its children, such as uv's builds.
    """
    environ = {**environ, "NO_COLOR": "1"}
    process = subprocess.Popen(
        argv,
        env=environ,
        cwd=cwd,
        text=True,
        errors="replace",
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        start_new_session=True,
        pass_fds=keep_open,
    )
    tail: list[str] = []
    try:
        assert process.stdout is not None
        for line in process.stdout:
            tail = [*tail[-199:], line.rstrip()]
            say(line.rstrip())
        status = process.wait()
    except BaseException:
        end(process, grace_s)
        raise
    if status != 0:
        raise CommandFailed(argv, status, tail)


def end(process: subprocess.Popen[str], grace_s: float) -> None:
    """End a process that leads its own session, and everything that it started in that session."""
    for signum in (signal.SIGTERM, signal.SIGKILL):
        try:
            os.killpg(process.pid, signum)
            process.wait(timeout=grace_s)
        except ProcessLookupError:
            break
        except subprocess.TimeoutExpired:
            continue
    process.wait()
