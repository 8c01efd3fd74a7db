"""Secrets whose name is disguised, or told by their place: what is withheld, what stays."""

from __future__ import annotations

import base64
import json

import pytest

from probes import redaction
from probes.secret_disguises import undisguised

VALUE = "Zq7mKx93" + "vLw2Tn"
ENCODED = base64.b64encode(VALUE.encode()).decode()
BACKSLASH = "\\"

DISGUISED = [
    # colours, invisible and wide characters, escapes
    f"\x1b[1mpassword\x1b[0m={VALUE}",
    f"password=\x1b[31m'{VALUE}'\x1b[0m",
    f"\x1b]8;;x\x07pass\x1b]8;;\x07word: {VALUE}",
    f"pass\u200bword={VALUE}",
    f"pass\u00adword: {VALUE}",
    f"api\u2060_key={VALUE}",
    f"password\uff1a{VALUE}",
    f"\uff50\uff41\uff53\uff53\uff57\uff4f\uff52\uff44={VALUE}",
    f"password\u00a0=\u00a0{VALUE}",
    f'{{"\\u0070assword": "{VALUE}"}}',
    f'{{"\\\\u0070assword": "{VALUE}"}}',
    f'{{"pass\\u200bword": "{VALUE}"}}',
    f'{{"log": "\\u001b[1mpassword\\u001b[0m={VALUE}"}}',
    f"b'\\x70assword={VALUE}'",
    f"password&#61;{VALUE}",
    f"password&#x3d;{VALUE}",
    # lines that go on
    f"--password {BACKSLASH}\n  {VALUE}",
    f"--api-key {BACKSLASH}\r\n  {VALUE}",
    f"wandb login {BACKSLASH}\n{VALUE}",
    f"wandb login --relogin {BACKSLASH}\n  {VALUE}",
    f"docker login -u me {BACKSLASH}\n  -p {BACKSLASH}\n  {VALUE}",
    f"password = 'ab' {BACKSLASH}\n  '{VALUE}'",
    # other languages
    f"contraseña: {VALUE}",
    json.dumps({"contraseña": VALUE}),
    f"contrasena={VALUE}",
    f"mot de passe : {VALUE}",
    f"Passwort: {VALUE}",
    f"db_kennwort={VALUE}",
    f"密码: {VALUE}",
    f"密码：{VALUE}",
    f"密码为{VALUE}",
    f"パスワードは{VALUE}",
    f"пароль: {VALUE}",
    f"비밀번호: {VALUE}",
    f"senha={VALUE}",
    # names and programs
    f"SSHPASS={VALUE} sshpass -e ssh h",
    f"passcode={VALUE}",
    f"card.pin: {VALUE}",
    f"pin: {VALUE}",
    f"connect.sid={VALUE}",
    f"keytool -list -storepass {VALUE}",
    f"keytool -genkey -keypass {VALUE}",
    f"7z x -p{VALUE} a.7z",
    f"unrar x -p{VALUE} a.rar",
    f"<ns:apiKey>{VALUE}</ns:apiKey>",
    f'<password type="clear">{VALUE}</password>',
    f'Authorization: Digest username="me", realm="r", response="{VALUE}"',
    f"'Authorization': 'Digest username=\"me\", response=\"{VALUE}\", uri=\"/\"'",
    f"assert '{VALUE}' == cfg.api_key",
    f"AssertionError: assert \"{VALUE}\" != config.password",
    # told by their place
    f"user,password\nme,{VALUE}\nyou,{VALUE}x\n",
    f"user;api_key;quota\nme;{VALUE};3\n",
    f'"id","db_password"\n"1","{VALUE}"',
    f"host\tpasswd\nh1\t{VALUE}",
    f"apiVersion: v1\nkind: Secret\ndata:\n  tls: {ENCODED}\n",
    f"apiVersion: v1\ndata:\n  anything: {ENCODED}\n  more: |\n    {ENCODED}\nkind: Secret\n",
    f"kind: Secret\nstringData:\n  anything: {VALUE}\n",
    json.dumps({"kind": "Secret", "data": {"anything": ENCODED}}),
    json.dumps(json.dumps({"kind": "Secret", "data": {"anything": ENCODED}})),
    f"api_key\n  Input should be valid [type=string_type, input_value='{VALUE}', input_type=str]",
    repr(f"hub.token\n  Input should be a number [type=int, input_value='{VALUE}', input_type=str]"),
]  # fmt: skip


@pytest.mark.slow
@pytest.mark.parametrize("text", DISGUISED)
def test_a_disguised_secret_is_withheld(text: str) -> None:
    for around in (text, f"\n{text}", f"before\n{text}\nafter"):
        cleaned = redaction.text(around, 0)
        assert VALUE not in cleaned and ENCODED not in cleaned and redaction.WITHHELD in cleaned
        assert redaction.text(cleaned, 0) == cleaned


def test_values_without_their_text() -> None:
    secret = {"kind": "Secret", "metadata": {"name": "a"}, "data": {"tls": ENCODED}, "stringData": {"anything": VALUE}}
    hidden = redaction.scrub({"items": [secret]})["items"][0]
    assert (hidden["data"], hidden["stringData"]) == ({"tls": "***"}, {"anything": "***"})
    assert hidden["metadata"] == {"name": "a"}
    config = {"kind": "ConfigMap", "data": {"steps": "10"}}
    assert redaction.scrub(config) == config
    words = ["keytool", "-storepass", VALUE, "-list"]
    assert redaction.arguments(words) == ["keytool", "-storepass", "***", "-list"]
    assert redaction.arguments(["7z", "x", f"-p{VALUE}", "a.7z"]) == ["7z", "x", "-p***", "a.7z"]


HARMLESS = [
    "pin memory", "pin_memory: true", "pin_memory=False", "pin: disabled", "pin: 3", "a pinned tensor",
    "sid=17", "session 3: sid=12",
    "token ids: 5", "max_tokens=16", "passcode", "enter the passcode", "the passcode is wrong",
    "passcode required: true",
    "\x1b[32mINFO\x1b[0m step 3: max_tokens=512, loss=0.25",
    "\x1b[1meos_token_id\x1b[0m=151645",
    "模型：Qwen3，步数：12，最大长度＝512",
    "密码学：课程",
    "tokens／s：1234",
    "zero\u200bwidth",
    '{"text": "\\u4f60\\u597d, \\u00e9t\\u00e9", "max_tokens": 12}',
    '{"path": "C:\\\\users\\\\x41", "loss": 0.25}',
    "python train.py \\\n  --steps 10 \\\n  --max_new_tokens 512",
    "accelerate launch \\\r\n  train.py --pad_token '<pad>'",
    "step,loss,tokens\n1,0.5,512\n2,0.25,513",
    "step,eos_token,pad_token\n1,<|im_end|>,<pad>",
    "name,key\nloss,3",
    "prompt_key,tokens\nprompt,12",
    "kind: ConfigMap\ndata:\n  steps: 10\n",
    "kind: Pod\nspec:\n  data:\n    a: b\n",
    "max_tokens\n  Input should be valid [type=int_parsing, input_value='many', input_type=str]",
    "lr\n  Input should be a valid number [type=float, input_value='abc', input_type=str]",
    "assert 'Hello' == first_token",
    "assert 'abc' == config.name",
    "image digest sha256:9f86d081884c7d659a2feaa0c55ad015a3bf4f1b2b0b822cd15d6c15b0f00a08",
    "digest algorithm=sha256, bytes=12",
    "7z x archive.7z",
    "rar x -y a.rar",
    "passed in 3 s, compass=1, bypass=true, forward_pass=12 ms, encompasses",
    "<ns:loss>0.25</ns:loss>",
]  # fmt: skip


@pytest.mark.parametrize("text", HARMLESS)
def test_what_looks_like_a_disguise_stays(text: str) -> None:
    assert redaction.text(text, 0) == text
    assert redaction.text(f"before\n{text}\nafter", 0) == f"before\n{text}\nafter"


def test_a_text_without_a_disguise_is_the_same_object() -> None:
    for text in ("loss=0.25", "C:\\temp\\new", "été – µs ≠ →", "a\\\nb"):
        assert undisguised(text) is text or undisguised(text) == text


def test_continued_lines_stay_continued() -> None:
    for ending in ("\\\n", "\\\r\n"):
        text = f"python train.py {ending}  --api-key {{}} {ending} \t \t --steps 10"
        assert redaction.text(text.format(VALUE), 0) == text.format("***")
