"""Takes off what log collectors and launchers put before each line: a time, a host, a pod, a number, a quotation mark.

Few of these prefixes are safe to take off a line by itself: `node0: ` looks like the type of an exception, `[0] ` like
an index. So a prefix counts only in the forms in which it stands before a line that begins a stack, a traceback or a
message of torch, and before the line after it. Text without such a line is read as it is.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass

from harness.triage.pasted import naming
from harness.triage.pasted.errors import LOGGED
from harness.triage.pasted.naming import NOBODY, NUMBER, Name
from probes import limits

MAX_ANCHORS = 20_000  # of one text; each rank of a job may have a host of its own
MAX_PREFIX = 300  # characters
MAX_FORMS = 4  # of one text, such as of several collectors
MAX_PARTS = 4  # of one prefix
# What begins a block of lines that have one prefix.
_ANCHOR = re.compile(
    r"(?:Current thread|Thread) (?:0x[0-9A-Fa-f]|\d{1,10} \()|Traceback (?:\(most recent call last\):|for thread \d)"
    r"|Process \d{1,10}: |TID \d{1,10}:|#0 {1,4}\S|\[[IWEF]\d{0,4}[ \d:.]{0,30}ProcessGroup"
)
_HOST = r"(?P<host>[A-Za-z0-9][\w.-]{0,100})"
_NO_HOST = r"(?:(?i:debug|info|warn|warning|error|critical|fatal|stdout|stderr)|[\w.]*(?:Error|Exception|Warning))"
_GAP = "(?: |$)"  # an empty line has lost the space
# The parts of a prefix. Those that may be mistaken for words of a line name a host, which has to be one of an anchor.
_PARTS = tuple(
    re.compile(pattern)
    for pattern in (
        r"\d{4}-\d\d-\d\d[T ]\d\d:\d\d:\d\d(?:[.,]\d{1,9})?(?:Z|[+-]\d\d:?\d\d)?" + _GAP,  # kubectl, docker, logging
        r"std(?:out|err) [FP]" + _GAP,  # containerd
        rf"[A-Z][a-z]{{2}} [ \d]\d \d\d:\d\d:\d\d {_HOST} [\w./-]{{1,60}}\[(?P<pid>\d{{1,10}})\]:{_GAP}",  # journald
        rf"\[pod/{_HOST}/[\w.-]{{1,100}}\]{_GAP}",  # kubectl logs --prefix
        rf"\[[A-Za-z_]\w{{0,40}}?(?P<local>{NUMBER})\]: ?",  # torchrun --tee: the role and its rank on that node
        rf"\[(?P<rank>{NUMBER})\](?:: ?|{_GAP})",  # mpiexec -l of Hydra
        rf"\(rank (?P<rank>{NUMBER})\):?{_GAP}",
        rf">{_GAP}",  # Markdown
        rf"{_HOST} *\|{_GAP}",  # docker compose
        rf"(?!{_NO_HOST}:){_HOST}:{_GAP}",  # pdsh
    )
)
Form = tuple[re.Pattern[str] | None, ...]  # parts; None is a prefix that needs no anchor, of `naming.split`


@dataclass(frozen=True)
class Prefixes:
    """The prefixes of a text. forms: the parts of each, in order. hosts: that stand in them.

    one_node: whether the text is of one node, on which torchrun's local rank is the rank.
    """

    forms: tuple[Form, ...] = ()
    hosts: frozenset[str] = frozenset()
    one_node: bool = True

    def split(self, line: str) -> tuple[Name, str]:
        """The writer that the prefix of a line names, and the line without the prefix."""
        if not self.forms and line[:4] == "    ":  # a frame of a stack
            return NOBODY, line
        for form in self.forms:
            if (split_line := self._split_by(form, line)) is not None:
                return split_line
        return naming.split(line)

    def _split_by(self, form: Form, line: str) -> tuple[Name, str] | None:
        name, words = NOBODY, line
        for part in form:
            if part is None:
                inner, behind = naming.split(words)
                if behind is words:
                    return None
                name, words = _merged(name, inner), behind
            elif (match := part.match(words)) is None:
                return None
            else:
                words = words[match.end() :]
                if part.groups:
                    inner = _name(match, self.one_node)
                    if inner.host and inner.host not in self.hosts:
                        return None
                    name = _merged(name, inner)
        if form[-1] is None:
            return name, words
        inner, words = naming.split(words)
        return _merged(name, inner), words


def of_text(file: str, text: str) -> Prefixes:
    """The prefixes of a text, from the lines that begin a stack, a traceback or a message of torch."""
    forms: dict[Form, None] = {}
    hosts: set[str] = set()
    for prefix, next_line in _anchors(text):
        parsed = _parsed(prefix)
        if parsed is None:
            continue
        form, its_hosts = parsed
        if (form in forms or len(forms) < MAX_FORMS) and _stands_before(form, next_line):
            forms[form] = None
            hosts |= its_hosts
    if not forms:
        return NONE
    several = len(hosts) > 1 or bool(naming.of_path(file).host)
    return Prefixes(tuple(sorted(forms, key=len, reverse=True)), frozenset(hosts), not several)


NONE = Prefixes()


def _anchors(text: str) -> Iterator[tuple[str, str]]:
    """What stands before each anchor in its line, and the line after it."""
    count, past = 0, 0
    for anchor in _ANCHOR.finditer(text):
        begin = text.rfind("\n", max(0, anchor.start() - MAX_PREFIX), anchor.start()) + 1
        if anchor.start() == begin or begin < past or (begin == 0 and anchor.start() > MAX_PREFIX):
            continue
        end = text.find("\n", anchor.end())
        if end < 0:
            return
        past = end
        count += 1
        if count > MAX_ANCHORS:
            return
        following = text.find("\n", end + 1)
        limit = end + 1 + MAX_PREFIX
        yield text[begin : anchor.start()], text[end + 1 : min(following, limit) if following >= 0 else limit]


def _parsed(prefix: str) -> tuple[Form, set[str]] | None:
    """The parts of a prefix and the hosts that it names; None if it has other words, or needs no anchor."""
    form: list[re.Pattern[str] | None] = []
    hosts: set[str] = set()
    words = prefix
    while words and not LOGGED.fullmatch(words):
        behind = naming.split(words)[1]
        if behind is not words:
            form.append(None)
            words = behind
        elif match := next((match for part in _PARTS if (match := part.match(words)) and match.end()), None):
            form.append(match.re)
            hosts |= {host for host in [match.groupdict().get("host")] if host}
            words = words[match.end() :]
        else:
            return None
        if len(form) > MAX_PARTS:
            return None
    return (tuple(form), hosts) if any(form) else None


def _stands_before(form: Form, line: str) -> bool:
    """Whether the next line has the same form. Its host may be another one: lines of several writers mix."""
    for part in form:
        if part is None:
            words = naming.split(line)[1]
            if words is line:
                return False
            line = words
        elif match := part.match(line):
            line = line[match.end() :]
        else:
            return False
    return True


def _name(match: re.Match[str], one_node: bool) -> Name:
    groups = match.groupdict()
    number = groups.get("rank") or (groups.get("local") if one_node else None)
    role = match[0].strip(" []:") if "local" in groups and not one_node else ""
    return Name(limits.rank(number), groups.get("host") or "", int(groups.get("pid") or 0), role)


def _merged(outer: Name, inner: Name) -> Name:
    """What both parts of a prefix name. The inner one was written by the process itself."""
    if outer is NOBODY or inner is NOBODY:
        return outer if inner is NOBODY else inner
    return Name(
        outer.rank if inner.rank is None else inner.rank,
        inner.host or outer.host,
        inner.pid or outer.pid,
        inner.role or outer.role,
    )
