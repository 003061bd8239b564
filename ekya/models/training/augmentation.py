"""Changed copies of labelled frames, so that a detector does not learn a few frames by heart."""

from collections.abc import Mapping
from dataclasses import replace
from types import MappingProxyType

import numpy as np
import torch
from numpy.typing import NDArray
from torch.nn.functional import affine_grid, grid_sample

from ekya.models.edge.architecture_table import Task
from ekya.models.training.frames import FrameObjects, LabelledFrames
from ekya.models.training.labelled import E, Examples

VERSIONS: Mapping[Task, int] = MappingProxyType({Task.CLASSIFY: 1, Task.DETECT: 2})
"""Versions of each labelled image that a training sees: as it is, and changed copies.

A window has hundreds of crops, but a few dozen frames, which all show the same background.
"""

ZOOM = (0.7, 1.4)
"""Range of the size of a copy's objects, relative to the frame's."""

LEAST_VISIBLE = 0.4
"""Part of an object that must be inside a copy; what is left of others is neither object nor background."""

_CONTRAST, _BRIGHTNESS, _SATURATION = (0.7, 1.3), (-20.0, 20.0), (0.6, 1.4)
# Left and right edges change places.
_MIRROR = np.array([2, 1, 0, 3])


def versions_of(examples: Examples) -> int:
    """Returns the number of versions of each image that a training sees."""
    return VERSIONS[Task.DETECT if isinstance(examples, LabelledFrames) else Task.CLASSIFY]


def copies_of(examples: E) -> E:
    """Returns a copy of each frame, mirrored, zoomed to a random part, and lit differently; no crops.

    A frame always has the same copy, so that its activations can be kept.
    """
    if not isinstance(examples, LabelledFrames):
        return examples.select_rows(np.zeros(0, np.int64))
    changed = [
        _changed(image, objects, np.random.default_rng(int(t_us)))
        for image, objects, t_us in zip(examples.images, examples.objects, examples.t_us, strict=True)
    ]
    images = np.concatenate([examples.images[:0], *(image[None] for image, _ in changed)])
    return replace(examples, images=images, objects=tuple(objects for _, objects in changed))


def _changed(
    image: NDArray[np.uint8], objects: FrameObjects, rng: np.random.Generator
) -> tuple[NDArray[np.uint8], FrameObjects]:
    # Drawn as a logarithm: shrinking by a factor is as likely as enlarging by it.
    zoom = float(np.exp(rng.uniform(*np.log(ZOOM))))
    # Corner of the part that is shown, as a fraction of the frame; outside of it where the frame shrinks.
    room = 1.0 - 1.0 / zoom
    corner = rng.uniform(min(0.0, room), max(0.0, room), 2)
    shown = _lit(_zoomed(image[:, ::-1], zoom, corner), rng)

    def moved(boxes: NDArray[np.float32]) -> NDArray[np.float32]:
        mirrored = np.where(np.arange(4) % 2 == 0, 1.0 - boxes[:, _MIRROR], boxes)
        return np.asarray((mirrored - np.tile(corner, 2)) * zoom, np.float32)

    whole = moved(objects.boxes)
    inside = np.clip(whole, 0.0, 1.0)
    kept = _area(inside) >= LEAST_VISIBLE * _area(whole)
    doubtful = np.clip(np.concatenate([moved(objects.doubtful), whole[~kept]]), 0.0, 1.0)
    return shown, FrameObjects(inside[kept], objects.classes[kept], doubtful[_area(doubtful) > 0.0])


def _zoomed(image: NDArray[np.uint8], zoom: float, corner: NDArray[np.float64]) -> NDArray[np.uint8]:
    """Shows the part of (S, S, 3) from a corner on; grey around the frame."""
    # In the coordinates of ``affine_grid`` the frame reaches from -1 to 1.
    shift = 2.0 * corner + 1.0 / zoom - 1.0
    where = torch.tensor([[[1.0 / zoom, 0.0, shift[0]], [0.0, 1.0 / zoom, shift[1]]]], dtype=torch.float32)
    # ``grid_sample`` pads with zeros, which stand for grey until the shift is undone.
    planes = torch.from_numpy(np.ascontiguousarray(image)).permute(2, 0, 1)[None].float() - 128.0
    grid = affine_grid(where, list(planes.shape), align_corners=False)
    shown = grid_sample(planes, grid, align_corners=False) + 128.0
    return np.asarray(shown[0].permute(1, 2, 0).round().clamp(0, 255).byte().numpy(), np.uint8)


def _lit(image: NDArray[np.uint8], rng: np.random.Generator) -> NDArray[np.uint8]:
    """Changes contrast, brightness and saturation."""
    pixels = image.astype(np.float32) * rng.uniform(*_CONTRAST) + rng.uniform(*_BRIGHTNESS)
    grey = pixels.mean(axis=2, keepdims=True)
    return np.asarray(np.clip(grey + (pixels - grey) * rng.uniform(*_SATURATION), 0, 255), np.uint8)


def _area(boxes: NDArray[np.float32]) -> NDArray[np.float32]:
    area: NDArray[np.float32] = np.prod(np.maximum(boxes[:, 2:] - boxes[:, :2], 0.0), axis=1)
    return area
