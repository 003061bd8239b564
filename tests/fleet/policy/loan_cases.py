"""Offers, rooms, links, models and markets for tests of loans."""

from dataclasses import replace
from random import Random

from hypothesis import strategies as st

from ekya.core.configs import RetrainConfig
from ekya.core.speed import LINEAR, SpeedCurve
from ekya.core.units import StreamId
from ekya.fleet.policy.loans import Links
from ekya.fleet.policy.market import Market
from ekya.fleet.policy.offers import TrainingOffer
from ekya.fleet.policy.places import SiteName
from ekya.fleet.policy.rooms import Room

S = 1_000_000
NOW_US = 10 * S
HOME = SiteName("home")
QUICK_WHEN_SMALL = SpeedCurve(((0, 0.0), (100, 0.36), (300, 0.65), (1000, 1.0)))


def offer(site=HOME, stream="cam", **changes):
    """Offers a head that trains for 20 GPU-seconds, due in 190 s; ``changes`` override its fields."""
    told = {
        "gpu_s": 20.0,
        "gain": 0.1,
        "at_home": 0.0,
        "until_us": 200 * S,
        "crops_mb": 1.2,
        "model_mb": 45.0,
        "back_mb": 45.0,
        "epochs": 10,
        "batch_size": 16,
    } | changes
    config = RetrainConfig(told["epochs"], told.pop("batch_size"), 64, 0, 1.0)
    return TrainingOffer(site=site, stream=StreamId(stream), config=config, now_us=NOW_US, **told)


def room(site, loss, speed=LINEAR, **about):
    return Room(SiteName(site), 100, tuple(loss), speed, **about)


def market(offers, rooms, ways=None, running=(), seed=0, now_us=NOW_US):
    """A market; ``running`` are loans, which get numbers in their order."""
    under_way = tuple(replace(loan, number=number) for number, loan in enumerate(running))
    return Market(now_us, tuple(offers), under_way, tuple(rooms), ways or links(), seed)


def crowded(offers, sites, uneven=False, seed=0):
    """Draws a market with more offers than there is room for; each link has a rate of its own if uneven."""
    chance = Random(seed)
    names = [SiteName(f"site-{place:03}") for place in range(sites)]
    rooms = [room(site, sorted(chance.uniform(0.0, 0.02) for _ in range(5))) for site in names]
    asked = [
        offer(
            chance.choice(names), f"cam-{n}", gpu_s=chance.uniform(2.0, 30.0), gain=chance.uniform(0.01, 0.3)
        )
        for n in range(offers)
    ]
    pairs = [(one, other) for one in names for other in names if one != other]
    ways = Links({pair: chance.uniform(1.0, 25.0) for pair in pairs}) if uneven else Links()
    return market(asked, rooms, ways)


def links(usual_mb_s=12.5, **mb_s):
    """Links by name: ``a_b=1.0`` is 1 MB/s from a to b and back."""
    ways = {}
    for names, rate in mb_s.items():
        one, other = map(SiteName, names.split("_"))
        ways[one, other] = ways[other, one] = rate
    return Links(ways, usual_mb_s)


sites = st.sampled_from("abcde").map(SiteName)
losses = st.lists(st.sampled_from([0.0, 0.001, 0.01, 0.05]), min_size=1, max_size=4).map(
    lambda steps: [sum(steps[: place + 1]) for place in range(len(steps))]
)
all_rooms = st.dictionaries(
    sites,
    st.builds(
        dict,
        loss=losses,
        speed=st.sampled_from([LINEAR, QUICK_WHEN_SMALL]),
    ),
    max_size=5,
).map(lambda found: [room(site, **about) for site, about in found.items()])
all_offers = st.lists(
    st.builds(
        offer,
        site=st.sampled_from([HOME, HOME, SiteName("a")]),
        stream=st.sampled_from(["cam-1", "cam-2", "cam-3"]),
        gpu_s=st.sampled_from([0.5, 5.0, 20.0, 90.0]),
        gain=st.sampled_from([0.001, 0.05, 0.2]),
        at_home=st.sampled_from([0.0, 0.0, 0.01]),
        epochs=st.sampled_from([1, 5, 30]),
        batch_size=st.sampled_from([2, 16]),
        held_by=st.none() | sites,
        serves_after_us=st.sampled_from([0, 2 * S]),
    ),
    max_size=4,
    unique_by=lambda one: (one.site, one.stream),
)
all_links = st.sampled_from(
    [links(), links(1000.0), links(1.0), links(home_b=0.5, a_c=0.5), links(home_a=100.0, b_c=100.0)]
)
