"""Golden models that classify crops (paper §5: a ResNeXt as the golden model)."""

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from ekya.models.golden.class_map import class_of_each
from ekya.models.golden.detections import ON_CPU, FramePlace, Question, RunsOn
from ekya.models.operations_counter import count_operations
from ekya.streams.ingest.crops import crop_objects

_BATCH, _GPU_BATCH = 32, 128
_LEAST = 1e-30


class GoldenClassifier:
    """``GoldenModel`` that classifies given boxes; it detects no objects itself."""

    def __init__(
        self, classes: tuple[str, ...], network: nn.Module, side: int, runs_on: RunsOn = ON_CPU
    ) -> None:
        """Wrap a network.

        Args:
            classes: the fleet's.
            network: (N, 3, side, side) float RGB in [0, 1] to (N, classes) logits.
            side: of a crop, pixels.
            runs_on: where its trunk has been placed.
        """
        self.classes = classes
        self.background = None
        """None: every box is taken for an object."""
        self.finds = False
        """False: it names boxes that are given."""
        self.runs_on = runs_on
        """Where it runs."""
        self._network = network.eval().to(runs_on.device)
        self._batch = _BATCH if runs_on.device == "cpu" else _GPU_BATCH
        self._side = side
        self._operations_per_crop = 0

    def label_boxes(self, items: Sequence[Question]) -> list[NDArray[np.int64]]:
        """Returns the class of each box in each image."""
        counts = [len(item.boxes) for item in items]
        if not sum(counts):
            return [np.zeros(0, dtype=np.int64) for _ in items]
        return np.split(self.classify_boxes(items)[0], np.cumsum(counts)[:-1])

    def classify_boxes(self, items: Sequence[Question]) -> tuple[NDArray[np.int64], NDArray[np.float32]]:
        """Returns the class of every box of all images, (N,), and its confidence, (N,) in [0, 1]."""
        crops = [crop_objects(item.picture, item.boxes, self._side) for item in items if len(item.boxes)]
        if not crops:
            return np.zeros(0, dtype=np.int64), np.zeros(0, dtype=np.float32)
        every = np.concatenate(crops)
        parts = (every[at : at + self._batch] for at in range(0, len(every), self._batch))
        answers = [self._classify(part) for part in parts]
        return np.concatenate([of for of, _ in answers]), np.concatenate([sure for _, sure in answers])

    def operations(self, items: Sequence[Question]) -> int:
        """Returns the multiplications and additions for all crops."""
        if not self._operations_per_crop:
            with count_operations(self._network) as counted, torch.no_grad():
                self._network(torch.zeros(1, 3, self._side, self._side, device=self.runs_on.device))
            self._operations_per_crop = counted.forward
        return self._operations_per_crop * sum(len(item.boxes) for item in items)

    def find_objects(
        self,
        image: NDArray[np.uint8],
        place: FramePlace | None = None,
        size: tuple[int, int] | None = None,
    ) -> None:
        """Returns None: a classifier finds no boxes."""

    def find_each(self, items: Sequence[Question]) -> list[None]:
        """Returns None for each image."""
        return [None for _ in items]

    def _classify(self, crops: NDArray[np.uint8]) -> tuple[NDArray[np.int64], NDArray[np.float32]]:
        pictures = torch.from_numpy(np.ascontiguousarray(crops.transpose(0, 3, 1, 2))).to(self.runs_on.device)
        with torch.inference_mode():
            scores: Tensor = self._network(pictures.float() / 255)
        sure = scores.softmax(dim=1).amax(dim=1)
        return scores.argmax(dim=1).cpu().numpy().astype(np.int64), sure.cpu().numpy().astype(np.float32)


def grouped(classes: tuple[str, ...], names: tuple[str, ...], file: Path | None, model: str) -> Tensor:
    """Returns ``class_of_each`` as a (names, classes) float matrix, 1 where the name has the class."""
    class_of = class_of_each(classes, names, file, model)
    grouping = torch.zeros(len(names), len(classes))
    members = np.flatnonzero(class_of >= 0)
    grouping[members, class_of[members]] = 1.0
    return grouping


class ByFleetClass(nn.Module):
    """Sums a network's probabilities per class of the fleet."""

    def __init__(self, network: nn.Module, grouping: Tensor) -> None:
        super().__init__()
        self.network = network
        self.register_buffer("grouping", grouping)

    def forward(self, crops: Tensor) -> Tensor:
        """Maps (N, 3, H, W) RGB in [0, 1] to (N, classes) logarithms of summed probabilities."""
        logits: Tensor = self.network(crops)
        # Logarithms, whose softmax gives the sums again, as parts of the fleet's classes alone.
        # Clamped, so that a class without probability has a finite one.
        return torch.log((torch.softmax(logits, dim=1) @ self.get_buffer("grouping")).clamp_min(_LEAST))
