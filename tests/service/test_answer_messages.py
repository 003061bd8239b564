import json

from answering import CLASSES, a_service, row

from ekya.core.units import StreamId
from ekya.results.storage.hour_tables import HourWriter, next_rows
from ekya.results.storage.wall_clock import WallClock, record_start
from ekya.service.answers.messages import make_messages, newest_message, time_of

CAM = StreamId("cam.1")


def written(tmp_path, *rows):
    folder = a_service(tmp_path)
    writer = HourWriter(folder.hours(CAM))
    for one in rows:
        writer.add_row(one)
    writer.flush()
    return folder


def test_messages_are_of_frames_with_boxes_of_their_own(tmp_path):
    folder = written(
        tmp_path,
        row(0, classes=(1, 0)),
        row(1, analysed=False),
        row(2, analysed=False, followed=True),
        row(3, classes=()),
    )
    made = list(make_messages(CAM, next_rows(folder.hours(CAM), -1), CLASSES, WallClock.from_folder(folder)))
    assert [message["id"] for message in made] == ["cam.1/0", "cam.1/2", "cam.1/3"]
    box = [1.3, 2.0, 30.0, 40.0]
    assert made[0]["objects"] == [
        {"class": "person", "confidence": 0.3333, "box": box},
        {"class": "car", "confidence": 0.3333, "box": box},
    ]
    assert made[2]["objects"] == []
    assert json.loads(json.dumps(made[1])) == {
        "id": "cam.1/2",
        "camera": "cam.1",
        "frame": 2,
        "time": "2025-11-25T10:00:00.200Z",
        "model": 3,
        "objects": [{"class": "car", "confidence": 0.3333, "box": box}],
    }


def test_message_names_no_box_that_holds_no_object(tmp_path):
    folder = written(tmp_path, row(0, classes=(2, 0)))
    assert [one["class"] for one in newest_message(folder, CAM, CLASSES)["objects"]] == ["car"]


def test_newest_message_is_the_last_with_boxes_of_its_own(tmp_path):
    folder = a_service(tmp_path)
    assert newest_message(folder, CAM, CLASSES) is None
    writer = HourWriter(folder.hours(CAM))
    for frame in range(3):
        writer.add_row(row(frame, analysed=frame < 2))
        writer.flush()
        assert newest_message(folder, CAM, CLASSES)["frame"] == min(frame, 1)


def test_message_time_leaves_out_when_the_service_was_down(tmp_path):
    folder = written(tmp_path, row(5))
    record_start(folder, 400_000, 1_764_100_000_000_000)
    assert newest_message(folder, CAM, CLASSES)["time"] == "2025-11-25T19:46:40.100Z"


def test_time_of_has_three_digits_after_the_second():
    assert time_of(1_764_064_800_000_000) == "2025-11-25T10:00:00.000Z"
    assert time_of(1_764_064_800_999_999) == "2025-11-25T10:00:00.999Z"
