"""What is done to a text: a table of rules, each with the marks of the texts that it is for.

Rules by the place and by the context of a secret: keys, logins, programs, calls, sentences, URLs. What a name tells is
in `secret_assignments`, what a service's prefix tells in `secret_shapes`, what a table tells in `secret_layouts`.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from functools import partial
from urllib.parse import unquote

from probes import secret_layouts
from probes.secret_assignments import VAGUE_PARAMETERS, without_named
from probes.secret_names import (
    WITHHELD,
    has_token_form,
    hides,
    hides_word,
    is_harmless,
    is_secret,
    is_strong,
    looks_random,
)
from probes.secret_shapes import GLUED, KEY_BODY, PUTTY_LINES, SHAPED_GLUED

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
# %22token%22%3A%22value%22: encoded JSON. &quot;token&quot;: &quot;value&quot;: JSON in HTML.
_ENCODED_JSON = re.compile(
    r"(?P<head>%22(?P<name>[A-Za-z][\w.\-]{0,100}+)%22(?:%20|\+)*+%3[Aa](?:%20|\+)*+%22)"
    r"(?P<value>(?:[^\s\"'&;,<>%]|%(?!22))++)"
)
_JSON_OF_HTML = re.compile(
    r"(?P<head>&quot;(?P<name>[A-Za-z][\w.\-]{0,100}+)&quot;[ \t]*+:[ \t]*+&quot;)"
    r"(?P<value>(?:(?!&quot;)[^\r\n<>]){1,400}+)"
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
PRIVATE_OF_WEB_KEY = ("d", "p", "q", "dp", "dq", "qi", "k")
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
    r"(?<![a-z])(?P<word>(?P<password>passw(?:or)?d|passphrase|passcode|bindpw)|token|secret|credentials?|jwt"
    r"|session(?:[ _\-]id)?|(?P<key>key))"
    r"(?P<gap>(?:[ \t]++(?:for|of)(?:[ \t]++user)?+[ \t]++[\"'][^\"'\r\n]{1,80}+[\"'])?+"
    r"(?P<prose>(?:[ \t]++(?:is|was|of|to|as|not|(?:in)?valid|provided|supplied|given|used|sent|received"
    r"|rejected|refused|expired|found|set|for[ \t]key)(?=[ \t:])){0,4}+)(?P<colon>:?+)[ \t]++)(?![=:>\-])"
    r"(?:(?P<quote>[\"'])(?P<quoted>[^\"'\r\n]{1,200}+)|(?P<bare>[^\s\"']{1,200}+))",
    re.IGNORECASE,
)
_SPOKEN_WORDS = (
    "bindpw", "passwd", "password", "passphrase", "passcode", "token", "secret", "credential", "credentials", "jwt",
    "session", "id", "key",
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
_MIXED = re.compile(r"(?!0[xX])(?=[A-Za-z_.~+/=\-]*+\d)(?=[\d_.~+/=\-]*+[A-Za-z])[\w\-.~+/=]{6,200}+", re.ASCII)
MIN_SPOKEN = 10  # characters of a secret in a sentence; `API key provided: X` has no other meaning than a secret
_REFUSED = ("invalid ", "incorrect ", "wrong ", "bad ", "expired ", "unknown ")  # before `token VALUE`
_ARTICLES = frozenset({"the", "this", "that", "a", "an", "your", "same", "with", "by", "is", "of"})
_COMPOUND = re.compile(r"[\w\-]*\Z")

_URL_LOGIN = re.compile(r"(?<=://)[^/\s?#\"'<>]*@")
# user:password@host without a scheme. Container images (name:tag@sha256:...) and clock times must not match.
_LOGIN = re.compile(
    r"(?<![\w.\-+%])(?!\d+:\d+@|mailto:)[\w.\-+%]++:[^\s:/@\"']++@(?!sha\d+:)"
    r"(?=[A-Za-z\[]|\d+\.\d+\.\d+\.\d)"
)
_USER_OPTION = re.compile(
    r"(?<!\S)(-[a-zA-Z]{0,8}[uU]|--(?:proxy-)?user)([ \t]++|=)(?!\d+:\d)[\"']?[^\s:\"']++:[^\s\"']++"
)
USER_JOINED = re.compile(r"(?<!\S)(-[uU])(?!ser)[^\s:\"']{1,100}+:[^\s\"']++")  # curl -ume:password
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
OPTIONS_OF_PROGRAMS: dict[str, tuple[str, ...]] = {
    "-P": ("ipmitool", "sqlcmd", "unzip", "zip"),
    "-a": ("redis-cli",),
    "-k": ("openssl",),
    "-p": ("mongo", "mongosh"),
    "-w": ("ldapadd", "ldapmodify", "ldapsearch"),
}
_AFTER_PROGRAM = "".join(
    rf"|\b(?:{'|'.join(programs)})\b(?:[ \t]++(?!{option}\b)\S++){{0,12}}+[ \t]++{option}[ \t]++"
    for option, programs in OPTIONS_OF_PROGRAMS.items()
)
_LOGGED_IN = re.compile(
    r"(\b(?:docker|podman|az)[ \t]++login\b(?:[ \t]++(?!-p\b)\S++){0,12}+[ \t]++-p[ \t]*+"
    r"|--from-literal[ =][\w.\-]++=|\blftp\b(?:[ \t]++(?!-u\b)\S++){0,12}+[ \t]++-u[ \t]++[^\s,]++,"
    r"|\bhttps?[ \t]++-a[ \t]++(?=[^\s:]++:)"
    r"|\b(?:mysql(?:dump)?|7z[arz]?|(?:un)?rar)\b(?:[ \t]++(?!-p)\S++){0,12}+[ \t]++-p"
    r"|\b(?:wandb|swanlab|vault)[ \t]++login[ \t]++"
    r"(?:(?:--?[\w=:/.\-]++|https?://\S++)[ \t]++)*+(?!https?://)|\bsshpass[ \t]++-p[ \t]*+"
    r"|\b(?:smbclient|smbget|rpcclient)\b(?:[ \t]++(?!-U|--user)\S++){0,12}+[ \t]++(?:-U|--user)[ \t=]*+[^\s%]++%"
    r"|\blogin\s++[^\s:]++\s++password\s++" + _AFTER_PROGRAM + r")(?!-)\S++"
)
# CREATE USER me IDENTIFIED BY 'VALUE'; a property list: <key>password</key><string>VALUE</string>
_IDENTIFIED = re.compile(r"(\bidentified[ \t]++by[ \t]++(?:password[ \t]++)?+[\"'])[^\"'\r\n]++", re.IGNORECASE)
_LISTED_KEY = re.compile(r"(<key>([^<]{1,100}+)</key>\s*+<string>)[^<]++")
_LOGIN_MARKS = (" -", "\t-", "login", "from-literal")
_LOGIN_PROGRAMS = (
    "login", "mysql", "7z", "rar ", "sshpass", "smb", "rpcclient", "lftp", "from-literal", "http -a", "https -a",
    *(program for programs in OPTIONS_OF_PROGRAMS.values() for program in programs),
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


def by_rules(message: str, lowered: str, rules: tuple[Rule, ...]) -> str:
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
    return without_named(_VALUE_NAME.sub(_without_value, message), _NAME_VALUE)


def _without_value(pair: re.Match[str]) -> str:
    hidden = hides(pair["name"], pair["value"])
    return f"{pair['head']}{WITHHELD}{pair['tail']}" if hidden else pair[0]


def _without_argument(call: re.Match[str]) -> str:
    """Of a call with one text: login("VALUE"), set_token("VALUE")."""
    name = call["name"]
    sets = name.startswith(_SETTERS) and is_secret(name) and looks_random(call["value"])
    return f"{call['head']}{WITHHELD}" if sets or name.endswith("login") else call[0]


def _without_default(call: re.Match[str]) -> str:
    """Withhold the default of a call that looks up or declares a secret's name, and tokens in any other call."""
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
    hidden = hides(resolver[2], resolver[3])
    return f"{resolver[1]}{WITHHELD}" if hidden else resolver[0]


def _without_fallback(choice: re.Match[str]) -> str:
    name, between, mark, value = choice.groups()
    return f"{name}{between}{mark}{WITHHELD}" if hides_word(name, value) else choice[0]


def _without_listed(entry: re.Match[str]) -> str:
    return f"{entry[1]}{WITHHELD}" if is_secret(entry[2]) else entry[0]


def _without_spoken(sentence: re.Match[str]) -> str:
    value = sentence["quoted"] or sentence["bare"]
    if value.startswith(WITHHELD) or (sentence["colon"] and not sentence["prose"] and not sentence["key"]):
        return sentence[0]  # `name: value` is no sentence
    if sentence["password"]:
        is_word = _SENTENCE_WORD.fullmatch(value) or _SIGNS.fullmatch(value) or is_harmless("password", value)
        hidden = bool(sentence["quoted"]) or not is_word
    else:
        value = value.rstrip(".,:;!?)")
        hidden = bool(_MIXED.fullmatch(value)) and _names_secret(sentence, value)
    if not hidden:
        return sentence[0]
    punctuation = (sentence["quoted"] or sentence["bare"]).removeprefix(value)
    return f"{sentence['word']}{sentence['gap']}{sentence['quote'] or ''}{WITHHELD}{punctuation}"


def _names_secret(sentence: re.Match[str], value: str) -> bool:
    """Whether the word of a sentence is one by itself, or ends the name of a secret: `hf_token`, `munge key`, not
    `pad_token`, `cache key`; and the sentence or the value's form shows that the value is the secret."""
    begin = sentence.start("word")
    before = sentence.string[max(0, begin - 60) : begin]
    # First the form, then the name: "the token was found" has the words of a secret, and nothing that looks like one.
    is_announced = bool(sentence["colon"])  # key provided: VALUE
    is_random = looks_random(value)
    is_clear = is_random or is_announced or bool(sentence["quoted"]) or before.lower().endswith(_REFUSED)
    if not is_clear:
        return False
    whose = _WORD_BEFORE.search(before)
    adjective = whose[1].lower() if whose else ""
    if len(value) < MIN_SPOKEN and not (is_announced and adjective in _KEYS):
        return False
    if sentence["key"]:
        if not is_secret(f"{adjective}_key"):
            return False
        return adjective in _KEYS or (is_random and has_token_form(value))
    compound = _COMPOUND.search(before)
    if compound and compound[0] and not is_secret(f"{compound[0]}{sentence['word']}"):
        return False
    of_text = adjective and adjective not in _ARTICLES and not is_secret(f"{adjective}_token")
    return is_random or (sentence["word"].lower() in ("token", "jwt") and not of_text)


def _without_compared(comparison: re.Match[str]) -> str:
    mark, value, between, name = comparison.groups()
    return f"{mark}{WITHHELD}{between}{name}" if hides_word(name, value) else comparison[0]


def _without_host_password(entry: re.Match[str]) -> str:
    return f"{entry[1]}{WITHHELD}" if looks_random(entry[2]) else entry[0]


def _without_column(pair: re.Match[str]) -> str:
    name, gap, value = pair.groups()
    return f"{name}{gap}{WITHHELD}" if is_strong(name) and looks_random(value) else pair[0]


def _without_content(element: re.Match[str]) -> str:
    name, attributes, content = element.groups()
    return f"<{name}{attributes}>{WITHHELD}" if hides(name, content) else element[0]


def _without_encoded(parameter: re.Match[str]) -> str:
    name, value = parameter["name"], unquote(parameter["value"])
    vague = name.lower() == "key" or name.lower() in VAGUE_PARAMETERS
    hidden = looks_random(value) if vague else hides(name, value)
    return f"{parameter['head']}{WITHHELD}" if hidden else parameter[0]


def _without_kaggle(pair: re.Match[str]) -> str:
    return pair[0] if is_harmless("api_key", pair[2]) else f"{pair[0].removesuffix(pair[2])}{WITHHELD}"


def _without_keys(message: str) -> str:
    """Remove private key blocks. One without its end extends to the end of the text."""
    # A block that was cut short is withheld to the end of the text: what follows its beginning is the key itself.
    parts, at = [], 0
    while begin := _KEY_BEGINS.search(message, at):
        parts += [message[at : begin.start()], WITHHELD]
        end = _KEY_ENDS.search(message, begin.end())
        at = end.end() if end else len(message)
    return "".join([*parts, message[at:]])


Rule = tuple[tuple[str, ...], Callable[[str], str]]
# What is done to a text, in this order, where its lower-case form has one of these marks.
RULES: tuple[Rule, ...] = (
    (("-----begin",), _without_keys),
    (("@",), _without_logins),
    ((":5432:", ":*:"), partial(_PGPASS.sub, _without_host_password)),
    (("u ", "u=", "u\t", "user"), partial(_USER_OPTION.sub, rf"\1\2{WITHHELD}")),
    (_LOGIN_MARKS, _without_program_logins),
    (("echo ", "printf "), partial(_PIPED.sub, rf"\1{WITHHELD}")),
    (("basic ", "negotiate ", "ntlm "), partial(_BASIC.sub, rf"\1{WITHHELD}")),
    (("curl",), partial(USER_JOINED.sub, rf"\1{WITHHELD}")),
    (("%3d", "253d", "%3a%2f%2f"), _without_encoded_secrets),
    (("%22%3a", "%22%20%3a", "%22+%3a"), partial(_ENCODED_JSON.sub, _without_encoded)),
    (("&quot;",), partial(_JSON_OF_HTML.sub, _without_encoded)),
    (("digest ",), partial(_DIGEST.sub, rf"\1{WITHHELD}")),
    (("kty",), partial(_WEB_KEY.sub, rf"\1{WITHHELD}")),
    (("identified",), partial(_IDENTIFIED.sub, rf"\1{WITHHELD}")),
    (("</key>",), partial(_LISTED_KEY.sub, _without_listed)),
    (("login(", "login ("), partial(_CALL.sub, _without_argument)),
    (("get", "pop(", "set", "env", "argument(", "option(", "field("), partial(_LOOKUP.sub, _without_default)),
    (("send",), partial(_SENT.sub, _without_sent)),
    (("mii", "mig", "mih", "mc4c", "mhcc", "mhqc", "b3blbn"), partial(KEY_BODY.sub, WITHHELD)),
    (("private-lines",), partial(PUTTY_LINES.sub, rf"\1 {WITHHELD}")),
    (("hook", "/bot"), partial(_WEBHOOK.sub, WITHHELD)),
    (tuple(GLUED), partial(SHAPED_GLUED.sub, WITHHELD)),
)
# The same, of a text that has a part of a secret's name (`STEMS`).
RULES_OF_NAMES: tuple[Rule, ...] = (
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
RULES_OF_OTHER_LETTERS: tuple[Rule, ...] = (
    (("密码", "密碼", "口令", "パスワード", "비밀번호"), partial(_SPOKEN_WITHOUT_BLANKS.sub, rf"\1{WITHHELD}")),
)
