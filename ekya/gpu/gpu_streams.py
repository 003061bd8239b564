"""Interface to the streams of the library that runs kernels; implemented for torch by ``torch_streams``."""

from typing import Protocol


class Mark(Protocol):
    """Point in a stream's work: a CUDA event."""

    def reached(self) -> bool:
        """Returns whether the GPU has reached the mark, without waiting."""

    def wait(self) -> None:
        """Waits until the GPU has reached the mark."""

    def ns_since(self, earlier: "Mark") -> int:
        """Returns GPU time in nanoseconds between two reached marks."""


class GpuStreams(Protocol):
    """Streams of one GPU, as the calling thread sees them."""

    def enter(self, stream: int) -> None:
        """Sends the calling thread's kernels to this stream until it enters another."""

    def current(self) -> int:
        """Returns the address of the calling thread's stream."""

    def synchronise(self, stream: int) -> None:
        """Waits for all work on the stream."""

    def mark(self) -> Mark:
        """Records a mark on the calling thread's stream."""


def only_gpu() -> GpuStreams:
    """Returns torch's streams on the only GPU that a job's process sees; starts CUDA in torch."""
    from ekya.gpu.torch_streams import TorchStreams

    return TorchStreams(0)
