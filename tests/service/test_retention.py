"""What a folder loses to its limits, and what it never loses."""

import os
import sqlite3
from contextlib import closing
from datetime import UTC, datetime, timedelta

import numpy as np
import pytest
from counting import calls_of

from ekya.config.fleet_sections import RetentionConfig
from ekya.core.records import LabelledBoxes
from ekya.core.units import StreamId
from ekya.results.storage.run_folder import RunFolder
from ekya.results.storage.run_state import ModelRow, StateStore
from ekya.service.retention import choose_surplus, collect_or_warn, collect_rows, remove_surplus
from ekya.service.run_folder_contents import Piece, PieceKind, pieces_of

CAM = StreamId("cam")
NOW = datetime(2026, 11, 25, 17, 30, tzinfo=UTC)
NOW_S = NOW.timestamp()
DAY_S = 86_400


def piece(days_old, size_bytes=0, kind=PieceKind.ANSWERS, needed=False):
    return Piece(kind, (), NOW_S - days_old * DAY_S, size_bytes, needed)


def removed(pieces, total_bytes=0, **limits):
    return choose_surplus(pieces, total_bytes, RetentionConfig(**limits), NOW_S)


def test_retention_removes_what_is_too_old():
    pieces = [piece(9), piece(8, needed=True), piece(7.5), piece(6.5)]
    assert removed(pieces).pieces == (pieces[0], pieces[2])


def test_retention_removes_the_oldest_until_the_rest_fits():
    pieces = [piece(3, 4 * 10**9), piece(2, 2 * 10**9), piece(1, 10**9)]
    done = removed(pieces, total_bytes=10 * 10**9, gigabytes=5)
    assert done.pieces == tuple(pieces[:2])
    assert done.removed_bytes == 6 * 10**9
    assert done.over_bytes == 0


def test_retention_says_how_much_too_large_the_rest_is():
    pieces = [piece(3, 10**9, needed=True), piece(2, 10**9)]
    done = removed(pieces, total_bytes=4 * 10**9, gigabytes=1)
    assert done.pieces == (pieces[1],)
    assert done.over_bytes == 2 * 10**9


def test_retention_leaves_a_temporary_file_to_its_writer():
    fresh, left = piece(0.01, 1, PieceKind.TEMPORARY), piece(0.1, 1, PieceKind.TEMPORARY)
    assert removed([left, fresh], total_bytes=10**12, gigabytes=1).pieces == (left,)


def test_time_for_retention_grows_with_the_number_of_hours():
    def remove_three_quarters_of(number):
        pieces = [piece(9 - 2 * one / number, 1) for one in range(number)]
        done = removed(pieces, total_bytes=10**9 + 3 * number // 4, days=8, gigabytes=1)
        assert done.pieces == tuple(pieces[: 3 * number // 4])

    assert calls_of(remove_three_quarters_of, 4_000) <= 4.1 * calls_of(remove_three_quarters_of, 1_000)


def aged(path, days, size_bytes=10):
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(bytes(size_bytes))
    os.utime(path, (NOW_S - days * DAY_S,) * 2)
    return path


def hour(days):
    return (NOW - timedelta(days=days)).strftime("%Y-%m-%dT%H")


@pytest.fixture
def folder(tmp_path):
    """Folder of a service that ran for ten days, and stopped now."""
    folder = RunFolder.create_numbered(tmp_path, "yard")
    for days in range(11):
        aged(folder.path / "predictions/cam" / f"{hour(days)}.parquet", days)
    aged(folder.path / "predictions/cam" / f"{hour(0)}.parts" / "000000.parquet", 0)
    aged(folder.path / "predictions/gone" / f"{hour(9)}.parquet", 9)
    aged(folder.path / "journal.jsonl", 9)
    aged(folder.path / "journal-000001.jsonl", 8)
    aged(folder.path / "journal-000002.jsonl", 8)
    for days in (1, 8):
        aged(folder.path / f"validations/cam/{days}.json", days)
    for camera in ("cam", "gone"):
        aged(folder.exemplars(StreamId(camera)), 10)
    for name in ("snapshot.json", "starts.jsonl", "fleet.yaml", "token", "logs/service.jsonl"):
        aged(folder.path / name, 10)
    aged(folder.path / "logs/service.jsonl.1", 8)
    aged(folder.path / "models/cam/.3.safetensors.12-34.tmp", 1)
    with StateStore(folder.state) as store:
        for version in range(4):
            aged(folder.path / f"models/cam/{version}.safetensors", 10 - version)
            path = f"models/cam/{version}.safetensors"
            store.put_model(ModelRow(CAM, version, version, path, None, 0.5, version))
    return folder


def names(folder):
    return {path.relative_to(folder.path).as_posix() for path in folder.path.rglob("*") if path.is_file()}


def test_retention_keeps_the_journal_since_the_snapshot(folder):
    """Starts that failed have begun further segments, which a start does not go on from."""
    (folder.path / "snapshot.json").write_text('{"format": 1, "segment": 1, "at_byte": 10}')
    remove_surplus(folder, RetentionConfig(days=7), NOW_S)
    journal = {name for name in names(folder) if name.startswith("journal")}
    assert journal == {"journal-000001.jsonl", "journal-000002.jsonl"}


def test_retention_of_a_service_keeps_what_a_start_needs(folder):
    before = names(folder)
    remove_surplus(folder, RetentionConfig(days=7), NOW_S)
    gone = before - names(folder)
    assert gone == {
        *(f"predictions/cam/{hour(days)}.parquet" for days in (8, 9, 10)),
        "journal.jsonl",
        "journal-000001.jsonl",
        "validations/cam/8.json",
        "logs/service.jsonl.1",
        "models/cam/.3.safetensors.12-34.tmp",
    }


def test_retention_under_a_tiny_limit_keeps_what_a_start_needs(folder):
    done = remove_surplus(folder, RetentionConfig(days=7, gigabytes=1e-9), NOW_S, with_models=True)
    assert {name for name in names(folder) if not name.startswith(("state", "models"))} == {
        f"predictions/cam/{hour(0)}.parquet",
        f"predictions/cam/{hour(0)}.parts/000000.parquet",
        f"predictions/gone/{hour(9)}.parquet",
        "journal-000002.jsonl",
        "exemplars/cam.safetensors",
        "exemplars/gone.safetensors",
        "snapshot.json",
        "starts.jsonl",
        "fleet.yaml",
        "token",
        "logs/service.jsonl",
    }
    assert done.over_bytes > 0


def test_retention_of_a_stopped_run_removes_weights(folder):
    remove_surplus(folder, RetentionConfig(models=2), NOW_S, with_models=True)
    assert {path.name for path in folder.models(CAM).iterdir()} == {"2.safetensors", "3.safetensors"}


def test_retention_that_only_looks_removes_nothing(folder):
    before = names(folder)
    looked = remove_surplus(folder, RetentionConfig(models=2), NOW_S, with_models=True, only_look=True)
    assert names(folder) == before
    assert looked.pieces == remove_surplus(folder, RetentionConfig(models=2), NOW_S, with_models=True).pieces


def test_retention_leaves_the_report_of_a_run_alone(tmp_path):
    folder = RunFolder.create_numbered(tmp_path, "monday")
    for name in ("predictions/cam.parquet", "reference/cam.parquet", "journal.jsonl", "summary.json"):
        aged(folder.path / name, 100)
    before = names(folder)
    remove_surplus(folder, RetentionConfig(gigabytes=1e-9), NOW_S, with_models=True)
    assert names(folder) == before


def put_windows(folder):
    with StateStore(folder.state) as store:
        for window in range(4):
            store.put_window(window, window * 10, window * 10 + 10)
            labelled = LabelledBoxes(np.array([window]), np.zeros((1, 4), np.float32))
            store.add_labels(CAM, window, "training", labelled, np.array([0]))


def test_retention_removes_labels_of_old_windows(folder):
    put_windows(folder)

    def unix_us(run_us):  # window 0 ended eight days ago, window 1 seven days less a second, ...
        return round((NOW_S - 8 * DAY_S + (run_us - 10) / 10 * (DAY_S + 1)) * 1e6)

    collect_rows(folder, RetentionConfig(days=7), unix_us, NOW_S)
    with StateStore(folder.state) as store:
        assert [window for window, _, _ in store.read_windows()] == [1, 2, 3]
        assert store.read_labels(CAM).frame.tolist() == [1, 2, 3]


def test_retention_keeps_the_last_window(folder):
    put_windows(folder)
    collect_rows(folder, RetentionConfig(days=7), lambda _: 0, NOW_S)
    with StateStore(folder.state) as store:
        assert [window for window, _, _ in store.read_windows()] == [3]


def test_retention_of_a_service_only_warns(tmp_path, caplog):
    folder = RunFolder.create_numbered(tmp_path, "yard")
    folder.state.write_bytes(b"this is no database, whatever its name says" * 100)
    collect_or_warn(folder, RetentionConfig(), lambda run_us: run_us, [CAM])
    assert "what is old cannot be removed" in caplog.text
    assert "not a database" in caplog.text


def test_retention_of_a_service_only_warns_of_a_database_that_is_held(folder, caplog, monkeypatch):
    monkeypatch.setattr("ekya.results.storage.run_state.WAIT_S", 0.1)
    with closing(sqlite3.connect(folder.state)) as other:
        other.execute("BEGIN EXCLUSIVE")
        collect_or_warn(folder, RetentionConfig(), lambda run_us: run_us, [CAM])
    assert "another process holds the database" in caplog.text


def test_pieces_of_a_damaged_hour_go_with_it(tmp_path):
    folder = RunFolder.create_numbered(tmp_path, "yard")
    aged(folder.path / "predictions/cam/2026-11-01T00.parquet", 1)
    aged(folder.path / "predictions/cam/2026-11-01T00.damaged", 1)
    aged(folder.path / "predictions/cam/2026-11-02T00.parquet", 1)
    first, second = pieces_of(folder)
    assert [path.suffix for path in first.paths] == [".damaged", ".parquet"]
    assert (first.needed, second.needed) == (False, True)
    assert first.unix_s == datetime(2026, 11, 1, 1, tzinfo=UTC).timestamp()


def test_retention_forgets_a_camera_that_left_the_service(folder):
    other = StreamId("other")
    days_ago = {"young": 6, "old": 8}

    def forget(age):
        then_us = round((NOW_S - days_ago[age] * DAY_S) * 1e6)
        remove_surplus(folder, RetentionConfig(days=7), NOW_S, streams=[other])
        collect_rows(folder, RetentionConfig(days=7), lambda _: then_us, NOW_S, streams=[other])

    forget("young")
    assert len(list(folder.models(CAM).glob("[0-9]*"))) == 4
    forget("old")
    assert names(folder).isdisjoint({f"predictions/gone/{hour(9)}.parquet", "models/cam/3.safetensors"})
    assert list(folder.models(CAM).iterdir()) == []
    with StateStore(folder.state) as store:
        assert store.read_all_models() == []


def exemplars(folder):
    return {path.stem for path in folder.path.glob("exemplars/*")}


def test_retention_removes_old_exemplars_of_a_camera_that_left_the_service(folder):
    young = StreamId("young")
    aged(folder.exemplars(young), 6)
    remove_surplus(folder, RetentionConfig(days=7), NOW_S, streams=[CAM])
    assert exemplars(folder) == {CAM, young}
    remove_surplus(folder, RetentionConfig(days=5), NOW_S, streams=[CAM])
    assert exemplars(folder) == {CAM}


def test_retention_under_a_tiny_limit_keeps_exemplars_of_cameras_in_the_service(folder):
    remove_surplus(folder, RetentionConfig(days=30, gigabytes=1e-9), NOW_S, streams=[CAM])
    assert exemplars(folder) == {CAM}
