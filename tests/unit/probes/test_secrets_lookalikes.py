"""Pairs of a secret and a look-alike from an ordinary log: the first is withheld, the second stays as it is."""

from __future__ import annotations

import math
import re
from typing import NamedTuple

import pytest

from probes import redaction, secret_assignments, secret_names
from reports.limits import LIMITS

VALUE = "Zq7mKx93" + "vLw2Tn"
HUB = "hf_" + "aB3" * 11
NUMBER = "12345" + "678"
WEAK = ("hunter", "IOSFODNN7", "abcdefgh12", "tok_live_abc123")  # of other forms


class Pair(NamedTuple):
    kind: str
    secret: str  # holds VALUE, HUB, NUMBER or one of WEAK
    lookalikes: tuple[str, ...]


PAIRS = (
    Pair(
        "a message that names a key before its value",
        f"Incorrect API key provided: {VALUE}. You can find your API key at the site.",
        ("Incorrect API key provided: none", "Invalid key provided: model.layers.0.mlp", "API key is not set"),
    ),
    *(
        Pair(
            f"a message that names a key before {value}",
            f"Incorrect API key provided: {value}",
            ("Incorrect API key provided: null", "API key expired: 3600s", "API key used: default"),
        )
        for value in ("hunter2", "abcdefgh12", "tok_live_abc123")
    ),
    Pair(
        "a key behind the host of a login",
        f"wandb login --host https://wandb.example {VALUE}",
        ("wandb login --host https://wandb.example", "vault login -address=https://vault.example"),
    ),
    Pair(
        "a token in place of its file",
        f"harness triage http://a:1 --token-file {VALUE}",
        tuple(f"harness triage http://a:1 --token-file {name}" for name in ("tok", "job-17", "./tok", "my_token.txt")),
    ),
    Pair("an anchor before a tag", f'api_key: &k !!str "{VALUE}"', ("layers: &k !!int 12", "anchor: &k !!str none")),
    Pair(
        "a password of somebody",
        f"password for user 'me' is '{VALUE}'",
        ("password for user 'me' is wrong", "password of 'me' was refused"),
    ),
    Pair(
        "a password behind a name like that of a program's file",
        f"passwd.py:{VALUE}",
        (
            "main (passwd.py:123)",
            "passwd.py:123:4: error",
            "/a/secrets.py:12, in f",
            "secrets.py::test_x[a-b]",
            "[passwd.cu:12] failed",
            "rank 0 at hf_token.py:88 all_reduce",
        ),
    ),
    Pair("a password of a directory", f"bindpw {VALUE}", ("bindpw is missing", "binddn cn=me,dc=example")),
    Pair(
        "a property list",
        f"<key>password</key><string>{VALUE}</string>",
        ("<key>name</key><string>Qwen2TokenizerFast</string>",),
    ),
    Pair("a user of a database", f"CREATE USER me IDENTIFIED BY '{VALUE}'", ("rank 3 is identified by its pid",)),
    Pair("a key of a cipher", f"openssl enc -aes256 -k {VALUE}", ("openssl genrsa 2048", "openssl rand -hex 16")),
    Pair(
        "a quoted token of words",
        "the token 'abcdefgh12' was refused",
        ("stop token 'endofturn12'", "pad_token 'abcdefghi12'", "token 'Hello'", "session 'session_2026-11-28_17'"),
    ),
    Pair(
        "a quoted key of words",
        'the API key "tok_live_abc123" is wrong',
        ('the cache key "layers_0_mlp_17"', 'the prompt key "question_2026"'),
    ),
    Pair(
        "an invalid token of words",
        "invalid token abcdefgh12",
        ("token position_17", "private key id_rsa_2048", "invalid token step17", "secret hub-credentials-01"),
    ),
    *(
        Pair(f"a Markdown table with {header}", f"| user | {header} |\n|:--|---|\n| me | hunter2 |\n", ())
        for header in ("**Password**", "`password`", "__Password__", "*password*", "'password'", "~password~")
    ),
    Pair("a table of one column", "| **API key** |\n|---|\n| " + VALUE + " |\n", ("| **Tokens** |\n|---|\n| 512 |\n",)),
    Pair(
        "a table in a quotation",
        "> | user | password |\n> |---|:--|\n> | me | hunter2 |\n",
        ("> | step | `tokens` |\n> |---|---|\n> | 1 | 512 |\n",),
    ),
    Pair("separated values in quotes", "'user','password'\n'me','hunter2'\n", ("'step','tokens'\n'1','512'\n",)),
    Pair("columns of one width in quotes", f"USER      'PASSWORD'\nme        {VALUE}\n", ()),
    Pair(
        "the border of a table",
        "|password|user|\n|:--|---|\n|hunter2|me|\n",
        (
            "| user | password |\n| :-- | --: |\n",
            "|password|user|\n|:--|:-:|\n",
            "user,password\n:--,:--\n",
            "user\tpassword\n:--\t:--\n",
            "| password |---|",
            "password |:--|---|",
            "user  password\n:---  :-------\n",
            "password\n--------\n",
        ),
    ),
    *(
        Pair(f"the number {number}", f"hf_token: {number}", (f"total_tokens: {number}", "hf_token: -1"))
        for number in (f"-{NUMBER}", f"+{NUMBER}", f"{NUMBER}.5", f"1_{NUMBER}", f"-{NUMBER}.5e3")
    ),
    Pair("a token that was supplied", f"Invalid token supplied: {VALUE}", ("Stop token supplied: </s>",)),
    Pair("a key that is not valid", f"the api key is not valid: {VALUE}", ("the dataset key is not valid: prompt",)),
    Pair("a token that expired", f"token expired: {VALUE}", ("token rejected: 151645", "draft tokens rejected: 12")),
    Pair("a password that was given", f"password given: '{VALUE}'", ("password given: invalid",)),
    Pair("a key of a daemon", f"munge key {VALUE}", ("cache key layers.0", "munge key is missing")),
    Pair(
        "a key of a daemon behind a colon",
        f"munge key: {VALUE}",
        ("munge key: /etc/munge/munge.key", "key: model.layers.0"),
    ),
    Pair("a key of a host", f"loaded host key {VALUE}", ("sharding key 9f86d081884c", "sort key sample_id_17")),
    Pair(
        "a Markdown table",
        f"| user | password |\n|------|---:|\n| me | {VALUE} |\n",
        ("| step | tokens |\n|---|---|\n| 1 | 512 |\n", "| token | id |\n|---|---|\n| Hello_a1B2c3 | 9707 |\n"),
    ),
    Pair(
        "a Markdown table without its borders",
        f"user | api_key\n--- | ---\nme | {VALUE}\n",
        ("name | key\n--- | ---\nloss | step_1a2b3c4d\n",),
    ),
    Pair(
        "a table of MySQL",
        f"+----+-----+\n| id | db_password |\n+----+-----+\n| 17 | {VALUE} |\n+----+-----+\n",
        ("+----+-----+\n| id | max_tokens |\n+----+-----+\n| 17 | 4096 |\n+----+-----+\n",),
    ),
    Pair(
        "a table of psql",
        f" user | password \n------+----------\n me   | {VALUE}\n",
        (" user | tokens \n------+--------\n me   | 4096\n",),
    ),
    Pair(
        "a table in a box", f"┃ user ┃ password ┃\n┡━━━╇━━━┩\n│ me │ {VALUE} │\n", ("┃ step ┃ tokens ┃\n│ 1 │ 512 │\n",)
    ),
    Pair(
        "columns of one width",
        f"USER      PASSWORD\nme        {VALUE}\n",
        (
            "TOKEN     LOGPROB\nHello1a2b3c    -0.25\n",
            "STEP  TOKENS  KEY\n1     512     q17_a2b3c4\n",
            "the password is wrong\nso try again in 17a2b3c4d5 s\n",
        ),
    ),
    Pair(
        "columns of one width in the middle",
        f"NAME  HF_TOKEN        AGE\nhub   {VALUE}  3d\n",
        ("NAME  TOKEN  ID\nhub   Ab1cD2eF3g  17\n",),
    ),
    Pair(
        "separated values",
        f"token,host\n{VALUE},h1\n",
        ("token,id,logprob\nHello1a2B3c4,9707,-0.25\n", "position;token;rank\n1;Zq7mKx93vLw2;4\n"),
    ),
    Pair(
        "a number",
        f"hf_token: {NUMBER}",
        ("next token: 12345678", "total_tokens: 12345678", "consumed_tokens=123456789"),
    ),
    Pair("a number as a password", f"password: {NUMBER}", ("password_length: 16", "pad_token_id: 0")),
    Pair("a number in JSON", f'{{"api_key": {NUMBER}}}', ('{"num_tokens": 12345678}', '{"session_id": 17}')),
    Pair(
        "a default in the form of a token",
        f"os.getenv('X', '{VALUE}')",
        (
            "os.getenv('MODEL', 'Qwen2ForCausalLM')",
            "os.getenv('MODEL', 'Qwen/Qwen2.5-0.5B-Instruct')",
            "os.environ.get('RUN', '20261128-002709-9f86d081')",
            "config.get('commit', 'b292bb7d4c0e9f2a61b0a4b8d39e5f3b8f3c7a11')",
        ),
    ),
    Pair(
        "a default by name in the form of a token",
        f"os.environ.get('X', default='{VALUE}')",
        ("getattr(a, 'b', 'bf16x3')",),
    ),
    Pair("expect", f'expect "password:"\nsend "{VALUE}\\r"\n', ('expect "$ "\nsend "squeue -u me\\r"\n',)),
    Pair(
        "expect with a plain password",
        'expect "*?assword:*"\nsend -- "' + "hunter" + VALUE[:2] + '\\r"',
        ('send "exit\\r"',),
    ),
    Pair("expect, the line alone", f'send "{VALUE}\\r"', ('send "ls -la\\r"', 'send "step 17a2b3 done"')),
    Pair("pexpect", f"child.expect('assword:')\nchild.sendline('{VALUE}')", ("child.sendline('sinfo -N')",)),
    Pair("piped into sudo", f"echo {VALUE} | sudo -S mount x", ("echo 17a2b3c4d5 | sort -S 1G",)),
    Pair("piped into chpasswd", f"echo 'me:{VALUE}' | chpasswd", ("echo 'me:17' | sort",)),
    Pair("a token behind a letter", f"x{HUB}", ("rlhf_run20261128002709abcd", "xhf_model_of_the_last_checkpoint_a1")),
    Pair("a token behind a word", f"key{HUB}", ("openrlhf_" + "9f86d081" * 8, "rlhf_Qwen25Instruct")),
    Pair("a token behind an underscore", f"my_{HUB}", ("trl_hf_config.json",)),
    Pair("a token of GitHub behind a word", "tokenghp_" + VALUE * 2 + VALUE[:8], ("graph_step", "ghp_")),
    Pair(
        "a token of OpenAI behind a word", "keysk-proj-" + VALUE * 2, ("task-proj-of-the-year-2026-with-a-long-name",)
    ),
    Pair("a token of AWS behind a word", "idAKIA" + "IOSFODNN7EXAMPLE", ("SLOVAKIA", "KAKIA_2026")),
    Pair(
        "a strong name with a word",
        "auth: hunter2x9Qq7",
        ("auth: disabled", "auth: none", "auth=off", "auth: munge", "auth/munge", "oauth: enabled"),
    ),
    Pair("a path in the place of a secret", f"cert: {VALUE}", ("cert: /etc/ssl/x.pem", "ssl_key: ./certs/node1.key")),
    Pair(
        "a password that begins like a path",
        f"password: /{VALUE}",
        (
            "password: /run/secrets/db_password",
            "hf_token: ~/.cache/huggingface/token",
            "password: unset",
            "token: null",
        ),
    ),
    Pair(
        "a name in a path",
        f"/etc/passwd: {VALUE}",
        ("/etc/passwd: unknown user", "/home/user/.cache/token: permission denied", "cache/token: No such file"),
    ),
    Pair(
        "a measure of a secret",
        f"cookie: {VALUE}",
        ("jwt_ttl: 3600", "auth_timeout: 30s", "token_cache: 64MiB", "secret_count=3", "cookie_size: 4 KiB"),
    ),
    Pair(
        "words of logs",
        f"token: {VALUE}",
        (
            "token_ids: [1, 2, 3]",
            "max_tokens: 4096",
            "tokens/s 1234",
            "tokens/s: 1234.5",
            "num_tokens 123",
            "eos_token: </s>",
            "pad_token_id: 0",
            "author: me",
            "throughput (tokens/s/gpu): 1234",
            "key: model.layers.0",
            "tokenizer: Qwen2TokenizerFast",
            "avg_tokens_per_sample=512.3",
            "Unexpected key lm_head.weight_scale_2x3y4z",
            "mm_token_hash: none",
            "KV cache: 12,345,678 tokens",
            "special token <|im_end|> (151645)",
        ),
    ),
)
LOOKALIKES = [lookalike for pair in PAIRS for lookalike in pair.lookalikes]


@pytest.mark.parametrize("pair", PAIRS, ids=lambda pair: pair.kind)
def test_the_secret_of_a_pair_is_withheld(pair: Pair) -> None:
    for text in (pair.secret, f"before\n{pair.secret}\nafter"):
        cleaned = redaction.text(text, 0)
        hidden = [secret for secret in (VALUE, HUB[3:], NUMBER, *WEAK) if secret in cleaned]
        assert not hidden and redaction.WITHHELD in cleaned, cleaned
        assert redaction.text(cleaned, 0) == cleaned


@pytest.mark.slow
@pytest.mark.parametrize("text", LOOKALIKES)
def test_a_lookalike_stays(text: str) -> None:
    assert redaction.text(text, 0) == text
    assert redaction.text(f"before\n{text}\nafter", 0) == f"before\n{text}\nafter"


def test_numbers_in_fields() -> None:
    assert redaction.scrub({"hf_token": int(NUMBER), "password": 17}) == {"hf_token": "***", "password": "***"}
    for number in (-int(NUMBER), float(NUMBER) + 0.5, 1e12, -1e300):
        assert redaction.scrub({"hf_token": number}) == {"hf_token": "***"}
        assert redaction.event("span", {"hf_token": number}) == {"hf_token": "***"}
    fractions = {"hf_token": -1, "latency_token": 0.123456789, "ms_token": 1e-12}
    assert redaction.scrub(fractions) == fractions
    counts = {"total_tokens": int(NUMBER), "tokens": int(NUMBER), "pad_token_id": 151643, "session_id": 17}
    assert redaction.scrub(counts) == counts
    assert redaction.event("span", counts) is counts
    for _ in range(2):
        assert redaction.event("span", {"hf_token": 17})["hf_token"] == 17
        assert redaction.event("span", {"hf_token": int(NUMBER)})["hf_token"] == "***"


@pytest.mark.slow
@pytest.mark.parametrize("name", [*LIMITS, "policy_token_gap"])
@pytest.mark.parametrize("value", [1.0000002192887545, -0.00012345678901234567, 2.4e-7, math.nan, math.inf])
def test_a_metric_is_no_secret(name: str, value: float) -> None:
    """Not as a number, not written into a text, and not beside its published limit."""
    assert redaction.scrub({name: str(value)}) == {name: str(value)}
    assert redaction.text(f"{name}: {value}") == f"{name}: {value}"
    metrics = {name: {"value": 1.05, "limit": "at most 1.05 (NeMo-RL)"}}
    assert name not in LIMITS or redaction.scrub(metrics) == metrics


def test_every_name_of_a_secret_has_a_stem() -> None:
    """A text without a stem is not searched for names."""
    alternatives = re.sub(r"\([^)]*\)", "", secret_names._PARTS.pattern).split("|")
    words = {part for part in alternatives if part.isalpha()} - {"kubeconfig"}  # a path
    words |= secret_names._WORDS | secret_names._WEAK_WORDS | secret_names._SPECIAL
    words |= {"hf_token", "api_key", "github_pat", "smtp_pass", "session_id", "RAY_JOB_CONFIG_JSON_ENV_VAR", "db_pass"}
    words |= secret_assignments._VAGUE_NAMES
    assert not [word for word in words if not any(stem in word.lower() for stem in secret_names.STEMS)]
    assert {word for word in words if is_withheld(word)} == words


def is_withheld(name: str) -> bool:
    return VALUE not in redaction.text(f"{name}={VALUE}")
