"""Models of all streams that the micro-profiler has loaded, and those that it borrows for others."""

import logging
import threading
from collections.abc import Callable, Sequence

from ekya.core.errors import UserError
from ekya.core.units import ModelVersion, StreamId
from ekya.models.edge.checkpoints import from_bytes
from ekya.models.edge.multi_model import Predictors
from ekya.pipeline.inference import Serving, serving
from ekya.pipeline.settings import PreparationSettings
from ekya.pipeline.stream_preparation import OtherModel
from ekya.pipeline.zoo_folder import ForgottenError
from ekya.runtime.actors.actor_kinds import LentWeights
from ekya.runtime.weights.model_batcher import PreparedWeights

_LOG = logging.getLogger(__name__)


class KnownModels:
    """The newest loaded model of each stream. Methods may be called by several threads.

    Args:
        predictors: of models on the device.
    """

    def __init__(self, predictors: Predictors) -> None:
        self._predictors = predictors
        self._known: dict[StreamId, PreparedWeights] = {}
        self._loading = threading.Lock()

    def load_model(
        self, stream: StreamId, settings: PreparationSettings, version: ModelVersion, weights: bytes
    ) -> None:
        """Loads a stream's model, unless a newer one is loaded."""
        with self._loading:
            known = self._known.get(stream)
            if known is None or version > known.version:
                self._known[stream] = PreparedWeights(self._loaded(weights, settings), version)

    def forget_stream(self, stream: StreamId) -> None:
        """Forgets the model of a stream."""
        with self._loading:
            self._known.pop(stream, None)

    def newest_model(
        self,
        stream: StreamId,
        settings: PreparationSettings,
        version: ModelVersion,
        weights: Callable[[], bytes],
    ) -> PreparedWeights:
        """Returns the serving model; the newest loaded one if the serving one cannot be fetched."""
        known = self._known.get(stream)
        if known is None or known.version < version:
            try:
                self.load_model(stream, settings, version, weights())
            except Exception as error:
                if known is None:
                    raise
                _LOG.warning("%s: its labels meet an earlier model (%s)", stream, error)
        return self._known[stream]

    def require_output(self, name: str) -> None:
        """Refuses a class that is no output of a model, for detectors, whose outputs stay.

        Raises:
            UserError: names the first stream whose model lacks it.
        """
        for stream, known in sorted(self._known.items()):
            if name not in known.model.model.classes:
                raise UserError(
                    f"{name}: the detector of {stream} has no output of this name, and gets no new ones; "
                    "use a class that it was made with"
                )

    def load_candidates(self, lent: Sequence[LentWeights], settings: PreparationSettings) -> list[OtherModel]:
        """Returns kept models, without those that cannot be fetched."""
        models = []
        for one in lent:
            try:
                weights = one.fetch()
                with self._loading:
                    model = self._loaded(weights, settings)
            except ForgottenError:
                # A newer model took its place since this preparation began.
                _LOG.info("%s: a kept model was forgotten before it was tried", one.kept.stream)
                continue
            except Exception as error:
                _LOG.warning("%s: a model retrained for it cannot be tried (%s)", one.kept.stream, error)
                continue
            models.append(OtherModel(one.kept, model))
        return models

    def _loaded(self, weights: bytes, settings: PreparationSettings) -> Serving:
        return serving(from_bytes(weights), settings.classes, self._predictors)
