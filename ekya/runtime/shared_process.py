"""State that the inferences of all streams of a process share."""

from ekya.gpu.backends.backend import ShareHandle
from ekya.models.edge.forward import ForwardWay
from ekya.models.edge.multi_model import Answer, Asked, MultiModelPredictor
from ekya.models.edge.predictors import Predictors
from ekya.runtime.dynamic_batcher import DynamicBatcher
from ekya.runtime.job_share import SharedUse, VersionedShare
from ekya.runtime.mailbox import Mailbox


class SharedProcess:
    """One share handle, one model call at a time, and one mailbox, for one stream or many.

    Attributes:
        handle: scope of GPU work that a stream does alone.
        share: of which each stream has a part.
        use: GPU use of each stream.
        predictors: makes the predictor of a model.
        models: those that serve, and those that are about to.
        calls: batches requests of streams into model calls.
        mailbox: events of all streams.
    """

    def __init__(self, handle: ShareHandle, device: str, way: ForwardWay, mailbox: Mailbox) -> None:
        self.handle = handle
        self.share = VersionedShare(handle)
        self.use = SharedUse(handle)
        self.predictors = Predictors(device, way)
        self.models = MultiModelPredictor(device, way)
        self.calls: DynamicBatcher[Asked, Answer] = DynamicBatcher(handle.scope, self.models.predict)
        self.mailbox = mailbox
