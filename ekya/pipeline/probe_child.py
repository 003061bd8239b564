"""Child process of ``Probe``: reads a fleet, measures the costs of its work and writes them to a file.

Open classes are found first. The self-test's choice of how to run forward passes is read from the user's
cache, or made and cached.
"""

import json
import sys
from pathlib import Path

import cv2
import torch
import yaml
from pydantic import TypeAdapter

from ekya.config.fleet_file import FleetConfig, parse_fleet
from ekya.config.sizing import resolutions_to_measure
from ekya.core.errors import UserError
from ekya.core.host import HostCosts, StreamCosts
from ekya.core.units import StreamId
from ekya.models.edge.forward import SelfTest
from ekya.models.edge.predictor import Predictor
from ekya.models.golden.golden_model import open_golden
from ekya.models.golden.registry import FILE
from ekya.pipeline.base_model import base_model
from ekya.pipeline.host_costs import (
    SampledSource,
    Timer,
    classifying_gpu_s,
    costs_of,
    family_costs,
    finding_gpu_s,
    label_gpu_s,
    of_all_streams,
    sample_sources,
)
from ekya.pipeline.probe import ProbedHost
from ekya.pipeline.self_testing import self_test
from ekya.pipeline.setup import crop_side, fleet_classes, proposer_for, with_classes
from ekya.system.files import write_text_atomic


def main() -> None:
    """Reads an order from standard input and writes the answer to the file in the first argument."""
    order = json.loads(sys.stdin.buffer.read())
    try:
        fleet = parse_fleet(yaml.safe_load(order["fleet"]), "fleet", (Path(),))
        probed = probe_host(fleet, order["device"], order["cores"], order["seed"], again=order["again"])
        answer = TypeAdapter(ProbedHost).dump_python(probed, mode="json")
    except UserError as error:
        answer = {"refused": str(error)}
    write_text_atomic(Path(sys.argv[1]), json.dumps(answer))


def probe_host(fleet: FleetConfig, device: str, cores: float, seed: int, *, again: bool) -> ProbedHost:
    """Measures all costs on one thread; ``again`` repeats a cached self-test.

    Raises:
        UserError: a file of the fleet cannot be read, or is not valid.
    """
    torch.set_num_threads(1)
    cv2.setNumThreads(1)
    fleet = with_classes(fleet)
    sampled = sample_sources({stream.id: stream.source for stream in fleet.streams}, fleet_classes(fleet))
    tested = self_test(fleet.edge.model, device, resolutions_to_measure(fleet), again=again)
    costs = _costs(fleet, device, cores, seed, tested, sampled)
    return ProbedHost(fleet_classes(fleet), costs, tested)


def _costs(
    fleet: FleetConfig,
    device: str,
    cores: float,
    seed: int,
    tested: SelfTest,
    sampled: dict[StreamId, SampledSource],
) -> HostCosts:
    timer, side = Timer(device), crop_side(fleet)
    model = base_model(fleet, seed)
    ask = Predictor(model, device, tested.way)
    classifying_s = classifying_gpu_s(ask, side, resolutions_to_measure(fleet), timer)
    looked_at: dict[StreamId, StreamCosts] = {}
    for stream in fleet.streams:
        if stream.id in sampled:
            shown, proposer = sampled[stream.id], proposer_for(fleet, stream)
            finding_s = finding_gpu_s(shown, proposer, stream.objects.every, timer)
            looked_at[stream.id] = costs_of(shown.fps * stream.play.speed, finding_s, classifying_s)
    label_s = 0.0
    if fleet.golden.model != FILE:
        picture = next(iter(sampled.values())).frames[0].image
        label_s = label_gpu_s(open_golden(fleet.golden, fleet_classes(fleet)), picture, timer)
    return HostCosts(
        of_all_streams(looked_at, [stream.id for stream in fleet.streams]),
        label_s,
        family_costs(model, fleet.retrain_configs(), side, device, timer),
        cores,
        timer.longest_s,
    )


if __name__ == "__main__":
    main()
