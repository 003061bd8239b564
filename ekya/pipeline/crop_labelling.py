"""Labelling of a window for a classifier: the golden model names crops; λ is measured on them."""

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from ekya.core.configs import InferenceConfig
from ekya.core.weights import Compared
from ekya.models.golden.detections import Question
from ekya.models.training.label_weights import few_of_each
from ekya.models.training.labelled import Examples, LabelledCrops
from ekya.pipeline.collector import CollectedFrame
from ekya.pipeline.device_scopes import DeviceScopes
from ekya.pipeline.labelling import (
    SAMPLE_PART,
    LabellingInputs,
    affordable_count,
    longest_run,
    warn_if_none,
)
from ekya.pipeline.labels import (
    LABELLED_PICTURES,
    Selection,
    StreamLabels,
    choose,
    choose_pictures,
    label_window,
)
from ekya.planning.adaptation.shadow_gate import LEAST_OBJECTS
from ekya.planning.profiling.inference_profile import BurstFrame, sides_of

BURST_OBJECTS = 6
"""Objects tracked through a burst: a few suffice to show how fast things move."""


class CropLabelling:
    """``Labelling`` of crops."""

    def select(self, given: LabellingInputs) -> Selection:
        """Returns the objects to label: a random choice within the budget."""
        settings, material = given.settings, given.material
        one_gpu_s = _one_gpu_s(given, material.sample)
        left_gpu_s = None if settings.label_gpu_s is None else SAMPLE_PART * settings.label_gpu_s
        by_box = given.golden.background is None
        most = settings.labels_per_window if by_box else LABELLED_PICTURES
        count = affordable_count(left_gpu_s, one_gpu_s, most)
        warn_if_none(given, count, one_gpu_s)
        return (choose if by_box else choose_pictures)(material, count, settings.seed)

    def label(self, given: LabellingInputs, asked: Selection) -> StreamLabels:
        """Labels the chosen objects."""
        settings = given.settings
        return label_window(
            given.material,
            asked,
            given.golden,
            settings.side,
            settings.labels_per_window,
            settings.seed,
        )

    def burst_questions(self, given: LabellingInputs) -> list[Question]:
        return [frame.question for frame in _asked_burst(given)]

    def burst(
        self, given: LabellingInputs, configs: Sequence[InferenceConfig], scopes: DeviceScopes
    ) -> list[BurstFrame]:
        """Labels a few objects through consecutive frames, and classifies them at each resolution."""
        labelled = _labelled_burst(given, scopes)
        if not labelled:
            return []
        crops = [frame.crops for frame, _ in labelled]
        ends = np.cumsum([len(cut) for cut in crops])[:-1]
        answers = {}
        for resolution in sides_of(configs):
            with scopes.scope():
                classes, _ = given.serving.predict(np.concatenate(crops), resolution)
            answers[resolution] = np.split(classes, ends)
        finest = answers[max(answers)]
        return [
            BurstFrame(
                frame.boxes,
                truth,
                {side: (int((of[at] == finest[at]).sum()), len(truth)) for side, of in answers.items()},
            )
            for at, (frame, truth) in enumerate(labelled)
        ]

    def to_compare(self, given: LabellingInputs, labels: StreamLabels) -> tuple[Examples, int] | None:
        """Returns the newest crop of each object, and their number; None if there are too few."""
        labelled = labels.examples
        assert isinstance(labelled, LabelledCrops)
        objects = labelled.select_rows(np.flatnonzero(labelled.classes != given.golden.background))
        if len(objects) < LEAST_OBJECTS:
            return None
        newest = objects.select_rows(few_of_each(objects.classes, objects.tracks, 1))
        return (newest, len(newest)) if len(newest) >= LEAST_OBJECTS else None

    def compared_images(self, labels: StreamLabels, compared: Compared) -> int:
        """Returns the number of compared crops: one of each object."""
        return compared.objects

    def images_to_check_teacher(self, labels: StreamLabels) -> int:
        """Returns 0: a classifier finds no objects that the golden model could miss."""
        return 0

    def check_teacher(self, given: LabellingInputs, labels: StreamLabels) -> str | None:
        """Returns None, as ``images_to_check_teacher`` says."""
        return None


def _labelled_burst(
    given: LabellingInputs, scopes: DeviceScopes
) -> list[tuple[CollectedFrame, NDArray[np.int64]]]:
    """Returns consecutive frames with a few named objects, and their classes; empty if there are none."""
    frames, golden = _asked_burst(given), given.golden
    if not any(len(frame.boxes) for frame in frames):
        return []
    with scopes.host():
        classes = golden.label_boxes([frame.question for frame in frames])
    named = [np.flatnonzero((of >= 0) & (of != golden.background)) for of in classes]
    followed = _followed(given, [frame.tracks[rows] for frame, rows in zip(frames, named, strict=True)])
    burst = []
    for frame, of, rows in zip(frames, classes, named, strict=True):
        kept = rows[np.isin(frame.tracks[rows], followed)]
        burst.append((frame.select_objects(kept), of[kept]))
    return burst


def _one_gpu_s(given: LabellingInputs, frames: Sequence[CollectedFrame]) -> float:
    """Returns the golden model's GPU-seconds for one object, or one new picture; 0 if there are none."""
    unseen = [frame for frame in frames if len(frame.boxes) and frame.found is None]
    if given.settings.label_gpu_s is None or not unseen:
        return 0.0
    return given.golden_gpu_s([unseen[0].select_objects(np.zeros(1, np.int64)).question])


def _asked_burst(given: LabellingInputs) -> list[CollectedFrame]:
    """Returns the burst to label: only a few objects, if the golden model is charged per box.

    A budget shortens it to the part that is not reserved for the sample.
    """
    frames, budget_gpu_s = longest_run(given.material.burst), given.settings.label_gpu_s
    one_gpu_s = _one_gpu_s(given, frames)
    left_gpu_s = None if budget_gpu_s is None else (1.0 - SAMPLE_PART) * budget_gpu_s
    if given.golden.background is not None:
        # A picture that the detector has analysed before costs nothing.
        unseen = np.cumsum([frame.found is None for frame in frames])
        most = affordable_count(left_gpu_s, one_gpu_s, len(frames))
        return [frame for frame, count in zip(frames, unseen.tolist(), strict=True) if count <= most]
    followed = _followed(given, [frame.tracks for frame in frames])
    most = affordable_count(left_gpu_s, one_gpu_s, len(followed) * len(frames))
    for count in range(len(followed), -1, -1):
        kept = [
            frame.select_objects(np.flatnonzero(np.isin(frame.tracks, followed[:count]))) for frame in frames
        ]
        if sum(len(frame.boxes) for frame in kept) <= most or count == 0:
            break
    return kept


def _followed(given: LabellingInputs, tracks: Sequence[NDArray[np.int64]]) -> NDArray[np.int64]:
    """Returns a few random objects of a burst, by track."""
    seen = np.unique(np.concatenate([np.zeros(0, np.int64), *tracks]))
    rng = np.random.default_rng((given.settings.seed, given.material.window))
    return rng.permutation(seen)[:BURST_OBJECTS]
