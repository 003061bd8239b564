"""Tests of the analysis of single frames beside a share that notes what runs inside its scope."""

from contextlib import contextmanager
from types import SimpleNamespace

import numpy as np
import pytest

from ekya.core.configs import GOLDEN_RESOLUTION, InferenceConfig
from ekya.core.host import StreamCosts
from ekya.core.units import BASE_VERSION, StreamId
from ekya.models.golden.detections import GoldenObjects, Proposals, RunsOn
from ekya.pipeline import golden_inference
from ekya.pipeline.device_scopes import DeviceScopes
from ekya.pipeline.golden_inference import GoldenInference
from ekya.runtime.actors.frame_analysis import FrameAnalysis, InferenceProcess
from ekya.streams.ingest.frame import Frame

NOTHING = np.zeros((0, 4), np.float32)
PICTURE = np.zeros((8, 8, 3), np.uint8)
COSTS = StreamCosts(
    10.0,
    {32: 0.02, GOLDEN_RESOLUTION: 0.1},
    per_object=False,
    following_gpu_s={GOLDEN_RESOLUTION: 0.005},
)


@pytest.mark.parametrize(
    ("share", "golden", "charged", "pictures"),
    [
        ("cpu", "cpu", ["find", "golden", "find", "flow"], [0.02, 0.1, 0.02, 0.005]),
        ("cuda", "cpu", [], []),
        ("cuda", "cuda:0", ["golden"], [0.02, 0.1, 0.02]),
    ],
)
def test_frame_is_charged_for_what_the_device_of_its_share_does(
    monkeypatch, share, golden, charged, pictures
):
    """Of two frames the golden detector answers the first; into the second its boxes are followed."""
    inside, noted, counted = [], [], []

    @contextmanager
    def scope():
        assert not inside
        inside.append(1)
        yield
        inside.clear()

    def note(what, answer):
        noted.extend([what] if inside else [])
        return answer

    model = SimpleNamespace(
        runs_on=RunsOn(golden),
        find_objects=lambda image: note("golden", GoldenObjects(NOTHING, np.zeros(0, np.int64), NOTHING)),
    )
    monkeypatch.setattr(golden_inference, "open_golden", lambda *_: model)
    monkeypatch.setattr(golden_inference, "fleet_classes", lambda _: ("car",))
    scopes = DeviceScopes(share, scope)
    fleet = SimpleNamespace(golden=None, edge=SimpleNamespace(task=None))
    process = InferenceProcess(
        scopes,
        share=None,
        use=SimpleNamespace(count_pictures=lambda _, count: counted.append(count)),
        models=None,
        mailbox=None,
        golden=GoldenInference(fleet, scopes),
    )
    steps = SimpleNamespace(
        propose=lambda frame: note("find", Proposals(NOTHING)),
        proposes_free=False,
        proposes_on=RunsOn(golden),
        collect=lambda *_: None,
        collector=SimpleNamespace(wants=lambda _: True),
        ask_golden=lambda frame, *_: process.golden.find_objects(frame.image),
        follow=lambda *_: note("flow", ("row", 0)),
    )
    found = SimpleNamespace(count_found=lambda: None)
    analysis = FrameAnalysis(StreamId("cam"), steps, process, None, COSTS, found, lambda: False, BASE_VERSION)
    for index in range(2):
        analysis.analyse_frame(Frame(index, index, PICTURE, None), InferenceConfig(2, GOLDEN_RESOLUTION))
    assert noted == charged
    assert counted == pytest.approx([gpu_s / COSTS.object_gpu_s for gpu_s in pictures])
