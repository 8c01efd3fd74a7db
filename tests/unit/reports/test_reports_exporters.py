"""A run's metrics in the files of a tracker, read back by the tracker's own package."""

from __future__ import annotations

import math
import struct
from collections.abc import Iterator
from pathlib import Path

import pytest

from harness import cli
from probes.format import write_manifest
from probes.install import start
from reports import exporters
from reports.run_model import RecordedRun

STEPS = [{"reward_mean": 0.25, "tokens": 7, "kl": math.nan, "note": "text"}, {"reward_mean": 0.5, "kl": math.inf}]


@pytest.fixture
def run(tmp_path: Path) -> Path:
    folder = tmp_path / "run"
    write_manifest(folder, {"command": "harness run ppo-tiny", "backend": "hf"})
    with start(folder, role="trainer") as recorder:
        for step, metrics in enumerate(STEPS):
            recorder.event("step", step=step, metrics=metrics)
    return folder


def export(tracker: str, run: Path, out: Path) -> None:
    assert cli.main(["report", str(run), "--export", tracker, "--out", str(out)]) == 0


def test_the_numbers_of_each_step(run: Path) -> None:
    first, second = exporters.scalars(RecordedRun.of(run))
    assert first[0] == 0 and set(first[1]) == {"reward_mean", "tokens", "kl"} and math.isnan(first[1]["kl"])
    assert second == (1, {"reward_mean": 0.5, "kl": math.inf})


@pytest.mark.slow
def test_tensorboard(run: Path, tmp_path: Path) -> None:
    reading = pytest.importorskip("tensorboard.backend.event_processing.event_accumulator")
    export("tensorboard", run, tmp_path / "out")
    events = reading.EventAccumulator(str(tmp_path / "out"))
    events.Reload()
    assert set(events.Tags()["scalars"]) == {"reward_mean", "tokens", "kl"}
    assert [(one.step, one.value) for one in events.Scalars("reward_mean")] == [(0, 0.25), (1, 0.5)]
    assert math.isnan(events.Scalars("kl")[0].value) and events.Scalars("kl")[1].value == math.inf


def test_mlflow(run: Path, tmp_path: Path) -> None:
    mlflow = pytest.importorskip("mlflow")
    pytest.importorskip("sqlalchemy")
    export("mlflow", run, tmp_path / "out")
    client = mlflow.MlflowClient(tracking_uri=f"sqlite:///{tmp_path}/out/mlflow.db")
    experiment = client.get_experiment_by_name(exporters.PROJECT)
    [found] = client.search_runs([experiment.experiment_id])
    assert found.data.params == {"backend": "hf", "command": "harness run ppo-tiny"} and found.info.status == "FINISHED"
    history = client.get_metric_history(found.info.run_id, "reward_mean")
    assert [(one.step, one.value) for one in history] == [(0, 0.25), (1, 0.5)]
    assert math.isnan(client.get_metric_history(found.info.run_id, "kl")[0].value)


def wandb_records(file: Path) -> Iterator[bytes]:
    """The records of a `.wandb` file below one block of 32 KiB: a log of LevelDB, behind seven bytes of its own."""
    data, at = file.read_bytes(), 7
    assert data.startswith(b":W&B") and len(data) < 32768
    while at + 7 <= len(data):
        _, length, kind = struct.unpack_from("<IHB", data, at)  # checksum, length, 1: whole
        assert kind == 1
        yield data[at + 7 : at + 7 + length]
        at += 7 + length


@pytest.mark.slow
def test_wandb(run: Path, tmp_path: Path) -> None:
    pytest.importorskip("wandb")
    from wandb.proto.wandb_internal_pb2 import Record

    export("wandb", run, tmp_path / "out")
    [file] = (tmp_path / "out").rglob("*.wandb")
    assert "offline-run" in file.parent.name
    records = [Record.FromString(data) for data in wandb_records(file)]
    rows = [
        {item.key or "/".join(item.nested_key): item.value_json for item in record.history.item}
        for record in records
        if record.WhichOneof("record_type") == "history"
    ]
    assert [row["reward_mean"] for row in rows] == ["0.25", "0.5"]
    assert [row["_step"] for row in rows] == ["0", "1"] and rows[0]["kl"] in ("NaN", '"NaN"')


@pytest.mark.slow
@pytest.mark.parametrize(
    ("words", "told"),
    [
        (["--export", "tensorboard"], "--export TRACKER and --out DIR belong together"),
        (["--out", "x"], "--export TRACKER and --out DIR belong together"),
        (
            ["--export", "neptune", "--out", "x"],
            "there is no tracker 'neptune': it is one of mlflow, tensorboard, wandb",
        ),
        (["--export", "tensorboard", "--out", "."], ". is not empty; an export never mixes with another"),
    ],
)
def test_what_cannot_be_exported(
    run: Path, words: list[str], told: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(run)
    assert cli.main(["report", str(run), *words]) == 2
    assert told in capsys.readouterr().err and not (run / "x").exists()


@pytest.mark.parametrize(
    ("words", "fix"),
    [
        (["--export", "mlflw", "--out", "x"], "--export mlflow --out x"),
        (["--export", "mlflow"], "--export mlflow --out DIR"),
        (["--export", "mlflow", "--out", "x"], "--export mlflow --out x"),
    ],
)
def test_all_that_is_wrong_with_an_export_is_mended_by_a_single_fix(
    run: Path, tmp_path: Path, words: list[str], fix: str, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "pair").mkdir()
    run.rename(tmp_path / "pair" / "baseline")
    assert cli.main(["report", str(tmp_path / "pair"), *words]) == 2
    assert f"fix: harness report {tmp_path}/pair/baseline {fix}\n" in capsys.readouterr().err


def test_a_pair_is_not_exported_and_its_sides_are_named(
    run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    pair = tmp_path / "pair"
    pair.mkdir()
    run.rename(pair / "baseline")
    assert cli.main(["report", str(pair), "--export", "mlflow", "--out", str(tmp_path / "x")]) == 2
    told = capsys.readouterr().err
    assert "run.json" in told and f"report {pair}/baseline --export" in told
