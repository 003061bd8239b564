"""Which weights of a stream are removed, and that the rest can serve."""

import pytest

from ekya.core.units import StreamId
from ekya.results.storage.model_files import remove_spent, spent_models
from ekya.results.storage.run_folder import RunFolder
from ekya.results.storage.run_state import ModelRow, StateStore

CAM = StreamId("cam")


def row(version, file=None):
    path = f"models/{CAM}/{version}.safetensors" if file is None else file
    return ModelRow(CAM, version, version, path, None, 0.5, version)


def files(*versions):
    return [f"models/{CAM}/{version}.safetensors" for version in versions]


def versions(spent):
    return [row.version for row in spent.rows]


def test_model_files_keep_the_newest():
    spent = spent_models([row(at) for at in range(6)], files(*range(6)), keep=2)
    assert versions(spent) == [0, 1, 2, 3]
    assert list(spent.files) == files(0, 1, 2, 3)


def test_model_files_keep_what_may_serve_again():
    spent = spent_models([row(at) for at in range(6)], files(*range(6)), keep=2, since=1)
    assert versions(spent) == [0]


def test_model_files_keep_those_that_a_later_version_names():
    rows = [row(0), row(1), row(2), row(3, file=files(0)[0])]  # 3 is a roll-back to 0
    spent = spent_models(rows, files(0, 1, 2), keep=2)
    assert versions(spent) == [0, 1]
    assert list(spent.files) == files(1)


def test_model_files_without_a_row_go_unless_they_are_about_to_serve():
    spent = spent_models([row(0), row(4)], files(0, 2, 4, 5), keep=2)
    assert (versions(spent), list(spent.files)) == ([], files(2))


def test_model_files_of_an_unknown_stream_stay():
    assert spent_models([], files(0), keep=2).files == ()


@pytest.fixture
def folder(tmp_path):
    """Folder of a run with five models of a camera."""
    folder = RunFolder.create_numbered(tmp_path, "run")
    with StateStore(folder.state) as store:
        for version in range(5):
            path = folder.model(CAM, version)
            path.write_bytes(b"weights")
            store.put_model(row(version))
    return folder


def present(folder):
    return sorted(path.stem for path in folder.models(CAM).iterdir())


def test_model_files_are_removed_with_their_rows(folder):
    with StateStore(folder.state) as store:
        removed = remove_spent(folder, store, CAM, keep=2)
        assert [path.stem for path in removed] == ["0", "1", "2"]
        assert present(folder) == ["3", "4"]
        assert [one.version for one in store.read_models(CAM)] == [3, 4]
        assert remove_spent(folder, store, CAM, keep=2) == ()


def test_model_files_are_only_looked_at(folder):
    with StateStore(folder.state) as store:
        assert len(remove_spent(folder, store, CAM, keep=2, only_look=True)) == 3
        assert present(folder) == ["0", "1", "2", "3", "4"]
        assert len(store.read_models(CAM)) == 5
