"""The only scrubber: everything that is written down passes it, whoever writes it (docs/reference/secrets.md).

A secret is recognised by its name (of a variable, a field, an option), by its shape (a token of a well-known service,
a private key, a login in a URL), or by its value, when the value of a secretly named variable appears again. Every
pattern takes time linear in the length of the text: each quantifier is possessive or bounded, and a match that failed
at the beginning of a run of characters is not tried again from its middle.
"""

from __future__ import annotations

import dataclasses
import json
import os
import re
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import lru_cache, partial
from typing import Any, NamedTuple
from urllib.parse import quote, unquote

from probes import secret_layouts
from probes.secret_disguises import continuation, undisguised
from probes.secret_names import (
    PROSE,
    STEMS,
    WITHHELD,
    has_token_form,
    is_harmless,
    is_secret,
    is_strong,
    looks_random,
)
from probes.secret_shapes import (
    GLUED,
    KEY_BODY,
    PUTTY_LINES,
    SHAPED,
    SHAPED_GLUED,
    SHAPED_IN_FILE_NAME,
    SHORTEST,
)

__all__ = ["WITHHELD", "arguments", "event", "fields", "file_name", "learn", "line", "scrub", "text"]

MAX_DEPTH = 100  # levels of nested dictionaries and lists; each takes three frames of the 1,000 that Python allows
TOO_DEEP = f"{WITHHELD} (nested too deep)"
MAX_TEXT = 4_000  # characters of a message or a command line
PASSES = 5  # a replacement can join two halves of another secret
CACHED, CACHED_TEXTS = 200, 4_096  # characters, and texts: the texts of spans and roles repeat

# A value is searched for everywhere, so it must not be a common word of ours: `disabled`, `password`, a path, a date.
KNOWN_MIN, KNOWN_MAX, KNOWN_COUNT = 8, 4_096, 1_000
_WORDLIKE = re.compile(r"[a-z]{1,15}|[A-Z]{1,15}|[A-Z][a-z]{1,14}|[\d.:,\-]{1,12}")

# An option, or a name with what separates it from its value: `--name value`, `name=value`, "name": "value",
# ['--name', 'value'], ('name', 'value'). Backslashes: JSON within JSON.
_NAMED = re.compile(
    r"(?<![\w.\-])(?:"
    r"(?P<option>-{1,2}[A-Za-z][\w.\-]*+)"
    r"(?:\\*+[\"']?\s*+[=:]\s*+|,\s*+|\\*+[\"']\s*+,\s*+(?=[rbfu]?\\*+[\"'])|\s++)(?!-)"
    r"|(?P<pair>[A-Za-z][\w\-]{2,60}+)\\*+[\"'],\s*+(?=[rbfu]?\\*+[\"'])"
    r"|(?P<name>[\w.\-]++)\\*+[\"']?\]?(?:\s*+(?:={1,3}+>?|:=|:|-{1,2}+>)|(?<=-)>)\s*+"
    r"|(?P<listed>[A-Z][A-Z0-9]{0,30}+(?:_[A-Z0-9]++)++)[ \t]++)"
)
_VAGUE = re.compile(r"[?&](?:code|ticket)=", re.IGNORECASE)
# Names that say little by themselves: withheld where the value looks like nothing else (`looks_random`).
_VAGUE_OPTIONS = frozenset({"--key", "-key"})
_VAGUE_PARAMETERS = frozenset({"code", "session", "sid", "ticket"})
_VAGUE_NAMES = frozenset({"pin", "sid"})  # of three letters; also the last part of a longer one: connect.sid
# kaggle.json: {"username": "...", "key": "..."}, in either order.
_KAGGLE = re.compile(
    r"(?<!\w)(?:username\\*+[\"']?\s*+:\s*+\\*+[\"'][^\"'\\]{0,100}+\\*+[\"']\s*+,\s*+\\*+[\"']key\\*+[\"']\s*+:\s*+"
    r"|key\\*+[\"']\s*+:\s*+(?=\\*+[\"'][^\"'\\]{1,200}+\\*+[\"']\s*+,\s*+\\*+[\"']username\\*+[\"']))"
    r"(\\*+[\"'])([^\"'\\]{1,200}+)"
)
# token%3Dvalue, also when it is encoded several times; up to an encoded &.
_ENCODED = re.compile(
    r"(?P<head>(?:%(?:25){0,3}+[0-9A-Fa-f]{2}|(?<![\w.\-%]))(?P<name>[A-Za-z][\w.\-]{0,100}+)%(?:25){0,3}+3[Dd])"
    r"(?P<value>(?:[^\s\"'&;,<>%]|%(?!(?:25){0,3}26))++)"
)
_ENCODED_LOGIN = re.compile(r"(?<=%3A%2F%2F)(?:[^\s\"'&%]|%(?!40|2F))*+%40", re.IGNORECASE)
# <password>value</password>, <ns:apiKey type="text">value</ns:apiKey>
_ELEMENT = re.compile(r"<([A-Za-z][\w.\-:]{0,60}+)((?:[ ][^<>]{0,200}+)?+)>([^<>]{1,4096}+)(?=</\1>)")
_DIGEST = re.compile(  # Authorization: Digest username="me", response="VALUE"
    r"(?<!\w)(digest[ \t]++)(?=[^\r\n]{0,400}?\b(?:response|username)=)"
    r"(?:\w{1,30}+=(?:\\*+\"[^\"\\\r\n]*+\\*+\"|[^\s,\"\\]++)[ \t]*+(?:,[ \t]*+)?+)++",
    re.IGNORECASE,
)
_COMPARED = re.compile(r"([\"'])([^\"'\r\n]{1,400}+)(\1[ \t]*+[!=]=[ \t]*+)([\w.]++)")  # 'VALUE' == cfg.api_key
# 密码为VALUE: no blank, and no sign between them.
_SPOKEN_WITHOUT_BLANKS = re.compile(
    r"((?:密码|密碼|口令|パスワード|비밀번호)[ \t]*+(?:设为|是|为|為|は|은|는)[ \t]*+[\"'「]?)([!-&(-~]{4,200}+)"
)
# A JSON web key: {"kty": "RSA", "d": "VALUE"}.
_WEB_KEY = re.compile(r"(?<!\w)((?:d|p|q|dp|dq|qi|k)\\*+[\"']\s*+:\s*+\\*+[\"'])(?=[\w\-]{16})[\w\-]++")
_PRIVATE_OF_WEB_KEY = ("d", "p", "q", "dp", "dq", "qi", "k")
# Kubernetes: {"name": "HF_TOKEN", "value": "..."}, the same in YAML and XML, GitLab's "key", and turned round.
_NAME_VALUE = re.compile(
    r"(?<!\w)(?:name|key|variable)\\*+[\"']?\s*+[:=]\s*+\\*+[\"']?(?P<name>[\w.\-]++)\\*+[\"']?\s*+,?\s*+"
    r"\\*+[\"']?value\\*+[\"']?\s*+[:=]\s*+",
    re.IGNORECASE,
)
_VALUE_NAME = re.compile(
    r"(?<!\w)(?P<head>value\\*+[\"']?\s*+[:=]\s*+\\*+[\"'])(?P<value>[^\"'\\]{1,400}+)"
    r"(?P<tail>\\*+[\"']\s*+,?\s*+\\*+[\"']?(?:name|key|variable)\\*+[\"']?\s*+[:=]\s*+\\*+[\"']?(?P<name>[\w.\-]++))",
    re.IGNORECASE,
)
# aws_secret_access_key VALUE, in columns.
_COLUMN = re.compile(r"(?<![\w.\-])([a-z][a-z0-9]{0,30}+(?:_[a-z0-9]++)++)([ \t]++)([^\s\"',;=:]{8,200}+)")
# os.environ.get('hf_token', 'VALUE'), add_argument('--hf-token', default='VALUE'): a name among its texts, and a
# default.
_LOOKUP = re.compile(
    r"\b(?:get\w{0,10}+|pop|set\w{0,10}+|putenv|environ|add_argument|[Oo]ption|[Aa]rgument|Field)\([^()\n]{1,400}+"
)
_TEXT_OF_CALL = re.compile(
    r"(?:(?P<keyword>\w{1,30}+)[ \t]*+=[ \t]*+)?+[rbfu]?(?P<quote>[\"'])(?P<value>(?:(?!(?P=quote)).)*+)(?P=quote)"
)
_DEFAULTS = frozenset({"default", "value", "fallback"})
_RESOLVER = re.compile(r"(\$\{[\w.]{1,30}+:(\w{1,100}+),)([^}]++)")  # ${oc.env:HF_TOKEN,VALUE}
# get('HF_TOKEN') or 'VALUE', env.HF_TOKEN ?? 'VALUE'
_FALLBACK = re.compile(
    r"(?<![\w\-])([\w\-]{3,100}+)([\"']?[\])]{0,2}+[ \t]*+(?:\|\||\?\?|\bor\b)[ \t]*+[rbfu]?)"
    r"([\"'`])([^\"'`\r\n]{1,400}+)"
)
# A sentence or a netrc: password 'VALUE', the password is VALUE, the token 'VALUE' was refused, munge key VALUE,
# Incorrect API key provided: VALUE.
_SPOKEN = re.compile(
    r"(?<![a-z])(?P<word>(?P<password>passw(?:or)?d|passphrase|passcode)|token|secret|credentials?|jwt"
    r"|session(?:[ _\-]id)?|(?P<key>key))"
    r"(?P<gap>(?P<prose>(?:[ \t]++(?:is|was|of|to|as|not|(?:in)?valid|provided|supplied|given|used|sent|received"
    r"|rejected|refused|expired|found)(?=[ \t:])){0,4}+)(?P<colon>:?+)[ \t]++)(?![=:>\-])"
    r"(?:(?P<quote>[\"'])(?P<quoted>[^\"'\r\n]{1,200}+)|(?P<bare>[^\s\"']{1,200}+))",
    re.IGNORECASE,
)
_SPOKEN_WORDS = (
    "passwd", "password", "passphrase", "passcode", "token", "secret", "credential", "credentials", "jwt", "session",
    "id", "key",
)  # fmt: skip
_SPOKEN_MARKS = ("key:", *(word + blank for word in _SPOKEN_WORDS for blank in " \t"))
_WORD_BEFORE = re.compile(r"([A-Za-z][\w\-]*)[ _\-]\Z")
_KEYS = frozenset({"api", "access", "private", "secret", "license", "auth"})  # a key of these needs fewer signs
# expect and pexpect: send "VALUE\r", child.sendline('VALUE')
_SENT = re.compile(
    r"(?<!\w)(?P<head>send(?:_?line)?(?:[ \t]++(?:--[ \t]++)?+|\([ \t]*+)[rbfu]?(?P<quote>[\"']))"
    r"(?P<value>(?!\$)[^\"'\\\r\n]{1,200}+)"
)
_ASKS_SECRET = re.compile(
    r"expect(?!.*expect).*(?:assw|assphrase|asscode|token|secret|\botp\b)", re.DOTALL | re.IGNORECASE
)
MOST_ASKED = 200  # characters before what is sent
_SENTENCE_WORD = re.compile(r"[a-z\-]{1,30}+[.,:;!?)]*+")
_SIGNS = re.compile(r"[\W_]{1,3}+")  # the border of a table
_OPAQUE = re.compile(r"(?!0[xX])(?=[A-Za-z_.~+/=\-]*+\d)(?=[\d_.~+/=\-]*+[A-Za-z])[\w\-.~+/=]{10,200}+", re.ASCII)
_COMPOUND = re.compile(r"[\w\-]*\Z")
# What may stand before a value: a here-string, what YAML has there, a type, a call around
# it, the letters of Python's texts.
_BEFORE_VALUE = re.compile(
    r"(?:<<<[ \t]*+|[|>][+\-\d]{0,2}[ \t]++)?+(?:!!?\w*+[ \t]++)?+(?:&\w++[ \t]++)?+"
    r"(?:&?[A-Za-z_][\w.]{0,60}+(?:\[[\w., |\[]{0,60}+\]++)?+(?:[ ]?\|[ ]?\w{1,40}+){0,5}+[ \t]*+=[ \t]*+"
    r"(?=[rbfu]?\\*+[\"']))?+"
    r"(?:[A-Za-z_][\w.:]{0,60}+\([ \t]*+(?=[rbfu]?\\*+[\"']))?+"
    r"(?:[rbfuRBFU]{1,2}+(?=\\*+[\"']))?+"
)
_REFERENCE = re.compile(r"(?:os\.|process\.)?(?:environ|getenv|env)\b[.\[(]|[\w.]{0,60}\bget\w{0,10}\(")  # no value
_BLOCK = re.compile(r"[|>][+\-\d]{0,2}[ \t]*+(?:#[^\r\n]*+)?(?=\r?\n|\\+n)")  # YAML: key: |
_ITEMS = re.compile(r"-[ \t]++[^\s:]++(?:\r?\n[ \t]*+-[ \t]++[^\s:]++)*+")  # YAML: key: and - value below it
_NEXT_LINE = re.compile(r"(?:\r?\n|\\+n)(?:[^\r\n\\]|\\(?!n))*+")
_PIECES = re.compile(r"[\"'](?:[ ]*+(?:\r?\n|\t)[ \t]*+[rbfu]?[\"'][^\"'\r\n]*+(?=[\"'](?!\s*+:)))++")  # 'one' 'text'
_WORDS_OF_LIST = re.compile(r"[^\s\"',:\[\](){}]++")
MOST_INDENT, MOST_LISTED = 200, 4_096  # characters that are looked at, before a block and of a list
_OPENING = re.compile(r"(\\*)([\"'])")
_QUOTED = {'"': re.compile(r'(?:[^"\\]|\\.)*+', re.DOTALL), "'": re.compile(r"(?:[^'\\]|\\.)*+", re.DOTALL)}
_BARE = re.compile(r"(?:(?:bearer|basic|digest|token)\s++)?[^\s\"',;&}]++", re.IGNORECASE)
_UNTIL_SPACE = re.compile(r"[^\s\"']++")
_BRACKET = re.compile(r"[\[\](){}]")
_LINE = re.compile(r"[^\r\n\"']*+")

_URL_LOGIN = re.compile(r"(?<=://)[^/\s?#\"'<>]*@")
# user:password@host without a scheme. Container images (name:tag@sha256:...) and clock times must not match.
_LOGIN = re.compile(
    r"(?<![\w.\-+%])(?!\d+:\d+@|mailto:)[\w.\-+%]++:[^\s:/@\"']++@(?!sha\d+:)"
    r"(?=[A-Za-z\[]|\d+\.\d+\.\d+\.\d)"
)
_USER_OPTION = re.compile(
    r"(?<!\S)(-[a-zA-Z]{0,8}[uU]|--(?:proxy-)?user)([ \t]++|=)(?!\d+:\d)[\"']?[^\s:\"']++:[^\s\"']++"
)
_USER_JOINED = re.compile(r"(?<!\S)(-[uU])(?!ser)[^\s:\"']{1,100}+:[^\s\"']++")  # curl -ume:password
# login("VALUE"), client.set_token("VALUE")
_CALL = re.compile(
    r"(?<!\w)(?P<head>(?P<name>\w{3,60}+)\([ \t]*+(?:(?:key|token)[ \t]*+=[ \t]*+)?+[rbfu]?(?P<quote>[\"']))"
    r"(?P<value>(?:(?!(?P=quote)).)++)"
)
_SETTERS = ("set", "with", "use", "add")
_AUTH_CALL = re.compile(
    r"(Auth\([ \t]*+[\"'][^\"']{0,100}+[\"'][ \t]*+,[ \t]*+[\"'])[^\"']++"
)  # HTTPBasicAuth('me', 'X')
_API_KEY = re.compile(
    r"(\b(?:api|access|secret|private|encryption|signing|license|account|subscription|master|shared)[ \t]key"
    r"[ \t]*+[:=][ \t]*+[\"']?)(?!none\b|null\b|\$|[~/.])[^\s\"',;]++",
    re.IGNORECASE,
)
# Programs with an option that names no secret and takes one.
_OPTIONS_OF_PROGRAMS: dict[str, tuple[str, ...]] = {
    "-P": ("ipmitool", "sqlcmd", "unzip", "zip"),
    "-a": ("redis-cli",),
    "-p": ("mongo", "mongosh"),
    "-w": ("ldapadd", "ldapmodify", "ldapsearch"),
}
_AFTER_PROGRAM = "".join(
    rf"|\b(?:{'|'.join(programs)})\b(?:[ \t]++(?!{option}\b)\S++){{0,12}}+[ \t]++{option}[ \t]++"
    for option, programs in _OPTIONS_OF_PROGRAMS.items()
)
_LOGGED_IN = re.compile(
    r"(\b(?:docker|podman|az)[ \t]++login\b(?:[ \t]++(?!-p\b)\S++){0,12}+[ \t]++-p[ \t]*+"
    r"|--from-literal[ =][\w.\-]++=|\blftp\b(?:[ \t]++(?!-u\b)\S++){0,12}+[ \t]++-u[ \t]++[^\s,]++,"
    r"|\bhttps?[ \t]++-a[ \t]++(?=[^\s:]++:)"
    r"|\b(?:mysql(?:dump)?|7z[arz]?|(?:un)?rar)\b(?:[ \t]++(?!-p)\S++){0,12}+[ \t]++-p"
    r"|\b(?:wandb|swanlab|vault)[ \t]++login[ \t]++(?:--?[\w=:/.\-]++[ \t]++)*+|\bsshpass[ \t]++-p[ \t]*+"
    r"|\b(?:smbclient|smbget|rpcclient)\b(?:[ \t]++(?!-U|--user)\S++){0,12}+[ \t]++(?:-U|--user)[ \t=]*+[^\s%]++%"
    r"|\blogin\s++[^\s:]++\s++password\s++" + _AFTER_PROGRAM + r")(?!-)\S++"
)
_LOGIN_MARKS = (" -", "\t-", "login", "from-literal")
_LOGIN_PROGRAMS = (
    "login", "mysql", "7z", "rar ", "sshpass", "smb", "rpcclient", "lftp", "from-literal", "http -a", "https -a",
    *(program for programs in _OPTIONS_OF_PROGRAMS.values() for program in programs),
)  # fmt: skip
_PIPED = re.compile(  # echo VALUE | docker login, echo me:VALUE | chpasswd, echo VALUE | sudo -S
    r"(\b(?:echo|printf)[ \t]++(?:-[ne]++[ \t]++)?+[\"']?)[^\s\"'|]++(?=[\"']?[ \t]*+\|[^|\n]{0,80}?"
    r"(?:\b(?:login|chpasswd|passwd|kinit|cryptsetup)\b|passphrase-fd\b|\bsudo[ \t][^|\n]{0,40}?(?<=[ \t])"
    r"-[a-zA-Z]{0,5}S))"
)
_BEARER = re.compile(
    r"(?<!\w)(bearer[ \t]++[\"']?)(?=[\w.~+/=\-]{20}|[A-Za-z_.~+/=\-]{0,19}\d)[\w.~+/=\-]{8,}+", re.IGNORECASE
)
_BASIC = re.compile(
    r"(?<!\w)((?:basic|negotiate|ntlm)[ \t]++)(?=[A-Za-z+/]{0,40}[\d=])[\w+/]{12,}+={0,2}", re.IGNORECASE
)
_THIN = re.compile(
    r"(?<=:thin:)[^\s/@\"']++/[^\s/@\"']++(?=@)|(?<=\bsqlplus )[^\s/@\"']++/[^\s/@\"']++(?=@)"
)  # of Oracle
_PGPASS = re.compile(r"(?<![\w.:])((?:[\w.\-]++|\*):(?:5432|\*):[\w.\-*]++:[\w.\-*]++:)([^\s:]{6,200}+)")
_WEBHOOK = re.compile(
    r"(?<=hooks\.slack\.com/)[\w/\-]++|(?<=/api/webhooks/)[\w/\-]++|(?<=/bot)\d{6,12}:[\w\-]{20,}+"
    r"|(?<=/bot/v2/hook/)[\w\-]++|(?<=/webhookb2/)[\w/@\-]++|(?<=\.office\.com/webhook/)[\w/@\-]++"
)
_KEY_BEGINS = re.compile(r"-----BEGIN [A-Z0-9 ]{0,40}PRIVATE KEY[A-Z ]{0,10}-----")
_KEY_ENDS = re.compile(r"-----END [A-Z0-9 ]{0,60}-----")

# Programs with options that take a secret although their name does not say so. `_KEY_FOLLOWS` and the sets after it
# are for secrets at a position, such as `wandb login KEY`.
_PROGRAMS: dict[str, frozenset[str]] = {
    "curl": frozenset({"-u", "--user", "-U", "--proxy-user", "-b", "--cookie", "--oauth2-bearer"}),
    "lftp": frozenset({"-u"}),
    "sshpass": frozenset({"-p"}),
    "http": frozenset({"-a"}),
    "https": frozenset({"-a"}),
    **{program: frozenset({option}) for option, programs in _OPTIONS_OF_PROGRAMS.items() for program in programs},
}
_SHELL = ("<<<", "\\\n")  # between an option and its value
_SMB = frozenset({"smbclient", "smbget", "rpcclient"})
_CURL_USER = re.compile(r"-[a-zA-Z]{1,8}[uU]")  # short options written together
_KEY_FOLLOWS = {("wandb", "login"), ("swanlab", "login"), ("vault", "login")}
_PASSWORD_OPTION = {*((program, "login") for program in ("docker", "podman", "az")), ("helm", "registry")}
_PASSWORD_OPTION |= {("mysql", ""), ("mysqldump", "")}
_PASSWORD_JOINED = frozenset({"mysql", "mysqldump", "sshpass", "7z", "7za", "7zr", "7zz", "rar", "unrar"})
_OF_A_VALUE = re.compile(r"[\s\"'/?&:{]")  # characters that a text, a URL or JSON has before a =, and a name does not
_SCALAR = (bool, int, float, type(None))
_NUMBERS = frozenset(_SCALAR)
# Kinds of events that only contain names of tensors, digests, shapes and numbers, thousands of them in a line.
_OURS = frozenset({"weights", "shapes"})

_harmless: set[str] = set()  # names and texts of events that were found harmless
_LARGE = 10**9  # a number that is withheld where any is
_counted: set[str] = set()  # names of fields whose numbers may be shown
_secrets: dict[str, None] = {}
_known_pattern: re.Pattern[str] | None = None


def learn(environ: Mapping[str, str]) -> None:
    """Remember the values of variables that are named like secrets: they are withheld wherever they appear again."""
    _remember(value for name, value in environ.items() if is_secret(name) and not is_harmless(name, value))


def text(message: str, limit: int = MAX_TEXT) -> str:
    """Return a message, a title or one argument without secrets, at most `limit` characters; 0 for all of it."""
    if not message.isascii():
        message = message.encode("utf-8", "replace").decode()
    cleaned = _plain(message)
    return cleaned[:limit] if limit else cleaned


def file_name(name: str) -> str:
    """The name or path of a file without secrets."""
    return SHAPED_IN_FILE_NAME.sub(WITHHELD, text(name, 0))


def arguments(argv: Iterable[str]) -> list[str]:
    """Return the words of a command line without secrets.

    Recognises `--token=x`, `--token x`, `API_KEY=x`, `curl -u user:password` and `wandb login x`, among others.
    """
    return list(_CommandLine(argv).scrubbed())


def line(argv: Iterable[str]) -> str:
    """Return a command line without secrets as one text for a person. It is not quoted for a shell."""
    return text(" ".join(arguments(argv)))


def scrub(value: Any) -> Any:
    """Return a value of dictionaries, lists and dataclasses without secrets; texts of any length.

    What is nested deeper than `MAX_DEPTH` is withheld.
    """
    learn(os.environ)
    return _scrub(value, keep=True)


def fields(values: Mapping[str, Any]) -> dict[str, Any]:
    """Return the fields of a span or a heartbeat: those with a secret's name are left out, texts are scrubbed."""
    cleaned: dict[str, Any] = _scrub(dict(values), keep=False)
    return cleaned


def event(kind: str, values: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return the fields of an event as they are recorded. A field that was harmless before takes 50 ns."""
    if kind in _OURS:
        return values
    for name, value in values.items():
        sort = type(value)
        if sort in _NUMBERS and name in _counted:
            continue
        if sort is str and name in _harmless and (len(value) < KNOWN_MIN or value in _harmless):
            continue
        if _field(name, value, keep=True) is not value:
            return {name: _field(name, value, keep=True) for name, value in values.items()}
        if len(_harmless) >= CACHED_TEXTS:
            _harmless.clear()
        if sort in _NUMBERS and len(_counted) < CACHED_TEXTS and not _hidden(name, _LARGE):
            _counted.add(name)
        if not is_secret(str(name)):
            _harmless.add(name)
            if sort is str and len(value) <= CACHED:
                _harmless.add(value)
    return values


# --- values


def _scrub(value: Any, *, keep: bool, depth: int = 0) -> Any:
    if isinstance(value, str):
        return _plain(value)
    if value is None or isinstance(value, _SCALAR):
        return value
    if depth > MAX_DEPTH:
        return TOO_DEEP
    depth += 1
    if isinstance(value, Mapping):
        return {
            _key(name): _field(name, item, keep=keep, depth=depth)
            for name, item in _without_pairs(value).items()
            if keep or not _hidden(name, item)
        }
    if isinstance(value, (list, tuple)):
        return _scrub_sequence(value, keep=keep, depth=depth)
    if isinstance(value, (set, frozenset)):
        return type(value)(_scrub(item, keep=keep, depth=depth) for item in value)
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return _scrub_dataclass(value, keep=keep, depth=depth)
    if hasattr(value, "tolist"):  # an array or a tensor, which holds numbers
        return value
    written = str(value)  # the encoder will write this text
    return scrubbed if (scrubbed := _plain(written)) != written else value


def _without_pairs(mapping: Mapping[Any, Any]) -> Mapping[Any, Any]:
    """Without secrets whose name is the value of another field."""
    if "value" in mapping:  # a variable, as Kubernetes and GitLab have it
        name = next((mapping[key] for key in ("name", "key", "variable") if key in mapping), "")
        if _hidden(name, mapping["value"]):
            mapping = {**mapping, "value": WITHHELD}
    if "username" in mapping and not is_harmless("api_key", mapping.get("key")):  # kaggle.json
        mapping = {**mapping, "key": WITHHELD}
    if mapping.get("kind") == "Secret":  # of Kubernetes
        hidden = {key: mapping[key] for key in ("data", "stringData") if isinstance(mapping.get(key), Mapping)}
        mapping = {**mapping, **{key: dict.fromkeys(data, WITHHELD) for key, data in hidden.items()}}
    if "kty" in mapping:  # a JSON web key
        private = {key: WITHHELD for key in _PRIVATE_OF_WEB_KEY if isinstance(mapping.get(key), str)}
        mapping = {**mapping, **private}
    return mapping


def _scrub_sequence(values: list[Any] | tuple[Any, ...], *, keep: bool, depth: int) -> Any:
    if all(type(item) in (int, float) for item in values):  # token ids
        return values
    if all(isinstance(word, str) for word in values) and any(word.startswith("-") for word in values):
        cleaned = arguments(values)  # it may be a command line
    else:
        cleaned = [_scrub(item, keep=keep, depth=depth) for item in values]
    if isinstance(values, list):
        return cleaned
    return type(values)(*cleaned) if hasattr(values, "_fields") else tuple(cleaned)


def _scrub_dataclass(value: Any, *, keep: bool, depth: int) -> Any:
    changed = {
        field.name: cleaned
        for field in dataclasses.fields(value)
        if field.init and (cleaned := _scrub(before := getattr(value, field.name), keep=keep, depth=depth)) != before
    }
    return dataclasses.replace(value, **changed) if changed else value


def _field(name: Any, value: Any, *, keep: bool, depth: int = 0) -> Any:
    """Return the value as it is shown; the same object where nothing in it is withheld."""
    if _hidden(name, value):
        return WITHHELD
    cleaned = _scrub(value, keep=keep, depth=depth)
    comparable = type(value) in (str, list, tuple, dict)  # an array compares item by item
    return value if comparable and cleaned == value else cleaned


def _hidden(name: Any, value: Any) -> bool:
    """Whether a field is withheld by its name alone."""
    return is_secret(str(name)) and not is_harmless(str(name), value)


def _key(name: Any) -> Any:
    return _plain(name) if isinstance(name, str) else name


# --- command lines


class _CommandLine:
    """Scrubs a command line word by word. Its state is what the words so far imply for the next one."""

    def __init__(self, argv: Iterable[str]) -> None:
        self.words = [str(argument) for argument in argv]
        self.programs = {os.path.basename(word) for word in self.words}
        self.password_options: set[str] = set()  # options of the programs so far that take a secret without naming it
        self.option = ""  # the option whose value is the next word
        self.takes_several = False  # whether that option has more than one value
        self.key_follows = False  # whether the next word is a key, as after `wandb login`

    def scrubbed(self) -> Iterator[str]:
        for before, word in zip(["", *self.words], self.words, strict=False):
            yield self._scrub_word(before, word)

    def _scrub_word(self, before: str, word: str) -> str:
        self.password_options |= _PROGRAMS.get(os.path.basename(word), frozenset())
        is_option = word.startswith("-")
        if self.option and not (is_option and len(word) > 1):
            return self._scrub_value(word)
        self.option, self.takes_several = "", False
        if self.key_follows and not is_option:
            self.key_follows = False
            return _withheld(word)
        self.key_follows = self._asks_for_key(word) or (self.key_follows and is_option)
        if cleaned := _scrub_assignment(word) or self._scrub_login(before, word):
            return cleaned
        self.option, self.takes_several = self._secret_option(word)
        if not self.option and self._joins_password(word):
            return f"-p{WITHHELD}"
        return text(word, 0)

    def _scrub_value(self, word: str) -> str:
        """The value of the option before it."""
        if word in _SHELL:
            return word
        option = self.option
        if not self.takes_several:
            self.option = ""
        harmless = not looks_random(word) if option in _VAGUE_OPTIONS else is_harmless(option, word)
        return word if harmless else _withheld(word)

    def _asks_for_key(self, word: str) -> bool:
        return any(word == command and program in self.programs for program, command in _KEY_FOLLOWS)

    def _scrub_login(self, before: str, word: str) -> str:
        """Return the word where it joins an option, a user and a password; empty for any other word."""
        if "curl" in self.programs and _USER_JOINED.fullmatch(word):
            return f"-u{WITHHELD}"
        names_user = word.startswith(("-U", "--user=")) or before in ("-U", "--user")
        if "%" in word and names_user and self.programs & _SMB:
            return f"{word.partition('%')[0]}%{WITHHELD}"
        return ""

    def _secret_option(self, word: str) -> tuple[str, bool]:
        """Return the option whose secret value comes next, and whether it takes several; ("", False) for other
        words.
        """
        if word in self.password_options or ("curl" in self.programs and _CURL_USER.fullmatch(word)):
            return "password", False
        if word in _VAGUE_OPTIONS:
            return word, False
        if word.startswith("-") and is_secret(word) and " " not in word:
            return word, word.lower().endswith("s")
        if word == "-p" and any(
            program in self.programs and command in {*self.programs, ""} for program, command in _PASSWORD_OPTION
        ):
            return "password", False
        return "", False

    def _joins_password(self, word: str) -> bool:
        """Whether the word is an option joined with a password: mysql -pPASSWORD."""
        return word.startswith("-p") and len(word) > 2 and bool(self.programs & _PASSWORD_JOINED)


def _scrub_assignment(word: str) -> str:
    """Return `name=value` scrubbed where the name is a secret's; empty for any other word."""
    name, equals, value = word.partition("=")
    if not equals:
        return ""
    if is_secret(name) and not _OF_A_VALUE.search(name):
        return word if is_harmless(name, value) else f"{name}={_withheld(value)}"
    if name in _VAGUE_OPTIONS and looks_random(value):
        return f"{name}={_withheld(value)}"
    return ""


def _withheld(value: str) -> str:
    """Return the replacement of a secret, and withhold the secret from now on wherever it appears."""
    _remember([value])
    return WITHHELD


# --- text


def _plain(message: str) -> str:
    return _cached(message) if len(message) <= CACHED else _scrubbed(message)


@lru_cache(maxsize=CACHED_TEXTS)
def _cached(message: str) -> str:
    return _scrubbed(message)


def _scrubbed(message: str) -> str:
    for _ in range(PASSES):
        cleaned = _disclosed(message)
        if cleaned == message:
            break
        message = cleaned
    return message


def _disclosed(message: str) -> str:
    """Scrub a text. One with a secret is shown as a person reads it, without colours and escapes in names; any other
    stays as it is."""
    plain = undisguised(message)
    if plain is not message and (cleaned := _continued(plain)) != plain:
        return cleaned
    return _continued(message)


def _continued(message: str) -> str:
    """Scrub a text in which a line may go on behind a backslash, as if it were one line."""
    if "\\" in message:
        ending, blanks = continuation(message)
        if ending:
            return _continued(message.replace(ending, blanks)).replace(blanks, ending)
    return _once(message)


def _once(message: str) -> str:
    if _known_pattern is not None:
        message = _known_pattern.sub(WITHHELD, message)
    if len(message) < SHORTEST and message.isalnum():
        return message
    lowered = message.lower()
    message = _by_rules(message, lowered, _RULES)
    if not message.isascii():
        message = _by_rules(message, lowered, _RULES_OF_OTHER_LETTERS)
    if not message.isascii() or any(stem in lowered for stem in STEMS) or _VAGUE.search(message):
        message = _without_named(_by_rules(message, lowered, _RULES_OF_NAMES), _NAMED)
    return SHAPED.sub(WITHHELD, message)


def _by_rules(message: str, lowered: str, rules: tuple[Rule, ...]) -> str:
    for marks, scrubbed in rules:
        for mark in marks:
            if mark in lowered:
                message = scrubbed(message)
                break
    return message


def _without_program_logins(message: str) -> str:
    lowered = message.lower()
    hidden = any(program in lowered for program in _LOGIN_PROGRAMS)
    return _LOGGED_IN.sub(rf"\1{WITHHELD}", message) if hidden else message


def _without_logins(message: str) -> str:
    return _LOGIN.sub(f"{WITHHELD}@", _THIN.sub(WITHHELD, _URL_LOGIN.sub("", message)))


def _without_encoded_secrets(message: str) -> str:
    return _ENCODED.sub(_without_encoded, _ENCODED_LOGIN.sub("", message))


def _without_values_of_names(message: str) -> str:
    return _without_named(_VALUE_NAME.sub(_without_value, message), _NAME_VALUE)


def _without_value(pair: re.Match[str]) -> str:
    hidden = is_secret(pair["name"]) and not is_harmless(pair["name"], pair["value"])
    return f"{pair['head']}{WITHHELD}{pair['tail']}" if hidden else pair[0]


def _without_argument(call: re.Match[str]) -> str:
    """Of a call with one text: login("VALUE"), set_token("VALUE")."""
    name = call["name"]
    sets = name.startswith(_SETTERS) and is_secret(name) and looks_random(call["value"])
    return f"{call['head']}{WITHHELD}" if sets or name.endswith("login") else call[0]


def _without_default(call: re.Match[str]) -> str:
    """Of a call that looks up a secret's name, or declares it: what is taken where there is none. Of any other: what is
    made like a token."""
    texts = list(_TEXT_OF_CALL.finditer(call[0]))
    name = next((text["value"] for text in texts if is_secret(text["value"])), "")
    parts, done = [], 0
    for index, text in enumerate(texts):
        is_default = text["keyword"] in _DEFAULTS if text["keyword"] else index > 0
        if is_default and _is_secret_default(name, text["value"]):
            parts += [call[0][done : text.start("value")], WITHHELD]
            done = text.end("value")
    return "".join([*parts, call[0][done:]])


def _is_secret_default(name: str, value: str) -> bool:
    if not name:
        return has_token_form(value)
    return not is_harmless(name, value) and (looks_random(value) or not is_secret(value))


def _without_sent(answer: re.Match[str]) -> str:
    before = answer.string[max(0, answer.start() - MOST_ASKED) : answer.start()]
    is_asked = "expect" in before and _ASKS_SECRET.search(before[before.rindex("expect") :])
    return f"{answer['head']}{WITHHELD}" if is_asked or has_token_form(answer["value"]) else answer[0]


def _without_resolved(resolver: re.Match[str]) -> str:
    hidden = is_secret(resolver[2]) and not is_harmless(resolver[2], resolver[3])
    return f"{resolver[1]}{WITHHELD}" if hidden else resolver[0]


def _without_fallback(choice: re.Match[str]) -> str:
    name, between, mark, value = choice.groups()
    hidden = is_secret(name) and (is_strong(name) or looks_random(value)) and not is_harmless(name, value)
    return f"{name}{between}{mark}{WITHHELD}" if hidden else choice[0]


def _without_spoken(sentence: re.Match[str]) -> str:
    value = sentence["quoted"] or sentence["bare"]
    if value.startswith(WITHHELD) or (sentence["colon"] and not sentence["prose"] and not sentence["key"]):
        return sentence[0]  # `name: value` is no sentence
    if sentence["password"]:
        hidden = bool(sentence["quoted"]) or not (_SENTENCE_WORD.fullmatch(value) or _SIGNS.fullmatch(value))
    else:
        value = value.rstrip(".,:;!?)")
        hidden = bool(_OPAQUE.fullmatch(value)) and looks_random(value) and _names_secret(sentence, value)
    if not hidden:
        return sentence[0]
    rest = (sentence["quoted"] or sentence["bare"]).removeprefix(value)
    return f"{sentence['word']}{sentence['gap']}{sentence['quote'] or ''}{WITHHELD}{rest}"


def _names_secret(sentence: re.Match[str], value: str) -> bool:
    """Whether the word of a sentence is one by itself, or ends the name of a secret: `hf_token`, `munge key`, not
    `pad_token`, `cache key`."""
    begin = sentence.start("word")
    before = sentence.string[max(0, begin - 60) : begin]
    if sentence["key"]:
        whose = _WORD_BEFORE.search(before)
        if whose is None or not is_secret(f"{whose[1]}_key"):
            return False
        return whose[1].lower() in _KEYS or has_token_form(value)
    compound = _COMPOUND.search(before)
    return not compound or not compound[0] or is_secret(f"{compound[0]}{sentence['word']}")


def _without_compared(comparison: re.Match[str]) -> str:
    mark, value, between, name = comparison.groups()
    hidden = is_secret(name) and not is_harmless(name, value) and (is_strong(name) or looks_random(value))
    return f"{mark}{WITHHELD}{between}{name}" if hidden else comparison[0]


def _without_host_password(entry: re.Match[str]) -> str:
    return f"{entry[1]}{WITHHELD}" if looks_random(entry[2]) else entry[0]


def _without_column(pair: re.Match[str]) -> str:
    name, gap, value = pair.groups()
    return f"{name}{gap}{WITHHELD}" if is_strong(name) and looks_random(value) else pair[0]


def _without_content(element: re.Match[str]) -> str:
    name, attributes, content = element.groups()
    hidden = is_secret(name) and not is_harmless(name, content)
    return f"<{name}{attributes}>{WITHHELD}" if hidden else element[0]


def _without_encoded(parameter: re.Match[str]) -> str:
    name, value = parameter["name"], unquote(parameter["value"])
    vague = name.lower() == "key" or name.lower() in _VAGUE_PARAMETERS
    hidden = looks_random(value) if vague else is_secret(name) and not is_harmless(name, value)
    return f"{parameter['head']}{WITHHELD}" if hidden else parameter[0]


def _without_kaggle(pair: re.Match[str]) -> str:
    return pair[0] if is_harmless("api_key", pair[2]) else f"{pair[0].removesuffix(pair[2])}{WITHHELD}"


def _without_keys(message: str) -> str:
    """Remove private key blocks. One without its end extends to the end of the text."""
    parts, at = [], 0
    while begin := _KEY_BEGINS.search(message, at):
        parts += [message[at : begin.start()], WITHHELD]
        end = _KEY_ENDS.search(message, begin.end())
        at = end.end() if end else len(message)
    return "".join([*parts, message[at:]])


class _Label(NamedTuple):
    """A name in a text, and how it is written there."""

    name: str
    written: str  # the name with its quotes and the separator before its value
    is_option: bool
    is_column: bool  # NAME VALUE
    is_key: bool  # ?key=VALUE
    is_vague: bool  # a name that is not clearly secret


def _without_named(message: str, pattern: re.Pattern[str]) -> str:
    """Withhold the values behind secret names. `pattern` matches a name and the separator before its value."""
    parts, done, at = [], 0, 0
    lists: _Lists | None = None
    while match := pattern.search(message, at):
        at = match.end()
        label = _secret_label(match)
        if label is None or not _announces_secret(label, match):
            continue
        lists = lists or _Lists(message)
        begin, end = _value(message, at, label.name, lists)
        if label.is_option and label.written.endswith("=") and (long_value := _UNTIL_SPACE.match(message, begin)):
            end = max(end, long_value.end())  # a list with commas
        at = max(at, end)
        if _shows_secret(label, message[begin:end]):
            parts += [message[done:begin], WITHHELD]
            done = end
    return "".join([*parts, message[done:]]) if parts else message


def _secret_label(match: re.Match[str]) -> _Label | None:
    """Return the name that was matched, where a secret may follow it; None for any other name."""
    groups = match.groupdict()
    is_option, pair = groups.get("option") is not None, groups.get("pair")
    name = groups["name"] or next(filter(None, (groups.get(group) for group in ("option", "pair", "listed"))))
    before = match.string[match.start() - 1 : match.start()]
    in_query = before in ("?", "&")
    is_key = in_query and name.lower() == "key"
    is_vague = (in_query and name.lower() in _VAGUE_PARAMETERS) or (is_option and name in _VAGUE_OPTIONS)
    is_vague = is_vague or (name[-3:].lower() in _VAGUE_NAMES and name[-4:-3] in ("", "."))
    is_vague = is_vague or (before == "/" and match[0].endswith(": "))  # a file: /etc/passwd: unknown user
    in_connection = before == ";" and name == "PWD"  # of ODBC, not the shell's folder
    if not is_key and not is_vague and not in_connection and not is_secret(name):
        return None
    is_vague = is_vague or (pair is not None and not pair.isupper())
    is_column = groups.get("listed") is not None
    return _Label(name, match[0], is_option=is_option, is_column=is_column, is_key=is_key, is_vague=is_vague)


def _announces_secret(label: _Label, match: re.Match[str]) -> bool:
    """Whether the text around a secret's name confirms that a secret follows, and it is not withheld yet."""
    if match.string.startswith(WITHHELD, match.end()):
        return False
    if label.name.endswith(("Error", "Exception", "Warning")) and label.written.endswith(": "):
        return False  # the error's message follows, which a verdict needs
    return not (label.name == "token" and _of_text(match.string[max(0, match.start() - 20) : match.start()]))


def _shows_secret(label: _Label, value: str) -> bool:
    """Whether the value behind a secret's name is a secret, not the next word of a sentence."""
    if not value or (is_harmless(label.name, value) and not label.is_key):
        return False
    if (label.is_vague or _may_be_prose(label)) and not looks_random(value):
        return False
    apart = label.written.rstrip()[-1:] not in ("=", ":", ",", '"', "'")
    if label.is_option and apart and value.lower().rstrip(".,:;") in PROSE:
        return False
    return not (value.isdigit() and "." in label.name and label.written[-1] == ":")  # a line number, a port


def _may_be_prose(label: _Label) -> bool:
    """Whether this name and its value may be a sentence, or a text about tokens that an engine drew."""
    name = label.name.lower()
    return (
        (label.written.rstrip().endswith("->") and name.lstrip("-") in ("token", "tokens"))
        or (label.is_column and "\t" not in label.written)
        or (name == "tokens" and label.written.endswith(": "))  # "other tokens: the candidate's"
    )


def _of_text(before: str) -> bool:
    """Whether the word before `token` makes it a token of a text: "first token: 'Hello'"."""
    word = before.split()[-1:]
    return bool(word) and not is_secret(f"{word[0]}_token")


def _value(message: str, at: int, name: str, lists: _Lists) -> tuple[int, int]:
    """Where the value at `at` begins and ends, without its quotes; the same place twice where there is none."""
    if _REFERENCE.match(message, at):
        return at, at
    if message[max(0, at - 3) : at].rstrip(" \t").endswith(":") and (block := _BLOCK.match(message, at)):
        return at, _block_end(message, at, block.end())
    at = _BEFORE_VALUE.match(message, at).end()  # type: ignore[union-attr]
    if opening := _OPENING.match(message, at):
        return _quoted(message, opening)
    first = message[at : at + 1]
    if first and first in "[{(":
        end = lists.end(at, sys.maxsize if is_strong(name) else MOST_LISTED)
        return (at, end) if is_strong(name) or lists.holds_random(at, end) else (at, at)
    if first == "-" and (items := _ITEMS.match(message, at)):
        return at, items.end()
    if name.lower().endswith(("cookie", "authorization")) or _is_whole_line(message, at, name):
        return at, _LINE.match(message, at).end()  # type: ignore[union-attr]
    bare = _BARE.match(message, at)
    return (at, bare.end()) if bare else (at, at)


def _quoted(message: str, opening: re.Match[str]) -> tuple[int, int]:
    """Where a text begins and ends whose quotes open here."""
    begin, mark = opening.end(), opening[0]
    if not opening[1] and message.startswith(mark * 2, begin):  # three quotes
        end = message.find(mark * 3, begin + 2)
        return begin + 2, end if end >= 0 else len(message)
    if opening[1]:  # an escaped quote: the value ends at the next one like it
        end = message.find(mark, begin)
    else:
        end = _QUOTED[mark].match(message, begin).end()  # type: ignore[union-attr]
        end = end if end < len(message) else -1
    if end < 0:
        return begin, _LINE.match(message, begin).end()  # type: ignore[union-attr]
    pieces = _PIECES.match(message, end)
    return begin, pieces.end() if pieces else end


def _block_end(message: str, at: int, end: int) -> int:
    """Where a block of YAML ends whose `|` is at `at`: all lines below it that are indented deeper than its key, at
    least one."""
    near = max(0, at - MOST_INDENT)
    line = max(message.rfind("\n", near, at) + 1, message.rfind("\\n", near, at) + 2, near)
    indent = len(message[line:at]) - len(message[line:at].lstrip(" \t-"))
    while following := _NEXT_LINE.match(message, end):
        content = following[0].lstrip("\\\r\n").removeprefix("n" * following[0].startswith("\\"))
        if end != at and content.strip() and len(content) - len(content.lstrip(" \t")) <= indent:
            break
        end = following.end()
    return end


def _is_whole_line(message: str, at: int, name: str) -> bool:
    """Whether the value is all that follows on a line of YAML: a password of several words."""
    if not name.lower().endswith(("password", "passphrase", "passwd", "mnemonic")) or message[at - 2 : at] != ": ":
        return False
    begin = at - 2 - len(name)
    return begin > 0 and message[max(0, begin - MOST_INDENT) : begin].rstrip(" \t").endswith("\n")


class _Lists:
    """The lists and objects in a text. Where each ends, and which words look random, is found once for all of them:
    lists that are not closed lie within each other."""

    def __init__(self, message: str) -> None:
        self._message = message
        self._ends: dict[int, int] | None = None  # by the place of its opening bracket; those that are closed
        self._plain = range(0)  # where no word looks random

    def end(self, at: int, most: int) -> int:
        """Where the list that begins at `at` ends; the end of the text, or of its first `most` characters, where it is
        not closed."""
        if self._ends is None:
            self._ends = self._matched()
        length = len(self._message)
        return min(self._ends.get(at, length), at + most, length)

    def _matched(self) -> dict[int, int]:
        ends, opened = {}, []
        for bracket in _BRACKET.finditer(self._message):
            if bracket[0] in "[{(":
                opened.append(bracket.start())
            elif opened:
                ends[opened.pop()] = bracket.end()
        return ends

    def holds_random(self, at: int, end: int) -> bool:
        """Whether a word between these places looks random."""
        begin = self._plain.stop if at in self._plain else at
        for word in _WORDS_OF_LIST.finditer(self._message, begin, end):
            if looks_random(word[0]):
                return True
            begin = word.start()  # the last one may go on behind the end
        self._plain = range(self._plain.start if at in self._plain else at, begin)
        return False


Rule = tuple[tuple[str, ...], Callable[[str], str]]
# What is done to a text, in this order, where its lower-case form has one of these marks.
_RULES: tuple[Rule, ...] = (
    (("-----begin",), _without_keys),
    (("@",), _without_logins),
    ((":5432:", ":*:"), partial(_PGPASS.sub, _without_host_password)),
    (("u ", "u=", "u\t", "user"), partial(_USER_OPTION.sub, rf"\1\2{WITHHELD}")),
    (_LOGIN_MARKS, _without_program_logins),
    (("echo ", "printf "), partial(_PIPED.sub, rf"\1{WITHHELD}")),
    (("basic ", "negotiate ", "ntlm "), partial(_BASIC.sub, rf"\1{WITHHELD}")),
    (("curl",), partial(_USER_JOINED.sub, rf"\1{WITHHELD}")),
    (("%3d", "253d", "%3a%2f%2f"), _without_encoded_secrets),
    (("digest ",), partial(_DIGEST.sub, rf"\1{WITHHELD}")),
    (("kty",), partial(_WEB_KEY.sub, rf"\1{WITHHELD}")),
    (("login(", "login ("), partial(_CALL.sub, _without_argument)),
    (("get", "pop(", "set", "env", "argument(", "option(", "field("), partial(_LOOKUP.sub, _without_default)),
    (("send",), partial(_SENT.sub, _without_sent)),
    (("mii", "mig", "mih", "mc4c", "mhcc", "mhqc", "b3blbn"), partial(KEY_BODY.sub, WITHHELD)),
    (("private-lines",), partial(PUTTY_LINES.sub, rf"\1 {WITHHELD}")),
    (("hook", "/bot"), partial(_WEBHOOK.sub, WITHHELD)),
    (tuple(GLUED), partial(SHAPED_GLUED.sub, WITHHELD)),
)
# The same, of a text that has a part of a secret's name (`STEMS`).
_RULES_OF_NAMES: tuple[Rule, ...] = (
    (("bearer",), partial(_BEARER.sub, rf"\1{WITHHELD}")),
    ((" key",), partial(_API_KEY.sub, rf"\1{WITHHELD}")),
    (("kind",), secret_layouts.without_manifests),
    (("input_value=",), secret_layouts.without_refused),
    (("==", "!="), partial(_COMPARED.sub, _without_compared)),
    (("username",), partial(_KAGGLE.sub, _without_kaggle)),
    (("set_", "with_", "use_", "add_", "settoken", "setpass", "setsecret"), partial(_CALL.sub, _without_argument)),
    (("auth(",), partial(_AUTH_CALL.sub, rf"\1{WITHHELD}")),
    (("${",), partial(_RESOLVER.sub, _without_resolved)),
    ((" or ", "||", "??"), partial(_FALLBACK.sub, _without_fallback)),
    (_SPOKEN_MARKS, partial(_SPOKEN.sub, _without_spoken)),
    (("_",), partial(_COLUMN.sub, _without_column)),
    (("\n",), secret_layouts.without_columns),
    (("value",), _without_values_of_names),
    (("</",), partial(_ELEMENT.sub, _without_content)),
)
_RULES_OF_OTHER_LETTERS: tuple[Rule, ...] = (
    (("密码", "密碼", "口令", "パスワード", "비밀번호"), partial(_SPOKEN_WITHOUT_BLANKS.sub, rf"\1{WITHHELD}")),
)


# --- known values


def _remember(values: Iterable[str]) -> None:
    global _secrets, _known_pattern
    fresh = [value for value in values if value not in _secrets and _recognisable(value)]
    if not fresh or len(_secrets) >= KNOWN_COUNT:
        return
    _secrets = {**_secrets, **dict.fromkeys(fresh)}  # new: a thread may read the old one
    forms = {form for value in _secrets for form in (value, quote(value, safe=""), json.dumps(value)[1:-1])}
    _known_pattern = re.compile("|".join(map(re.escape, sorted(forms, key=len, reverse=True))))
    _cached.cache_clear()
    _harmless.clear()


def _recognisable(value: str) -> bool:
    if not KNOWN_MIN <= len(value) <= KNOWN_MAX or WITHHELD in value or _WORDLIKE.fullmatch(value):
        return False
    return not (value.startswith(("/", "~", "./", "../")) and os.path.exists(os.path.expanduser(value)))
