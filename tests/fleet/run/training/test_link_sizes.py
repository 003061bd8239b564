"""Megabytes that an offer predicts, compared with those that a retraining on one host sends."""

from collections import Counter
from dataclasses import replace

import pytest
from crews import EAST, GAMMA, NAMES, SITES, WEST, bars, parted, process, task_of

from ekya.core.configs import InferenceConfig
from ekya.core.speed import LINEAR
from ekya.core.units import StreamId
from ekya.core.view import InferenceOption, RetrainOption, StreamView, WindowView
from ekya.fleet.policy.assignment import NodePart
from ekya.fleet.policy.offers import CropCounts, offers
from ekya.fleet.run.link_sizes import sizes_with
from ekya.fleet.run.training.crew import Crew
from ekya.fleet.run.training.dealing import deal
from ekya.fleet.run.training.material import Material
from ekya.fleet.run.training.protocol import FleetNode
from ekya.fleet.run.training.workers import PayloadKind
from ekya.models.training.exemplars import ExemplarMemory
from ekya.planning.schedulers.registry import make_scheduler

COUNTS = CropCounts(training=60, validation=30, exemplars=20)


class InThisProcess:
    """Source of training processes in this process."""

    def take_process(self, node):
        return process(node.name)


class Counted:
    """Counts megabytes that leave their node, by kind."""

    def __init__(self):
        self.mb = Counter()

    def count_sent(self, origin, target, kind, count):
        if origin != target:
            self.mb[kind] += count / 1e6

    def count_work(self, worker, work):
        pass


@pytest.mark.parametrize("blocks", [0, 1, 4])
def test_a_loan_by_one_host_sends_what_was_offered(model, blocks) -> None:
    config = replace(GAMMA, trainable_blocks=blocks)
    task = task_of(
        model,
        config=config,
        training={EAST: bars(COUNTS.training, 1)},
        validation=bars(COUNTS.validation, 3, 500),
        memory=ExemplarMemory(20, bars(COUNTS.exemplars, 9, 900)),
    )
    assignment, material, counted = parted(NodePart(WEST), server=WEST), Material.from_task(task), Counted()
    nodes = {name: FleetNode(name, SITES[name], name, 300) for name in (EAST, WEST)}
    crew = Crew(material, nodes, InThisProcess(), counted)
    crew.assemble(
        material.lesson_plan(assignment), deal(material.crops_by_node(SITES), assignment), WEST, None
    )
    offer = offered(config, model)
    assert counted.mb[PayloadKind.MODEL] == offer.model_mb
    assert counted.mb[PayloadKind.DATA] == pytest.approx(offer.crops_mb + offer.validation_mb)
    assert counted.mb.total() == pytest.approx(offer.sent_mb(SITES[WEST]))
    for epoch in range(config.epochs):
        _, snapshot = crew.run_epoch(epoch, lambda: False)
        # The snapshot also holds names of weights and normalisation statistics.
        assert len(snapshot.fetch()) / 1e6 == pytest.approx(offer.back_mb, rel=0.05, abs=0.002)
    assert set(counted.mb) == {PayloadKind.MODEL, PayloadKind.DATA}


def offered(config, model):
    serves = (InferenceOption(InferenceConfig(1, 32), 1.0, 200),)
    stream = StreamView(StreamId("cam"), 0.5, (RetrainOption(config, 0.8, 20.0),), serves)
    view = WindowView(0, 200_000_000, 1000, 50, 100, 0.0, (stream,), LINEAR)
    sizes = sizes_with(model, side=32, classes=len(NAMES))
    plan = make_scheduler("thief").plan
    (offer,) = offers(SITES[EAST], view, plan, {stream.stream: COUNTS}, sizes)
    return offer
