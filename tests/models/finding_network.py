"""A network that finds red, green and blue rectangles, as an ONNX file of any layout."""

import io
from collections.abc import Callable, Mapping
from pathlib import Path

import numpy as np
import onnx
import torch
from onnx import helper
from torch import Tensor, nn

from ekya.models.edge.onnx_export import trace_network

SIDES = (128, 192)
"""Height and width of the network's input."""

CELLS = sum((SIDES[0] // stride) * (SIDES[1] // stride) for stride in (8, 16, 32))
NAMES = ("red", "green", "blue")
COLOURS = ((0, 0, 220), (0, 220, 0), (220, 0, 0))  # BGR

Formed = tuple[Tensor, ...]


class Finder(nn.Module):
    """Finds the rectangle of each colour, and hands corners, scores and class numbers to ``form``."""

    def __init__(self, form: Callable[..., Formed], taken: str, norm: Callable[[Tensor], Tensor]) -> None:
        super().__init__()
        self.form, self.taken, self.norm = form, taken, norm

    def forward(self, images: Tensor, sizes: Tensor | None = None) -> Formed:
        picture = self.norm(images.float())
        if "last" in self.taken:
            picture = picture.permute(0, 3, 1, 2)
        picture = (picture if self.taken == "one" else picture[0]).reshape(3, *SIDES)
        others = torch.stack([picture[[1, 2]].amax(0), picture[[0, 2]].amax(0), picture[[0, 1]].amax(0)])
        mask = (picture > 0.6) & (others < 0.35)
        corners = []
        for axis, side in ((1, SIDES[1]), (2, SIDES[0])):
            hit = mask.any(axis)
            at = torch.arange(side)
            corners.append((torch.where(hit, at, side).amin(1), torch.where(hit, at + 1, 0).amax(1)))
        (left, right), (top, bottom) = corners
        found = mask.sum((1, 2)) > 20
        boxes = torch.stack([left, top, right, bottom], 1).float() * found[:, None]
        scores = found.float() * torch.tensor([0.9, 0.8, 0.7])
        return self.form(boxes, scores, torch.arange(3), sizes)


def write_finder(
    path: Path,
    form: Callable[..., Formed],
    outputs: tuple[str, ...] = ("output0",),
    *,
    taken: str = "first",
    norm: Callable[[Tensor], Tensor] = lambda picture: picture,
    sizes: bool = False,
    names: tuple[str, ...] = NAMES,
) -> Path:
    """Writes a network.

    Args:
        path: of the file.
        form: returns the outputs of corners in pixels (3, 4), scores (3,), 0 for what is not there, class
            numbers (3,) and the frame's width and height (1, 2).
        outputs: their names.
        taken: shape of the picture: ``first`` (1, 3, H, W), ``one`` without 1, ``last`` (1, H, W, 3), or
            ``last bytes``.
        norm: undoes what was done to pixels in [0, 1].
        sizes: it takes the frame's size.
        names: of its classes.
    """
    shape = {"first": (1, 3, *SIDES), "one": (3, *SIDES)}.get(taken, (1, *SIDES, 3))
    example = (torch.zeros(shape, dtype=torch.uint8 if "bytes" in taken else torch.float32),)
    if sizes:
        example += (torch.tensor([[100, 60]]),)
    model = onnx.load(io.BytesIO(trace_network(Finder(form, taken, norm), example, outputs, {})))
    helper.set_model_props(model, {"names": str(dict(enumerate(names)))})
    onnx.save(model, str(path))
    return path


def draw_frame(boxes: Mapping[int, tuple[int, int, int, int]]) -> np.ndarray:
    """Returns a grey frame of 200 x 120 with a rectangle of each of these colours."""
    frame = np.full((120, 200, 3), 114, np.uint8)
    for colour, (left, top, right, bottom) in boxes.items():
        frame[top:bottom, left:right] = COLOURS[colour]
    return frame
