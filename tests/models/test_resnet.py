import subprocess
import sys

import pytest
import torch
import torchvision

from ekya.models.edge.architecture_table import CUTS
from ekya.models.edge.architectures import RESNETS


@pytest.mark.parametrize("name", ["resnet18", "resnet101"])
def test_resnet_seed_draws_the_weights_of_torchvision(name: str) -> None:
    with torch.random.fork_rng():
        torch.manual_seed(3)
        theirs = torchvision.models.get_model(name, weights=None, **CUTS[name].options).state_dict()
        torch.manual_seed(3)
        ours = RESNETS[name](**CUTS[name].options).state_dict()
    assert list(ours) == list(theirs)
    assert all(torch.equal(ours[key], theirs[key]) for key in theirs)


@pytest.mark.parametrize("name", ["resnet18", "resnet101"])
@pytest.mark.parametrize("training", [False, True])
def test_resnet_with_torchvision_weights_predicts_and_learns_the_same(name: str, training: bool) -> None:
    theirs, ours = torchvision.models.get_model(name, weights=None), RESNETS[name]()
    ours.load_state_dict(theirs.state_dict())
    images = torch.rand(2, 3, 32, 32, generator=torch.Generator().manual_seed(0))
    answers = [net.train(training)(images) for net in (theirs, ours)]
    assert torch.equal(*answers)
    for answer in answers:
        answer.square().sum().backward()
    pairs = zip(theirs.parameters(), ours.parameters(), strict=True)
    assert all(torch.equal(one.grad, other.grad) for one, other in pairs)
    statistics = zip(theirs.buffers(), ours.buffers(), strict=True)
    assert all(torch.equal(one, other) for one, other in statistics)


def test_resnet_process_trains_without_torchvision_and_compiler() -> None:
    """Each takes as long to import as half of torch, in every process of every stream."""
    code = """
import sys
import numpy as np
from ekya.core.configs import RetrainConfig
from ekya.models.edge.checkpoints import from_bytes, to_bytes
from ekya.models.edge.model import build_edge_model
from ekya.models.training.labelled import LabelledCrops
from ekya.models.edge.predictor import Predictor
from ekya.models.training.trainer import Retraining, RetrainingData

crops = np.zeros((8, 32, 32, 3), np.uint8)
labelled = LabelledCrops(crops, np.arange(8) % 2, np.arange(8), np.arange(8))
model = from_bytes(to_bytes(build_edge_model(("car", "bus"), 0, 1)))
config = RetrainConfig(1, 4, 0, 1, 1.0)
data = RetrainingData(labelled, labelled, ("car", "bus"), seed=1)
run = Retraining(model, config, data)
run.prepare_training()
run.run_epoch()
Predictor(run.model()).predict(crops, 24)
sys.exit(", ".join({"torchvision", "torch._dynamo"} & set(sys.modules)) or 0)
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr.strip()) == (0, "")
