"""A stream's retraining as a training of the fleet: what it takes along to another server."""

from ekya.core.commands import StartRetraining
from ekya.fleet.policy.names import JobName, NodeName
from ekya.fleet.run.training.protocol import Mode, TrainingTask
from ekya.learning.checkpoints import from_bytes
from ekya.runtime.material import StreamMaterial
from ekya.workers.retraining import data_of


def guest_task(
    job: JobName,
    command: StartRetraining,
    material: StreamMaterial,
    home: NodeName,
    mode: Mode = "synchronous",
) -> TrainingTask:
    """What the stream's own server would train: one worker of it trains the same weights, to the bit.

    Labelled crops and exemplars are in it, and no frames.

    Args:
        job: its name in the fleet.
        command: what the stream's loop asked for.
        material: of the stream, as it was then.
        home: the stream's node, where all crops lie.
        mode: how gradients of several workers come together.

    Raises:
        UserError: the weights are damaged.
    """
    start = from_bytes(material.weights)
    data = data_of(start, material.labels, material.memory, material.settings, command.window)
    return TrainingTask(
        job,
        command.config,
        material.weights,
        data.classes,
        {home: data.training},
        data.validation,
        home,
        data.memory,
        data.seed,
        mode,
    )
