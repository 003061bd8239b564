import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from ekya.streams.ingest.crops import crop_objects


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
