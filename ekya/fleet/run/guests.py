"""Training task for a stream's retraining on another server."""

from collections.abc import Callable

from ekya.core.commands import StartRetraining
from ekya.fleet.policy.names import JobName, NodeName
from ekya.fleet.run.training.protocol import TrainingTask
from ekya.models.edge.checkpoints import from_bytes
from ekya.models.training.optimizer import recipe_of
from ekya.pipeline.stream_preparation import data_of
from ekya.runtime.driver.remote_retrainings import RemoteRetrainings, StreamRetrainInputs

FETCHED_WITHIN_S = 20.0
"""Timeout for collecting crops and exemplars; later ones would be of no use."""


def guest_tasks(
    retrainings: RemoteRetrainings,
) -> Callable[[StartRetraining, NodeName], Callable[[], TrainingTask]]:
    """Returns what collects the inputs of streams' retrainings from other processes of their server."""

    def gather(command: StartRetraining, home: NodeName) -> Callable[[], TrainingTask]:
        material = retrainings.inputs_for_retraining(command.stream)
        job = JobName(f"{command.stream}, retraining {command.job}")
        return lambda: guest_task(job, command, material.fetch(FETCHED_WITHIN_S), home)

    return gather


def guest_task(
    job: JobName,
    command: StartRetraining,
    material: StreamRetrainInputs,
    home: NodeName,
) -> TrainingTask:
    """Builds the task; a single worker trains the same weights as the stream's own server, bit for bit.

    The task contains labelled crops and exemplars, and no frames.

    Args:
        job: name of the training in the fleet.
        command: of the stream's loop.
        material: of the stream at the time of the command.
        home: the stream's node, where all crops are.

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
        recipe=recipe_of(start.architecture),
    )
