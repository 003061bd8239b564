"""Decides whether to serve a checkpoint during a retraining (paper §5)."""

from ekya.control.options import LoopOptions
from ekya.core.state import RetrainJob, StreamState
from ekya.core.units import US_PER_S
from ekya.core.view import RetrainOption
from ekya.planning.schedulers.checkpoint_gain import LEAST_EARLY, MOST_EARLY, bend_of, part_in_steps


def worth_serving(
    stream: StreamState, job: RetrainJob, now_us: int, end_us: int, options: LoopOptions
) -> bool:
    """Returns whether gain x remaining time exceeds the cost of the delay.

    A checkpoint gains (its accuracy - the serving accuracy) until the end of the retraining or of the
    window. Taking it stops the retraining for ``checkpoint_delay_us``, which costs at most the final expected
    accuracy for that time. Both sides are accuracy x microseconds. A remote retraining continues meanwhile;
    preparing its weights here is assumed to cost as much.
    """
    if options.checkpoint_delay_us is None:
        return False
    # The last epoch's weights come with the end of the retraining, and pass the gate then.
    if job.best_epoch <= job.served_epoch or job.best_epoch >= job.config.epochs:
        return False
    gain = job.best_accuracy - (stream.accuracy or 0.0)
    until_us = min(end_us, _expected_end_us(job, now_us, end_us, options))
    cost = options.checkpoint_delay_us * job.outlook
    return gain > 0 and gain * (until_us - now_us) > cost


def early_part(option: RetrainOption, accuracy: float, options: LoopOptions) -> float:
    """Returns ``option.early_part`` net of checkpoint costs, with at most one checkpoint per epoch.

    During an epoch the checkpoint of an earlier one serves. Costs are counted as in ``worth_serving``, with
    the retraining on a whole GPU, where their weight is largest; expensive checkpoints are taken less often
    or not at all.

    Args:
        option: γ with the mean part of its gain that the model in training has.
        accuracy: of the serving model.
        options: contain the cost of a checkpoint.
    """
    if options.checkpoint_delay_us is None:
        return 0.0
    gain_s = (option.accuracy_after - accuracy) * option.gpu_s
    most = option.config.epochs - 1
    if option.early_part < LEAST_EARLY or gain_s <= 0.0 or most == 0:
        return 0.0
    cost = options.checkpoint_delay_us / US_PER_S * option.accuracy_after / gain_s
    bend = bend_of(option.early_part)
    counts = {min(2**power, most) for power in range(most.bit_length() + 1)}
    best = max(part_in_steps(bend, count + 1) - count * cost for count in counts)
    return min(best, MOST_EARLY) if best >= LEAST_EARLY else 0.0


def _expected_end_us(job: RetrainJob, now_us: int, end_us: int, options: LoopOptions) -> int:
    if job.elsewhere is not None:
        # The end of a late retraining is unknown.
        return job.elsewhere.arrives_us if job.elsewhere.arrives_us > now_us else end_us
    speed = options.retraining_speed.speed_at(job.share_milli)
    if speed == 0.0:
        return end_us
    return now_us + round(gpu_s_left(job) / speed * US_PER_S)


def gpu_s_left(job: RetrainJob) -> float:
    """Returns GPU-seconds that a retraining still needs, by its own pace from the second epoch on.

    The first epoch gives no pace: it includes the preparation, which is nearly all of its time where only
    the head is trained. A remote retraining does not report its use.
    """
    done = len(job.accuracies)
    if job.elsewhere is not None:
        return job.expected_gpu_s * (1.0 - min(done / job.config.epochs, 1.0))
    if done < 2:
        return max(job.expected_gpu_s - job.gpu_s, 0.0)
    pace = (job.gpu_s - job.first_epoch_gpu_s) / (done - 1)
    return pace * (job.config.epochs - done)
