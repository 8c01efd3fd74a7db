"""Secrets in flight recorder dumps and in engines' logs: nothing that is made of them shows one."""

from __future__ import annotations

import json
import os
import pickle
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from secret_catalogue import PLANTED
from test_secrets_artefacts import SENTENCES, assert_clean, leaks

from harness.triage.collect import recorder, redact
from harness.triage.directory import RECORDER
from harness.triage.flight.decode import decode
from harness.triage.flight.pickling import torch_pickle
from harness.triage.flight.synthesis import encoded, simulate
from probes import install
from scenarios.engines import last_words

CLEAN = {form: encoded(simulate(4, 200, tensor_parallel=2), 1, form) for form in ("pickle", "json")}


def entry(number: int, sentence: str) -> dict[str, Any]:
    """An operation whose group, name and frames say a secret."""
    frames = (("login", f"/home/me/{sentence}", 3), (sentence, "train.py", number))
    return {
        "record_id": number, "process_group": ("0", sentence), "collective_seq_id": number, "p2p_seq_id": 0,
        "profiling_name": "nccl:all_reduce", "input_sizes": ((4,),), "output_sizes": ((4,),), "input_dtypes": ["Float"],
        "output_dtypes": ["Float"], "time_created_ns": 1, "state": "completed", "retired": True, "timeout_ms": 600_000,
        "is_p2p": False, "pg_id": 0, "frames": frames,
    }  # fmt: skip


DUMP = {
    "version": "2.10",
    "pg_config": {sentence: {"name": sentence, "desc": sentence, "ranks": "[0, 1]"} for sentence in SENTENCES},
    "entries": [entry(number, sentence) for number, sentence in enumerate(SENTENCES)],
}


def forms() -> dict[str, bytes]:
    said = torch_pickle(DUMP)
    return {"json": json.dumps(DUMP).encode(), "torch": said, "python": pickle.dumps(pickle.loads(said), protocol=4)}


@pytest.mark.slow
@pytest.mark.parametrize("form", ["json", "torch", "python"])
def test_a_dump_is_scrubbed_and_still_one(form: str) -> None:
    data = forms()[form]
    assert len(leaks(data)) >= len(PLANTED) - 3, "the trial plants nothing"  # some are escaped in JSON
    shown = redact.dump(data)
    assert not leaks(shown)
    flight = decode(shown, "rank0")
    assert len(flight) == len(SENTENCES) and flight.kinds[0].op == "all_reduce" and flight.version == "2.10"


DUMP_OF_NOTHING = {"version": "2.10", "pg_config": {}, "entries": []}


@pytest.mark.parametrize("encode", [
    lambda dump: json.dumps(dump, indent=1).encode(), lambda dump: json.dumps(dump).encode(), torch_pickle,
    lambda dump: pickle.dumps(dump, protocol=2), lambda dump: pickle.dumps(dump, protocol=5),
])  # fmt: skip
def test_a_text_behind_the_name_of_a_secret_leaves_a_dump(encode: Callable[[Any], bytes]) -> None:
    kept = {"max_tokens": "many", "state": "completed", "pad_token": "<pad>", "HF_TOKEN_FILE": "/a/b"}
    data = encode({**DUMP_OF_NOTHING, "HF_TOKEN": "plainhunter", "more": {"db_password": "hunterhunter", **kept}})
    cleaned = redact.dump(data)
    assert b"plainhunter" not in cleaned and b"hunterhunter" not in cleaned
    assert cleaned.count(b"*") >= 6 and all(value.encode() in cleaned for value in kept.values())
    assert decode(cleaned, "rank0").version == "2.10"


@pytest.mark.parametrize("form", ["pickle", "json"])
def test_a_dump_without_secrets_stays_as_it_came(form: str) -> None:
    assert redact.dump(CLEAN[form]) == CLEAN[form]


@pytest.mark.parametrize(
    "data", [b"", b"{", b'{"a": "cut', b"\x80", b"\x80\x02X", b"\x80\x02X\xff\xff\xff\xff", b"\x80\x8c"]
)
def test_a_damaged_dump_stays_as_it_came(data: bytes) -> None:
    assert redact.dump(data) == data


@pytest.mark.by_day(3)
@pytest.mark.slow
@pytest.mark.parametrize(
    "unit", [b'"', b'\\"', b'"a', b"\x80X\x00\x10\x00\x00", b"\x80X\x40\x00\x00\x00", b"\x80\x8c\xff", b"\x80\x8c\x8c"]
)
def test_the_time_grows_with_the_size_and_no_faster(unit: bytes) -> None:
    def spent(size: int) -> float:
        best = float("inf")
        for _ in range(3):
            began = time.process_time()
            redact.dump(unit[:1] + unit * (size // len(unit)))
            best = min(best, time.process_time() - began)
        return best

    assert spent(400_000) <= 8 * max(spent(100_000), 0.002)


@pytest.mark.slow
def test_dumps_in_evidence(tmp_path: Path) -> None:
    """Files that NCCL wrote, of a process and of ranks that nobody saw."""
    environ = {"TORCH_FR_DUMP_TEMP_FILE": f"{tmp_path}/trace_"}
    out = tmp_path / "evidence"
    for rank, data in enumerate(forms().values()):
        (tmp_path / f"trace_{rank}").write_bytes(data)
    assert recorder.from_file(environ, 0, "h", os.getpid(), out)[0].endswith(".json")
    assert len(recorder.of_others(environ, [1, 2], recorder.Since(0, 0), out)[0]) == 2
    assert_clean(out / RECORDER, 3)


@pytest.mark.slow
def test_the_log_of_an_engine(tmp_path: Path) -> None:
    """What is quoted of it, in a recording and in the output of a program that the lab keeps."""
    log = tmp_path / "log" / "worker.err"
    log.parent.mkdir()
    run = install.start(tmp_path / "run", role="rollout")
    for sentence in SENTENCES:
        quoted = sentence if "\n" in sentence else " ".join(sentence.split())
        log.write_text(f"INFO starting with {sentence}\nValueError: refused: {quoted}\n")
        for ended in (1, -9):
            said = last_words.root_cause({log: 0}, ended)
            assert said
            run.event("engine_died", pid=1, message=f"vllm: engine process 1 died: {said}")
    run.close()
    log.write_text("".join(f"ERROR {sentence}\n" for sentence in SENTENCES))
    redact.log(log)
    assert log.read_text().count("ERROR") > len(SENTENCES) / 2
    assert_clean(tmp_path, 2)
