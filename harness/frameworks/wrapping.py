"""Takes off what a command puts around the program that runs: containers, shells, and tools that enter another
environment.

`docker run -e A=1 IMAGE bash -c "cd /w && vllm serve m"` becomes `A=1 vllm serve m`, in the folder /w of the image.
What starts the program several times or elsewhere (srun, torchrun, ray job submit) stays in front of it, because its
options are settings. Options as in Docker 28, Apptainer 1.4, conda 25, micromamba 2 and uv 0.9.
"""

from __future__ import annotations

import os
import re
import shlex
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from harness.errors import BadInput
from harness.frameworks.argv import option
from harness.frameworks.shell_text import NotPlain, commands
from probes import redaction
from probes.engines import ENGINES


@dataclass(frozen=True)
class Wrapped:
    """A command without what is around it.

    `command`: the variables and launchers that stay in front, and the program with its arguments. `environ`: the
    variables that a process has there without these. `places`: where it runs, if not in this shell, outermost first.
    `moved`: whether its files are in another folder or in a container. `options`: of the tools around it, those that
    are neither a place nor a variable. `release`: the version in the name of its image. `unread`: what else may set a
    variable or install something, a sentence each.
    """

    command: tuple[str, ...]
    environ: Mapping[str, str]
    places: tuple[str, ...] = ()
    moved: bool = False
    options: tuple[str, ...] = ()
    release: str = ""
    unread: tuple[str, ...] = ()

    @property
    def place(self) -> str:
        return ", ".join(self.places) or "this shell"


@dataclass(frozen=True)
class _Tool:
    """A tool that runs a command elsewhere.

    `place`: what that is. `target`: whether its first word names it, as an image. `names`: options that say which one
    it is. `valued`: options with a value; None where all have one but the `switches`. `variables`: options that set
    one. `folders`: options that set the folder. `isolates`: options without which the shell's variables arrive; None
    where they never do. `comma`: whether one option sets several variables. `entrypoint`: whether the target may start
    a program of its own. `modules`: options whose value is a module of Python's.
    """

    place: str
    target: bool = False
    names: frozenset[str] = frozenset()
    valued: frozenset[str] | None = None
    switches: frozenset[str] = frozenset()
    variables: frozenset[str] = frozenset()
    folders: frozenset[str] = frozenset()
    isolates: frozenset[str] | None = frozenset()
    comma: bool = False
    entrypoint: bool = False
    modules: frozenset[str] = frozenset()

    def has_value(self, name: str) -> bool:
        return name not in self.switches if self.valued is None else name in self.valued


def _options(text: str) -> frozenset[str]:
    return frozenset(text.split())


_DOCKER = _Tool(
    "the image", target=True, variables=_options("-e --env"), folders=_options("-w --workdir"), isolates=None,
    switches=_options(
        "-d --detach -i --interactive -t --tty --rm --init --privileged -P --publish-all --read-only --no-healthcheck "
        "--oom-kill-disable --sig-proxy -q --quiet --disable-content-trust --replace --tls-verify --env-host --rmi"
    ),
    entrypoint=True,
)  # fmt: skip
_APPTAINER = _Tool(
    "the image", target=True, variables=_options("--env"), folders=_options("--pwd --cwd"),
    valued=_options("--env --env-file --pwd --cwd -B --bind --mount -H --home -o --overlay -S --scratch -W --workdir "
                    "--network --network-args --hostname --dns --security --add-caps --drop-caps --app --fusemount"),
    isolates=_options("-e --cleanenv -C --containall"), comma=True,
)  # fmt: skip
_CONDA = _Tool(
    "conda's environment", names=_options("-n --name -p --prefix"), variables=_options("-e --env"),
    folders=_options("--cwd"), valued=_options("-n --name -p --prefix -r --root-prefix -e --env --cwd -a --attach"),
)  # fmt: skip
_UV = _Tool(
    "uv's environment", folders=_options("--directory"), modules=_options("-m --module"),
    names=_options("--with --with-requirements --with-editable --from --extra --group --only-group --no-extra "
                   "--no-group -p --python --package --project --isolated --all-extras --all-groups --no-project -w"),
    valued=_options("--with --with-requirements --with-editable --from --extra --group --only-group --no-extra "
                    "--no-group -p --python --package --project --directory --env-file -w --index --default-index "
                    "-i --index-url --extra-index-url -f --find-links --index-strategy --keyring-provider --resolution "
                    "-P --upgrade-package --prerelease --exclude-newer --link-mode --refresh-package --cache-dir "
                    "-C --config-setting --reinstall-package --no-build-package --no-binary-package --config-file "
                    "--color --allow-insecure-host --python-platform"),
)  # fmt: skip
_TOOLS: Mapping[tuple[str, ...], _Tool] = {
    **{(program, "run"): _DOCKER for program in ("docker", "podman", "nerdctl")},
    **{(program, "exec"): replace(_DOCKER, place="the container", entrypoint=False)
       for program in ("docker", "podman", "nerdctl")},
    **{(program, "exec"): _APPTAINER for program in ("apptainer", "singularity")},
    **{(program, "run"): replace(_APPTAINER, entrypoint=True) for program in ("apptainer", "singularity")},
    **{(program, "run"): _CONDA for program in ("conda", "mamba", "micromamba")},
    ("uv", "run"): _UV, ("uv", "tool", "run"): _UV, ("uvx",): _UV,
    ("poetry", "run"): _Tool("poetry's environment", valued=frozenset()),
    ("pipenv", "run"): _Tool("pipenv's environment", valued=frozenset()),
}  # fmt: skip
# What these start is in a file, or on another machine.
_OPAQUE = (
    ("docker", "compose"),
    ("docker-compose",),
    ("podman-compose",),
    ("kubectl",),
    ("ssh",),
    ("make",),
    ("just",),
)
_SHELLS = {"bash", "sh", "zsh", "dash", "ksh"}
# The job begins here: words behind it are its own.
_PROGRAM = re.compile(r"(?:^|/)(?:python[\d.]*|torchrun|accelerate|deepspeed|trl|vllm|sglang)$|\.py$")
_ASSIGNMENT = re.compile(r"[A-Za-z_]\w*=.*", re.DOTALL)
# Commands of a shell that set no variable and install nothing.
_HARMLESS = {"set", "ulimit", "umask", "mkdir", "echo", "printf", "sleep", "wait", "true", ":", "exit", "trap", "date",
             "hostname", "nvidia-smi", "pwd"}  # fmt: skip
_RELEASE = re.compile(r":v?(\d+\.\d+\.\d+(?:\.?(?:post|rc|dev)\d+)?)")  # vllm-openai:v0.9.1, sglang:v0.4.9.post2-cu126
_SHOWN_WORDS = 3  # of a command that a sentence names


def changed_variables(wrapped: Wrapped, variables: Mapping[str, str]) -> dict[str, str]:
    """Those of a program's variables that a process does not have there anyway."""
    return {name: value for name, value in variables.items() if wrapped.environ.get(name) != value}


class _NotRead(ValueError):
    """What runs within a command cannot be told. The message says why."""


def unwrapped(name: str, command: Sequence[str], environ: Mapping[str, str] = os.environ) -> Wrapped:
    """Take a command's wrappers off. `name`: of the command, for the error. Raises BadInput where what runs within
    cannot be told."""
    outer, wrapped = None, Wrapped(tuple(command), environ)
    try:
        while wrapped is not outer:
            outer, wrapped = wrapped, _without_outermost(wrapped)
    except (_NotRead, NotPlain) as error:
        raise BadInput(
            f"command {name} cannot be compared: {error}",
            fix="give the command that runs within, with its options",
        ) from error
    if image := option(wrapped.command, "--container-image"):  # of srun
        return replace(wrapped, places=(f"the image {_scrubbed(image)}", *wrapped.places), moved=True)
    return wrapped


def _without_outermost(wrapped: Wrapped) -> Wrapped:
    """Take the outermost wrapper off; the same object where there is none."""
    words = wrapped.command
    for at, word in enumerate(words):
        call, program = (os.path.basename(word), *words[at + 1 :]), os.path.basename(word)
        if _PROGRAM.search(word):
            break
        if opaque := next((names for names in _OPAQUE if call[: len(names)] == names), None):
            raise _NotRead(f"what {' '.join(opaque)} starts is not in the command")
        if program in _SHELLS and (text := _text_of_shell(call[1:])) is not None:
            return _out_of_shell(wrapped, words[:at], program, text)
        for names, tool in _TOOLS.items():
            if call[: len(names)] == names:
                return _out_of_tool(wrapped, words[:at], tool, call[len(names) :])
    return wrapped


def _text_of_shell(words: Sequence[str]) -> str | None:
    """The text behind `-c`, `-lc`, `-euo pipefail -c`; None where a shell runs a script."""
    remaining = deque(words)
    while remaining and remaining[0].startswith(("-", "+")):
        word = remaining.popleft()
        if re.fullmatch(r"-[A-Za-z]*c[A-Za-z]*", word):
            return remaining[0] if remaining else ""
        if remaining and re.fullmatch(r"[-+][A-Za-z]*[oO]", word):
            remaining.popleft()
    return None


def _out_of_shell(wrapped: Wrapped, before: Sequence[str], program: str, text: str) -> Wrapped:
    """The last command of a shell's text, with the variables and the folder that those before it set."""
    try:
        lines = commands(text)
    except NotPlain as error:
        raise _NotRead(f"what {program} -c is given is not read: {error}") from error
    settings: list[str] = []
    folders: list[str] = []
    programs: list[list[str]] = []
    for words in lines:
        head, arguments = words[0], words[1:]
        if head == "export" or all(map(_ASSIGNMENT.fullmatch, words)):
            settings += filter(_ASSIGNMENT.fullmatch, words)
        elif head == "unset":
            settings += [word for name in arguments for word in ("env", "-u", name)]
        elif head == "cd":
            folders.append(_folder(arguments[-1] if arguments else "~"))
        elif head not in _HARMLESS:
            programs.append(words)
    if not programs:
        raise _NotRead(f"what {program} -c is given starts no program")
    earlier = [f"what `{_scrubbed(shlex.join(words[:_SHOWN_WORDS]))}` changes is not known" for words in programs[:-1]]
    return replace(
        wrapped,
        command=(*before, *settings, *programs[-1]),
        places=(*wrapped.places, *folders),
        moved=wrapped.moved or bool(folders),
        unread=(*wrapped.unread, *earlier),
    )


def _out_of_tool(wrapped: Wrapped, before: Sequence[str], tool: _Tool, words: Sequence[str]) -> Wrapped:
    """The command that a tool runs elsewhere, with the variables that its options set."""
    remaining = deque(words)
    options = list(_leading_options(remaining, tool))
    counted_elsewhere = {*tool.names, *tool.variables, *tool.folders, *tool.modules, "--env-file", "--entrypoint"}
    if tool.target and not remaining:
        raise _NotRead("it names no image")
    target = remaining.popleft() if tool.target else ""
    entrypoint = next((value for name, value in options if name == "--entrypoint"), "")
    arriving = tool.isolates is not None and not any(name in tool.isolates for name, _ in options)
    settings = [
        word for name, value in options if name in tool.variables for word in _set(tool, value, wrapped.environ)
    ]
    folders = [_folder(value) for name, value in options if name in tool.folders]
    which = [target] if target else [word for name, value in options if name in tool.names for word in (name, value)]
    release = _RELEASE.search(target)
    return replace(
        wrapped,
        command=(
            *(word for word in before if arriving or not _ASSIGNMENT.fullmatch(word)),
            *settings,
            *_program(tool, target, entrypoint, [*_interpreter(options, tool), *remaining]),
        ),
        environ=wrapped.environ if arriving else {},
        places=(*wrapped.places, _scrubbed(" ".join([tool.place, *filter(None, which)])), *folders),
        moved=wrapped.moved or tool.target or bool(folders),
        options=(
            *wrapped.options,
            *(f"{name} {value}".strip() for name, value in options if name not in counted_elsewhere),
        ),
        release=release[1] if release else wrapped.release,
        unread=(
            *wrapped.unread,
            *(f"variables come from {value}, which is not read" for name, value in options if name == "--env-file"),
        ),
    )


def _leading_options(remaining: deque[str], tool: _Tool) -> Iterator[tuple[str, str]]:
    """Yield (name, value) of the options in front of a tool's first word, and leave the other words in `remaining`."""
    while remaining and remaining[0].startswith("-"):
        word = remaining.popleft()
        if word == "--":
            return
        name, joined, value = word.partition("=")
        if not word.startswith("--"):
            name, value = _short(word, tool)
            yield from ((f"-{letter}", "") for letter in word[1 : word.index(name[1], 1)])
            joined = value
        if not joined and tool.has_value(name):
            if not remaining:
                raise _NotRead(f"no value stands behind {name}")
            value = remaining.popleft()
        yield name, value


def _short(word: str, tool: _Tool) -> tuple[str, str]:
    """(The last option, its value in the word) of short options in one word: -it, -itv, -eA=B."""
    for at, letter in enumerate(word[1:], start=1):
        if tool.has_value(f"-{letter}"):
            return f"-{letter}", word[at + 1 :].removeprefix("=")
    return f"-{word[-1]}", ""


def _interpreter(options: Sequence[tuple[str, str]], tool: _Tool) -> list[str]:
    """`uv run -m MODULE` is `python -m MODULE`."""
    return ["python", "-m"] if any(name in tool.modules for name, _ in options) else []


def _program(tool: _Tool, target: str, entrypoint: str, words: list[str]) -> list[str]:
    """What runs: the words behind a tool's options, or what the image itself starts."""
    if entrypoint:
        return [entrypoint, *words]
    image = os.path.basename(target).partition(":")[0].partition("@")[0]
    server = next((engine for engine, process in ENGINES.items() if image in process.images), "")
    if tool.entrypoint and server:
        return [server, "serve", *words]
    if not words or words[0].startswith("-"):
        raise _NotRead(f"what {f'{tool.place} {target}'.strip()} starts is not in the command")
    if tool is _UV:  # uv run train.py, uvx vllm@0.9.1 serve m
        words = ["python", *words] if words[0].endswith(".py") else [words[0].partition("@")[0], *words[1:]]
    return words


def _set(tool: _Tool, value: str, environ: Mapping[str, str]) -> list[str]:
    """The assignments of an option such as `-e A=B`. Without `=` it hands the shell's own value on."""
    parts = value.split(",") if tool.comma else [value]
    return [f"{part}={environ[part]}" if part in environ else part for part in parts if "=" in part or part in environ]


def _folder(folder: str) -> str:
    return f"the folder {_scrubbed(folder)}"


def _scrubbed(text: str) -> str:
    return redaction.text(text)
