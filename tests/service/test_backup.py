"""A backup holds what a start needs and no secret, and only a whole one is restored."""

import gzip
import io
import json
import os
import shutil
import sqlite3
import tarfile
from contextlib import closing

import pytest
from service_folder import CAM, a_service, names, put, steps

from ekya.config.fleet_sections import RetentionConfig
from ekya.core.errors import UserError
from ekya.results.storage.run_folder import RunFolder
from ekya.results.storage.run_state import StateStore
from ekya.service import backup as backup_module
from ekya.service.archive import ArchiveWriter
from ekya.service.backup import missing_variables, other_sources, read_facts, restore_backup, write_backup
from ekya.service.retention import remove_surplus
from ekya.service.run_folder_contents import pieces_of

TAKEN = {
    "fleet.yaml",
    "starts.jsonl",
    "snapshot.json",
    "history.json",
    "journal-000002.jsonl",
    "state.sqlite",
    f"models/{CAM}/3.safetensors",
    f"models/{CAM}/4.safetensors",
    f"predictions/{CAM}/2026-11-25T17.parts/000000000000-000000000009.parquet",
    "answers/broker.json",
}


@pytest.fixture
def folder(tmp_path):
    return a_service(tmp_path / "runs")


def restored_copy(folder, tmp_path):
    """Writes a backup of a folder, and restores it under another name."""
    write_backup(folder, tmp_path / "yard.tar.gz")
    return restore_backup(tmp_path / "yard.tar.gz", tmp_path, "copy")


@pytest.mark.parametrize("suffix", ["tar.zst", "tar.gz"])
def test_backup_restores_what_a_start_needs(folder, tmp_path, suffix):
    out = tmp_path / f"yard.{suffix}"
    write_backup(folder, out)
    restored = restore_backup(out, tmp_path / "elsewhere")
    assert restored.path == tmp_path / "elsewhere" / "yard"
    assert restored.path.stat().st_mode & 0o777 == 0o700
    assert names(restored.path) == TAKEN
    for name in TAKEN - {"state.sqlite"}:
        assert (restored.path / name).read_bytes() == (folder.path / name).read_bytes()
    with StateStore(restored.state) as store:
        assert [row.version for row in store.read_models(CAM)] == [3, 4]
        assert all((restored.path / row.path).is_file() for row in store.read_models(CAM))


def test_backup_is_readable_by_its_owner_alone_and_holds_no_secret(folder, tmp_path):
    out = tmp_path / "yard.tar.gz"
    write_backup(folder, out)
    assert out.stat().st_mode & 0o777 == 0o600
    assert b"TOP-SECRET" not in gzip.decompress(out.read_bytes())
    assert not list(folder.path.glob(".backup*"))


def test_backup_of_a_roll_back_holds_the_weights_that_serve(folder, tmp_path):
    with StateStore(folder.state) as store:
        *_, last = store.read_models(CAM)
        again = store.read_models(CAM)[1]
        store.put_model(type(last)(CAM, 5, 1, again.path, None, 0.5, 6 * 10**6))
    restored = restored_copy(folder, tmp_path)
    assert {path.stem for path in restored.models(CAM).iterdir()} == {"1", "4"}


def test_backup_of_a_run_holds_what_its_report_needs(tmp_path):
    folder = RunFolder.create_numbered(tmp_path, "monday")
    put(folder, "fleet.yaml", "name: monday")
    put(folder, "journal.jsonl", "{}")
    for name in ("predictions/cam.parquet", "predictions/cam.parts/000001.parquet", "reference/cam.parquet"):
        put(folder, name, "rows")
    before = names(folder.path)
    write_backup(folder, tmp_path / "monday.tar.zst")
    assert names(restore_backup(tmp_path / "monday.tar.zst", tmp_path, "tuesday").path) == before
    assert not read_facts(tmp_path / "monday.tar.zst").service


def test_backup_while_the_database_is_written(folder, tmp_path):
    writer = sqlite3.connect(folder.state)
    writer.execute("BEGIN IMMEDIATE")
    writer.execute("DELETE FROM models")
    write_backup(folder, tmp_path / "yard.tar.gz")
    writer.rollback()
    writer.close()
    with StateStore(restore_backup(tmp_path / "yard.tar.gz", tmp_path, "copy").state) as store:
        assert len(store.read_models(CAM)) == 2


def test_backup_of_a_service_that_runs_is_of_one_instant_and_in_one_file(folder, tmp_path):
    with StateStore(folder.state, of_run=True) as store:
        store.put_window(7, 0, 10)
        restored = restored_copy(folder, tmp_path)
    assert names(restored.path) == TAKEN
    with closing(sqlite3.connect(restored.state)) as connection:
        assert connection.execute("PRAGMA journal_mode").fetchone() == ("delete",)
        assert connection.execute("SELECT * FROM windows").fetchall() == [(7, 0, 10)]


def test_backup_takes_a_growing_journal_as_long_as_it_was(folder, tmp_path, monkeypatch):
    journal = folder.path / "journal-000002.jsonl"
    before = journal.read_bytes()

    def also_grows(of_folder):
        with journal.open("ab") as file:
            file.write(b"more")
        return other_sources(of_folder)

    monkeypatch.setattr("ekya.service.backup.other_sources", also_grows)
    write_backup(folder, tmp_path / "yard.tar.gz")
    with tarfile.open(tmp_path / "yard.tar.gz") as tar:
        assert tar.extractfile("journal-000002.jsonl").read() == before


def doing(monkeypatch, name, first):
    """Has a function of the backup call ``first`` with its arguments before it does its work."""
    does = getattr(backup_module, name)

    def both(*args):
        first(*args)
        return does(*args)

    monkeypatch.setattr(backup_module, name, both)


def doing_with_each_file(monkeypatch, first):
    """The same for each file that a backup takes."""
    add = ArchiveWriter.add_file

    def both(self, *args):
        first()
        add(self, *args)

    monkeypatch.setattr(ArchiveWriter, "add_file", both)


def test_backup_holds_what_the_run_removes_while_it_is_written(folder, tmp_path, monkeypatch):
    before = {name: (folder.path / name).read_bytes() for name in TAKEN - {"state.sqlite"}}

    def removes_all():
        for name in ("models", "predictions"):
            shutil.rmtree(folder.path / name, ignore_errors=True)
        for path in folder.path.glob("journal-*"):
            path.unlink()

    doing_with_each_file(monkeypatch, removes_all)
    restored = restored_copy(folder, tmp_path)
    assert {name: (restored.path / name).read_bytes() for name in before} == before
    with StateStore(restored.state) as store:
        assert [row.version for row in store.read_models(CAM)] == [3, 4]


def test_backup_holds_the_weights_that_are_replaced_while_the_database_is_copied(
    folder, tmp_path, monkeypatch
):
    def removes_the_oldest(*_):
        (folder.models(CAM) / "3.safetensors").unlink()

    doing(monkeypatch, "_copy_database", removes_the_oldest)
    restored = restored_copy(folder, tmp_path)
    assert {path.name for path in restored.models(CAM).iterdir()} == {"3.safetensors", "4.safetensors"}


def test_backup_says_which_weights_are_missing(folder, tmp_path, caplog):
    (folder.models(CAM) / "4.safetensors").unlink()
    write_backup(folder, tmp_path / "yard.tar.gz")
    assert f"models/{CAM}/4.safetensors: these weights are missing" in caplog.text
    with StateStore(restore_backup(tmp_path / "yard.tar.gz", tmp_path, "copy").state) as store:
        assert [row.version for row in store.read_models(CAM)] == [3]


def test_backup_begins_again_when_a_file_vanishes_before_it_is_held(folder, tmp_path, monkeypatch):
    hour = folder.path / f"predictions/{CAM}/2026-11-25T17.parquet"
    parts = hour.with_suffix(".parts")
    looks = []

    def merged_meanwhile(of_folder, *streams):
        pieces = pieces_of(of_folder, *streams)
        if not looks:
            shutil.rmtree(parts)
            hour.write_text("merged")
        looks.append(pieces)
        return pieces

    monkeypatch.setattr("ekya.service.backup.pieces_of", merged_meanwhile)
    restored = restored_copy(folder, tmp_path)
    assert (restored.path / folder.relative_path(hour)).read_text() == "merged"
    assert len(looks) == 2


def test_backup_that_takes_hours_is_left_alone_by_retention(folder, tmp_path, monkeypatch):
    def an_hour_later():
        remove_surplus(folder, RetentionConfig())
        for scratch in folder.path.glob(".backup-*"):
            os.utime(scratch, (scratch.stat().st_mtime - 4000,) * 2)

    doing_with_each_file(monkeypatch, an_hour_later)
    remove_surplus(folder, RetentionConfig())  # what is old anyway
    restored = restored_copy(folder, tmp_path)
    assert names(restored.path) >= {"state.sqlite", "snapshot.json"}


def test_backup_that_loses_a_file_is_none(folder, tmp_path, monkeypatch):
    def loses_all():
        for scratch in folder.path.glob(".backup-*"):
            shutil.rmtree(scratch)

    doing_with_each_file(monkeypatch, loses_all)
    with pytest.raises(UserError, match="was removed while it was copied; try again"):
        write_backup(folder, tmp_path / "yard.tar.gz")
    assert not list(tmp_path.glob("*yard.tar*"))


def test_backup_holds_the_segment_of_its_own_snapshot(folder, tmp_path, monkeypatch):
    def begins_a_segment(*_):
        put(folder, "journal-000003.jsonl", steps(3))
        put(folder, ".new", json.dumps({"format": 1, "segment": 3, "at_byte": 10})).replace(folder.snapshot)

    doing(monkeypatch, "journal_sources", begins_a_segment)
    restored = restored_copy(folder, tmp_path)
    assert json.loads(restored.snapshot.read_text())["segment"] == 2
    assert restored.journal_segment(2).is_file()


def test_backup_of_a_service_without_its_database_is_refused(folder, tmp_path):
    folder.state.unlink()
    with pytest.raises(UserError, match=r"state\.sqlite: is missing, and a backup needs it"):
        write_backup(folder, tmp_path / "yard.tar.gz")
    assert not list(tmp_path.glob("*yard.tar*"))


def test_backup_of_a_service_in_its_first_window_is_whole(folder, tmp_path):
    for path in (folder.snapshot, *folder.path.glob("journal-*")):
        path.unlink()
    restored = restored_copy(folder, tmp_path)
    assert restored.journal.is_file()


def test_backup_of_another_suffix_is_refused(folder, tmp_path):
    with pytest.raises(UserError, match=r"ends with \.tar\.zst or \.tar\.gz"):
        write_backup(folder, tmp_path / "yard.zip")
    assert names(tmp_path) == {f"runs/yard/{name}" for name in names(folder.path)}


def test_backup_is_replaced_only_by_a_whole_one(folder, tmp_path):
    out = tmp_path / "yard.tar.gz"
    out.write_bytes(b"the last backup")
    folder.state.write_bytes(b"no database" * 1000)
    with pytest.raises(UserError):
        write_backup(folder, out)
    assert out.read_bytes() == b"the last backup"
    assert names(tmp_path) == {"yard.tar.gz", *(f"runs/yard/{name}" for name in names(folder.path))}


@pytest.fixture(params=["tar.zst", "tar.gz"])
def backup(folder, tmp_path, request):
    path = tmp_path / f"yard.{request.param}"
    write_backup(folder, path)
    return path


def refused(path, tmp_path, why):
    """Checks that a backup is refused, and that nothing of it is left."""
    with pytest.raises(UserError, match=why):
        restore_backup(path, tmp_path / "elsewhere")
    left = tmp_path / "elsewhere"
    assert not left.exists() or list(left.iterdir()) == []


@pytest.mark.parametrize("part", [0.01, 0.3, 0.6, 0.9, 0.99])
def test_restore_refuses_a_backup_that_was_cut_off(backup, tmp_path, part):
    content = backup.read_bytes()
    backup.write_bytes(content[: int(len(content) * part)])
    refused(backup, tmp_path, "yard.tar")


def test_restore_refuses_a_backup_with_a_damaged_byte(backup, tmp_path):
    content = backup.read_bytes()
    wrong = 0
    for at in range(20, len(content), max(1, len(content) // 25)):
        backup.write_bytes(content[:at] + bytes([content[at] ^ 0x20]) + content[at + 1 :])
        try:
            restored = restore_backup(backup, tmp_path / f"at-{at}")
        except UserError:
            wrong += 1
            continue
        # A byte that means nothing, such as padding: then all is as it was.
        assert names(restored.path) == TAKEN
    assert wrong > 10


def rewritten(path, change):
    """Writes an archive with changed members: ``change(name, content)`` returns pairs of both."""
    with tarfile.open(path) as tar:
        members = [(info.name, tar.extractfile(info).read()) for info in tar]
    with tarfile.open(path, "w:gz") as tar:
        for name, content in (pair for one in members for pair in change(*one)):
            add(tar, name, content)


def add(tar, name, content):
    info = tarfile.TarInfo(name)
    info.size = len(content)
    tar.addfile(info, io.BytesIO(content))


@pytest.fixture
def archive(folder, tmp_path):
    path = tmp_path / "yard.tar.gz"
    write_backup(folder, path)
    return path


def evil_weights(name, content):
    return [(name, b"evil" if name.startswith("models") else content)]


def without_fleet(name, content):
    return [] if name == "fleet.yaml" else [(name, content)]


def longer(name, content):
    return [(name, content), *([("models/x", b"")] if name == "checksums.json" else [])]


def newer(name, content):
    if name != "ekya-backup.json":
        return [(name, content)]
    return [(name, json.dumps({**json.loads(content), "format": 2, "ekya": "9.0"}).encode())]


@pytest.mark.parametrize(
    ("change", "why"),
    [
        (evil_weights, "models/cam-1/3.safetensors is not what was written"),
        (without_fleet, "fleet.yaml is not what was written"),
        (longer, "there is more behind its end"),
        (newer, "written by Ekya 9.0 in format 2, and this version reads format 1"),
    ],
)
def test_restore_refuses_other_content_than_was_written(archive, tmp_path, change, why):
    rewritten(archive, change)
    refused(archive, tmp_path, why)


@pytest.mark.parametrize("missing", ["state.sqlite", "snapshot.json"])
def test_restore_refuses_a_backup_that_was_never_whole(archive, tmp_path, missing):
    def without(name, content):
        if name == "checksums.json":
            known = json.loads(content)
            del known[missing]
            return [(name, json.dumps(known).encode())]
        return [] if name == missing else [(name, content)]

    rewritten(archive, without)
    refused(archive, tmp_path, f"the backup is not whole, {missing} is missing; use another one")


@pytest.mark.parametrize(
    "name",
    [
        "../outside",
        "/tmp/outside",
        "models/../../outside",
        "models/./x",
        "token",
        "answers",
        "lock",
        "models//x",
        "..",
        "predictions/../../../outside",
    ],
)
def test_restore_writes_nothing_outside_its_folder(archive, tmp_path, name):
    rewritten(archive, lambda known, content: [(known, content), *_also(known, name)])
    refused(archive, tmp_path, "is no name of a file in it")
    assert not (tmp_path / "outside").exists()
    assert not (tmp_path / "elsewhere" / "outside").exists()


def _also(known, name):
    return [(name, b"evil")] if known == "fleet.yaml" else []


@pytest.mark.parametrize("kind", [tarfile.SYMTYPE, tarfile.LNKTYPE, tarfile.FIFOTYPE, tarfile.DIRTYPE])
def test_restore_refuses_links_and_devices(archive, tmp_path, kind):
    with tarfile.open(archive) as tar:
        members = [(info.name, tar.extractfile(info).read()) for info in tar]
    with tarfile.open(archive, "w:gz") as tar:
        add(tar, *members[0])
        link = tarfile.TarInfo("models/cam-1")
        link.type, link.linkname = kind, str(tmp_path)
        tar.addfile(link)
        for name, content in members[1:]:
            add(tar, name, content)
    refused(archive, tmp_path, "is not a plain file")


def test_restore_refuses_other_archives(tmp_path):
    path = tmp_path / "x.tar.gz"
    with tarfile.open(path, "w:gz") as tar:
        add(tar, "fleet.yaml", b"name: x")
    refused(path, tmp_path, "this is no backup of Ekya's")
    path.write_bytes(b"no archive at all")
    refused(path, tmp_path, "damaged")
    refused(tmp_path / "none.tar.gz", tmp_path, "there is no such file")


def test_restore_overwrites_nothing(archive, tmp_path, folder):
    before = names(folder.path)
    with pytest.raises(UserError, match="is there already; choose another name with --name"):
        restore_backup(archive, tmp_path / "runs")
    assert names(folder.path) == before
    with pytest.raises(UserError, match="use letters"):
        restore_backup(archive, tmp_path / "runs", "../outside")


def test_restore_names_the_passwords_that_are_not_set(tmp_path, monkeypatch):
    folder = RunFolder.create_numbered(tmp_path, "yard")
    put(folder, "fleet.yaml", "url: rtsp://${CAM_USER}:${CAM_PASSWORD}@host/live")
    monkeypatch.setenv("CAM_USER", "me")
    monkeypatch.delenv("CAM_PASSWORD", raising=False)
    assert missing_variables(folder) == ("CAM_PASSWORD",)
