"""Moves of inference: streams whose frames other servers may classify (ours; no paper has this)."""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from heapq import heappop, heappush
from math import ceil

from ekya.control.remote_plan import classified_elsewhere
from ekya.core.host import TYPICAL_OBJECTS
from ekya.core.plan import Plan
from ekya.core.units import FULL_GPU_MILLI, StreamId, us_to_seconds
from ekya.core.view import StreamView, WindowView
from ekya.fleet.policy.loans import Links, Way
from ekya.fleet.policy.names import SiteName
from ekya.fleet.policy.offers import Sizes
from ekya.fleet.policy.rooms import Room
from ekya.planning.schedulers.objective import analysed_part, evaluate_phases

LINK_PART = 0.1
"""Part of a link's rate that crops of frames may take; so a frame's crops take at most a tenth of the time
until the next frame, and trainings find the link nearly free."""

LEAST_GAIN = 0.01
"""Accuracy that a server's streams must gain together; less is within the noise of plans."""

_ANSWER_PART = 0.001
"""Size of an answer, relative to its crops: twelve bytes for some thousands."""

_SAME = 1e-9


@dataclass(frozen=True, slots=True)
class Choice:
    """Classification of a stream's frames at a share elsewhere.

    Attributes:
        share_milli: multiple of the step.
        gain: accuracy that all streams of its server gain together, a second.
        mb_s: crops that leave, in megabytes a second.
        spare_us: time that crops and answer may be on the way; None without a latency limit.
    """

    share_milli: int
    gain: float
    mb_s: float
    spare_us: int | None = None


@dataclass(frozen=True, slots=True)
class MoveOffer:
    """A stream whose frames other servers may classify until its window ends.

    Attributes:
        site, stream: server and stream to which it belongs.
        until_us: end of the window.
        frame_mb: crops of a frame.
        model_mb: of the serving model, which is sent first.
        choices: by rising share.
    """

    site: SiteName
    stream: StreamId
    until_us: int
    frame_mb: float
    model_mb: float
    choices: tuple[Choice, ...]


@dataclass(frozen=True, slots=True)
class Move:
    """An agreed classification of a stream's frames on another server.

    Attributes:
        site, stream: server and stream to which it belongs.
        host: server that classifies.
        share_milli: share that it holds there.
        now_us: when it was agreed.
        begins_us: when the model has arrived at the host.
        until_us: end of the borrower's window, and of this.
        away_us: time that the crops of a frame and their answer are on the way.
        mb_s: crops that leave, in megabytes a second.
        model_mb: of the serving model.
        gain, lost: accuracy that the streams of the borrower gain, and of the host lose, together, a second.
        number: unique in the fleet, also among loans for retrainings; -1 before it is made.
    """

    site: SiteName
    stream: StreamId
    host: SiteName
    share_milli: int
    now_us: int
    begins_us: int
    until_us: int
    away_us: int
    mb_s: float
    model_mb: float
    gain: float
    lost: float
    number: int = -1

    @property
    def lasts_s(self) -> float:
        """Seconds for which frames are classified there."""
        return us_to_seconds(max(0, self.until_us - self.begins_us))

    @property
    def worth(self) -> float:
        """Gain of the borrower less the loss of the host, in accuracy times seconds."""
        return (self.gain - self.lost) * self.lasts_s

    def moved_mb(self, at_us: int) -> Mapping[Way, float]:
        """Returns the megabytes that are foreseen to have crossed each link at a time."""
        crops_mb = self.mb_s * us_to_seconds(max(0, min(at_us, self.until_us) - self.begins_us))
        there, back = (self.site, self.host), (self.host, self.site)
        return {there: self.model_mb + crops_mb, back: _ANSWER_PART * crops_mb}


def move_offers(
    site: SiteName,
    view: WindowView,
    planner: Callable[[WindowView], Plan],
    fps: Mapping[StreamId, float],
    sizes: Sizes,
    step_milli: int,
) -> Iterator[MoveOffer]:
    """Yields an offer for each stream that the plan leaves a coarser λ than its best, or drops frames of.

    Args:
        site: the server.
        view: its present view.
        planner: its scheduler.
        fps: frames a second of each stream that may move.
        sizes: of the data on links.
        step_milli: unit in which shares are lent.
    """
    if not fps:
        return
    plan = planner(view)
    whole = evaluate_phases(view, plan.phases).score
    frame_mb = TYPICAL_OBJECTS * sizes.crop_mb
    for stream, given in zip(view.streams, plan.phases[0].assignments, strict=True):
        if stream.stream not in fps:
            continue
        here = next(one for one in stream.inference_options if one.config == given.inference)
        has = analysed_part(here, given.inference_share_milli, view.inference_speed)
        choices = []
        for share_milli, every, spare_us in _better(stream, has, step_milli):
            moved = _with_moved(view, stream, share_milli)
            gain = (evaluate_phases(moved, planner(moved).phases).score - whole) * len(view.streams)
            if gain >= LEAST_GAIN:
                mb_s = frame_mb * fps[stream.stream] / every
                choices.append(Choice(share_milli, gain, mb_s, spare_us))
        if choices:
            yield MoveOffer(site, stream.stream, view.window_end_us, frame_mb, sizes.model_mb, tuple(choices))


def _better(stream: StreamView, has: float, step_milli: int) -> Iterator[tuple[int, int, int | None]]:
    """Yields share, frames per analysed one and spare time of each λ that is better than all cheaper ones."""
    reached = has
    for option in sorted(stream.inference_options, key=lambda one: one.share_needed_milli):
        share_milli = ceil(option.share_needed_milli / step_milli) * step_milli
        if option.relative_accuracy > reached + _SAME and 0 < share_milli <= FULL_GPU_MILLI:
            reached = option.relative_accuracy
            limit_us = stream.max_age_us
            yield share_milli, option.config.every, None if limit_us is None else limit_us - option.age_us


def _with_moved(view: WindowView, moved: StreamView, share_milli: int) -> WindowView:
    options = classified_elsewhere(moved.inference_options, share_milli, 0, view.inference_speed)
    streams = (replace(one, inference_options=options) if one is moved else one for one in view.streams)
    return replace(view, streams=tuple(streams))


def best_moves(
    now_us: int, offers: Iterable[MoveOffer], rooms: Iterable[Room], links: Links, running: Sequence[Move]
) -> tuple[Move, ...]:
    """Returns the moves that are worth most, one after the other; at most one for each server that offers.

    A move changes what the other offers of its server are worth, so that offers them again.

    Args:
        now_us: time of the decision.
        offers: of all servers, one per stream.
        rooms: spare capacity beside all that runs.
        links: between the servers.
        running: moves that are not over.
    """
    left, made, served = {room.site: room for room in rooms}, list[Move](), set[SiteName]()
    ranked: list[tuple[_Rank, Move, Room, MoveOffer]] = []

    def rank(offer: MoveOffer) -> None:
        hosts = [host for host in left.values() if host.site != offer.site]
        pairs = ((choice, host) for choice in offer.choices for host in hosts)
        moves = (_move(now_us, offer, choice, host, links, running) for choice, host in pairs)
        best = min((move for move in moves if move is not None), key=_rank, default=None)
        if best is not None:
            heappush(ranked, (_rank(best), best, left[best.host], offer))

    for offer in offers:
        rank(offer)
    while ranked:
        _, move, host, offer = heappop(ranked)
        if offer.site in served:
            continue
        if left[move.host] is not host:  # others have taken some of it meanwhile
            rank(offer)
            continue
        made.append(move)
        served.add(offer.site)
        left[move.host] = host.beside(move.share_milli)
    return tuple(made)


_Rank = tuple[float, int, SiteName, StreamId, SiteName]


def _rank(move: Move) -> _Rank:
    return -move.worth, move.share_milli, move.site, move.stream, move.host


def _move(
    now_us: int, offer: MoveOffer, choice: Choice, host: Room, links: Links, running: Sequence[Move]
) -> Move | None:
    """Returns a move to one host; None where room, link, latency limit or worth are not enough."""
    there, back = (offer.site, host.site), (host.site, offer.site)
    taken_mb_s = sum(one.mb_s for one in running if (one.site, one.host) == there)
    away_us = links.takes_us(*there, offer.frame_mb) + links.takes_us(*back, _ANSWER_PART * offer.frame_mb)
    if (
        choice.share_milli > len(host.loss) * host.step_milli
        or (taken_mb_s + choice.mb_s) * links.s_per_mb(*there) > LINK_PART
        or (choice.spare_us is not None and away_us > choice.spare_us)
    ):
        return None
    move = Move(
        offer.site,
        offer.stream,
        host.site,
        choice.share_milli,
        now_us,
        now_us + links.takes_us(*there, offer.model_mb),
        offer.until_us,
        away_us,
        choice.mb_s,
        offer.model_mb,
        choice.gain,
        host.lost(choice.share_milli),
    )
    return move if move.worth > 0.0 else None
