"""`ekya zoo`: what a folder keeps."""

import json

import pytest

from ekya.cli import main
from ekya.core.units import ModelVersion, StreamId
from ekya.core.weights import KeptModel, Scene
from ekya.pipeline.zoo_folder import ZooFolder, ZooIndex, ZooKind

KIND = ZooKind("resnet18", ("car", "person"), 32)


@pytest.fixture
def folder(tmp_path):
    """Folder of two kept models, of which the second is damaged."""
    weights = tmp_path / "weights"
    weights.write_bytes(b"weights")
    path = tmp_path / "zoo"
    path.mkdir()
    with (path / "lock").open("ab") as lock:
        zoo = ZooFolder(path, ZooIndex(1, KIND, ()), lock)
        for number in (1, 2):
            scene = Scene((1, 2), (0, 7), 3)
            zoo.keep(
                KeptModel(number, StreamId("cam"), ModelVersion(4), 7_500_000, 0.875, scene), weights, ()
            )
    zoo.file(2).unlink()
    return path


def test_zoo_lists_models_and_checks_their_files(folder, capfd):
    assert main(["zoo", str(folder), "--json", "-"]) == 0
    told = json.loads(capfd.readouterr().out)
    assert (told["architecture"], told["classes"]) == ("resnet18", ["car", "person"])
    assert [(one["number"], one["whole"], one["bytes"]) for one in told["models"]] == [
        (2, False, 7),
        (1, True, 7),
    ]


def test_zoo_prints_a_table(folder, capfd):
    assert main(["zoo", str(folder)]) == 0
    printed = capfd.readouterr().out
    assert "87.5%" in printed
    assert "damaged" in printed


def test_zoo_of_another_folder_is_refused(tmp_path, capfd):
    assert main(["zoo", str(tmp_path)]) == 2
    assert "there is no zoo of models; name a folder that a run has kept some in" in capfd.readouterr().err
