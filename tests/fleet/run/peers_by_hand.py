"""Servers and offers for tests of the coordinator."""

from ekya.core.configs import RetrainConfig
from ekya.core.speed import LINEAR
from ekya.core.units import StreamId
from ekya.fleet.policy.offers import TrainingOffer
from ekya.fleet.policy.places import SiteName
from ekya.fleet.policy.rooms import Room
from ekya.fleet.run.elsewhere import Interrupted

S = 1_000_000
CAM = StreamId("cam")
HOME, EAST, WEST = map(SiteName, ("home", "east", "west"))
THERE = (HOME, EAST)


class Server:
    """Fake of a server that records the coordinator's calls; ``lent`` holds its current loans."""

    def __init__(self, site, units):
        self.site, self.units, self.lent, self.heard, self.refuses = site, units, {}, [], False

    def spare_room(self, now_us, until_us):
        return Room(self.site, 100, (0.0,) * self.units, LINEAR) if self.units > 0 else None

    def lend_share(self, number, lent):
        if not self.refuses:
            self.lent[number] = lent
        return not self.refuses

    def take_back_share(self, number, at_us):
        self.lent.pop(number, None)

    def grant_loan(self, loan):
        self.heard.append(("granted", loan))

    def training_so_far(self, stream, now_us):
        return Interrupted(2, {THERE: 7.0})

    def continue_training(self, stream, loan):
        self.heard.append(loan)

    def fail_training(self, stream, reason, now_us):
        self.heard.append(reason)


def offer(stream=CAM, site=HOME, gain=0.1, gpu_s=10.0, until_us=100 * S):
    config = RetrainConfig(4, 16, 0, 1, 1.0)
    return TrainingOffer(site, stream, config, 4, gpu_s, gain, 0.0, 0, until_us, 1.0, 45.0, 45.0)
