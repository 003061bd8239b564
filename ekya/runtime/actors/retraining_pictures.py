"""Keeps pictures of a stream on disk: exemplars, and what the validation of its retrainings showed."""

import logging

import cv2

from ekya.core.errors import UserError
from ekya.core.units import JobId, StreamId
from ekya.models.training.answered import Answered, validation_of
from ekya.models.training.exemplar_file import load_exemplars, save_exemplars
from ekya.models.training.exemplars import ExemplarMemory
from ekya.models.training.labelled import Examples
from ekya.results.storage.run_folder import RunFolder
from ekya.results.storage.validation_files import KeptValidation, forget_validations, keep_validation

_LOG = logging.getLogger(__name__)

_MOST_SIDE = 160
"""Side of a picture of a mistake in pixels; a larger one is shrunk."""

_QUALITY = 85


class RetrainingPictures:
    """What is kept on disk of one stream; what cannot be written is a warning.

    Args:
        folder: of the run.
        stream: whose pictures they are.
    """

    def __init__(self, folder: RunFolder, stream: StreamId) -> None:
        self._folder, self._stream = folder, stream
        self._exemplars = folder.exemplars(stream)

    def read_exemplars(self, empty: ExemplarMemory) -> ExemplarMemory:
        """Returns the exemplars of earlier processes; ``empty`` where there are none."""
        return load_exemplars(self._exemplars, empty)

    def keep_exemplars(self, memory: ExemplarMemory) -> None:
        """Writes the exemplars."""
        try:
            save_exemplars(self._exemplars, memory)
        except (UserError, OSError) as error:
            # They are in memory; only a restart would lose them.
            _LOG.warning("%s: its exemplars are not kept on disk (%s)", self._stream, error)

    def keep_validation(self, job: JobId, before: Answered, after: Answered, examples: Examples) -> None:
        """Writes the validation of a retraining.

        Args:
            job: its number.
            before, after: answers of the model that served, and of the best epoch.
            examples: the validation part.
        """
        validation, crops = validation_of(before, after, examples.images)
        pictures = []
        for crop in crops:
            scale = min(1.0, _MOST_SIDE / max(crop.shape[:2]))
            small = cv2.resize(crop, None, fx=scale, fy=scale, interpolation=cv2.INTER_AREA)
            options = [cv2.IMWRITE_JPEG_QUALITY, _QUALITY]
            pictures.append(cv2.imencode(".jpg", small[..., ::-1], options)[1].tobytes())
        try:
            keep_validation(self._folder, self._stream, job, KeptValidation(validation, tuple(pictures)))
        except (UserError, OSError) as error:
            _LOG.warning("%s: the validation of retraining %d is not kept (%s)", self._stream, job, error)

    def delete_pictures(self) -> None:
        """Deletes all of them."""
        self._exemplars.unlink(missing_ok=True)
        forget_validations(self._folder, self._stream)
