"""Options of forward passes for inference, and results of the self-test that chooses them.

The self-test is in ``models/edge/self_test.py``.
"""

from dataclasses import dataclass

TORCH, ONNXRUNTIME = "torch", "onnxruntime"
"""Engines of detectors; classifiers always run in torch."""

MOST_CROPS, MOST_IMAGES = 128, 16
"""Most crops, or images of a detector, in one call for several cameras; bounds the memory of activations."""


@dataclass(frozen=True, slots=True)
class ForwardWay:
    """One way to run forward passes. All give the same classes, and the same scores except for rounding.

    Attributes:
        channels_last: memory format of images and kernels.
        packed_for: (crops, side in pixels) of the pass for whose shape kernels are packed in advance, in the
            layout of the CPU's library (``models/edge/predictor.py``); None keeps torch's layout.
        half: torch's name of the type to compute in if the model's outputs allow it, ``float16`` or
            ``bfloat16`` (``models/edge/predictor.py``); None computes in 32 bits.
        graphs: record a pass once per level and batch size as a CUDA graph, and replay it from then on
            (``models/edge/graphs.py``).
        crops_a_pass: maximum number of crops in one pass.
        images_a_pass: likewise, of images of a detector.
        grouped: join different blocks of several models in one call into grouped convolutions
            (``models/edge/multi_model.py``), where that is possible; otherwise these run one after the other.
        engine: library that runs a detector, ``TORCH`` or ``ONNXRUNTIME``; None is the fastest that works.
    """

    channels_last: bool = False
    packed_for: tuple[int, int] | None = None
    half: str | None = None
    graphs: bool = False
    crops_a_pass: int = 32
    images_a_pass: int = 1
    grouped: bool = False
    engine: str | None = None

    def __str__(self) -> str:
        """Returns the options that are not plain, or ``plain``, for display."""
        parts = [
            self.engine or "",
            "channels last" if self.channels_last else "",
            "packed kernels" if self.packed_for else "",
            self.half or "",
            "CUDA graphs" if self.graphs else "",
            f"{self.crops_a_pass} crops a pass" if self.crops_a_pass != PLAIN.crops_a_pass else "",
            f"{self.images_a_pass} images a pass" if self.images_a_pass != PLAIN.images_a_pass else "",
            "models grouped" if self.grouped else "",
        ]
        return ", ".join(part for part in parts if part) or "plain"


PLAIN = ForwardWay()
"""torch's defaults. Runs on virtual time always use it, so that equal seeds give equal bytes, and it is the
baseline of the other ways."""


@dataclass(frozen=True, slots=True)
class Tried:
    """Result of a trial of one way.

    Attributes:
        way: the way.
        times: duration of each pass relative to the present way, the typical one first; empty if none was
            timed.
        refused: why it was not chosen, in words; empty if it was.
    """

    way: ForwardWay
    times: tuple[float, ...]
    refused: str


@dataclass(frozen=True, slots=True)
class SelfTest:
    """Result of a self-test.

    Attributes:
        way: the chosen way.
        plain_ms, chosen_ms: duration of the typical frame's pass, plain and as chosen, in milliseconds.
        tried: all other ways than plain that were tried, in order.
        took_s: duration of the test.
    """

    way: ForwardWay
    plain_ms: float
    chosen_ms: float
    tried: tuple[Tried, ...]
    took_s: float
