"""Commands that tests of both virtual worlds give."""

from ekya.core.commands import StartRetraining
from ekya.core.configs import RetrainConfig
from ekya.core.units import JobId, StreamId
from ekya.core.weights import Elsewhere


def start_retraining(
    stream: StreamId,
    config: RetrainConfig,
    *,
    job: int = 1,
    window: int = 1,
    share_milli: int = 1000,
    elsewhere: Elsewhere | None = None,
) -> StartRetraining:
    """Returns a command to retrain; what the plan expected of it does not matter on virtual time."""
    return StartRetraining(
        stream=stream,
        job=JobId(job),
        window=window,
        config=config,
        share_milli=share_milli,
        expected_accuracy=0.5,
        expected_gpu_s=1.0,
        elsewhere=elsewhere,
    )
