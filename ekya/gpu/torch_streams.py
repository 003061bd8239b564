"""Makes torch work on a green context's stream.

Of what torch offers, only ``torch.cuda.ExternalStream`` is the same in 2.11 and in 2.15. Its own green
contexts (``torch.cuda.green_contexts``) have changed in between: 2.15 takes back making a context current, in
favour of such streams. And they are of a split of their own, which cannot be mixed with ours.

A stream of a green context runs its kernels on the context's SMs whichever context is current. torch takes
the calling thread's current stream for kernels and their memory, gives it to cuBLAS and cuDNN with every
call, and runs a backward pass on the stream of its forward pass. So whatever a thread does after ``enter``
runs on that level: also after the batch, since ``enter`` is never undone.
"""

from typing import Any

import torch

from ekya.gpu.gpu_streams import Mark

_CUDA: Any = torch.cuda  # torch's own types do not cover all of it.


class TorchStreams:
    """One GPU of torch's. A ``GpuStreams``."""

    def __init__(self, device: int = 0) -> None:
        """Starts CUDA in torch.

        Args:
            device: as torch counts them in this process.
        """
        _CUDA.init()
        self._device = device
        self._streams: dict[int, torch.cuda.Stream] = {}

    def enter(self, stream: int) -> None:
        """The calling thread's kernels go to this stream from now on, until it enters another."""
        _CUDA.set_stream(self._stream(stream))

    def current(self) -> int:
        """Address of the calling thread's stream."""
        return int(_CUDA.current_stream(self._device).cuda_stream)

    def synchronise(self, stream: int) -> None:
        """Returns when all work on the stream is done."""
        self._stream(stream).synchronize()

    def mark(self) -> Mark:
        """Here and now on the calling thread's stream."""
        event = _CUDA.Event(enable_timing=True)
        event.record(_CUDA.current_stream(self._device))
        return TorchMark(event)

    def _stream(self, address: int) -> torch.cuda.Stream:
        if address not in self._streams:
            is_default = address == 0  # It would be taken for none at all, and another one made.
            self._streams[address] = (
                _CUDA.default_stream(self._device)
                if is_default
                else _CUDA.ExternalStream(address, device=self._device)
            )
        return self._streams[address]


class TorchMark:
    """A CUDA event of torch's that takes the time. A ``Mark``."""

    def __init__(self, event: Any) -> None:
        self.event = event

    def reached(self) -> bool:
        """Whether the GPU has come to it; never waits."""
        return bool(self.event.query())

    def wait(self) -> None:
        """Returns when the GPU has come to it."""
        self.event.synchronize()

    def ns_since(self, earlier: Mark) -> int:
        """Time of the GPU between two marks that were reached.

        Raises:
            TypeError: the other mark is not torch's.
        """
        if not isinstance(earlier, TorchMark):
            raise TypeError("two marks of one library are needed")
        return int(earlier.event.elapsed_time(self.event) * 1e6)
