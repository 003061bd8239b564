"""What a share needs of the library that runs kernels, as a seam: torch's is ``torch_streams``."""

from typing import Protocol


class Mark(Protocol):
    """A point in a stream's work: a CUDA event."""

    def reached(self) -> bool:
        """Whether the GPU has come to it; never waits."""

    def wait(self) -> None:
        """Returns when the GPU has come to it."""

    def ns_since(self, earlier: "Mark") -> int:
        """Time of the GPU between two marks that were reached."""


class GpuStreams(Protocol):
    """Streams of one GPU, as the calling thread sees them."""

    def enter(self, stream: int) -> None:
        """The calling thread's kernels go to this stream from now on, until it enters another."""

    def current(self) -> int:
        """Address of the calling thread's stream."""

    def synchronise(self, stream: int) -> None:
        """Returns when all work on the stream is done."""

    def mark(self) -> Mark:
        """Here and now on the calling thread's stream."""


def only_gpu() -> GpuStreams:
    """Torch's streams of the only GPU that a job's process sees; starts CUDA in torch."""
    from ekya.gpu.torch_streams import TorchStreams

    return TorchStreams(0)
