"""How a model that only predicts is run. The default is plain; what is faster on a device is found by a
self-test there (``learning/self_test.py``)."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class ForwardWay:
    """One way to run forward passes. All give the same classes, and the same scores but for rounding.

    Attributes:
        channels_last: in memory the channels of a pixel lie side by side, of pictures and of kernels.
        packed_for: (crops, side in pixels) of the pass whose shape kernels are laid out for, once, as the
            CPU's library computes with them (``learning/packed.py``); None leaves them as torch keeps them.
        half: torch's name of the type to compute in where the model's own answers allow it, ``float16`` or
            ``bfloat16`` (``learning/half.py``); None stays with 32 bits.
        graphs: a pass is recorded once a level and batch size, and launched as a whole since
            (``learning/graphs.py``).
        crops_at_once: crops in one pass, at most.
        joining: of several models in one call, how blocks are joined that are not alike
            (``learning/batched.py``); None asks those one after the other.
    """

    channels_last: bool = False
    packed_for: tuple[int, int] | None = None
    half: str | None = None
    graphs: bool = False
    crops_at_once: int = 32
    joining: str | None = None

    def __str__(self) -> str:
        """For people: what is not plain, or ``plain``."""
        parts = [
            "channels last" if self.channels_last else "",
            "packed kernels" if self.packed_for else "",
            self.half or "",
            "CUDA graphs" if self.graphs else "",
            f"{self.crops_at_once} crops a pass" if self.crops_at_once != PLAIN.crops_at_once else "",
            f"joined by {self.joining}" if self.joining else "",
        ]
        return ", ".join(part for part in parts if part) or "plain"


PLAIN = ForwardWay()
"""As torch does it by itself. Runs on virtual time always take it, so that equal seeds give equal bytes, and
the other ways are measured against it."""


@dataclass(frozen=True, slots=True)
class Tried:
    """One way that was tried.

    Attributes:
        way: the way.
        times: what each pass took, in parts of what it took before, the typical one first; empty where
            none was timed.
        refused: why it was not taken, in words; empty where it was.
    """

    way: ForwardWay
    times: tuple[float, ...]
    refused: str


@dataclass(frozen=True, slots=True)
class SelfTest:
    """What came of a self-test.

    Attributes:
        way: the choice.
        plain_ms, chosen_ms: what the typical frame's pass takes, plain and as chosen, in milliseconds.
        tried: everything else that was tried, in order.
        took_s: how long the test took.
    """

    way: ForwardWay
    plain_ms: float
    chosen_ms: float
    tried: tuple[Tried, ...]
    took_s: float
