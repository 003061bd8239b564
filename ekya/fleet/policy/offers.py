"""Offers: retrainings that may be worth more on another server than at home (ours; no paper has this)."""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace

from ekya.control.remote_plan import without_retraining
from ekya.core.configs import RetrainConfig
from ekya.core.plan import Plan
from ekya.core.units import StreamId, us_to_seconds
from ekya.core.view import RetrainOption, StreamView, WindowView
from ekya.fleet.policy.places import SiteName
from ekya.planning.schedulers.objective import evaluate_phases

Planner = Callable[[WindowView], Plan]
"""A server's own scheduler."""


@dataclass(frozen=True, slots=True)
class CropCounts:
    """Numbers of crops that a retraining of a stream would use.

    Attributes:
        training, validation: labelled in this window.
        exemplars: of former windows.
    """

    training: int
    validation: int = 0
    exemplars: int = 0


@dataclass(frozen=True, slots=True)
class TrainingOffer:
    """One stream's retraining, offered to servers with spare capacity.

    Attributes:
        site, stream: server and stream to which it belongs.
        config: γ.
        epochs: of γ that are still to train.
        gpu_s: that they take on a whole GPU.
        gain: gain in the accuracy of the stream's answers once its weights serve, times the stream's weight
            (normalised to a mean of 1 over its server's streams), times ``margin``.
        at_home: accuracy that its own server's streams lose together, on average over the rest of the window,
            if the retraining is not done at home; 0 where the plan leaves it out anyhow.
        now_us: time of the offer.
        until_us: end of the window; weights that arrive later are out of date.
        crops_mb: all crops that a host needs, those for validation and exemplars included.
        model_mb: the initial model.
        back_mb: a snapshot on its way home: the weights that γ trains, and the state of their optimiser.
        opened_us: when it was offered first; None where that is now.
        held_by: the server that holds crops and model, of a loan of which this is the rest; None: none does.
        per_accuracy: gain for each unit of accuracy by which the stream's model gets better.
        margin: part of its server's promises that is expected to come; see ``Promises``.
        serves_after_us: time from the arrival of the weights until they serve.
    """

    site: SiteName
    stream: StreamId
    config: RetrainConfig
    epochs: int
    gpu_s: float
    gain: float
    at_home: float
    now_us: int
    until_us: int
    crops_mb: float
    model_mb: float
    back_mb: float
    opened_us: int | None = None
    held_by: SiteName | None = None
    per_accuracy: float = 1.0
    margin: float = 1.0
    serves_after_us: int = 0

    @property
    def arrived_us(self) -> int:
        """When it was offered first."""
        return self.now_us if self.opened_us is None else self.opened_us

    def sent_mb(self, host: SiteName | None = None) -> float:
        """Returns the megabytes that still have to be sent to a host; to one without anything by default."""
        return 0.0 if host is not None and host == self.held_by else self.crops_mb + self.model_mb

    def gain_if_arrives(self, arrives_us: int) -> float:
        """Returns the gain of its server in accuracy times seconds, if the weights arrive at this time."""
        gained = self.gain * self._left_s(arrives_us + self.serves_after_us)
        return gained - self.at_home * us_to_seconds(self.until_us - self.now_us)

    def promised_if_arrives(self, arrives_us: int) -> float:
        """Returns the stream's gain in accuracy times seconds by its server's own estimate."""
        return self.gain / self.margin * self._left_s(arrives_us + self.serves_after_us)

    def measured_gain(self, better: float, at_us: int) -> float:
        """Returns the gain in accuracy times seconds if its model is better by this from a time on."""
        return self.per_accuracy * better * self._left_s(at_us)

    def for_last_epochs(self, epochs: int, now_us: int, held_by: SiteName | None = None) -> "TrainingOffer":
        """Returns an offer for its last epochs; its own server does no part of them any more."""
        return replace(
            self,
            epochs=epochs,
            gpu_s=self.gpu_s * epochs / self.epochs,
            at_home=0.0,
            now_us=now_us,
            opened_us=self.arrived_us,
            held_by=held_by,
        )

    def _left_s(self, at_us: int) -> float:
        return us_to_seconds(max(0, self.until_us - at_us))


@dataclass(frozen=True, slots=True)
class LinkSizes:
    """Sizes of the data that jobs elsewhere send over links.

    Attributes:
        crop_mb: one crop with its label, or one frame of a detector.
        model_mb: an edge model.
        blocks_mb: weights of its blocks, from the last one backwards.
        features: inputs of its head.
        classes: outputs of its head.
        exemplars: most exemplars that a stream remembers.
        head_mb: weights of a detector's head; None for a classifier, whose head γ determines.
    """

    crop_mb: float
    model_mb: float
    blocks_mb: tuple[float, ...]
    features: int
    classes: int
    exemplars: int
    head_mb: float | None = None

    def trained_mb(self, config: RetrainConfig) -> float:
        """Returns the size of the weights that γ trains (four bytes each): the head and the last blocks."""
        blocks_mb, width = sum(self.blocks_mb[: config.trainable_blocks]), config.head_width
        if self.head_mb is not None:
            return blocks_mb + self.head_mb
        if width:
            head = (self.features + 1) * width + (width + 1) * self.classes
        else:
            head = (self.features + 1) * self.classes
        return blocks_mb + 4e-6 * head

    def snapshot_mb(self, config: RetrainConfig) -> float:
        """Returns the size of a snapshot: SGD keeps one value for each weight, a detector's AdamW two."""
        return (2.0 if self.head_mb is None else 3.0) * self.trained_mb(config)


def offers(
    site: SiteName,
    view: WindowView,
    planner: Planner,
    crops: Mapping[StreamId, CropCounts],
    sizes: LinkSizes,
) -> Iterator[TrainingOffer]:
    """Yields an offer for each stream of a server whose retraining would bring a gain on a whole GPU.

    Args:
        site: the server.
        view: its present view.
        planner: its scheduler.
        crops: of each stream.
        sizes: of the data on links.
    """
    chosen = [(stream, best_with_room(stream, view)) for stream in view.streams]
    if all(option is None for _, option in chosen):
        return
    total = sum(stream.weight for stream in view.streams)
    whole = planner(view).expected_accuracy
    for stream, option in chosen:
        if option is None:
            continue
        without = without_retraining(view, stream.stream)
        plan = planner(without)
        answers = dict(evaluate_phases(without, plan.phases).per_stream)[stream.stream]
        counts = crops[stream.stream]
        # Assumes the serving model's ratio of the accuracy of answers to the accuracy of the model.
        per_accuracy = answers / stream.accuracy * stream.weight * len(view.streams) / total
        yield TrainingOffer(
            site=site,
            stream=stream.stream,
            config=option.config,
            epochs=option.config.epochs,
            gpu_s=option.gpu_s,
            gain=(option.accuracy_after - stream.accuracy) * per_accuracy,
            at_home=max(0.0, whole - plan.expected_accuracy) * len(view.streams),
            now_us=view.now_us,
            until_us=view.window_end_us,
            crops_mb=(counts.training + counts.validation + counts.exemplars) * sizes.crop_mb,
            model_mb=sizes.model_mb,
            back_mb=sizes.snapshot_mb(option.config),
            per_accuracy=per_accuracy,
        )


def best_with_room(stream: StreamView, view: WindowView) -> RetrainOption | None:
    """Returns the γ that would bring most until the window ends on a whole GPU; None if none brings any."""
    left_s = us_to_seconds(view.window_end_us - view.now_us)

    def brings(option: RetrainOption) -> float:
        return (option.accuracy_after - stream.accuracy) * (left_s - option.gpu_s)

    fitting = [option for option in stream.retrain_options if option.gpu_s < left_s]
    best = max(fitting, key=brings, default=None)
    return best if best is not None and brings(best) > 0.0 and stream.accuracy > 0.0 else None
