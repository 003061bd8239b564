from pathlib import Path

import pytest
from pydantic import BaseModel

from ekya.config.files import find_files
from ekya.core.errors import UserError
from ekya.system.files import FolderPath


class Part(BaseModel):
    root: FolderPath
    file: Path


class Whole(BaseModel):
    part: Part


def whole(root, file="here/file"):
    return Whole(part=Part(root=root, file=file))


@pytest.fixture
def folder(tmp_path):
    (tmp_path / "here").mkdir()
    (tmp_path / "here" / "file").touch()
    return tmp_path


def test_a_folder_is_found_where_a_folder_is_asked_for(folder):
    found = find_files(whole("here"), "fleet.yaml", [folder])
    assert found.part == Part(root=folder / "here", file=folder / "here" / "file")


@pytest.mark.parametrize(
    ("made", "sentence"),
    [
        (whole("here/file"), "part.root: here/file is not a folder; name the folder that it lies in"),
        (whole("there"), "part.root: there does not exist; correct the path, which begins at {folder}"),
        (whole("here", "here"), "part.file: here is a folder; name a file in it"),
    ],
)
def test_what_is_the_other_or_nothing_is_refused(folder, made, sentence):
    with pytest.raises(UserError) as caught:
        find_files(made, "fleet.yaml", [folder])
    assert str(caught.value) == f"fleet.yaml: {sentence.format(folder=folder)}"
