import os

import cv2
import numpy as np
import pytest
from draw_samples import draw_image_folder

from ekya.core.errors import UserError
from ekya.streams.datasets.image_folder import IMAGE_FOLDER, ImageFolderSpec

CLASSES = ("bus", "car")


def crop(path, brightness, size=(12, 8)):
    path.parent.mkdir(parents=True, exist_ok=True)
    cv2.imwrite(str(path), np.full((size[1], size[0], 3), brightness, np.uint8))


def test_image_folder_pictures_are_sorted_by_name(tmp_path):
    crop(tmp_path / "car" / "02.png", 20)
    crop(tmp_path / "bus" / "01.png", 10)
    crop(tmp_path / "car" / "03.PNG", 30, size=(1000, 500))
    crop(tmp_path / "tram" / "04.png", 40)
    (tmp_path / "bus" / "notes.txt").write_text("no picture")
    (tmp_path / ".cache").mkdir()
    frames = list(ImageFolderSpec(root=tmp_path, fps=2, max_side=100).open(CLASSES).frames())
    assert [int(frame.image[0, 0, 0]) for frame, _ in frames] == [10, 20, 30, 40]
    assert [truth.classes.tolist() for _, truth in frames] == [[0], [1], [1], []]
    assert [frame.t_us for frame, _ in frames] == [0, 500_000, 1_000_000, 1_500_000]
    assert frames[0][1].boxes.tolist() == [[0, 0, 12, 8]]
    assert frames[2][1].boxes.tolist() == [[0, 0, 100, 50]]


def test_image_folder_pictures_are_in_the_order_of_their_numbers(tmp_path):
    for number, name in enumerate(("a2.jpg", "a9.jpg", "a10.jpg", "a010b3.jpg", "b1.jpg")):
        crop(tmp_path / CLASSES[number % 2] / name, 20 * number)
    frames = ImageFolderSpec(root=tmp_path).open(CLASSES).frames()
    assert [round(frame.image.mean() / 20) for frame, _ in frames] == [0, 1, 2, 3, 4]


def test_image_folder_name_that_is_no_text_is_refused(tmp_path):
    crop(tmp_path / "car" / "1.jpg", 50)
    (tmp_path / "car" / "1.jpg").rename(tmp_path / "car" / os.fsdecode(b"caf\xe9.jpg"))
    with pytest.raises(UserError, match=r"car/caf\\xe9\.jpg: the name is not UTF-8; rename it"):
        IMAGE_FOLDER.survey(tmp_path)


def test_image_folder_damaged_picture_is_counted_and_logged(tmp_path, caplog):
    for name in ("1.jpg", "2.jpg", "3.jpg"):
        crop(tmp_path / "car" / name, 50)
    crop(tmp_path / "bus" / "9.jpg", 90)
    data = (tmp_path / "car" / "2.jpg").read_bytes()
    (tmp_path / "car" / "2.jpg").write_bytes(data[: len(data) // 3])
    source = ImageFolderSpec(root=tmp_path).open(CLASSES)
    assert [frame.t_us for frame, _ in source.frames()] == [0, 200_000, 300_000]
    assert source.damaged == 1
    assert f"{tmp_path}/car/2.jpg: does not decode as a picture" in caplog.text


def test_image_folder_missing_class_or_pictures_is_user_error(tmp_path):
    crop(tmp_path / "car" / "1.jpg", 50)
    with pytest.raises(UserError, match="has no 'bus'; remove it, or choose from car"):
        ImageFolderSpec(root=tmp_path).open(CLASSES)
    (tmp_path / "car" / "1.jpg").unlink()
    with pytest.raises(UserError, match=r"no \.jpg, \.jpeg, \.png in its folders; correct the key 'root'"):
        ImageFolderSpec(root=tmp_path).open(("car",))


def test_image_folder_depth_decides_number_of_cameras(tmp_path):
    draw_image_folder(tmp_path / "one", 1)
    assert dict(IMAGE_FOLDER.survey(tmp_path / "one").frames) == {"camera": 6}
    crop(tmp_path / "two" / "gate" / "car" / "1.jpg", 50)
    crop(tmp_path / "two" / "yard" / "bus" / "1.jpg", 50)
    (tmp_path / "two" / "yard" / "tram").mkdir()
    survey = IMAGE_FOLDER.survey(tmp_path / "two")
    assert dict(survey.frames) == {"gate": 1, "yard": 1}
    assert survey.missing == (f"{tmp_path}/two/yard/tram: there is no picture in it",)
    classes = IMAGE_FOLDER.classes_in(tmp_path / "two")
    assert classes == ("bus", "car", "tram")
    index = tmp_path / "gate.jsonl"
    IMAGE_FOLDER.examine(tmp_path / "two", "gate", classes, index, lambda objects: None)
    source = IMAGE_FOLDER.make_indexed_spec(tmp_path / "two", "gate", index).open(classes)
    assert [truth.classes.tolist() for _, truth in source.frames()] == [[1]], "a camera need not see all"
