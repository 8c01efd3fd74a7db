"""The scrubber by itself: what it takes out, what it leaves, that it settles in one go."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tomllib

import pytest
from hypothesis import given
from hypothesis import strategies as st
from secret_catalogue import HARMLESS, PLANTED, Planted

from probes import redaction
from probes.secret_names import is_secret


@pytest.mark.slow
@pytest.mark.parametrize("planted", PLANTED, ids=lambda one: one.kind)
def test_a_planted_secret_leaves_every_text(planted: Planted) -> None:
    for text in (planted.text, f"before {planted.text}", f"RuntimeError: {planted.text}\nafter", f"({planted.text})"):
        shown = redaction.text(text)
        assert planted.value not in shown, shown
        assert redaction.WITHHELD in shown or "login" in planted.kind or "://" in text
    assert redaction.text(f"keep this, {planted.text}").startswith("keep this, ")


def test_the_catalogue_is_large_enough_and_unlike() -> None:
    assert len(PLANTED) >= 200
    assert len({one.value for one in PLANTED}) == len({one.kind for one in PLANTED}) == len(PLANTED)


@pytest.mark.slow
@pytest.mark.parametrize("text", HARMLESS)
def test_what_a_diagnosis_needs_stays(text: str) -> None:
    assert redaction.text(text) == text
    assert redaction.text(f"in step 3, {text}, rank 1") == f"in step 3, {text}, rank 1"
    if text != "--token is missing":  # a sentence, and no command line
        assert redaction.line(text.split(" ")) == text


@pytest.mark.slow
@pytest.mark.parametrize("planted", PLANTED, ids=lambda one: one.kind)
def test_a_planted_secret_leaves_a_command_line(planted: Planted) -> None:
    shown = redaction.arguments(["python", "train.py", planted.text, "--steps", "10"])
    assert planted.value not in " ".join(shown)
    assert shown[:2] == ["python", "train.py"] and shown[-2:] == ["--steps", "10"]
    split = redaction.line(["python", "train.py", *planted.text.split(" "), "--steps", "10"])
    assert planted.value not in split and split.startswith("python train.py ")
    assert redaction.text(" ".join(shown)) == redaction.line(shown) == " ".join(shown)


def test_configurations_keep_their_form() -> None:
    secret = PLANTED[0].value
    config = {"a": {"hub": [{"api_key": secret, "lr": 1e-5}]}, "max_tokens": 512, "secrets": {"x": secret}, "n": None}
    wanted = {"a": {"hub": [{"api_key": "***", "lr": 1e-5}]}, "max_tokens": 512, "secrets": "***", "n": None}
    assert redaction.scrub(config) == wanted
    assert redaction.scrub({"username": "me", "key": secret}) == {"username": "me", "key": "***"}
    assert redaction.scrub({"key": "prompt", "value": 3}) == {"key": "prompt", "value": 3}
    assert json.loads(redaction.text(json.dumps({"token": secret, "k": "v"}))) == {"token": "***", "k": "v"}
    assert redaction.text(f"hub:\n  token: {secret}\n  lr: 1\n") == "hub:\n  token: ***\n  lr: 1\n"
    assert tomllib.loads(redaction.text(f'token = "{secret}"\nlr = 1\n')) == {"token": "***", "lr": 1}


@pytest.mark.parametrize(
    "name",
    [
        "HF_TOKEN",
        "hf-token",
        "hfToken",
        "hftoken",
        "HF_TOKENS",
        "WANDB_API_KEY",
        "wandb_key",
        "MY_SECRET_THING",
        "PGPASSWORD",
        "MYSQL_PWD",
        "REDISCLI_AUTH",
        "GITHUB_PAT",
        "SMTP_PASS",
        "AWS_SECRET_ACCESS_KEY",
        "AWS_ACCESS_KEY_ID",
        "DB_DSN",
        "token",
        "SLACK_WEBHOOK_URL",
        "AZURE_OPENAI_KEY",
        "openai_key_2",
        "ssh_key",
        "X-Amz-Security-Token",
        "sessionCookie",
        "client_secret",
        "RAY_AUTH_TOKEN",
        "use_wandb",
        "trainer.hub.access_token",
        "NGC_CLI_API_KEY",
        "private.key",
        "kaggle_key",
        "RAY_JOB_CONFIG_JSON_ENV_VAR",
    ],
)
def test_names_of_secrets(name: str) -> None:
    assert is_secret(name) and is_secret(f"--{name}") and is_secret(f"trainer.{name}")


@pytest.mark.parametrize(
    "name",
    [
        "PWD",
        "OLDPWD",
        "max_tokens",
        "n_tokens",
        "eos_token_id",
        "pad_token",
        "tokenizer",
        "TOKENIZERS_PARALLELISM",
        "token_ids",
        "key",
        "keys",
        "num_key_value_heads",
        "prompt_key",
        "restore-keys",
        "input_key",
        "k_proj",
        "key_value_cache",
        "position",
        "compat",
        "author",
        "passed",
        "bypass",
        "forward_pass",
        "sglang",
        "monkey",
        "keyword",
        "authoritative",
        "token_level_scores",
        "stop_token_ids",
        "cache_salt",
        "pattern",
    ],
)
def test_names_of_other_things(name: str) -> None:
    assert not is_secret(name) and not is_secret(f"--{name}") and not is_secret(f"trainer.{name}")


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ("HF_TOKEN => Zq7hunter2Xw9", "HF_TOKEN => ***"),
        ('"hf_token" => "Zq7hunter2Xw9"', '"hf_token" => "***"'),
        ('if password == "Zq7hunter2Xw9"', 'if password == "***"'),
        ("api_key := Zq7hunter2Xw9", "api_key := ***"),
        ("<password>Zq7hunter2Xw9</password>", "<password>***</password>"),
        ("<hub><hf_token>Zq7hunter2Xw9</hf_token></hub>", "<hub><hf_token>***</hf_token></hub>"),
        ("http -a user:Zq7hunter2Xw9 GET /x", "http -a *** GET /x"),
        ("<answer>42 tokens</answer>", "<answer>42 tokens</answer>"),
        ("pad_token => <pad>, max_tokens == 512", "pad_token => <pad>, max_tokens == 512"),
    ],
)
def test_a_secret_behind_another_sign_than_a_single_one(before: str, after: str) -> None:
    assert redaction.text(before) == after
    assert redaction.text(after) == after


def test_the_value_of_a_secret_variable_is_withheld_wherever_it_appears() -> None:
    value = "Zx9-plain/looking+value"
    assert value in redaction.text(f"the server says {value}")
    redaction.learn({"MY_API_KEY": value, "OTHER_TOKEN": "disabled", "SSL_KEY": os.devnull, "DB_PASSWORD": "20261123"})
    assert redaction.text(f"the server says {value}!") == "the server says ***!"
    assert redaction.text("https://host/?q=Zx9-plain%2Flooking%2Bvalue") == "https://host/?q=***"
    assert redaction.text(f"disabled, {os.devnull}, 20261123") == f"disabled, {os.devnull}, 20261123"


def test_the_value_of_a_secret_option_is_withheld_elsewhere() -> None:
    assert redaction.arguments(["x", "--use_wandb", "Qq77aaTTzz"]) == ["x", "--use_wandb", "***"]
    assert redaction.text("cannot log in as Qq77aaTTzz") == "cannot log in as ***"


def test_another_processs_command_line_of_login_programs() -> None:
    assert redaction.arguments(["docker", "login", "-u", "me", "-p", "pw"]) == [
        "docker",
        "login",
        "-u",
        "me",
        "-p",
        "***",
    ]
    assert redaction.arguments(["docker", "run", "-p", "80:80", "x"]) == ["docker", "run", "-p", "80:80", "x"]
    assert redaction.arguments(["mysql", "-ppw", "db"]) == ["mysql", "-p***", "db"]
    assert redaction.arguments(["bash", "-c", "curl -u a:b x; y --password c"])[2] == "curl -u *** x; y --password ***"


# --- properties

PIECES = st.sampled_from(
    [
        "token",
        "api_key",
        "=",
        ":",
        " ",
        '"',
        "'",
        "\\",
        "@",
        "://",
        "hf_",
        "sk-",
        "a1",
        "--",
        "-",
        "{",
        "}",
        "[",
        "]",
        "&",
        "?",
        "***",
        "\n",
        "Bearer ",
        "-----BEGIN PRIVATE KEY-----",
        "-----END PRIVATE KEY-----",
        "password",
        "eyJ",
        ".",
        "12",
        "Error: ",
        "x" * 30,
    ]
)
TEXTS = st.text(max_size=80) | st.lists(PIECES, max_size=25).map("".join)


@given(TEXTS)
def test_scrubbing_twice_is_scrubbing_once(text: str) -> None:
    once = redaction.text(text, 0)
    assert redaction.text(once, 0) == once
    once.encode()
    assert redaction.arguments(redaction.arguments(text.split(" "))) == redaction.arguments(text.split(" "))


@given(
    st.lists(
        st.sampled_from(["step", "rank", "of", "the", "group", "loss", "0.25", "17", "(actor)", "waits", "for"]),
        max_size=40,
    )
)
def test_text_without_secrets_is_unchanged(words: list[str]) -> None:
    text = " ".join(words)
    assert redaction.text(text, 0) == text and redaction.arguments(words) == words
    assert redaction.scrub({"a": words, "b": (text, 1.5)}) == {"a": words, "b": (text, 1.5)}


@pytest.mark.slow
@given(TEXTS, st.sampled_from(PLANTED), TEXTS)
def test_a_secret_on_a_line_of_its_own_is_found(before: str, planted: Planted, after: str) -> None:
    assert planted.value not in redaction.text(f"{before}\n{planted.text}\n{after}", 0)


@pytest.mark.slow
def test_the_probes_import_it_with_the_standard_library_alone() -> None:
    code = (
        "import sys, probes.redaction; print({'harness', 'reports', 'numpy'} & {m.split('.')[0] for m in sys.modules})"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=os.getcwd())
    assert done.stdout.strip() == "set()", done.stderr


def test_fields_of_an_event() -> None:
    """Seen twice, since the second time they are looked up: withheld as before, and nothing else touched."""
    import numpy as np

    array = np.arange(3)
    plain = {
        "step": 3,
        "tokens": 512,
        "name": "generate",
        "lists": [1, 2],
        "nan": float("nan"),
        "array": array,
        "all": [array],
    }
    secret = PLANTED[0].value
    for _ in range(2):
        assert redaction.event("span", plain) is plain
        shown = redaction.event(
            "span", {**plain, "api_key": secret, "pin_password": 1234, "url": f"http://a:{secret}@h"}
        )
        assert (shown["api_key"], shown["pin_password"], shown["url"]) == ("***", "***", "http://h")
        assert shown["array"] is array and shown["tokens"] == 512
        assert redaction.event("span", {"tokens": secret, "name": "generate"}) == {"tokens": "***", "name": "generate"}
    redaction.learn({"MY_TOKEN": "learned-Later9"})
    assert redaction.event("span", {"name": "learned-Later9"}) == {"name": "***"}


def _nested(depth: int, leaf: object) -> object:
    for level in range(depth):
        leaf = {"next": leaf} if level % 2 else [leaf, level]
    return leaf


@pytest.mark.parametrize("depth", [500, 20_000])
def test_a_value_of_any_depth_is_scrubbed(depth: int) -> None:
    shown = redaction.scrub(_nested(depth, {"hf_token": "Zq7hunter2Xw9", "lr": 1}))
    for _ in range(depth):
        if isinstance(shown, str):
            break
        shown = shown["next"] if isinstance(shown, dict) else shown[0]
    assert shown in ({"hf_token": "***", "lr": 1}, redaction.TOO_DEEP)


def test_what_is_not_too_deep_is_kept() -> None:
    assert redaction.scrub(_nested(60, {"hf_token": "Zq7hunter2Xw9", "lr": 1})) == _nested(
        60, {"hf_token": "***", "lr": 1}
    )


@pytest.mark.parametrize("before", ["critic-", "actor_", "a-b_"])
def test_a_token_in_a_name_of_a_file_is_withheld_wherever_it_stands(before: str) -> None:
    token = "hf_" + "aB3" * 11
    assert redaction.file_name(f"events/{before}{token}-4010.jsonl") == f"events/{before}***-4010.jsonl"
    for harmless in ("events/actor-0-123.jsonl", "tokens/rollout_sglang-0-1.bin", "checkpoints/hf_model.safetensors"):
        assert redaction.file_name(harmless) == harmless


@pytest.mark.parametrize("text", ["api_key=os.environ.get('HF_TOKEN')", "hf_token = os.getenv('hf_token')"])
def test_where_a_secret_is_looked_up_is_no_secret(text: str) -> None:
    assert redaction.text(text) == text


@pytest.mark.parametrize(
    "value",
    [
        {"key": "HF_TOKEN", "value": "Zq7hunter2Xw9"},
        {"kty": "RSA", "d": "Zq7hunter2Xw9", "n": 3},
        {"session_id": "Zq7hunter2Xw9"},
    ],
)
def test_a_secret_that_its_neighbour_names_leaves_a_configuration(value: dict[str, object]) -> None:
    assert "Zq7hunter2Xw9" not in str(redaction.scrub(value)) and "***" in redaction.scrub(value).values()


def test_a_session_that_is_a_number_stays() -> None:
    assert redaction.scrub({"session_id": 17, "key": "prompt", "value": 3}) == {
        "session_id": 17, "key": "prompt", "value": 3
    }  # fmt: skip


@pytest.mark.parametrize(
    "text",
    ["machine h\nlogin me\npassword hunterhunter\n", "key: MC4CAQAwBQYDK2VwBCIEI" + "hunterhunter" * 4],
)
def test_forms_that_stand_alone_are_withheld(text: str) -> None:
    assert "hunterhunter" not in redaction.text(text)


NAMES = st.sampled_from(["token", "name", "value", "key", "username", "kind", "file", "line", "api_key", "data", "kty"])
LEAVES = st.one_of(
    st.sampled_from(
        [True, False, 0, 1, 1.0, None, "Secret", "HF_TOKEN", "train.py", *(one.value for one in PLANTED[:9])]
    ),
    st.integers(),
    st.text(max_size=8),
)
RECORDS = st.recursive(
    st.dictionaries(NAMES, LEAVES, max_size=5),
    lambda inner: st.dictionaries(NAMES, st.one_of(inner, st.lists(inner, max_size=3)), max_size=4),
    max_leaves=12,
)


@given(st.lists(RECORDS, max_size=4), st.booleans())
def test_a_record_that_was_met_before_is_shown_as_a_new_one(records: list[dict[str, object]], keep: bool) -> None:
    """Of types as well: True is shown as True where 1 was met before."""

    def shown(record: dict[str, object]) -> str:
        return repr(redaction.scrub(record) if keep else redaction.fields(record))

    def alone(record: dict[str, object]) -> str:
        redaction._flat.clear()
        redaction._named.cache_clear()
        return shown(record)

    expected = [alone(record) for record in records]
    assert [shown(record) for record in (*records, *records)] == expected * 2


def test_a_record_is_not_shown_as_before_once_a_secret_is_known() -> None:
    record = {"file": "h8Wq2-unlike-anything"}
    assert redaction.scrub(record) == record
    redaction.learn({"MY_TOKEN": record["file"]})
    assert redaction.scrub(record) == {"file": redaction.WITHHELD}


def test_a_record_that_its_caller_changes_does_not_change_the_next_one() -> None:
    redaction.scrub({"file": "a.py"})["file"] = "b.py"
    assert redaction.scrub({"file": "a.py"}) == {"file": "a.py"}
