"""Pictures of a stream that detects: reference, base model and served model side by side, for its report.

The frames are read from the source a second time, so a live camera has no pictures.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from ekya.config.fleet_sections import StreamConfig
from ekya.core.configs import GOLDEN_RESOLUTION
from ekya.core.errors import UserError
from ekya.core.objects import DOUBTFUL, SURE, match_image
from ekya.core.records import LabelledBoxes, PredictionColumns, ReferenceColumns, rows_of
from ekya.core.units import BASE_VERSION, StreamId, us_to_seconds
from ekya.results.boxed_picture import BoxStyle, DrawnBox, draw_boxes
from ekya.results.metrics.accuracy import answering_rows
from ekya.results.report.html import PictureRow, ReportPicture, ReportPictures
from ekya.streams.ingest.frame import Frame
from ekya.streams.ingest.process import SourceProcess

SHOWN_FRAMES = 3
"""Most frames of a stream in a report."""


@dataclass(frozen=True, slots=True, eq=False)
class StreamRecords:
    """Records of a stream that pictures are made from.

    Attributes:
        base: answers of the base model to the sampled frames.
        served: answers of the run.
        reference: objects and doubtful boxes.
        labelled: frames that a model was trained or validated on, which are not shown.
    """

    base: PredictionColumns
    served: PredictionColumns
    reference: ReferenceColumns
    labelled: LabelledBoxes


def stream_pictures(stream: StreamConfig, classes: tuple[str, ...], records: StreamRecords) -> ReportPictures:
    """Draws up to ``SHOWN_FRAMES`` sampled frames of the last window that shows objects.

    Where there are no pictures, a sentence says why.
    """
    if stream.source.live:
        return ReportPictures(note="The frames of a live camera are not kept, so there are no pictures.")
    frames = shown_frames(records, len(classes))
    if not frames:
        return ReportPictures(note="No sampled frame has a reference, so there are no pictures.")
    try:
        images = _images(stream, classes, frames)
    except UserError as error:
        return ReportPictures(
            note=f"Its recording could not be read again, so there are no pictures: {error}"
        )
    if not images:
        return ReportPictures(note="Its recording could not be read again, so there are no pictures.")
    whose = "Truth of the source" if stream.source.gives_truth else "Golden detector"
    return ReportPictures(tuple(_row(stream.id, whose, classes, records, shown) for shown in images))


def shown_frames(records: StreamRecords, class_count: int) -> list[int]:
    """Returns the sampled frames to show, rising; they are spread over the time of the newest model.

    They are of the last window in which a sampled frame shows an object, or of the last one if none does.
    Frames that were labelled, or that have no reference, are not shown.
    """
    frames = records.base.frame[np.isin(records.base.frame, records.reference.frame)]
    frames = frames[np.isin(frames, records.served.frame) & ~np.isin(frames, records.labelled.frame)]
    full = frames[_objects_in(records.reference, frames, class_count) > 0]
    frames = full if len(full) else frames
    if not len(frames):
        return []
    row = rows_of(frames, records.served.frame)
    window, version = records.served.window[row], records.served.model_version[row]
    frames, version = frames[window == window.max()], version[window == window.max()]
    frames = frames[version == version.max()]
    analysed = frames[records.served.analysed[rows_of(frames, records.served.frame)]]
    frames = analysed if len(analysed) >= min(SHOWN_FRAMES, len(frames)) else frames
    count = min(SHOWN_FRAMES, len(frames))
    places = (np.arange(count) * 2 + 1) * len(frames) // (2 * count)
    chosen: list[int] = frames[places].tolist()
    return chosen


def _objects_in(
    reference: ReferenceColumns, frames: NDArray[np.int64], class_count: int
) -> NDArray[np.int64]:
    """Returns the number of objects in each frame, all of which have a reference."""
    known = (reference.classes >= 0) & (reference.classes < class_count)
    before = np.append(0, np.cumsum(known))
    objects: NDArray[np.int64] = before[reference.offsets[1:]] - before[reference.offsets[:-1]]
    return objects[rows_of(frames, reference.frame)]


def _images(stream: StreamConfig, classes: tuple[str, ...], frames: Sequence[int]) -> list[Frame]:
    """Returns these frames, those that can still be read."""
    with SourceProcess(stream.first_pass, classes, areas=stream.areas) as source:
        return [frame for frame, _ in source.frames(only=frames)]


@dataclass(frozen=True, slots=True, eq=False)
class _Boxes:
    """Boxes of one frame: (N, 4) boxes, (N,) classes, and for predictions (N,) confidences."""

    boxes: NDArray[np.float32]
    classes: NDArray[np.int16]
    confidence: NDArray[np.float32]


def _row(
    stream: StreamId,
    whose: str,
    classes: tuple[str, ...],
    records: StreamRecords,
    shown: Frame,
) -> PictureRow:
    frame = shown.index
    at = int(rows_of(np.array([frame]), records.served.frame)[0])
    time = f"{us_to_seconds(int(records.served.t_us[at])):.1f} s"
    version = int(records.served.model_version[at])
    serves = f"Model {version}, which served" if version != BASE_VERSION else "Base model, which served"
    if int(records.served.resolution[at]) == GOLDEN_RESOLUTION:
        serves = "Golden detector, which served"
    served = _answer(records.served, frame, len(classes))
    base = _answer(records.base, frame, len(classes))
    drawn = [(whose, *_reference(records.reference, shown, classes))]
    for name, answer in (("Base model", base), (serves, served)):
        drawn.append((name, *_judged(records.reference, frame, answer, classes)))
    if not records.served.analysed[at]:
        name, boxes, caption = drawn[-1]
        followed = records.served.answered_by[at] == frame
        how = "boxes followed from an earlier frame" if followed else "answered by an earlier frame"
        drawn[-1] = (name, boxes, f"{caption}; not analysed, {how}")
    return PictureRow(
        f"Window {int(records.served.window[at])}, {time}",
        tuple(
            ReportPicture(
                name,
                caption,
                f"{stream} at {time}, {name}: {caption}",
                draw_boxes(shown.image, boxes, shown.areas),
            )
            for name, boxes, caption in drawn
        ),
    )


def _answer(predictions: PredictionColumns, frame: int, class_count: int) -> _Boxes:
    """Returns the confident boxes that answer for a frame."""
    row = int(answering_rows(predictions, np.array([frame]))[0])
    own = slice(0, 0) if row < 0 else slice(predictions.offsets[row], predictions.offsets[row + 1])
    boxes = _Boxes(predictions.boxes[own], predictions.classes[own], predictions.confidence[own])
    counts = (boxes.confidence >= SURE) & (boxes.classes >= 0) & (boxes.classes < class_count)
    return _Boxes(boxes.boxes[counts], boxes.classes[counts], boxes.confidence[counts])


def _true(reference: ReferenceColumns, frame: int, class_count: int) -> tuple[_Boxes, NDArray[np.float32]]:
    """Returns the objects of a frame, and the doubtful boxes."""
    row = int(rows_of(np.array([frame]), reference.frame)[0])
    own = slice(reference.offsets[row], reference.offsets[row + 1])
    boxes, classes = reference.boxes[own], reference.classes[own]
    known = (classes >= 0) & (classes < class_count)
    objects = _Boxes(boxes[known], classes[known], np.ones(int(known.sum()), np.float32))
    return objects, boxes[classes == DOUBTFUL]


def _reference(
    reference: ReferenceColumns, shown: Frame, classes: tuple[str, ...]
) -> tuple[list[DrawnBox], str]:
    objects, doubtful = _true(reference, shown.index, len(classes))
    doubtful = doubtful[shown.find_counting(doubtful)]
    drawn = [DrawnBox(box, BoxStyle.DOUBTFUL) for box in doubtful]
    drawn += [
        DrawnBox(box, BoxStyle.OBJECT, classes[of])
        for box, of in zip(objects.boxes, objects.classes.tolist(), strict=True)
    ]
    unsure = f", {len(doubtful)} doubtful" if len(doubtful) else ""
    return drawn, _counted(len(objects.boxes), "object") + unsure


def _judged(
    reference: ReferenceColumns, frame: int, answer: _Boxes, classes: tuple[str, ...]
) -> tuple[list[DrawnBox], str]:
    """Returns the boxes of an answer by what they matched, and the objects that none matched."""
    objects, doubtful = _true(reference, frame, len(classes))
    matches = match_image(
        answer.boxes, answer.classes, answer.confidence, objects.boxes, objects.classes, doubtful
    )
    found = np.isin(np.arange(len(objects.boxes)), matches.object)
    drawn = [DrawnBox(box, BoxStyle.MISSED) for box in objects.boxes[~found]]
    wrong = 0
    labels = [classes[of] for of in answer.classes.tolist()]
    for at, (box, label) in enumerate(zip(answer.boxes, labels, strict=True)):
        if matches.hit[at]:
            drawn.append(DrawnBox(box, BoxStyle.RIGHT, label))
        elif matches.ignored[at]:
            drawn.append(DrawnBox(box, BoxStyle.DOUBTFUL, label))
        else:
            drawn.append(DrawnBox(box, BoxStyle.WRONG, f"{label}?"))
            wrong += 1
    right = f"{found.sum()} of {_counted(len(found), 'object')} found" if len(found) else "no object to find"
    return drawn, f"{right}, {_counted(wrong, 'box')} wrong" if wrong else right


def _counted(count: int, noun: str) -> str:
    plural = noun + ("es" if noun.endswith("x") else "s")
    return f"1 {noun}" if count == 1 else f"{count or 'no'} {plural}"
