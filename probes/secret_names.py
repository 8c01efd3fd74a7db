"""Decides which names are names of secrets: of variables, options, fields and parameters of a URL.

A name is split into words (`HF_TOKEN`, `hfToken`, `--hf-token`, `trainer.hf_token`). Most words decide by themselves.
`key` and `token` are also words of this field (`prompt_key`, `num_key_value_heads`, `max_tokens`, `eos_token_id`), so
their neighbours decide. An unknown combination counts as a secret.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from functools import lru_cache
from typing import Any

_WORD = re.compile(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+|\d+")
MAX_NAME = 200  # characters of a name that are read, from its end
MAX_DEPTH = 20  # levels of nested lists and dictionaries below a secret's name


WITHHELD = "***"  # what is shown in the place of a secret


def words(text: str) -> frozenset[str]:
    return frozenset(text.split())


# Parts of names that decide wherever they are, the name's words joined.
_PARTS = re.compile(
    r"password|passwd|passphrase|passcode|secret|credential|apikey|accesskey|privatekey|authkey|authtoken|accesstoken"
    r"|connectionstring|licensekey|encryptionkey|signingkey|kubeconfig(?:data|base64|b64|content|json|yaml)"
    r"|(?:ssh|db|my|pg|sql|ftp|smtp|mail|user|root|admin|store|key|proxy|http|ldap|git|svn|redis|auth)pass\b"
    r"|passwort|kennwort|contrasena|motdepasse|wachtwoord"
)
# Passwords in letters that are no ASCII; not cryptography (密码学).
_FOREIGN = re.compile("contraseña|пароль|密[码碼](?![学學])|口令|パスワード|비밀번호")
_WORDS = words("""
    pwd pw cookie cookies authorization auth oauth bearer jwt signature sig dsn webhook netrc otp totp mnemonic
    creds cred psw sessionid phpsessid jsessionid passe senha
""")
_WEAK_WORDS = words("""
    private cert
""")
# Options that take a key although their name does not say so (OpenRLHF: --use_wandb KEY or True).
_SPECIAL = frozenset({"use_wandb", "use_swanlab", "use_comet"})
# `trainer.wandb.key`: a key below one of these.
_SERVICES = words("""
    wandb swanlab comet mlflow openai anthropic azure hf huggingface hub api s3 aws judge serper tavily
""")
_AUTH_ABOUT = words("""
    mode type enabled method scheme url required error
""")
# Values of `auth`: methods, of which none is a secret.
_AUTH_METHODS = words("""
    basic digest kerberos munge ldap iam anonymous jwt oauth oauth2 password token ssh tls mtls slurm
""")
# Last words of names that are measured: `jwt_ttl`, `cookie_size`.
_MEASURES = words("""
    age count expires expiry length lifetime max min retries size timeout ttl
""")
_PASSES = words("""
    forward backward first second single one two each per low high by multi
""")

_BEFORE_KEY = words("""
    prompt prompts input inputs output outputs label labels reward rewards fn answer answers sort cache query dict
    data dataset column image images video videos audio response responses target source text message messages
    tool tools system solution ground truth group foreign primary partition shard seed rng prng map lookup hash
    field json state config metric score chosen rejected unknown missing each every first last other this that the
    a same sample batch step parameter param weight weights tensor module layer attr env index extra event node
    actor store trace span row frame unexpected kv by multi modal mm raw pixel custom return of for in no or and
    to is at on with instruction context history conversation conversations turn id uid name value feature
    features sub mapping restore
""")
_AFTER_KEY = words("""
    value base b pem data string hex raw prod dev test old new backup ro rw
""")
_BEFORE_TOKEN = words("""
    eos bos pad unk sep cls mask masked stop special image images video audio begin start end first last next
    previous prev per each every max min num n one a an the new total response prompt completion output input
    generated generation draft drafted accepted sampled bonus target added additional extra bad forced suppress
    think thinking reasoning tool turn text byte word sub this that same other real padded padding batched cached
    valid ignored ignore decoder vocab top time step long multi single wrong some any of by is in with best greedy
    argmax missing repeated unexpected boi eoi placeholder im eot eom newline answer logprob logprobs baseline
    candidate engine learner reference policy flipped differing skip allowed banned scheduled speculative mm
    context chunked prefill decode kv cache number free used mean avg average train trained seen recorded compared
    second third
""")
_AFTER_TOKEN = words("""
    id ids count counts level type types mean limit budget length lengths len position positions index indices
    logprob logprobs logp per dim size log logs mask masks loss losses mismatch embedding embeddings emb bytes
    text texts usage throughput rate sum advantage advantages score scores reward rewards classification latency
    parity time times ratio out in num max min s weights frames kl entropy diff delta flips bucket buckets pool
    ordering boundaries seen table map seq stream wise parallel dropping dispatcher drop aware and level not at by
    of limits model mult
""")
# Variables in which Ray passes on the variables that a user gave to the whole job.
_CARRIERS = re.compile(r"RAY_(JOB_CONFIG|RUNTIME_ENV)_JSON\w*")
_FOLDERS = frozenset({"PWD", "OLDPWD"})  # of the shell: working directories, not passwords
_ABOUT_FILES = words("""
    file path dir folder
""")

# In a sentence, the word after an option is not its value ("--token is missing").
PROSE = words("""
    is are was were be must may can cannot should needs requires expects takes has have had and or but nor for to
    from with without not of in on at as by if when the a an this that option argument flag value given missing
""")

_NOTHING = re.compile(
    r"true|false|none|null|nil|yes|no|on|off|(?:dis|en)abled|unset|undefined|n/a|required|optional|missing|"
    r"|\$\{?[\w.:]{1,100}\}?",  # ${A_VARIABLE}
    re.IGNORECASE,
)
# Also the first of a list. A float has up to 17 digits, all behind the point in 0.xxx.
_NUMBER = re.compile(r"[\[(]{0,3}[-+]?(?:(?:\d{1,4}\.\d{1,21}|\d[\d_,.]{0,15})(?:[eE][-+]?\d{1,3})?|nan|inf)[\])]{0,3}")
_MEASURED = re.compile(r"\d[\d_,.]{0,15}[ ]?(?:[kKMGT]?B|[KMGT]iB|[kKMGT]|[num]?s|min|h|d|%)?")  # 64 MiB, 30s
# 8 digits before the point, with or without signs of thousands: a vocabulary of 1,000,000 words has no such number.
_LONG_NUMBER = re.compile(
    r"[-+]?(?:\d(?:_?\d){7}|\d{2,3}+(?:,\d{3}){2}(?!\d)|\d{1,3}+(?:,\d{3}){3}(?!\d)|[\d_.]{1,40}+[eE]\+?\d)"
)
_BORDER = re.compile(r"[-=+:|>─━┼╪]++")  # between the names and the values of a table
_SPECIAL_TOKEN = re.compile(r"<[^<>]{1,40}>|\[[A-Z]{2,12}\]|<\|[^<>]{1,40}\|>")
_PATH = re.compile(r"[~.\w\-]{0,100}[/.][\w./~\-]{1,300}")
# A path that says itself that it is one: from the root, the home or here, through folders with names of lower case.
_PLAIN_PATH = re.compile(r"(?:~|\.{1,2})?(?:/\.?[a-z][a-z_\-]{0,40}+\d{0,3}+){1,20}+(?:\.[a-z]{1,8}\d?)?")


# Words, versions, numbers, columns of `sort` (2,3nr) and paths of these: harmless values of names that are not
# clearly secret.
_WORDS_OF_VALUE = re.compile(
    r"(?:(?:[A-Za-z]{1,19}+\d{0,3}+|\d{1,19}+[A-Za-z]{0,3}+)(?:[_\-.,:/=~ ]++|\Z)|[/~.]++)*+\Z"
)
RANDOM_MIN = 8  # characters


def looks_random(value: str) -> bool:
    """Whether a value may be a secret whatever its name: long, and not made of words and numbers."""
    return len(value) >= RANDOM_MIN and not _WORDS_OF_VALUE.fullmatch(value[:MAX_NAME])


_TURNS = re.compile(r"[A-Za-z]\d|\d[A-Za-z]")


def has_token_form(value: str) -> bool:
    """Whether a value is made like a token: at least 12 small and capital letters and digits, well mixed."""
    mixed = value.isascii() and value.isalnum() and not value.islower() and not value.isupper()
    return mixed and 12 <= len(value) <= MAX_NAME and len(_TURNS.findall(value)) >= 3


@lru_cache(maxsize=4_096)
def _kind(name: str) -> str:
    """Return `strong`, `weak` (numbers are harmless) or empty (not a secret)."""
    bare = name.lstrip("-+~")
    leaf = bare.rpartition(".")[2]
    if leaf in _FOLDERS:
        return ""
    if _CARRIERS.fullmatch(leaf):
        return "strong"
    # A clear word decides wherever it stands in a name with points. Weak words count in the last part only: what is
    # called `token.count` is a count.
    all_words = [word.lower() for word in _WORD.findall(bare)]
    if not bare.isascii() and _FOREIGN.search(bare.lower()):
        return "strong"
    if _PARTS.search("".join(all_words)):
        return "strong"
    if strong_words := _WORDS.intersection(all_words):
        return "" if strong_words <= {"auth", "oauth"} and all_words[-1] in _AUTH_ABOUT else "strong"
    words = [word.lower() for word in _WORD.findall(leaf)]
    return "weak" if words and _is_weak(words, all_words) else ""


def _is_weak(words: list[str], all_words: list[str]) -> bool:
    """Whether a name is of a secret unless its value is a number. `words`: of its last part, `all_words`: of all."""
    last, before = words[-1], words[-2] if len(words) > 1 else ""
    return (
        "_".join(words) in _SPECIAL
        or not _WEAK_WORDS.isdisjoint(words)
        or (last == "key" and not before and not _SERVICES.isdisjoint(all_words[-2:-1]))
        or last == "pat"
        or (last == "pass" and before not in _PASSES)
        or (before, last) == ("session", "id")
        or any(_is_secret_word(word, words[at - 1] if at else "", words[at + 1 :]) for at, word in enumerate(words))
    )


def _is_secret_word(word: str, before: str, after: list[str]) -> bool:
    """Whether this word is a key or a token that is secret, judged by its neighbours."""
    of_tokens = bool(after) and after[0] in _AFTER_TOKEN  # token_ids, token_count
    if word in ("key", "keys"):  # a key of something, at the end of a name or about a file: api_key, ssh_key_path
        return bool(before) and before not in _BEFORE_KEY and _may_end_key(after)
    if word == "token":  # unless of a text or a count: pad_token, token_ids
        return before not in _BEFORE_TOKEN and not of_tokens
    if word == "tokens":
        return before not in _BEFORE_TOKEN and not after
    if word.endswith("token"):  # hftoken
        return word.removesuffix("token") not in _BEFORE_TOKEN and not of_tokens
    return word in ("wandbkey", "sshkey", "openaikey", "hfkey")


def _may_end_key(after: list[str]) -> bool:
    """Whether these are words that may follow `key` in the name of a secret key: none, a number, a file."""
    if not after or after[-1] in _ABOUT_FILES:
        return True
    return len(after) == 1 and (after[0] in _AFTER_KEY or after[0].isdigit())


# Every name of a secret in ASCII has one of these in its lower-case form; a text without them needs no closer look.
STEMS = (
    "pass", "token", "key", "secret", "auth", "cred", "cert", "private", "pw", "cook", "bearer", "jwt", "sig", "dsn",
    "hook", "netrc", "otp", "mnemonic", "psw", "sess", "senha", "sena", "wort", "woord", "wandb", "swanlab", "comet",
    "pat", "connection", "kube", "ray_", "pin", "sid",
)  # fmt: skip


def is_secret(name: str) -> bool:
    """Whether a value of this name is withheld, unless `is_harmless`."""
    return _kind(name[-MAX_NAME:]) != ""


def is_strong(name: str) -> bool:
    """Whether nothing under this name is shown, not even a number."""
    return _kind(name[-MAX_NAME:]) == "strong"


def is_harmless(name: str, value: Any, depth: int = 0) -> bool:
    """Whether this value cannot be the secret that its name suggests.

    Harmless are a switch, a count, a special token, and a path whose name says that it is a file's. A deeply nested
    value is never harmless.
    """
    if depth > MAX_DEPTH:
        return False
    if value is None or isinstance(value, bool):
        return True
    if isinstance(value, (int, float)):
        return _shows_number(name, str(value))
    if isinstance(value, (list, tuple, set, frozenset)):
        return all(is_harmless(name, item, depth + 1) for item in value)
    if isinstance(value, Mapping):
        return not is_strong(name) and all(is_harmless(name, item, depth + 1) for item in value.values())
    return _is_harmless_text(name, str(value))


def hides(name: str, value: Any) -> bool:
    """Whether this value is withheld for its name."""
    return is_secret(name) and not is_harmless(name, value)


def hides_word(name: str, value: str) -> bool:
    """Whether this value is withheld where the word beside a name may be any word: only behind a strong name, or where
    it looks random.
    """
    return hides(name, value) and (is_strong(name) or looks_random(value))


def _is_harmless_text(name: str, text: str) -> bool:
    if _NOTHING.fullmatch(text) or _PLAIN_PATH.fullmatch(text) or _BORDER.fullmatch(text):
        return True
    last = _last_words(name)[-1]
    if last in _ABOUT_FILES:
        is_name = not is_strong(name) and not looks_random(text)  # --token-file job-17: a token is random
        return is_name or bool(_PATH.fullmatch(text)) or (text.isupper() and text.lower() in _ABOUT_FILES)
    if last in ("auth", "oauth") and text.lower() in _AUTH_METHODS:
        return True
    if _NUMBER.fullmatch(text) or _MEASURED.fullmatch(text):
        return _shows_number(name, text)
    return not is_strong(name) and bool(_SPECIAL_TOKEN.fullmatch(text))


def _shows_number(name: str, number: str) -> bool:
    """Whether a number of this name may be shown: a measure, or one that is too short for a secret."""
    before, last = _last_words(name)
    if is_strong(name):
        return last in _MEASURES
    return not (before and last in ("token", "key", "pat") and _LONG_NUMBER.match(number))


def _last_words(name: str) -> tuple[str, str]:
    """Return the last two words of a name in small letters; "" in place of one that it does not have."""
    words = ["", "", *_WORD.findall(name[-MAX_NAME:])]
    return words[-2].lower(), words[-1].lower()
