import numpy as np
import pytest
from rendered_canvas import Canvas, Matte
from rendered_frames import FrameStudio

from ekya.streams.synthetic.scene import KINDS

SIDE = 64


@pytest.fixture(scope="module")
def studio():
    return FrameStudio.open(seed=5, side=SIDE)


def empty():
    return Canvas.over(np.zeros((40, 80, 3), np.uint8))


def square(side):
    return Matte(np.full((side, side, 3), 200, np.float32), np.ones((side, side), np.float32))


def moved(x, y):
    return np.array([[1.0, 0, x], [0, 1.0, y]])


def test_frame_of_a_number_is_always_the_same(studio):
    once, again = studio.frames([7, 8]), studio.of_side(32).of_side(SIDE).frames([8, 7])
    assert np.array_equal(once.images, again.images[::-1])
    assert np.array_equal(once.objects[0].boxes, again.objects[1].boxes)
    assert not np.array_equal(once.images[0], once.images[1])


@pytest.mark.parametrize("hard", [0.0, 1.0])
def test_objects_lie_in_their_frame_and_every_class_occurs(studio, hard):
    frames = studio.frames(range(60), hard)
    assert frames.images.shape == (60, SIDE, SIDE, 3)
    for objects in frames.objects:
        for boxes in (objects.boxes, objects.doubtful):
            assert (boxes >= 0).all() and (boxes <= 1).all()
            assert (boxes[:, 2:] > boxes[:, :2]).all()
    assert set(frames.labels().tolist()) == set(range(len(KINDS)))


def test_easy_frames_show_fewer_and_larger_objects(studio):
    easy, hard = studio.frames(range(60), 0.0), studio.frames(range(60), 1.0)
    assert easy.objects_in_each().max() <= 2 < hard.objects_in_each().max()

    def heights(frames):
        boxes = np.concatenate([objects.boxes for objects in frames.objects])
        return boxes[:, 3] - boxes[:, 1]

    assert np.median(heights(easy)) > 2 * np.median(heights(hard))


def test_pasted_body_has_the_box_of_its_pixels():
    canvas = empty()
    box, area = canvas.paste(square(10), moved(20, 5))
    canvas.note(2, box, area)
    rows, columns = np.nonzero(canvas.picture.max(axis=2) > 100)
    assert box == (columns.min(), rows.min(), columns.max() + 1, rows.max() + 1)
    assert canvas.classes().tolist() == [2]
    assert canvas.visible() == pytest.approx([1.0])


def test_body_outside_the_picture_is_visible_in_part():
    canvas = empty()
    canvas.note(0, *canvas.paste(square(10), moved(75, 0)))
    assert canvas.boxes().tolist() == [[75, 0, 80, 10]]
    assert canvas.visible() == pytest.approx([0.5])


def test_hidden_body_is_not_visible():
    canvas = empty()
    for x in (10, 14):
        canvas.note(0, *canvas.paste(square(10), moved(x, 10)))
    assert canvas.visible() == pytest.approx([0.4, 1.0])


def test_part_of_a_canvas_has_enlarged_boxes():
    canvas = empty()
    canvas.take(1, (20, 10, 30, 20))
    canvas.take(3, (70, 10, 80, 20))
    part = canvas.cut((10, 0, 50, 40), side=80)
    assert part.picture.shape == (80, 80, 3)
    assert part.boxes().tolist() == [[20, 20, 40, 40], [80, 20, 80, 40]]
    inside, outside = part.visible()
    assert inside > 0.9 and outside == 0.0
