"""What is said of the first pictures of a stream."""

import cv2
import numpy as np
import pytest

from ekya.streams.ingest.first_pictures import describe_odd_pictures, is_moving
from ekya.streams.ingest.frame import Frame


def scene(at: int, light: float = 1.0) -> np.ndarray:
    """A picture with sensor noise, in which a bright square moves."""
    rng = np.random.default_rng(at)
    image = cv2.blur(np.random.default_rng(99).integers(30, 200, (120, 160, 3)).astype(np.uint8), (5, 5))
    image = np.clip(image + rng.normal(0, 3, image.shape), 0, 255)
    image[40:70, 10 * at : 10 * at + 30] = 240
    return np.rint(image * light).astype(np.uint8)


def torn(image: np.ndarray, rows: int = 70) -> np.ndarray:
    """The picture as a decoder leaves it where the rest of its data are lost."""
    return np.concatenate([image[:rows], np.repeat(image[rows : rows + 1], len(image) - rows, axis=0)])


def frames_of(images: list[np.ndarray], fps: float = 10.0, step: int = 1) -> list[Frame]:
    return [Frame(at * step, round(at * step * 1e6 / fps), image, None) for at, image in enumerate(images)]


SCENES = [scene(at) for at in range(12)]
BLACK = np.zeros((120, 160, 3), np.uint8)


@pytest.mark.parametrize(
    "images",
    [
        SCENES,
        [scene(at, light=0.12) for at in range(12)],  # night
        [np.concatenate([BLACK[:30], one[30:90], BLACK[:30]]) for one in SCENES],  # bars
        [torn(SCENES[0]), *SCENES[1:]],  # a camera is joined between two key frames
        SCENES[:3],
    ],
    ids=["day", "night", "bars", "torn at first", "three"],
)
def test_usual_pictures_are_taken_without_a_word(images):
    assert list(describe_odd_pictures(frames_of(images), 10.0)) == []


def encoded(still):
    """Returns a still as a decoder gives it: refined at first, and begun anew at the tenth picture."""
    rng = np.random.default_rng(0)
    noise = rng.integers(-3, 4, (12, *still.shape))
    kept = np.array([1, 1, 1, 1, 1, 1, 0, 0, 0, 1, 0, 0]).reshape(-1, 1, 1, 1)
    return [*np.clip(still + noise * kept, 0, 255).astype(np.uint8)]


@pytest.mark.parametrize(
    ("images", "words"),
    [
        ([], "no picture of it could be read; check"),
        ([BLACK] * 12, r"the picture is black (mean brightness 0 of 255); check"),
        ([scene(0, light=0.02)] * 12, "the picture is black"),
        ([BLACK + 127] * 12, "the picture has one colour only (mean brightness 127 of 255); check"),
        ([SCENES[0]] * 12, "its first 12 pictures (1.1 s) are one and the same; check"),
        (encoded(SCENES[0]), "its first 12 pictures (1.1 s) are one and the same; check"),
        ([torn(one) for one in SCENES], "the lower 42% of the picture are one repeated row"),
    ],
    ids=["none", "black", "lens cover", "grey", "frozen", "frozen and encoded", "torn"],
)
def test_odd_pictures_are_told_with_what_was_seen(images, words):
    (said,) = describe_odd_pictures(frames_of(images), 10.0)
    assert words in said


@pytest.mark.parametrize(
    ("came", "said", "live", "odd"),
    [
        (10.0, 10.0, False, False),
        (12.0, 10.0, False, False),
        (25.0, 10.0, False, True),
        (5.0, 25.0, False, True),
        (5.0, 25.0, True, True),
        (100.0, 25.0, True, False),  # from the camera's buffer, all at once
    ],
)
def test_another_rate_than_expected_is_told(came, said, live, odd):
    sentences = list(describe_odd_pictures(frames_of(SCENES, came), said, live))
    assert len(sentences) == odd
    assert all(f"{came:g} frames a second come, and {said:g} are expected" in one for one in sentences)


def test_skipped_frames_of_a_camera_do_not_change_its_rate():
    assert list(describe_odd_pictures(frames_of(SCENES, 25.0, step=3), 25.0, live=True)) == []


def test_moving_is_what_differs_by_more_than_noise():
    assert is_moving(frames_of(SCENES))
    rng = np.random.default_rng(1)
    noisy = [np.clip(scene(0) + rng.normal(0, 5, scene(0).shape), 0, 255).astype(np.uint8) for _ in range(2)]
    assert not is_moving(frames_of(noisy))
    assert not is_moving([])
