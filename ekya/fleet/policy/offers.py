"""Retrainings that would be worth more on another server than at home (ours; no paper has this)."""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field

from ekya.control.away import without_retraining
from ekya.core.configs import RetrainConfig
from ekya.core.ids import StreamId
from ekya.core.plan import Plan
from ekya.core.units import us_to_seconds
from ekya.core.view import RetrainOption, StreamView, WindowView
from ekya.fleet.policy.names import SiteName
from ekya.scheduling.objective import evaluate

Planner = Callable[[WindowView], Plan]
"""Asks a server's own scheduler."""


@dataclass(frozen=True, slots=True)
class AlreadyThere:
    """What a server has already of what a retraining of another server's stream needs.

    Attributes:
        crops_mb: of its crops.
        model_mb: of the model that it begins with: all of it, or nothing.
    """

    crops_mb: float = 0.0
    model_mb: float = 0.0


@dataclass(frozen=True, slots=True)
class CropCounts:
    """Crops that a retraining of a stream would be made of.

    Attributes:
        training, validation: labelled in this window.
        exemplars: of former windows.
    """

    training: int
    validation: int = 0
    exemplars: int = 0


@dataclass(frozen=True, slots=True)
class Offer:
    """One stream's retraining, to be had by whoever has room.

    Attributes:
        site, stream: whose it is.
        config: γ.
        epochs: of γ, that are still to do.
        gpu_s: of a whole GPU that they take.
        gain: what it adds to the accuracy of the stream's answers once it serves, times the stream's weight
            (of its server's streams, on average 1).
        at_home: mean over the rest of the window of what its own server's streams lose together if
            the retraining is not done there; 0 where its plan leaves it out anyhow.
        now_us: when it is offered.
        until_us: end of the window; weights that come later are out of date.
        crops: that an epoch goes through, at least 1; exemplars are mixed in, and not counted.
        crops_mb: all that train on their way there, exemplars too.
        model_mb: the model that it begins with.
        trained_mb: what of it γ trains: one gradient, and what a worker gets for it.
        back_mb: a snapshot on its way back: what γ trains, twice, since momentum is in it.
        validation_mb: crops that accuracy is measured on, for where the parameter server is.
        already_there: what other servers have already, of former loans.
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
    crops: int
    crops_mb: float
    model_mb: float
    trained_mb: float
    back_mb: float
    validation_mb: float = 0.0
    already_there: Mapping[SiteName, AlreadyThere] = field(default_factory=dict)

    def sent_mb(self, host: SiteName, part: float = 1.0, validates: bool = True) -> float:
        """What a server still has to be sent.

        Args:
            host: the server.
            part: of the crops, that it goes through.
            validates: the parameter server is there.
        """
        there = self.already_there.get(host, AlreadyThere())
        crops_mb = max(0.0, part * self.crops_mb - there.crops_mb) + validates * self.validation_mb
        return crops_mb + max(0.0, self.model_mb - there.model_mb)

    def brings(self, arrives_us: int) -> float:
        """Accuracy times seconds that its server has more of, if the weights arrive then."""
        served_s = us_to_seconds(max(0, self.until_us - arrives_us))
        return self.gain * served_s - self.at_home * us_to_seconds(self.until_us - self.now_us)


@dataclass(frozen=True, slots=True)
class Sizes:
    """What crosses a link for a retraining.

    Attributes:
        crop_mb: one labelled crop, its label included.
        model_mb: an edge model.
        blocks_mb: weights of its blocks, from the last one on.
        features: that its head sees.
        classes: that its head tells apart.
        exemplars: the most that a stream remembers.
    """

    crop_mb: float
    model_mb: float
    blocks_mb: tuple[float, ...]
    features: int
    classes: int
    exemplars: int

    def trained_mb(self, config: RetrainConfig) -> float:
        """Weights that γ trains, of four bytes each: the head's, and those of blocks from the last one on."""
        width = config.head_width
        if width:
            head = (self.features + 1) * width + (width + 1) * self.classes
        else:
            head = (self.features + 1) * self.classes
        return sum(self.blocks_mb[: config.trainable_blocks]) + 4e-6 * head


def offers(
    site: SiteName,
    view: WindowView,
    planner: Planner,
    crops: Mapping[StreamId, CropCounts],
    sizes: Sizes,
    already_there: Mapping[StreamId, Mapping[SiteName, AlreadyThere]],
) -> Iterator[Offer]:
    """What a server would rather have done elsewhere, at the right price.

    Args:
        site: the server.
        view: its present one.
        planner: its scheduler.
        crops: of each stream.
        sizes: of what would cross a link.
        already_there: for each stream, what other servers have already.
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
        answers = dict(evaluate(without, plan.phases).per_stream)[stream.stream]
        counts = crops[stream.stream]
        trained = max(1, round(counts.training * option.config.data_fraction))
        worth = stream.weight * len(view.streams) / total
        yield Offer(
            site=site,
            stream=stream.stream,
            config=option.config,
            epochs=option.config.epochs,
            gpu_s=option.gpu_s,
            # Of what the model gets right, as much is answered right as of the one that serves now.
            gain=(option.accuracy_after / stream.accuracy - 1.0) * answers * worth,
            at_home=max(0.0, whole - plan.expected_accuracy) * len(view.streams),
            now_us=view.now_us,
            until_us=view.window_end_us,
            crops=trained,
            crops_mb=(trained + counts.exemplars) * sizes.crop_mb,
            model_mb=sizes.model_mb,
            trained_mb=sizes.trained_mb(option.config),
            # Its weights and their momentum.
            back_mb=2.0 * sizes.trained_mb(option.config),
            validation_mb=counts.validation * sizes.crop_mb,
            already_there=already_there.get(stream.stream, {}),
        )


def best_with_room(stream: StreamView, view: WindowView) -> RetrainOption | None:
    """The γ that would bring most until the window ends, had it a GPU of its own; None if none brings any."""
    left_s = us_to_seconds(view.window_end_us - view.now_us)

    def brings(option: RetrainOption) -> float:
        return (option.accuracy_after - stream.accuracy) * (left_s - option.gpu_s)

    fitting = [option for option in stream.retrain_options if option.gpu_s < left_s]
    best = max(fitting, key=brings, default=None)
    return best if best is not None and brings(best) > 0.0 and stream.accuracy > 0.0 else None
