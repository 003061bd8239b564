"""Tests of what is done inside the scope of a share, by the device of the share and of the golden model."""

from contextlib import contextmanager

import pytest
from bright import FLEET, BrightDetector, kept, serving_detector

from ekya.core.configs import GOLDEN_RESOLUTION, InferenceConfig
from ekya.core.units import StreamId
from ekya.models.edge.architecture_table import Task
from ekya.models.golden.detections import RunsOn
from ekya.models.golden.golden_from_detections import detector_model
from ekya.models.proposer import DetectedBoxes
from ekya.pipeline.audit import DrawnFrame, DrawnFrames, audit
from ekya.pipeline.collector import WindowMaterial
from ekya.pipeline.device_scopes import DeviceScopes
from ekya.pipeline.golden_inference import MeteredGolden
from ekya.pipeline.settings import PreparationSettings
from ekya.pipeline.stream_preparation import StreamPreparation
from ekya.pipeline.window_preparation import label_stream
from ekya.streams.ingest.frame import Frame
from ekya.streams.ingest.motion import BoxFlow

CAR = (12, 8, 60, 40, "car", 0.9)
SETTINGS = PreparationSettings(FLEET, 96, 10.0, 96, 3, task=Task.DETECT)
PICTURE = kept(0, CAR).picture

DEVICES = pytest.mark.parametrize(
    ("share", "golden", "charged"),
    [
        ("cpu", "cpu", {"golden", "student", "flow"}),
        ("cuda", "cpu", {"student"}),
        ("cuda", "cuda:0", {"golden", "student"}),
    ],
)


class Share:
    """Share of a device that notes what runs inside its scope, which does not nest."""

    def __init__(self, device):
        self.scopes = DeviceScopes(device, self.scope)
        self.inside = False
        self.done, self.charged = set(), set()

    @contextmanager
    def scope(self):
        assert not self.inside
        self.inside = True
        yield
        self.inside = False

    def noting(self, what, work):
        def noted(*given):
            self.done.add(what)
            if self.inside:
                self.charged.add(what)
            return work(*given)

        return noted


class Golden(BrightDetector):
    def __init__(self, share, device):
        self.runs_on = RunsOn(device)
        self.detect_objects = share.noting("golden", super().detect_objects)


def golden_of(share, device):
    golden = MeteredGolden(detector_model(FLEET, Golden(share, device), 0.4, names_boxes=False), lambda: 0.0)
    golden.gpu_scope = share.scope
    return golden


@DEVICES
def test_preparation_charges_what_the_device_of_its_share_does(monkeypatch, share, golden, charged):
    of = Share(share)
    serving = serving_detector()
    serving.predictor.predict = of.noting("student", serving.predictor.predict)
    monkeypatch.setattr(BoxFlow, "follow_boxes", of.noting("flow", BoxFlow.follow_boxes))
    street = tuple(kept(at, CAR) for at in range(6))
    prepared = StreamPreparation(SETTINGS, WindowMaterial(2, street, street), serving, golden_of(of, golden))
    assert label_stream(prepared, of.scopes).labels.count == 6
    assert (of.done, of.charged) == ({"golden", "student"}, charged & {"golden", "student"})
    of.done, of.charged = set(), set()
    prepared.burst([InferenceConfig(5, 96), InferenceConfig(3, GOLDEN_RESOLUTION)], of.scopes)
    assert (of.done, of.charged) == ({"golden", "student", "flow"}, charged)


@DEVICES
def test_audit_charges_what_the_device_of_its_share_does(share, golden, charged):
    of = Share(share)
    drawn = DrawnFrames(9, (DrawnFrame(0, PICTURE, (120, 80), None, None),))
    audit(drawn, golden_of(of, golden), SETTINGS, StreamId("cam"), of.scopes, lambda _: 0.0)
    assert (of.done, of.charged) == ({"golden"}, charged & {"golden"})


@DEVICES
def test_proposer_charges_its_detector_to_a_gpu(share, golden, charged):
    of = Share(share)
    detector = Golden(of, golden)
    proposer = DetectedBoxes(detector, of.scopes.scope)
    with of.scopes.host():
        found = proposer.propose_boxes(Frame(0, 0, PICTURE, None))
    assert len(found.boxes) == 1
    assert proposer.runs_on == detector.runs_on
    assert (of.done, of.charged) == ({"golden"}, charged & {"golden"})
