"""The only scrubber: everything that is written down passes it, whoever writes it (docs/reference/secrets.md).

A secret is recognised by its name (of a variable, a field, an option), by its shape (a token of a well-known service,
a private key, a login in a URL), or by its value, when the value of a secretly named variable appears again. Every
pattern takes time linear in the length of the text: each quantifier is possessive or bounded, and a match that failed
at the beginning of a run of characters is not tried again from its middle.

- `secret_names` judges names and values;
- `secret_assignments` finds values behind names;
- `secret_rules` finds keys, and secrets of calls, programs, sentences and URLs;
- `secret_layouts` reads tables, `secret_shapes` has the tokens of services;
- `secret_disguises` undoes escapes and colours.

This module applies them to texts, command lines and values of Python, and remembers secrets.
"""

from __future__ import annotations

import dataclasses
import json
import os
import re
from collections.abc import Iterable, Iterator, Mapping
from functools import lru_cache
from typing import Any
from urllib.parse import quote

from probes.secret_assignments import NAMED, QUERY_OF_LOGIN, VAGUE_OPTIONS, without_named
from probes.secret_disguises import continuation, undisguised
from probes.secret_names import STEMS, WITHHELD, hides, is_harmless, is_secret, looks_random
from probes.secret_rules import (
    OPTIONS_OF_PROGRAMS,
    PRIVATE_OF_WEB_KEY,
    RULES,
    RULES_OF_NAMES,
    RULES_OF_OTHER_LETTERS,
    USER_JOINED,
    by_rules,
)
from probes.secret_shapes import SHAPED, SHAPED_IN_FILE_NAME, SHORTEST

__all__ = ["WITHHELD", "arguments", "event", "fields", "file_name", "learn", "line", "scrub", "text"]

MAX_DEPTH = 100  # levels of nested dictionaries and lists; each takes three frames of the 1,000 that Python allows
TOO_DEEP = f"{WITHHELD} (nested too deep)"
MAX_TEXT = 4_000  # characters of a message or a command line
PASSES = 5  # a replacement can join two halves of another secret
CACHED, CACHED_TEXTS = 200, 4_096  # characters, and texts: the texts of spans and roles repeat

# A value is searched for everywhere, so it must not be a common word of ours: `disabled`, `password`, a path, a date.
KNOWN_MIN, KNOWN_MAX, KNOWN_COUNT = 8, 4_096, 1_000
_WORDLIKE = re.compile(r"[a-z]{1,15}|[A-Z]{1,15}|[A-Z][a-z]{1,14}|[\d.:,\-]{1,12}")

# Programs with options that take a secret although their name does not say so. `_KEY_FOLLOWS` and the sets after it
# are for secrets at a position, such as `wandb login KEY`.
_PROGRAMS: dict[str, frozenset[str]] = {
    "curl": frozenset({"-u", "--user", "-U", "--proxy-user", "-b", "--cookie", "--oauth2-bearer"}),
    "lftp": frozenset({"-u"}),
    "sshpass": frozenset({"-p"}),
    "http": frozenset({"-a"}),
    "https": frozenset({"-a"}),
    **{program: frozenset({option}) for option, programs in OPTIONS_OF_PROGRAMS.items() for program in programs},
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
_COMPARABLE = frozenset({str, list, tuple, dict})  # an array compares item by item
# Kinds of events that only contain names of tensors, digests, shapes and numbers, thousands of them in a line.
_OURS = frozenset({"weights", "shapes"})

FLAT = 8  # fields of a mapping that is scrubbed once
_TEXTS, _FLAT = frozenset({str}), frozenset({str, int})  # types, so that True, which equals 1, is no int
_flat: dict[tuple[Any, ...], dict[Any, Any]] = {}  # `keep` and the items of a mapping -> it without secrets

_harmless: set[str] = set()  # names and texts of events that were found harmless
_LARGE = 10**9  # a number that is withheld where any is
_counted: set[str] = set()  # names of fields whose numbers may be shown
_secrets: dict[str, None] = {}
_known_pattern: re.Pattern[str] | None = None


def learn(environ: Mapping[str, str]) -> None:
    """Remember the values of variables that are named like secrets: they are withheld wherever they appear again."""
    _remember(value for name, value in environ.items() if hides(name, value))


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
        # The fast ways first: numbers of a name that hides none, and texts that were harmless before.
        sort = type(value)
        if sort in _NUMBERS and name in _counted:
            continue
        if sort is str and name in _harmless and (len(value) < KNOWN_MIN or value in _harmless):
            continue
        if _field(name, value, keep=True) is not value:
            return {name: _field(name, value, keep=True) for name, value in values.items()}
        # Remember what was learned about this field. A full memory begins anew, since what comes now comes again.
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
        return _scrub_mapping(value, keep=keep, depth=depth)
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


def _scrub_mapping(mapping: Mapping[Any, Any], *, keep: bool, depth: int) -> dict[Any, Any]:
    """The fields of a mapping. One of a few texts and whole numbers, as a frame of a stack, is scrubbed once: evidence
    of many ranks has the same again and again."""
    items: tuple[Any, ...] = ()
    if len(mapping) <= FLAT and set(map(type, mapping)) <= _TEXTS and set(map(type, mapping.values())) <= _FLAT:
        items = (keep, *mapping.items())
        if (same := _flat.get(items)) is not None:
            return dict(same)
    secrets = _secrets  # scrubbing may learn one; what was cleaned before it is then not remembered
    cleaned: dict[Any, Any] = {}
    for name, item in _without_pairs(mapping).items():
        short = type(name) is str and len(name) <= CACHED
        shown, may_hide = _named(name) if short else (_key(name), True)
        if not may_hide:
            cleaned[shown] = _shown(item, keep=keep, depth=depth)
        elif keep or not _hidden(name, item):
            cleaned[shown] = _field(name, item, keep=keep, depth=depth)
    if items and secrets is _secrets and sum(len(text) for text in mapping.values() if type(text) is str) <= CACHED:
        if len(_flat) >= CACHED_TEXTS:
            _flat.clear()
        _flat[items] = dict(cleaned)
    return cleaned


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
        private = {key: WITHHELD for key in PRIVATE_OF_WEB_KEY if isinstance(mapping.get(key), str)}
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
    return WITHHELD if _hidden(name, value) else _shown(value, keep=keep, depth=depth)


def _shown(value: Any, *, keep: bool, depth: int) -> Any:
    """The value of a field that is not withheld for its name; the same object where nothing in it is withheld."""
    sort = type(value)
    if sort in _NUMBERS or (sort in _COMPARABLE and not value):  # most fields of a record are as they were made
        return value
    cleaned = _scrub(value, keep=keep, depth=depth)
    return value if sort in _COMPARABLE and cleaned == value else cleaned


def _hidden(name: Any, value: Any) -> bool:
    """Whether a field is withheld by its name alone."""
    return hides(str(name), value)


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
        # A new option ends the values of the one before it.
        self.option, self.takes_several = "", False
        if self.key_follows and not is_option and "://" not in word:
            self.key_follows = False
            return _withheld(word)
        may_precede_key = is_option or "://" in word  # wandb login --host https://... KEY
        self.key_follows = self._asks_for_key(word) or (self.key_follows and may_precede_key)
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
        harmless = not looks_random(word) if option in VAGUE_OPTIONS else is_harmless(option, word)
        return word if harmless else _withheld(word)

    def _asks_for_key(self, word: str) -> bool:
        return any(word == command and program in self.programs for program, command in _KEY_FOLLOWS)

    def _scrub_login(self, before: str, word: str) -> str:
        """Return the word where it joins an option, a user and a password; empty for any other word."""
        if "curl" in self.programs and USER_JOINED.fullmatch(word):
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
        if word in VAGUE_OPTIONS:
            return word, False
        if word.startswith("-") and is_secret(word) and " " not in word:
            return word, word.lower().endswith("s")
        if word == "-p" and any(self._runs(program, command) for program, command in _PASSWORD_OPTION):
            return "password", False
        return "", False

    def _runs(self, program: str, command: str) -> bool:
        """Whether the line runs a program with this command; "": with any."""
        return program in self.programs and (not command or command in self.programs)

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
    if name in VAGUE_OPTIONS and looks_random(value):
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


@lru_cache(maxsize=CACHED_TEXTS)
def _named(name: str) -> tuple[str, bool]:
    """The name of a field as it is shown, and whether a value of it may be withheld for that name."""
    return _scrubbed(name), is_secret(name)


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
    # Patterns are dear, and looking for their marks is cheap. Rules only withhold, so the marks of the text as it was
    # before the first of them do for all.
    lowered = message.lower()
    message = by_rules(message, lowered, RULES)
    if not message.isascii():
        message = by_rules(message, lowered, RULES_OF_OTHER_LETTERS)
    if not message.isascii() or any(stem in lowered for stem in STEMS) or QUERY_OF_LOGIN.search(message):
        message = without_named(by_rules(message, lowered, RULES_OF_NAMES), NAMED)
    return SHAPED.sub(WITHHELD, message)


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
    _named.cache_clear()
    _flat.clear()
    _harmless.clear()


def _recognisable(value: str) -> bool:
    if not KNOWN_MIN <= len(value) <= KNOWN_MAX or WITHHELD in value or _WORDLIKE.fullmatch(value):
        return False
    return not (value.startswith(("/", "~", "./", "../")) and os.path.exists(os.path.expanduser(value)))
