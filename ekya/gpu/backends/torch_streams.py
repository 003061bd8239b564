"""Runs torch on a green context's stream.

Uses ``torch.cuda.ExternalStream``, which is the same in torch 2.11 and 2.15. torch's own green contexts
(``torch.cuda.green_contexts``) changed in between: 2.15 drops making a context current, in favour of such
streams. They also come from a separate split of the SMs, which cannot be mixed with ours.

A stream of a green context runs its kernels on the context's SMs, independent of the current context. torch
uses the calling thread's current stream for kernels and their memory, passes it to cuBLAS and cuDNN with
every call, and runs a backward pass on the stream of its forward pass. So all work of a thread after
``enter`` runs on that level, also after the batch, since ``enter`` is never undone.
"""

from typing import Any

import torch

from ekya.gpu.backends.meter import Mark

_CUDA: Any = torch.cuda  # torch's type hints are incomplete here.


class TorchStreams:
    """Torch's streams on one GPU. A ``GpuStreams``."""

    def __init__(self, device: int = 0) -> None:
        """Starts CUDA in torch.

        Args:
            device: torch's index in this process.
        """
        _CUDA.init()
        self._device = device
        self._streams: dict[int, torch.cuda.Stream] = {}

    def enter(self, stream: int) -> None:
        """Sends the calling thread's kernels to this stream until it enters another."""
        _CUDA.set_stream(self._stream(stream))

    def current(self) -> int:
        """Returns the address of the calling thread's stream."""
        return int(_CUDA.current_stream(self._device).cuda_stream)

    def synchronise(self, stream: int) -> None:
        """Waits for all work on the stream."""
        self._stream(stream).synchronize()

    def mark(self) -> Mark:
        """Records a mark on the calling thread's stream."""
        event = _CUDA.Event(enable_timing=True)
        event.record(_CUDA.current_stream(self._device))
        return TorchMark(event)

    def _stream(self, address: int) -> torch.cuda.Stream:
        if address not in self._streams:
            is_default = address == 0  # ExternalStream takes 0 for "no stream" and makes a new one.
            self._streams[address] = (
                _CUDA.default_stream(self._device)
                if is_default
                else _CUDA.ExternalStream(address, device=self._device)
            )
        return self._streams[address]


class TorchMark:
    """Torch's CUDA event with timing. A ``Mark``."""

    def __init__(self, event: Any) -> None:
        self.event = event

    def reached(self) -> bool:
        """Returns whether the GPU has reached the mark, without waiting."""
        return bool(self.event.query())

    def wait(self) -> None:
        """Waits until the GPU has reached the mark."""
        self.event.synchronize()

    def ns_since(self, earlier: Mark) -> int:
        """Returns GPU time in nanoseconds between two reached marks.

        Raises:
            TypeError: the other mark is not torch's.
        """
        if not isinstance(earlier, TorchMark):
            raise TypeError("two marks of one library are needed")
        return int(earlier.event.elapsed_time(self.event) * 1e6)
