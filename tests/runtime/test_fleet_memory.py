"""Tests that a fleet whose inference does not fit in GPU memory is refused before anything starts."""

import pytest

from ekya.config.fleet_reading import load_fleet
from ekya.config.shipped import shipped_path
from ekya.core.configs import RetrainConfig
from ekya.core.errors import UserError
from ekya.models.edge.architecture_table import Task
from ekya.models.training.exemplars import MOST_EXEMPLARS
from ekya.pipeline.setup import job_places
from ekya.planning.placement.homes import PREPARATION_GPU, Processes, assign_home_gpus
from ekya.planning.sizing.gpu_memory import CONTEXT_BYTES, JobCrops
from ekya.runtime.actors.actor_kinds import ActorConfig, StreamActorConfig
from ekya.runtime.shares.gpu_memory import job_sizes, require_inference


@pytest.fixture
def fleet():
    return load_fleet(shipped_path("datasets/synthetic_city/fleet.yaml"))


class Memory:
    def __init__(self, *free_bytes):
        self._free_bytes = free_bytes

    def free_bytes(self, gpu):
        return self._free_bytes[gpu]


def test_fleet_that_fits_or_has_unknown_memory_is_accepted(fleet):
    two = job_places(fleet, 2000)
    require_inference(fleet, Processes.STREAM, two, Memory(1 << 40, 1 << 40))
    require_inference(fleet, Processes.STREAM, two, Memory(None, None))


@pytest.mark.parametrize(("free", "full"), [((0, 1 << 40), 0), ((1 << 40, 0), 1)])
def test_fleet_on_a_full_gpu_is_refused_with_its_number(fleet, free, full):
    two = job_places(fleet, 2000)
    with pytest.raises(UserError, match=rf"to serve \d of them GPU {full} needs about [\d,]+ MiB, and 0 MiB"):
        require_inference(fleet, Processes.STREAM, two, Memory(*free))


def test_check_counts_a_context_for_each_process(fleet):
    one = job_places(fleet, 1000)
    with pytest.raises(UserError, match="key 'streams'"):
        require_inference(fleet, Processes.STREAM, one, Memory((len(fleet.streams) + 1) * CONTEXT_BYTES))


def test_job_places_are_the_gpus_of_the_actors(fleet):
    for gpus_milli in (1000, 2000, 2500):
        homes = assign_home_gpus(len(fleet.streams), gpus_milli)
        orders = ActorConfig(None, fleet, 0, None, "cuda", homes)
        places = job_places(fleet, gpus_milli)
        for place, stream in enumerate(fleet.streams):
            assert places.streams[stream.id] == StreamActorConfig(orders, place, 0).gpu
        assert places.preparation == PREPARATION_GPU


def test_job_sizes_follow_the_model_of_the_fleet(fleet):
    sizes = job_sizes(fleet)
    deep, head = RetrainConfig(1, 16, 0, 3, 1.0), RetrainConfig(1, 16, 0, 0, 1.0)
    crops = JobCrops(200, 50, MOST_EXEMPLARS[Task.CLASSIFY])
    assert sizes.estimate_retraining(deep, crops) > 2 * sizes.estimate_retraining(head, crops)
    small = job_sizes(
        fleet.model_copy(update={"edge": fleet.edge.model_copy(update={"model": "mobilenet_v3_small"})})
    )
    assert small.estimate_retraining(head, crops) < sizes.estimate_retraining(head, crops) / 2
    assert (sizes.labels_per_window, sizes.exemplars) == (
        fleet.golden.labels_per_window,
        MOST_EXEMPLARS[Task.CLASSIFY],
    )


def test_check_counts_one_context_for_a_shared_process(fleet):
    one = job_places(fleet, 1000)
    enough = Memory(len(fleet.streams) * CONTEXT_BYTES)
    require_inference(fleet, Processes.GPU, one, enough)
    with pytest.raises(UserError, match="key 'streams'"):
        require_inference(fleet, Processes.STREAM, one, enough)
    with pytest.raises(UserError, match="key 'streams'"):
        require_inference(fleet, Processes.GPU, one, Memory(2 * CONTEXT_BYTES))
