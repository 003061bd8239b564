"""Registry of brokers for loans between servers."""

from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType

from ekya.fleet.policy.andreas.greedy import Andreas
from ekya.fleet.policy.brokering import Broker, Brokered, by_policy, key_of, worth
from ekya.fleet.policy.loans import Links, Loan, beside, loan_cost
from ekya.fleet.policy.near_data import NearData
from ekya.fleet.policy.offers import Offer
from ekya.fleet.policy.okita.framework import Okita
from ekya.fleet.policy.okita.joint import OkitaJoint
from ekya.fleet.policy.protocol import FleetPolicy
from ekya.fleet.policy.rooms import Room
from ekya.fleet.policy.splitting import Splitter, best_alone

Finder = Callable[[int, Offer, Sequence[Room], Links, int], Loan | None]
"""Finds the loan for one offer, even at a negative worth; None where it finds none."""


def most_worth_first(find: Finder) -> Broker:
    """Returns a broker that repeatedly makes the loan with the highest worth beside those already made."""

    def ask(now_us: int, offers: Sequence[Offer], rooms: Sequence[Room], links: Links, seed: int) -> Brokered:
        left = tuple(sorted(rooms, key=lambda room: room.site))
        waiting, made = sorted(offers, key=key_of), list[Loan]()
        while True:
            found = [find(now_us, offer, left, links, seed) for offer in waiting]
            best = max((loan for loan in found if loan), key=lambda loan: worth(loan, left), default=None)
            if best is None or worth(best, left) <= 0.0:
                refused = {
                    key_of(offer): _why_not(loan, left) for offer, loan in zip(waiting, found, strict=True)
                }
                return Brokered(tuple(made), refused)
            made.append(best)
            left = beside(best, left)
            waiting.remove(best.offer)

    return ask


def _deep_edge(now_us: int, offer: Offer, rooms: Sequence[Room], links: Links, seed: int) -> Loan | None:
    return Splitter()(now_us, offer, rooms, links) or best_alone(now_us, offer, rooms, links)


def _near_data(policy: Callable[[int], FleetPolicy]) -> Finder:
    def find(now_us: int, offer: Offer, rooms: Sequence[Room], links: Links, seed: int) -> Loan | None:
        loan = NearData(policy)(now_us, offer, rooms, links)
        return loan if loan and worth(loan, rooms) > 0.0 else best_alone(now_us, offer, rooms, links)

    return find


def _net(now_us: int, offer: Offer, rooms: Sequence[Room], links: Links, seed: int) -> Loan | None:
    loan = best_alone(now_us, offer, rooms, links)
    least = 0.0 if loan is None else max(0.0, worth(loan, rooms))
    return Splitter()(now_us, offer, rooms, links, least) or loan


def _why_not(loan: Loan | None, rooms: Sequence[Room]) -> str:
    if loan is None:
        return "no other server has room"
    return f"{loan.where} would cost {loan_cost(loan, rooms):.3g} for the {loan.brings:.3g} that it brings"


TIERS: Mapping[str, Broker] = MappingProxyType(
    {
        "andreas": by_policy(Andreas()),
        "deep-edge": most_worth_first(_deep_edge),
        "okita": most_worth_first(_near_data(Okita)),
        "okita-joint": most_worth_first(_near_data(OkitaJoint)),
        "net": most_worth_first(_net),
    }
)
"""Brokers by name. ANDREAS places each retraining on one server, by cost and due date. Deep-Edge splits each
retraining that can be split with profit. Okita (``okita`` to the letter, ``okita-joint`` ours) places
workers, parameter server and data by the traffic on links. ``net`` is ours and takes the loan with the
highest worth, over one server or several.
"""
