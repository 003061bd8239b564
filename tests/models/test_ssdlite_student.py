"""SSDlite as an edge model: torchvision's weights, anchors, loss and training."""

from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from drawn_scenes import FLEET, scenes
from safetensors.torch import load_file, save_file
from torch import Tensor, nn
from torchvision.models.detection import ssdlite320_mobilenet_v3_large
from torchvision.models.detection.image_list import ImageList

from ekya.core.configs import RetrainConfig
from ekya.core.errors import UserError
from ekya.models.edge.architecture_table import INPUT_MEAN, INPUT_SCALE, SSDLITE, block_names
from ekya.models.edge.detection.detector import Targets
from ekya.models.edge.detection.read_objects import BoxCandidates, fleet_outputs, found_in
from ekya.models.edge.detection.ssdlite import packed, unpacked
from ekya.models.edge.detection.weights import open_detector_weights
from ekya.models.edge.model import EdgeModel, build_edge_model
from ekya.models.golden.class_map import COCO_CATEGORIES
from ekya.models.training.frames import split_by_time
from ekya.models.training.optimizer import AdamWRecipe
from ekya.models.training.trainer import Retraining, RetrainingData, TrainingMethod

CLASSES = ("person", "kite", "car")
MOVES = slice(4, 8)
BACKGROUND, PERSON, KITE, CAR = 8, 9, 10, 11
"""Columns of the outputs; the anchor comes first."""


@pytest.fixture(scope="module")
def theirs() -> nn.Module:
    """Torchvision's detector with random weights and statistics, whose answers differ from place to place."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(7)
        network = ssdlite320_mobilenet_v3_large(weights=None, weights_backbone=None).eval()
        with torch.no_grad():
            for module in network.modules():
                if isinstance(module, nn.BatchNorm2d):
                    module.running_mean.uniform_(-0.1, 0.1)
                    module.running_var.uniform_(0.5, 1.0)
            for head in (network.head.classification_head, network.head.regression_head):
                for layers in head.module_list:
                    layers[1].weight.mul_(40)
    return network


@pytest.fixture(scope="module")
def weights(theirs: nn.Module, tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("weights") / "ssdlite.safetensors"
    save_file(theirs.state_dict(), path)
    return path


@pytest.fixture(scope="module")
def model() -> EdgeModel:
    return build_edge_model(CLASSES, 0, 3, SSDLITE)


def objects_of(
    *objects: tuple[int, Sequence[float], int], doubtful: Sequence[tuple[int, Sequence[float]]] = ()
) -> Targets:
    """Returns targets of (image, box, output) and of doubtful (image, box)."""
    outputs = torch.zeros(len(objects), len(CLASSES), dtype=torch.bool)
    for row, (_, _, output) in enumerate(objects):
        outputs[row, output] = True
    return Targets(
        torch.tensor([image for image, _, _ in objects], dtype=torch.int64),
        torch.tensor([list(box) for _, box, _ in objects]).reshape(-1, 4),
        outputs,
        torch.tensor([image for image, _ in doubtful], dtype=torch.int64),
        torch.tensor([list(box) for _, box in doubtful]).reshape(-1, 4),
    )


def at_96(model: EdgeModel, images: int) -> Tensor:
    """Returns outputs of 0 for images of 96 pixels, but for the anchors; they can be trained themselves."""
    with torch.no_grad():
        outputs = model(torch.zeros(images, 3, 96, 96))
    outputs[..., 4:] = 0.0
    return outputs.requires_grad_()


def trained_anchors(outputs: Tensor, model: EdgeModel, targets: Targets) -> set[int]:
    """Returns the anchors of the first image for whose outputs the loss has a gradient."""
    outputs.grad = None
    model.detector.loss(outputs, targets).backward()
    return set(outputs.grad[0].abs().sum(dim=1).nonzero()[:, 0].tolist())


@pytest.mark.parametrize("suffix", [".safetensors", ".pth"])
def test_published_weights_answer_as_torchvision(
    theirs: nn.Module, weights: Path, tmp_path: Path, suffix: str
) -> None:
    if suffix == ".pth":
        weights = tmp_path / "ssdlite.pth"
        torch.save(theirs.state_dict(), weights)
    ours = open_detector_weights(weights, SSDLITE, ("car", "bus"))
    assert ours.classes == COCO_CATEGORIES[1:]
    pixels = torch.rand(2, 3, 320, 320, generator=torch.Generator().manual_seed(1))
    with torch.inference_mode():
        images, _ = theirs.transform([*pixels])
        maps = [*theirs.backbone(images.tensors).values()]
        heads = theirs.head(maps)
        expected = [
            theirs.box_coder.decode_single(moves, before) / 320
            for moves, before in zip(
                heads["bbox_regression"], theirs.anchor_generator(images, maps), strict=True
            )
        ]
        scores = heads["cls_logits"].softmax(dim=2)[..., 1:]
        decoded = ours.detector.decode_outputs(ours((pixels - INPUT_MEAN) / INPUT_SCALE))
        (kept, _) = theirs([*pixels])
    assert scores.std() > 0.01, "answers differ"
    torch.testing.assert_close(decoded.boxes, torch.stack(expected), atol=1e-4, rtol=0)
    torch.testing.assert_close(decoded.scores, scores.amax(dim=2), atol=1e-4, rtol=0)
    of_output = scores.gather(2, decoded.outputs[..., None])[..., 0]
    torch.testing.assert_close(of_output, decoded.scores, atol=1e-4, rtol=0)
    surest = int(decoded.scores[0].argmax())
    assert kept["scores"][0] == pytest.approx(decoded.scores[0, surest].item(), abs=1e-4)
    assert COCO_CATEGORIES[kept["labels"][0]] == ours.classes[decoded.outputs[0, surest]]


@pytest.mark.parametrize("side", range(160, 353, 32))
def test_anchors_are_torchvisions_at_every_side(theirs: nn.Module, model: EdgeModel, side: int) -> None:
    image = torch.zeros(1, 3, side, side)
    with torch.inference_mode():
        maps = [*theirs.backbone(image).values()]
        (expected,) = theirs.anchor_generator(ImageList(image, [(side, side)]), maps)
        outputs = model(image)
        outputs[..., MOVES] = 0.0
    decoded = model.detector.decode_outputs(outputs)
    torch.testing.assert_close(decoded.boxes[0] * side, expected, atol=1e-4, rtol=0)
    assert decoded.scores.shape == decoded.outputs.shape == (1, len(expected))


@pytest.mark.parametrize("side", [160, 192, 320, 352])
def test_packed_maps_are_unpacked_unchanged(theirs: nn.Module, side: int) -> None:
    with torch.inference_mode():
        maps = [*theirs.backbone(torch.rand(1, 3, side, side)).values()]
    for some in (maps[:2], maps):
        for back, one in zip(unpacked(packed(some)), some, strict=True):
            assert torch.equal(back, one)


def test_weights_of_another_number_of_classes_need_names(tmp_path: Path) -> None:
    path = tmp_path / "gate.safetensors"
    network = ssdlite320_mobilenet_v3_large(weights=None, weights_backbone=None, num_classes=3)
    save_file(network.state_dict(), path)
    with pytest.raises(UserError, match=r"has 2 classes .* gate\.names"):
        open_detector_weights(path, SSDLITE, ("forklift",))
    path.with_suffix(".names").write_text("forklift\npallet\n")
    assert open_detector_weights(path, SSDLITE, ("forklift",)).classes == ("forklift", "pallet")


def test_weights_of_other_networks_are_refused(weights: Path, tmp_path: Path) -> None:
    onnx = tmp_path / "ssdlite.onnx"
    onnx.write_bytes(b"anything")
    with pytest.raises(UserError, match=r"ssdlite\.onnx: .* give its weights as safetensors"):
        open_detector_weights(onnx, SSDLITE, ("car",))
    with pytest.raises(UserError, match="is no fastestdet"):
        open_detector_weights(weights, "fastestdet", ("car",))
    cut = tmp_path / "cut.pth"
    torch.save({name: tensor for name, tensor in load_file(weights).items() if "extra.3" not in name}, cut)
    with pytest.raises(UserError, match=r"is no ssdlite320.*blocks\.6\.layers\.3"):
        open_detector_weights(cut, SSDLITE, ("car",))


def learnt(outputs: Tensor, model: EdgeModel, targets: Targets, steps: int = 300) -> Iterator[float]:
    """Trains the outputs themselves; yields the losses."""
    optimiser = torch.optim.Adam([outputs], lr=0.1)
    for _ in range(steps):
        optimiser.zero_grad()
        loss = model.detector.loss(outputs, targets)
        loss.backward()
        optimiser.step()
        yield loss.item()


def test_outputs_that_minimise_the_loss_give_the_objects(model: EdgeModel) -> None:
    """One small object that no anchor overlaps by half, two that overlap, and an empty frame."""
    cars = [(0.1, 0.2, 0.15, 0.26), (0.3, 0.3, 0.8, 0.7)]
    person = (0.4, 0.3, 0.75, 0.9)
    targets = objects_of((0, cars[0], 2), (1, cars[1], 2), (1, person, 0))
    outputs = at_96(model, 3)
    losses = list(learnt(outputs, model, targets))
    assert losses[-1] < losses[0] / 20
    first, second, third = found_in(
        BoxCandidates.of(model.detector.decode_outputs(outputs.detach())), fleet_outputs(CLASSES, FLEET)
    )
    sure = [of.confidence > 0.5 for of in (first, second, third)]
    assert [int(of.sum()) for of in sure] == [1, 2, 0]
    assert first.boxes[0] == pytest.approx(cars[0], abs=0.01)
    found = {int(index): box for index, box in zip(second.classes[:2], second.boxes[:2], strict=True)}
    assert found[0] == pytest.approx(cars[1], abs=0.01)
    assert found[1] == pytest.approx(person, abs=0.01)


def test_an_empty_frame_teaches_that_nothing_is_there(model: EdgeModel) -> None:
    outputs = at_96(model, 1)
    trained = trained_anchors(outputs, model, objects_of())
    assert len(trained) == 3
    assert (outputs.grad[0, sorted(trained), BACKGROUND] < 0).all(), "background becomes more likely"


def test_three_hardest_anchors_of_background_train_for_each_positive(model: EdgeModel) -> None:
    outputs = at_96(model, 1)
    with torch.no_grad():
        outputs[0, 5:25, PERSON] = torch.linspace(1, 2, 20)  # they look like a person, more and more
    model.detector.loss(outputs, objects_of((0, (0.6, 0.6, 0.95, 0.95), 2))).backward()
    trained = outputs.grad[0].abs().sum(dim=1) > 0
    positive = outputs.grad[0, :, BACKGROUND] > 0
    assert (positive <= trained).all()
    count = int(positive.sum())
    assert int(trained.sum()) == 4 * count
    negatives = (trained & ~positive).nonzero()[:, 0]
    assert negatives.tolist() == list(range(25 - 3 * count, 25))


def test_anchors_on_doubtful_regions_are_not_trained(model: EdgeModel) -> None:
    outputs = at_96(model, 1)
    with torch.no_grad():
        outputs[0, [10, 300], PERSON] = 4.0  # they look like persons
    region = model.detector.decode_outputs(outputs.detach()).boxes[0, 300].tolist()
    assert {10, 300} <= trained_anchors(outputs, model, objects_of())
    doubtful = objects_of(doubtful=[(0, region)])
    assert trained_anchors(outputs, model, doubtful) & {10, 300} == {10}


def test_boxes_on_doubtful_regions_are_not_trained(model: EdgeModel) -> None:
    """The region is so small that no anchor overlaps it."""
    outputs = at_96(model, 1)
    before = outputs[0, 10, :4].detach()
    with torch.no_grad():
        outputs[0, [10, 300], PERSON] = 4.0
        outputs[0, 10, 4:6] = (torch.tensor([0.075, 0.075]) - before[:2]) / before[2:] / 0.1
        outputs[0, 10, 6:8] = (0.05 / before[2:]).log() / 0.2
    doubtful = objects_of(doubtful=[(0, (0.05, 0.05, 0.1, 0.1))])
    assert trained_anchors(outputs, model, doubtful) & {10, 300} == {300}


def test_any_output_of_the_class_satisfies_the_loss(model: EdgeModel) -> None:
    one = objects_of((0, (0.3, 0.3, 0.8, 0.7), 2))
    both = replace(one, outputs=torch.tensor([[False, True, True]]))
    outputs = at_96(model, 1)
    model.detector.loss(outputs, both).backward()
    positive = outputs.grad[0, :, BACKGROUND] > 0
    torch.testing.assert_close(outputs.grad[0, positive, KITE], outputs.grad[0, positive, CAR])
    assert model.detector.loss(outputs, both) < model.detector.loss(outputs, one)


def test_start_model_is_trusted_where_box_and_class_are_right(model: EdgeModel) -> None:
    targets = objects_of((1, (0.3, 0.3, 0.8, 0.7), 2))
    outputs = at_96(model, 2)
    list(learnt(outputs, model, targets, 100))
    answers = outputs.detach()
    trusted = model.detector.trusted(answers, targets)
    assert not trusted[0].any()
    assert trusted[1].any()
    assert not model.detector.trusted(answers, replace(targets, outputs=targets.outputs.roll(1, 1))).any()
    assert not model.detector.trusted(torch.zeros_like(answers), targets).any(), "background comes first"
    moved = (answers + trusted[..., None] * torch.randn(answers.shape)).requires_grad_()
    assert model.detector.distance(answers, answers, trusted) == pytest.approx(0.0, abs=1e-6)
    distance = model.detector.distance(moved, answers, trusted)
    assert distance > 0.01
    distance.backward()
    assert ((moved.grad[..., BACKGROUND:].abs().sum(dim=2) > 0) <= trusted).all()
    assert not moved.grad[..., MOVES].any(), "boxes are free"
    assert model.detector.distance(moved, answers, torch.zeros_like(trusted)) == 0.0


def test_training_from_fresh_weights_lowers_the_loss() -> None:
    training, validation = split_by_time(scenes(12, 1), 0.2)
    gamma = RetrainConfig(6, 4, 0, len(block_names(SSDLITE)), 1.0)
    run = Retraining(
        build_edge_model(FLEET, 0, 3, SSDLITE),
        gamma,
        RetrainingData(training, validation, FLEET, seed=1),
        method=TrainingMethod(AdamWRecipe(4e-3, 4e-3, batch_statistics=True)),
    )
    run.prepare_training()
    losses = [run.run_epoch().training_loss for _ in range(gamma.epochs)]
    assert losses[-1] < losses[0] / 2
