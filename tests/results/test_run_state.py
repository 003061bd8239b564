"""How a run's database gets on with other processes, and on what file systems."""

import os
import shutil
import sqlite3
import subprocess
import sys
from contextlib import closing

import pytest

from ekya.core.errors import UserError
from ekya.results.storage.run_state import FORMAT, StateStore

NO_SHARED_MEMORY = """
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <limits.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

void *mmap64(void *at, size_t length, int access, int flags, int file, off_t from) {
    char link[64], path[PATH_MAX + 1];
    snprintf(link, sizeof link, "/proc/self/fd/%d", file);
    ssize_t size = readlink(link, path, PATH_MAX);
    if (size > 4 && !memcmp(path + size - 4, "-shm", 4)) {
        errno = ENODEV;
        return MAP_FAILED;
    }
    void *(*map)(void *, size_t, int, int, int, off_t) = dlsym(RTLD_NEXT, "mmap64");
    return map(at, length, access, flags, file, from);
}

void *mmap(void *at, size_t length, int access, int flags, int file, off_t from) {
    return mmap64(at, length, access, flags, file, from);
}
"""
"""Library under which files named ``*-shm`` cannot be mapped, as on some network file systems."""

WRITES_TWICE = """
import sys
from pathlib import Path
from ekya.results.storage.run_state import StateStore

path = Path(sys.argv[1])
with StateStore(path, of_run=True) as store:
    store.put_window(0, 0, 10)
    with StateStore(path) as other:
        assert other.read_windows() == [(0, 0, 10)]
    store.put_window(1, 10, 20)
"""


@pytest.fixture
def path(tmp_path):
    return tmp_path / "state.sqlite"


def journal_mode(path):
    with closing(sqlite3.connect(path)) as connection:
        return connection.execute("PRAGMA journal_mode").fetchone()[0]


def test_a_run_writes_while_another_process_reads(path, monkeypatch):
    monkeypatch.setattr("ekya.results.storage.run_state.WAIT_S", 0.5)
    with StateStore(path, of_run=True) as store, closing(sqlite3.connect(path)) as reader:
        store.put_window(0, 0, 10)
        reader.execute("BEGIN")
        assert reader.execute("SELECT COUNT(*) FROM windows").fetchone() == (1,)
        store.put_window(1, 10, 20)
        assert reader.execute("SELECT COUNT(*) FROM windows").fetchone() == (1,)
        assert len(store.read_windows()) == 2


def user_version(path):
    with closing(sqlite3.connect(path)) as connection:
        return connection.execute("PRAGMA user_version").fetchone()[0]


def set_user_version(path, version):
    with closing(sqlite3.connect(path)) as connection:
        connection.execute(f"PRAGMA user_version = {version}")


@pytest.mark.parametrize("of_run", [False, True])
def test_a_file_has_the_version_of_its_format(path, of_run):
    with StateStore(path, of_run=of_run) as store:
        store.put_window(0, 0, 10)
    assert user_version(path) == FORMAT == 1
    StateStore(path, of_run=of_run).close()
    assert user_version(path) == FORMAT


def test_a_file_of_before_it_had_a_version_goes_on(path):
    with StateStore(path) as store:
        store.put_window(0, 0, 10)
    set_user_version(path, 0)
    with StateStore(path, of_run=True) as store:
        store.put_window(1, 10, 20)
        assert len(store.read_windows()) == 2


@pytest.mark.parametrize("of_run", [False, True])
def test_a_file_of_a_newer_version_is_refused_and_left_alone(path, of_run):
    with closing(sqlite3.connect(path)) as connection:
        connection.execute("CREATE TABLE other (name TEXT)")
    set_user_version(path, FORMAT + 1)
    with pytest.raises(UserError, match=r"state.sqlite: .*\(format 2, .* reads 1\); install that version"):
        StateStore(path, of_run=of_run)
    with closing(sqlite3.connect(path)) as connection:
        assert connection.execute("SELECT name FROM sqlite_master").fetchall() == [("other",)]
    assert journal_mode(path) == "delete"
    assert [file.name for file in path.parent.iterdir()] == [path.name]


def test_a_run_that_has_ended_leaves_one_file(path):
    with StateStore(path, of_run=True) as store:
        store.put_window(0, 0, 10)
        assert journal_mode(path) == "wal"
    assert journal_mode(path) == "delete"
    assert [file.name for file in path.parent.iterdir()] == [path.name]


def test_a_run_that_was_killed_goes_on_with_all_it_wrote(path, tmp_path):
    killed = tmp_path / "killed"
    killed.mkdir()
    with StateStore(path, of_run=True) as store:
        store.put_window(0, 0, 10)
        for file in path.parent.glob("state.sqlite*"):
            shutil.copy(file, killed / file.name)
    with StateStore(killed / path.name) as store:
        assert store.read_windows() == [(0, 0, 10)]


@pytest.mark.parametrize("of_earlier_version", [False, True])
def test_a_run_finds_the_labels_of_a_window_without_looking_at_all(path, of_earlier_version):
    if of_earlier_version:
        StateStore(path).close()
    StateStore(path, of_run=True).close()
    with closing(sqlite3.connect(path)) as connection:
        (step,) = connection.execute('EXPLAIN QUERY PLAN DELETE FROM labels WHERE "window" < 3').fetchall()
    assert "USING" in step[-1]
    assert "labels_by_window" in step[-1]


@pytest.mark.skipif(shutil.which("gcc") is None, reason="needs gcc")
def test_a_run_goes_on_where_the_file_system_has_no_shared_memory(path, tmp_path):
    library = tmp_path / "no_shared_memory.so"
    source = library.with_suffix(".c")
    source.write_text(NO_SHARED_MEMORY)
    subprocess.run(["gcc", "-shared", "-fPIC", "-o", library, source, "-ldl"], check=True)
    subprocess.run(
        [sys.executable, "-c", WRITES_TWICE, path], check=True, env={**os.environ, "LD_PRELOAD": str(library)}
    )
    assert journal_mode(path) == "delete"
    with StateStore(path) as store:
        assert len(store.read_windows()) == 2
