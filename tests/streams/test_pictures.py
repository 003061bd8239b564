import cv2
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ekya.streams.ingest.crops import crop_objects
from ekya.streams.ingest.pictures import decode_jpeg, jpeg_size, shrink_frame


def jpeg(width, height, *flags):
    small = np.random.default_rng(0).integers(0, 255, (4, 5, 3), dtype=np.uint8)
    return bytes(cv2.imencode(".jpg", cv2.resize(small, (width, height)), list(flags))[1])


SMALL = jpeg(40, 24)


@pytest.mark.parametrize("progressive", [0, 1])
@pytest.mark.parametrize("size", [(1, 1), (33, 17), (640, 352)])
def test_jpeg_size_is_read_from_the_header(size, progressive):
    assert jpeg_size(jpeg(*size, cv2.IMWRITE_JPEG_PROGRESSIVE, progressive)) == size


@pytest.mark.parametrize("size", [(640, 352), (641, 353), (1280, 720), (1920, 886), (352, 1999)])
@pytest.mark.parametrize("max_side", [640, 300, 33])
def test_decode_jpeg_small_equals_decoded_and_shrunk(size, max_side):
    data = jpeg(*size)
    picture = decode_jpeg(data, max_side)
    plain = shrink_frame(cv2.imdecode(np.frombuffer(data, np.uint8), cv2.IMREAD_COLOR), max_side)
    assert picture.image.shape == plain.shape
    assert max(plain.shape) <= max_side or max(size) <= max_side
    assert np.abs(picture.image.astype(int) - plain).mean() < 4
    width, height = size
    assert picture.stored == (width, height)


def test_decode_jpeg_huge_size_is_none():
    at = SMALL.index(b"\xff\xc0") + 5
    huge = SMALL[:at] + b"\xff\xff\xff\xff" + SMALL[at + 4 :]
    assert jpeg_size(huge) == (65535, 65535)
    assert decode_jpeg(huge, 64) is None


@pytest.mark.parametrize(
    "data", [b"", b"\xff\xd8", b"\x89PNG", SMALL[:30], b"\xff\xd8" + b"\xff\xe0\x00\x00" * 9]
)
def test_decode_jpeg_other_bytes_are_none(data):
    assert decode_jpeg(data, 64) is None


@given(at=st.integers(0, len(SMALL) - 1), value=st.integers(0, 255))
def test_decode_jpeg_changed_byte_is_picture_or_none(at, value):
    changed = SMALL[:at] + bytes([value]) + SMALL[at + 1 :]
    picture = decode_jpeg(changed, 32)
    assert picture is None or max(picture.image.shape[:2]) <= 32


@given(st.binary(max_size=40))
def test_jpeg_size_any_bytes_is_size_or_none(data):
    size = jpeg_size(b"\xff\xd8" + data)
    assert size is None or min(size) > 0


def test_crop_objects_no_boxes_gives_no_crops() -> None:
    crops = crop_objects(np.zeros((40, 60, 3), np.uint8), np.zeros((0, 4), np.float32), 24)
    assert crops.shape == (0, 24, 24, 3)
    assert crops.dtype == np.uint8


def test_crop_objects_is_rgb_centred_and_proportional() -> None:
    image = np.zeros((100, 100, 3), np.uint8)
    image[40:60, 30:70] = (255, 0, 0)  # a blue object, twice as wide as high
    crop = crop_objects(image, np.array([[30, 40, 70, 60]], np.float32), 44)[0]
    assert tuple(crop[22, 22]) == (0, 0, 255)
    rows = np.flatnonzero(crop[:, 22, 2] > 127)
    columns = np.flatnonzero(crop[22, :, 2] > 127)
    assert (len(rows), len(columns)) == (20, 40)
    assert abs(rows.mean() - 21.5) <= 0.5
    assert abs(columns.mean() - 21.5) <= 0.5


def test_crop_objects_outside_repeats_the_border() -> None:
    image = np.full((50, 50, 3), 10, np.uint8)
    image[:, :1] = 200
    crop = crop_objects(image, np.array([[0, 10, 10, 40]], np.float32), 33)[0]
    assert (crop[:, 0] == 200).all()
    assert (crop[:, -1] == 10).all()


coordinate = st.floats(-500, 500, width=32)


@settings(deadline=None, max_examples=60)
@given(st.lists(st.tuples(coordinate, coordinate, coordinate, coordinate), max_size=4), st.integers(1, 40))
def test_crop_objects_any_box_gives_colours_of_the_image(
    boxes: list[tuple[float, float, float, float]], side: int
) -> None:
    image = np.full((30, 40, 3), 77, np.uint8)
    crops = crop_objects(image, np.array(boxes, np.float32).reshape(-1, 4), side)
    assert crops.shape == (len(boxes), side, side, 3)
    assert (crops == 77).all()
