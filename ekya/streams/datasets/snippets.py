"""Short videos of which one picture is labelled: its objects are followed through the others.

Boxes are followed by optical flow from the labelled picture on, and back from it. An object whose points are
lost, or that leaves the picture, has no label from there on; nor has one that comes into it later.
"""

from collections.abc import Callable, Iterator
from dataclasses import replace
from itertools import islice

import numpy as np
from numpy.typing import NDArray

from ekya.streams.datasets.labelled import LabelledObject, ShownFrame
from ekya.streams.ingest.motion import BoxFlow
from ekya.streams.ingest.pictures import shrink_frame

SNIPPET, LABELLED = 30, 19
"""Pictures of a snippet of Cityscapes, and the one that is labelled, from 0."""


def follow_snippets(show: Callable[[], Iterator[ShownFrame]], max_side: int) -> Iterator[ShownFrame]:
    """Yields all frames, those of snippets with the objects of their labelled picture.

    Args:
        show: returns the frames. Those that last less than the usual time are of snippets, which are whole.
        max_side: longest side of the pictures that are kept meanwhile, pixels.
    """
    shown = show()
    for first in shown:
        if first.frame.lasts == 1:
            yield first
            continue
        snippet = [_shrunk(first, max_side)]
        snippet += [_shrunk(one, max_side) for one in islice(shown, SNIPPET - 1)]
        labelled = snippet[LABELLED]
        if labelled.image is None:
            # Nothing is known of the others.
            yield replace(labelled, frame=replace(labelled.frame, lasts=1.0))
        else:
            yield from _follow(snippet, labelled.image)


def _shrunk(one: ShownFrame, max_side: int) -> ShownFrame:
    return one if one.image is None else replace(one, image=shrink_frame(one.image, max_side))


def _follow(snippet: list[ShownFrame], image: NDArray[np.uint8]) -> list[ShownFrame]:
    """Returns the frames of a snippet with their objects, in pixels of the labelled picture ``image``."""
    found = list(snippet)
    known = snippet[LABELLED].frame
    assert known.size is not None, "Cityscapes' labels say how large their picture is"
    scale = np.array(known.size * 2, np.float64) / np.array(image.shape[1::-1] * 2)
    names = tuple(f"{known.place}/{row}" for row in range(len(known.objects)))
    found[LABELLED] = replace(snippet[LABELLED], frame=replace(known, tracks=names))
    start = np.array([one[1:] for one in known.objects], np.float64).reshape(-1, 4) / scale
    for numbers in (range(LABELLED - 1, -1, -1), range(LABELLED + 1, SNIPPET)):
        flow = BoxFlow(drops_lost=True)
        flow.start_boxes(image, start.astype(np.float32))
        for number in numbers:
            one = snippet[number]
            if one.image is None:
                continue
            if not flow.has_size_of(one.image):
                problem = f"{one.frame.place}: has another size than the labelled picture"
                found[number] = replace(one, image=None, frame=replace(one.frame, problem=problem))
                continue
            boxes = np.round(flow.follow_boxes(one.image) * scale, 2).tolist()
            rows = flow.rows.tolist()
            frame = replace(
                one.frame,
                objects=tuple(
                    LabelledObject(known.objects[row].name, *box)
                    for row, box in zip(rows, boxes, strict=True)
                ),
                size=known.size,
                tracks=tuple(names[row] for row in rows),
            )
            found[number] = replace(one, frame=frame)
    return found
