"""Run folders of servers on other machines, copied in parts."""

from functools import partial

import pytest

from ekya.core.errors import UserError
from ekya.fleet.run import servers_folder
from ekya.fleet.run.servers_folder import collect, files_of, part_of


@pytest.fixture
def there(tmp_path):
    folder = tmp_path / "there"
    (folder / "predictions").mkdir(parents=True)
    (folder / "summary.json").write_text("{}")
    (folder / "predictions" / "cam-1.parquet").write_bytes(bytes(range(256)) * 40)
    (folder / "empty").touch()
    (folder / "models" / "cam-1").mkdir(parents=True)
    (folder / "models" / "cam-1" / "0.safetensors").write_bytes(b"weights")
    (folder / "link").symlink_to(folder / "summary.json")
    return folder


def test_a_folder_is_copied_in_parts_but_for_weights(there, tmp_path, monkeypatch) -> None:
    monkeypatch.setattr(servers_folder, "PART_BYTES", 1000)
    files, here = files_of(there), tmp_path / "here"
    assert files == {"empty": 0, "predictions/cam-1.parquet": 10240, "summary.json": 2}
    assert collect(files, partial(part_of, there), here) == 10242
    assert files_of(here) == files
    assert all((here / file).read_bytes() == (there / file).read_bytes() for file in files)
    assert collect(files, partial(part_of, there), here) == 0


def test_a_copy_that_breaks_off_leaves_no_half_file_and_goes_on_later(there, tmp_path) -> None:
    here = tmp_path / "here"

    def breaks(file, offset):
        if file.endswith("parquet"):
            raise OSError("the line is dead")
        return part_of(there, file, offset)

    with pytest.raises(OSError, match="dead"):
        collect(files_of(there), breaks, here)
    assert files_of(here) == {"empty": 0}
    collect(files_of(there), partial(part_of, there), here)
    assert files_of(here) == files_of(there)


@pytest.mark.parametrize("file", ["../summary.json", "/etc/passwd", "a/../../b"])
def test_no_file_is_written_outside_the_folder(file, tmp_path) -> None:
    with pytest.raises(UserError, match="not in its folder"):
        collect({file: 1}, lambda file, offset: b"", tmp_path / "here")
    assert list(tmp_path.iterdir()) == []
