"""Tests that damage to a file gives an error that names it, or counted frames, and nothing else."""

import shutil

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from waymo_sample import Segment, write_v1, write_v2

from ekya.core.errors import UserError
from ekya.streams.datasets.waymo import WaymoSpec

SEGMENT = Segment("1000_0", frames=2, size=(32, 24))
FRAMES = 2


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    """For each version, a folder and the bytes of its files."""
    found = {}
    for write in (write_v1, write_v2):
        root = tmp_path_factory.mktemp(write.__name__)
        write(root, SEGMENT)
        found[write.__name__] = (
            root,
            {file.relative_to(root): file.read_bytes() for file in sorted(root.rglob("*.*"))},
        )
    return found


def check_all(root):
    """Reads a folder by segment and by location; expects complete or counted frames, or an error."""
    for spec in (
        WaymoSpec(root=root, segments=(SEGMENT.name,)),
        WaymoSpec(root=root, location=SEGMENT.location),
    ):
        try:
            source = spec.open(("vehicle", "pedestrian"))
            found = list(source.frames())
        except UserError as error:
            assert str(root) in str(error)
            assert "\n" not in str(error)
        else:
            assert len(found) + source.damaged >= FRAMES or found == []
            for frame, truth in found:
                assert len(truth.boxes) == len(truth.classes) == len(set(truth.tracks.tolist()))
                assert frame.t_us < 120_000_000


@st.composite
def damaged(draw, whole):
    """Bytes of a file of which some bits are changed, which is cut, or which has other content."""
    how = draw(st.sampled_from(["bits", "cut", "other"]))
    if how == "cut":
        return whole[: draw(st.integers(0, len(whole) - 1))]
    if how == "other":
        head = draw(st.sampled_from([b"", b"PAR1"]))
        return head + draw(st.binary(max_size=40)) + head
    content = bytearray(whole)
    for at in draw(st.lists(st.integers(0, len(content) - 1), min_size=1, max_size=4)):
        content[at] ^= 1 << draw(st.integers(0, 7))
    return bytes(content)


def put(root, files):
    for name, data in files.items():
        (root / name).write_bytes(data)


@pytest.mark.parametrize("version", ["write_v1", "write_v2"])
@settings(max_examples=70, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
def test_waymo_damaged_file_is_counted_or_user_error(whole, version, data):
    root, files = whole[version]
    name = data.draw(st.sampled_from(sorted(files)))
    put(root, files | {name: data.draw(damaged(files[name]))})
    check_all(root)


@pytest.mark.parametrize("version", ["write_v1", "write_v2"])
def test_waymo_missing_file_or_folder_is_user_error(whole, version, tmp_path):
    root, files = whole[version]
    put(root, files)
    for number, name in enumerate(files):
        copy = shutil.copytree(root, tmp_path / str(number))
        (copy / name).unlink()
        check_all(copy)
        (copy / name).mkdir()
        check_all(copy)
