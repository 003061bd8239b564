"""What golden models and detectors are called; ``golden.py`` and ``detectors.py`` open them.

What reads a fleet file needs the names alone, and none of what runs a network.
"""

RESNEXT29 = "resnext29"
"""The shipped one, for the synthetic city."""

RESNEXT101S = ("resnext101_32x8d", "resnext101_64x4d")
"""Classifiers with ImageNet weights, from torchvision."""

CLASSIFIER_OPERATIONS = {
    RESNEXT29: 37_456_896,
    "resnext101_32x8d": 32_828_030_976,
    "resnext101_64x4d": 30_920_540_160,
}
"""Multiplications and additions of a classifier for one object, where no model has been loaded yet."""

FILE = "file"
"""Labels that were made before."""

FASTESTDET = "fastestdet"
ONNX = "onnx"
"""Any detector as an ONNX file, FastestDet's among them."""

TORCHVISION_DETECTORS = (
    "fasterrcnn_resnet50_fpn_v2",
    "fasterrcnn_mobilenet_v3_large_320_fpn",
    "ssdlite320_mobilenet_v3_large",
    "retinanet_resnet50_fpn_v2",
)
"""torchvision's detection models with COCO weights that may be named."""

DETECTOR_NAMES = (FASTESTDET, ONNX, *TORCHVISION_DETECTORS)
"""Every detector."""

GOLDEN_NAMES = (RESNEXT29, *RESNEXT101S, *DETECTOR_NAMES, FILE)
"""Every golden model, detectors among them."""
