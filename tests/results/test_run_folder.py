import contextlib
import errno
import os
import shutil
import sqlite3
from dataclasses import asdict
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq
import pytest

from ekya.core.configs import RetrainConfig
from ekya.core.errors import FullDiskError, UserError
from ekya.core.records import FramePrediction, FrameReference, LabelledBoxes
from ekya.core.units import ModelVersion, StreamId
from ekya.results.storage.run_folder import RunFolder, check_stream_name
from ekya.results.storage.run_state import ModelRow, StateStore, StreamRow
from ekya.results.storage.run_tables import (
    PREDICTIONS,
    REFERENCE,
    merge_parts,
    prediction_writer,
    read_predictions,
    read_reference,
    reference_writer,
    write_profiles,
)
from ekya.system.files import write_bytes_atomic, write_text_atomic

CAM = StreamId("cam-1")


def prediction(frame: int, window: int = 0, objects: int = 0, version: int = 0) -> FramePrediction:
    boxes = np.arange(4 * objects, dtype=np.float32).reshape(-1, 4) + frame
    return FramePrediction(
        frame=frame,
        t_us=frame * 100_000,
        window=window,
        analysed=objects > 0,
        answered_by=frame if objects else frame - 1,
        model_version=version,
        every=2,
        resolution=32,
        boxes=boxes,
        classes=np.arange(objects, dtype=np.int16),
        confidence=np.full(objects, 0.5, np.float32),
    )


def test_run_folder_taken_name_gets_a_number(tmp_path: Path) -> None:
    first = RunFolder.create_numbered(tmp_path, "demo")
    first.fleet.write_text("{}")
    second = RunFolder.create_numbered(tmp_path, "demo")
    assert (first.name, second.name) == ("demo", "demo-2")
    assert RunFolder.open(first.path) == first
    with pytest.raises(UserError, match=r"no fleet\.yaml"):
        RunFolder.open(second.path)


@pytest.mark.parametrize("name", ["", ".", "..", "a/b", "-x", "a\0b", "x" * 101])
def test_run_folder_impossible_name_is_refused(tmp_path: Path, name: str) -> None:
    with pytest.raises(UserError):
        RunFolder.create_numbered(tmp_path, name)
    with pytest.raises(UserError):
        check_stream_name(StreamId(name))
    assert list(tmp_path.iterdir()) == []


def test_run_folder_full_or_unusable_disk_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(UserError, match="not a folder"):
        RunFolder.create_numbered(tmp_path / "file" / "runs", "demo")
    usage = shutil.disk_usage(tmp_path)._replace(free=1000)
    monkeypatch.setattr(shutil, "disk_usage", lambda _: usage)
    with pytest.raises(UserError, match="MiB are free"):
        RunFolder.create_numbered(tmp_path / "runs", "demo")
    assert list((tmp_path / "runs").iterdir()) == []


@pytest.mark.parametrize(
    ("number", "words", "kind"),
    [
        (errno.ENOSPC, "disk is full", FullDiskError),
        (errno.EDQUOT, "quota is used up", FullDiskError),
        (errno.EACCES, "permission", UserError),
    ],
)
def test_atomic_write_failure_keeps_the_old_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: int, words: str, kind: type[UserError]
) -> None:
    path = tmp_path / "summary.json"
    write_text_atomic(path, "old")

    def refuse(_: int) -> None:
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(os, "fsync", refuse)
    with pytest.raises(UserError, match=words) as refused:
        write_bytes_atomic(path, b"new")
    assert refused.type is kind
    assert [(p.name, p.read_text()) for p in tmp_path.iterdir()] == [("summary.json", "old")]


def test_predictions_written_rows_are_read_back(tmp_path: Path) -> None:
    path = tmp_path / "cam-1.parquet"
    appender = prediction_writer(path)
    rows = [prediction(0, objects=3), prediction(1), prediction(2, window=1, objects=1, version=4)]
    for row in rows:
        appender.add_row(row)
    appender.flush()
    merge_parts(path, PREDICTIONS)
    columns = read_predictions(path)
    assert columns.offsets.tolist() == [0, 3, 3, 4]
    assert columns.boxes.dtype == np.float32
    np.testing.assert_array_equal(columns.boxes, np.concatenate([row.boxes for row in rows]))
    np.testing.assert_array_equal(columns.classes, [0, 1, 2, 0])
    np.testing.assert_array_equal(columns.confidence, np.full(4, 0.5))
    for name in (
        "frame",
        "t_us",
        "window",
        "analysed",
        "answered_by",
        "model_version",
        "every",
        "resolution",
    ):
        assert getattr(columns, name).tolist() == [getattr(row, name) for row in rows]


def test_predictions_crash_loses_only_open_window(tmp_path: Path) -> None:
    path = tmp_path / "cam-1.parquet"
    appender = prediction_writer(path)
    for frame in range(25):
        appender.add_row(prediction(frame, window=frame // 10))
    # No flush, as in a crash. Windows 0 and 1 are on disk even before a merge.
    assert read_predictions(path).frame.tolist() == list(range(20))
    resumed = prediction_writer(path)
    for frame in range(15, 30):
        resumed.add_row(prediction(frame, window=frame // 10, version=1))
    resumed.flush()
    merge_parts(path, PREDICTIONS)
    merged = read_predictions(path)
    assert merged.frame.tolist() == list(range(30))
    assert merged.model_version.tolist() == [0] * 15 + [1] * 15


def test_merge_parts_after_crash_in_merge_changes_nothing(tmp_path: Path) -> None:
    path = tmp_path / "cam-1.parquet"
    for version in range(3):
        appender = prediction_writer(path)
        for frame in range(version * 2, 6):
            appender.add_row(prediction(frame, objects=1, version=version))
        appender.flush()
    parts = path.with_suffix(".parts")
    kept = tmp_path / "kept"
    shutil.copytree(parts, kept)
    merge_parts(path, PREDICTIONS)
    content = path.read_bytes()
    assert not parts.exists()
    for survivors in (["000001.parquet", "000002.parquet"], ["000002.parquet"], []):
        parts.mkdir()
        for name in survivors:
            shutil.copy(kept / name, parts / name)
        merge_parts(path, PREDICTIONS)
        assert path.read_bytes() == content
    assert read_predictions(path).model_version.tolist() == [0, 0, 1, 1, 2, 2]


def test_reference_is_read_back_empty_stream_has_empty_file(tmp_path: Path) -> None:
    path = tmp_path / "cam-1.parquet"
    appender = reference_writer(path, rows_a_part=2)
    for frame in range(5):
        boxes = np.full((frame % 2, 4), frame, np.float32)
        ids = np.full(frame % 2, 7)
        appender.add_row(FrameReference(frame, frame * 10, boxes, ids.astype(np.int16), ids))
    appender.flush()
    merge_parts(path, REFERENCE)
    columns = read_reference(path)
    assert columns.offsets.tolist() == [0, 0, 1, 1, 2, 2]
    assert columns.boxes[:, 0].tolist() == [1, 3]
    assert columns.tracks.dtype == np.int64
    empty = tmp_path / "cam-2.parquet"
    merge_parts(empty, REFERENCE)
    assert read_reference(empty).boxes.shape == (0, 4)
    assert empty.is_file()


def test_predictions_damaged_or_foreign_file_is_named(tmp_path: Path) -> None:
    path = tmp_path / "cam-1.parquet"
    path.write_bytes(b"PAR1 and no more")
    with pytest.raises(UserError, match=r"cam-1\.parquet"):
        read_predictions(path)
    merge_parts(tmp_path / "other.parquet", REFERENCE)
    (tmp_path / "other.parquet").replace(path)
    with pytest.raises(UserError, match="columns"):
        read_predictions(path)


def test_profiles_have_one_row_for_each_retraining(tmp_path: Path) -> None:
    gamma = RetrainConfig(epochs=8, batch_size=16, head_width=64, trainable_blocks=1, data_fraction=0.5)
    row = {"window": 1, "stream": CAM, "kind": "retraining", **asdict(gamma), "predicted": 0.8}
    row |= {"achieved": None, "gpu_s": 2.5}
    write_profiles(tmp_path / "profiles.parquet", [row])
    (written,) = pq.read_table(tmp_path / "profiles.parquet").to_pylist()
    assert written == {**row, "every": None, "resolution": None}


def test_state_store_closed_and_opened_keeps_rows(tmp_path: Path) -> None:
    path = tmp_path / "state.sqlite"
    gamma = RetrainConfig(epochs=8, batch_size=16, head_width=0, trainable_blocks=1, data_fraction=0.5)
    base = ModelRow(CAM, ModelVersion(0), 0, "models/cam-1/0.safetensors", None, None, 0)
    second = ModelRow(CAM, ModelVersion(1), 1, "models/cam-1/1.safetensors", gamma, 0.75, 31_000_000)
    with StateStore(path) as store:
        store.put_stream(StreamRow(CAM))
        store.put_stream(StreamRow(CAM, decoded=10, damaged=1, set_aside="died three times"))
        store.put_window(0, 0, 30_000_000)
        store.put_model(second)
        store.put_model(base)
    with StateStore(path) as store:
        assert store.read_streams() == [StreamRow(CAM, 10, 1, "died three times")]
        assert store.read_models(CAM) == [base, second]
    with contextlib.closing(sqlite3.connect(path)) as connection:
        assert connection.execute("SELECT * FROM windows").fetchall() == [(0, 0, 30_000_000)]


def test_state_store_labelled_returns_labels_of_models(tmp_path: Path) -> None:
    def at(*frames: int) -> LabelledBoxes:
        return LabelledBoxes(np.array(frames), np.full((len(frames), 4), 0.1, np.float32))

    with StateStore(tmp_path / "state.sqlite") as store:
        store.add_labels(CAM, 1, "training", at(5, 3), np.array([0, 1]))
        store.add_labels(CAM, 1, "training", at(5), np.array([0]))  # labelled again after a resume
        store.add_labels(CAM, 2, "validation", at(9), np.array([2]))
        store.add_labels(StreamId("cam-2"), 2, "training", at(12), np.array([2]))
        labelled = store.read_labels(CAM)
        assert labelled.frame.tolist() == [3, 5, 9]
        np.testing.assert_array_equal(labelled.boxes, np.full((3, 4), 0.1, np.float32))
        assert store.read_labels(StreamId("cam-3")).boxes.shape == (0, 4)
        with pytest.raises(sqlite3.IntegrityError):
            store.add_labels(CAM, 1, "testing", at(1), np.array([0]))


def test_state_store_on_a_full_disk_says_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    connect = sqlite3.connect

    def with_little_room(path: Path, **options: float) -> sqlite3.Connection:
        connection = connect(path, **options)
        connection.execute("PRAGMA max_page_count = 10")  # full in the same way as a disk
        return connection

    monkeypatch.setattr(sqlite3, "connect", with_little_room)
    with StateStore(tmp_path / "state.sqlite") as store, pytest.raises(FullDiskError, match="disk is full"):
        store.put_stream(StreamRow(CAM, set_aside="why " * 10_000))


def test_state_store_unusable_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="cannot be opened"):
        StateStore(tmp_path / "none" / "state.sqlite")
    (tmp_path / "state.sqlite").write_text("this is not a database, " * 100)
    with pytest.raises(UserError, match="not a database"):
        StateStore(tmp_path / "state.sqlite")
