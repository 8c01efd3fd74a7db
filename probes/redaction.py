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
from collections.abc import Iterable, Iterator, Mapping
from functools import lru_cache
from typing import Any, NamedTuple
from urllib.parse import quote, unquote

from probes.secret_names import PROSE, is_harmless, is_secret, is_strong, looks_random

__all__ = ["WITHHELD", "arguments", "event", "fields", "file_name", "learn", "line", "scrub", "text"]

WITHHELD = "***"
MAX_DEPTH = 100  # levels of nested dictionaries and lists; each takes three frames of the 1,000 that Python allows
TOO_DEEP = f"{WITHHELD} (nested too deep)"
MAX_TEXT = 4_000  # characters of a message or a command line
PASSES = 5  # a replacement can join two halves of another secret
CACHED, CACHED_TEXTS = 200, 4_096  # characters, and texts: the texts of spans and roles repeat

# A value is searched for everywhere, so it must not be a common word of ours: `disabled`, `password`, a path, a date.
KNOWN_MIN, KNOWN_MAX, KNOWN_COUNT = 8, 4_096, 1_000
_WORDLIKE = re.compile(r"[a-z]{1,15}|[A-Z]{1,15}|[A-Z][a-z]{1,14}|[\d.:,\-]{1,12}")

# An option, or a name with the separator before its value: `--name value`, `name=value`, "name": "value", ['--name',
# 'value']. The backslashes allow JSON within JSON.
_NAMED = re.compile(
    r"(?<![\w.\-])(?:"
    r"(?P<option>-{1,2}[A-Za-z][\w.\-]*+)(?:\\*+[\"']?\s*+[=:,]\s*+|\s++)(?!-)"
    r"|(?P<variable>[A-Z][A-Z0-9_]{2,60}+)\\*+[\"'],\s*+(?=\\*+[\"'])"
    r"|(?P<name>[\w.\-]++)\\*+[\"']?\]?(?:\s*+(?:={1,3}+>?|:=|:|-{1,2}+>)|(?<=-)>)\s*+"
    r"|(?P<listed>[A-Z][A-Z0-9]{0,30}+(?:_[A-Z0-9]++)++)[ \t]++)"
)
# Names that are not clearly secret. Their value is withheld only where it looks random (`looks_random`).
_VAGUE_OPTIONS, _VAGUE_PARAMETERS = frozenset({"--key", "-key"}), frozenset({"code"})
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
_ELEMENT = re.compile(r"<([A-Za-z][\w.\-]{0,60}+)>([^<>]{1,4096}+)(?=</\1>)")  # <password>value</password>
# Kubernetes: {"name": "HF_TOKEN", "value": "..."}, and the same in YAML.
_NAME_VALUE = re.compile(
    r"(?<!\w)name\\*+[\"']?\s*+:\s*+\\*+[\"']?(?P<name>[\w.\-]++)\\*+[\"']?\s*+,?\s*+"
    r"\\*+[\"']?value\\*+[\"']?\s*+:\s*+"
)
# aws_secret_access_key VALUE, in columns.
_COLUMN = re.compile(r"(?<![\w.\-])([a-z][a-z0-9]{0,30}+(?:_[a-z0-9]++)++)([ \t]++)([^\s\"',;=:]{8,200}+)")
# os.environ.get('hf_token', 'VALUE'): the default of a variable with a secret's name.
_DEFAULT = re.compile(r"(\bget(?:env)?\([ \t]*+[\"'](\w{1,100}+)[\"'][ \t]*+,[ \t]*+([\"']))(?:(?!\3).)++")
# In a sentence or a netrc: password 'VALUE', the password is VALUE.
_SPOKEN = re.compile(
    r"(\b(?:password|passwd|passphrase)[ \t]++(?:(?:is|was)[ \t]++)?+)([\"']?)((?![=:>\-])[^\s\"']{1,200}+)",
    re.IGNORECASE,
)
_SENTENCE_WORD = re.compile(r"[a-z\-]{1,30}+[.,:;!?)]*+")
# The body of a private key in PKCS 1 or 8 (DER in base64) without its header. MC4CAQAw begins Ed25519 and X25519
# keys.
_KEY_BODY = re.compile(
    r"(?<![A-Za-z0-9+])(?:MI[IG]|MC4CAQAw)[A-Za-z0-9+/]{45,}+={0,2}(?:(?:\r?\n|\\n)[A-Za-z0-9+/]{1,80}+={0,2}(?![\w+/=]))*+"
)
_YAML_TAG = re.compile(r"!!?\w*+[ \t]++")  # key: !!str value
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
_LOGIN_CALL = re.compile(r"(\blogin\([ \t]*+(?:(?:key|token)[ \t]*+=[ \t]*+)?+([\"']))(?:(?!\2).)++")
_API_KEY = re.compile(r"(\bapi[ \t]key[ \t]*+[:=][ \t]*+)(?!none\b|null\b|\$)[^\s\"',;]++", re.IGNORECASE)
_LOGGED_IN = re.compile(
    r"(\b(?:docker|podman|az)[ \t]++login\b(?:[ \t]++(?!-p\b)\S++){0,12}+[ \t]++-p[ \t]*+"
    r"|\bredis-cli\b(?:[ \t]++(?!-a\b)\S++){0,12}+[ \t]++-a[ \t]++"
    r"|\bhttps?[ \t]++-a[ \t]++(?=[^\s:]++:)"
    r"|\bmysql(?:dump)?\b(?:[ \t]++(?!-p)\S++){0,12}+[ \t]++-p"
    r"|\b(?:wandb|swanlab|vault)[ \t]++login[ \t]++(?:--?[\w=:/.\-]++[ \t]++)*+|\bsshpass[ \t]++-p[ \t]*+"
    r"|\b(?:smbclient|smbget|rpcclient)\b(?:[ \t]++(?!-U|--user)\S++){0,12}+[ \t]++(?:-U|--user)[ \t=]*+[^\s%]++%"
    r"|\blogin\s++\S++\s++password\s++)"
    r"(?!-)\S++"
)
_BEARER = re.compile(
    r"(?<!\w)(bearer[ \t]++)(?=[\w.~+/=\-]{20}|[A-Za-z_.~+/=\-]{0,19}\d)[\w.~+/=\-]{8,}+", re.IGNORECASE
)
_WEBHOOK = re.compile(
    r"(?<=hooks\.slack\.com/)[\w/\-]++|(?<=/api/webhooks/)[\w/\-]++|(?<=/bot)\d{6,12}:[\w\-]{20,}+"
    r"|(?<=/bot/v2/hook/)[\w\-]++|(?<=/webhookb2/)[\w/@\-]++|(?<=\.office\.com/webhook/)[\w/@\-]++"
)
# Tokens by the prefix that their service gives them. `hf_` and `sk-` begin ordinary names too, so a digit is
# required.
_SHAPED = re.compile(
    r"(?<![\w\-])(?:"
    r"hf_(?=[A-Za-z]{0,40}\d)[A-Za-z0-9]{8,}+|hf_[A-Za-z0-9]{30,}+|api_org_[A-Za-z0-9]{20,}+"
    r"|sk-(?=[A-Za-z_\-]{0,40}\d)[\w\-]{8,}+|sk-[\w\-]{30,}+"
    r"|[srp]k_(?:live|test)_[A-Za-z0-9]{8,}+|whsec_[A-Za-z0-9+/=]{16,}+"
    r"|gh[pousr]_[A-Za-z0-9]{8,}+|github_pat_\w{8,}+"
    r"|gl(?:pat|dt|rt|cbt|ptt|ft|imt|soat|agent|oas)-[\w\-.]{8,}+"
    r"|nvapi-[\w\-]{8,}+|(?:AKIA|ASIA|ABIA|ACCA)[A-Z0-9]{12,}+|xox[a-z]-[A-Za-z0-9\-]{8,}+|xapp-[A-Za-z0-9\-]{8,}+"
    r"|AIza[\w\-]{20,}+|ya29\.[\w\-]{10,}+|eyJ[\w\-]{8,}+(?:\.[\w\-]++){0,4}"
    r"|npm_[A-Za-z0-9]{20,}+|pypi-[\w\-]{16,}+|dckr_pat_[\w\-]{8,}+|dop_v1_[0-9a-f]{16,}+|SG\.[\w\-]{10,}+\.[\w\-]{10,}+"
    r"|r8_[A-Za-z0-9]{20,}+|gsk_[A-Za-z0-9]{20,}+|xai-[A-Za-z0-9]{20,}+|pplx-[A-Za-z0-9]{20,}+|hv[sbr]\.[\w\-]{16,}+"
    r"|wandb_v\d_\w{16,}+|tgp_v\d_[\w\-]{16,}+|dapi[0-9a-f]{32}|lsv2_[a-z]{2}_\w{16,}+|shp(?:at|ca|pa|ss)_[0-9a-fA-F]{16,}+"
    r"|rpa_[A-Za-z0-9]{16,}+|GOCSPX-[\w\-]{10,}+|1//0[\w\-]{10,}+"
    r"|AGE-SECRET-KEY-1[A-Z0-9]{20,}+|tskey-[\w\-]{16,}+|ATATT[\w\-=]{20,}+"
    # From detect-secrets 1.5: Artifactory, Discord, GitLab's runners, Mailchimp, Square, Telegram, Twilio.
    r"|AKC(?=[A-Za-z]{0,40}\d)[A-Za-z0-9]{20,}+|[MNO][\w\-]{23,25}\.[\w\-]{6}\.[\w\-]{27,38}(?![\w\-.])"
    r"|GR1348941[\w\-]{20,}+|[0-9a-f]{32}-us\d{1,2}(?!\w)|sq0[a-z]{3}-[\w\-]{22,}+"
    r"|\d{8,10}:[\w\-]{35}(?![\w\-])|(?:AC|SK)[0-9a-f]{32}(?!\w)"
    r"|(?:tvly-|csk-|jina_|fw_|glsa_|lin_api_|figd_|sntrys_|vercel_|ntn_)(?=[A-Za-z_\-]{0,40}\d)[\w\-]{16,}+"
    r")"
)
# File names join their parts with - and _, so a token may follow either.
_SHAPED_IN_FILE_NAME = re.compile(_SHAPED.pattern.replace(r"(?<![\w\-])", "(?<![A-Za-z0-9])", 1))
_KEY_BEGINS = re.compile(r"-----BEGIN [A-Z0-9 ]{0,40}PRIVATE KEY[A-Z ]{0,10}-----")
_KEY_ENDS = re.compile(r"-----END [A-Z0-9 ]{0,60}-----")

# Programs with options that take a secret although their name does not say so. `_KEY_FOLLOWS` and the sets after it
# are for secrets at a position, such as `wandb login KEY`.
_PROGRAMS: dict[str, frozenset[str]] = {
    "curl": frozenset({"-u", "--user", "-U", "--proxy-user", "-b", "--cookie", "--oauth2-bearer"}),
    "sshpass": frozenset({"-p"}),
    "redis-cli": frozenset({"-a"}),
    "http": frozenset({"-a"}),
    "https": frozenset({"-a"}),
}
_SMB = frozenset({"smbclient", "smbget", "rpcclient"})
_CURL_USER = re.compile(r"-[a-zA-Z]{1,8}[uU]")  # short options written together
_KEY_FOLLOWS = {("wandb", "login"), ("swanlab", "login"), ("vault", "login")}
_PASSWORD_OPTION = {*((program, "login") for program in ("docker", "podman", "az")), ("helm", "registry")}
_PASSWORD_OPTION |= {("mysql", ""), ("mysqldump", "")}
_PASSWORD_JOINED = frozenset({"mysql", "mysqldump", "sshpass"})
_OF_A_VALUE = re.compile(r"[\s\"'/?&:{]")  # characters that a text, a URL or JSON has before a =, and a name does not
_SCALAR = (bool, int, float, type(None))
_NUMBERS = frozenset(_SCALAR)
# Kinds of events that only contain names of tensors, digests, shapes and numbers, thousands of them in a line.
_OURS = frozenset({"weights", "shapes"})

_harmless: set[str] = set()  # names and texts of events that were found harmless
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
    """Return the name or path of a file without secrets."""
    return _SHAPED_IN_FILE_NAME.sub(WITHHELD, text(name, 0))


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
        if sort in _NUMBERS and len(_counted) < CACHED_TEXTS and not is_strong(str(name)):
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
    """Withhold values whose secret name is not their key but the value of a neighbouring field."""
    if "value" in mapping and _hidden(mapping.get("name", ""), mapping["value"]):  # a variable, as Kubernetes has it
        mapping = {**mapping, "value": WITHHELD}
    if "username" in mapping and not is_harmless("api_key", mapping.get("key")):  # kaggle.json
        mapping = {**mapping, "key": WITHHELD}
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
    return (
        value if type(value) in (str, list, tuple, dict) and cleaned == value else cleaned
    )  # an array compares otherwise


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
        """Return the value of the option before it."""
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
        cleaned = _once(message)
        if cleaned == message:
            break
        message = cleaned
    return message


def _once(message: str) -> str:
    if "-----BEGIN" in message:
        message = _without_keys(message)
    if "@" in message:
        message = _LOGIN.sub(f"{WITHHELD}@", _URL_LOGIN.sub("", message))
    if _known_pattern is not None:
        message = _known_pattern.sub(WITHHELD, message)
    if " " in message:
        message = _USER_OPTION.sub(rf"\1\2{WITHHELD}", message)
        message = _LOGGED_IN.sub(rf"\1{WITHHELD}", message)
        message = _BEARER.sub(rf"\1{WITHHELD}", message)
        message = _API_KEY.sub(rf"\1{WITHHELD}", message)
        if "curl" in message:
            message = _USER_JOINED.sub(rf"\1{WITHHELD}", message)
    if "%" in message:
        message = _ENCODED.sub(_without_encoded, _ENCODED_LOGIN.sub("", message))
    if "username" in message:
        message = _KAGGLE.sub(_without_kaggle, message)
    if "login(" in message:
        message = _LOGIN_CALL.sub(rf"\1{WITHHELD}", message)
    if "get" in message:
        message = _DEFAULT.sub(_without_default, message)
    if "pass" in message.lower():
        message = _SPOKEN.sub(_without_spoken, message)
    if "_" in message:
        message = _COLUMN.sub(_without_column, message)
    if "MI" in message or "MC4C" in message:
        message = _KEY_BODY.sub(WITHHELD, message)
    if "value" in message:
        message = _without_named(message, _NAME_VALUE)
    message = _without_named(message, _NAMED)
    if "</" in message:
        message = _ELEMENT.sub(_without_content, message)
    if "/" in message:
        message = _WEBHOOK.sub(WITHHELD, message)
    return _SHAPED.sub(WITHHELD, message)


def _without_default(call: re.Match[str]) -> str:
    return f"{call[1]}{WITHHELD}" if is_secret(call[2]) else call[0]


def _without_spoken(sentence: re.Match[str]) -> str:
    before, quote_mark, value = sentence.groups()
    if value.startswith(WITHHELD) or (not quote_mark and _SENTENCE_WORD.fullmatch(value)):
        return sentence[0]
    return f"{before}{quote_mark}{WITHHELD}"


def _without_column(pair: re.Match[str]) -> str:
    name, gap, value = pair.groups()
    return f"{name}{gap}{WITHHELD}" if is_strong(name) and looks_random(value) else pair[0]


def _without_content(element: re.Match[str]) -> str:
    name, content = element.groups()
    return f"<{name}>{WITHHELD}" if is_secret(name) and not is_harmless(name, content) else element[0]


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
    while match := pattern.search(message, at):
        at = match.end()
        label = _secret_label(match)
        if label is None or not _announces_secret(label, match):
            continue
        begin, end = _value(message, at, label.name)
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
    is_option = groups.get("option") is not None
    name = groups["name"] or next(filter(None, (groups.get(group) for group in ("option", "variable", "listed"))))
    in_query = match.string[match.start() - 1 : match.start()] in ("?", "&")
    is_key = in_query and name.lower() == "key"
    is_vague = (in_query and name.lower() in _VAGUE_PARAMETERS) or (is_option and name in _VAGUE_OPTIONS)
    if not is_key and not is_vague and not is_secret(name):
        return None
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


def _value(message: str, at: int, name: str) -> tuple[int, int]:
    """Return where the value at `at` begins and ends, without its quotes."""
    if tag := _YAML_TAG.match(message, at):
        at = tag.end()
    opening = _OPENING.match(message, at)
    if opening:
        begin, mark = opening.end(), opening[0]
        if opening[1]:  # an escaped quote: the value ends at the next equal one
            end = message.find(mark, begin)
        else:
            end = _QUOTED[mark].match(message, begin).end()  # type: ignore[union-attr]
            end = end if end < len(message) else -1
        if end >= 0:
            return begin, end
        return begin, _LINE.match(message, begin).end()  # type: ignore[union-attr]
    first = message[at : at + 1]
    if first in ("[", "{", "(") and is_strong(name):
        return at, _closed(message, at)
    if name.lower().endswith(("cookie", "authorization")):
        return at, _LINE.match(message, at).end()  # type: ignore[union-attr]
    bare = _BARE.match(message, at)
    return (at, bare.end()) if bare else (at, at)


def _closed(message: str, at: int) -> int:
    """Return where the list or object that begins at `at` ends; the end of the text where it is not closed."""
    depth = 0
    for bracket in _BRACKET.finditer(message, at):
        depth += 1 if bracket[0] in "[{(" else -1
        if depth == 0:
            return bracket.end()
    return len(message)


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
