"""Snapshots of a training between two epochs, from which another process can continue it."""

from collections.abc import Mapping
from dataclasses import dataclass

from safetensors.torch import save
from torch import Tensor

from ekya.core.errors import UserError
from ekya.core.objects import SURE
from ekya.models.training.optimizer import Optimizer
from ekya.models.training.trainee import Trainee
from ekya.models.weights import differences, read_safetensors

FORMAT = "ekya-training-snapshot"
VERSION = "2"
_WEIGHT, _MOMENTUM = "weight.", "momentum."


@dataclass(frozen=True, slots=True, eq=False)
class Snapshot:
    """State that training has changed so far; complete together with the start model, γ and the data.

    Attributes:
        epochs_done: number of epochs done.
        weights: trained weights, by name.
        momentum: of the optimiser, likewise; empty before the first step.
        threshold: of a detector's confidence, calibrated after the last epoch.
    """

    epochs_done: int
    weights: Mapping[str, Tensor]
    momentum: Mapping[str, Tensor]
    threshold: float

    def to_bytes(self) -> bytes:
        """Returns the snapshot as a safetensors file."""
        # Safetensors refuses other layouts, and a detector's weights are channels-last.
        tensors = {_WEIGHT + name: tensor.cpu().contiguous() for name, tensor in self.weights.items()}
        tensors |= {_MOMENTUM + name: tensor.cpu().contiguous() for name, tensor in self.momentum.items()}
        told = {"epochs_done": str(self.epochs_done), "threshold": repr(self.threshold)}
        return save(tensors, {"format": FORMAT, "version": VERSION, **told})

    @classmethod
    def from_bytes(cls, data: bytes) -> "Snapshot":
        """Reads what ``to_bytes`` returned.

        Raises:
            UserError: the bytes are truncated or foreign.
        """
        try:
            tensors, metadata = read_safetensors(data)
            if (metadata["format"], metadata["version"]) != (FORMAT, VERSION):
                raise ValueError(f"format {metadata['format']}, version {metadata['version']}")
            epochs_done, threshold = int(metadata["epochs_done"]), float(metadata["threshold"])
        except (ValueError, KeyError) as error:
            raise UserError(
                f"not a whole snapshot of a training, version {VERSION} ({error}); begin the training anew"
            ) from error
        return cls(epochs_done, _under(_WEIGHT, tensors), _under(_MOMENTUM, tensors), threshold)


def take_snapshot(
    trainee: Trainee, optimizer: Optimizer, epochs_done: int, threshold: float = SURE
) -> Snapshot:
    """Takes a snapshot of the current state; it shares memory with the trained weights."""
    return Snapshot(epochs_done, trainee.suffix.state_dict(), optimizer.momentum(), threshold)


def restore_weights(snapshot: Snapshot, trainee: Trainee) -> None:
    """Sets the trained weights to those of the snapshot.

    Raises:
        UserError: the snapshot is of another model.
    """
    if differences(snapshot.weights, trainee.suffix.state_dict()):
        raise UserError("a snapshot of a training is of another model or head; begin the training anew")
    trainee.suffix.load_state_dict(dict(snapshot.weights))


def _under(prefix: str, tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    return {name.removeprefix(prefix): tensor for name, tensor in tensors.items() if name.startswith(prefix)}
