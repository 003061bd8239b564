"""What the inferences of all streams of a process have in common."""

from ekya.gpu.protocol import ShareHandle
from ekya.learning.forward import ForwardWay
from ekya.learning.one_call import Answer, Asked, OneCall
from ekya.learning.predictors import Predictors
from ekya.runtime.gathering import Gathering
from ekya.runtime.mailbox import Mailbox
from ekya.runtime.ordered_share import OrderedShare
from ekya.runtime.shared_use import SharedUse


class SharedProcess:
    """One grip on the GPU, one call at a time, one mailbox; for one stream as for many.

    Attributes:
        handle: around what a stream does on the GPU by itself.
        share: of which each stream has a part.
        use: what of it each has used.
        predictors: makes what asks a model.
        models: those that serve, and those that are about to.
        calls: in which the models are asked.
        mailbox: what has happened to any of the streams.
    """

    def __init__(self, handle: ShareHandle, device: str, way: ForwardWay, mailbox: Mailbox) -> None:
        self.handle = handle
        self.share = OrderedShare(handle)
        self.use = SharedUse(handle)
        self.predictors = Predictors(device, way)
        self.models = OneCall(device, way)
        self.calls: Gathering[Asked, Answer] = Gathering(handle.scope, self.models.predict)
        self.mailbox = mailbox
