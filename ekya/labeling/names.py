"""Names of golden models and detectors; ``golden.py`` and ``detectors.py`` open them.

Separate, so that a fleet file can be read without importing what runs a network.
"""

RESNEXT29 = "resnext29"
"""The shipped golden model, for the synthetic city."""

RESNEXT101S = ("resnext101_32x8d", "resnext101_64x4d")
"""Classifiers with ImageNet weights, from torchvision."""

CLASSIFIER_OPERATIONS = {
    RESNEXT29: 37_456_896,
    "resnext101_32x8d": 32_828_030_976,
    "resnext101_64x4d": 30_920_540_160,
}
"""Multiplications and additions of a classifier for one object, for use before a model is loaded."""

FILE = "file"
"""Labels from a file."""

FASTESTDET = "fastestdet"
ONNX = "onnx"
"""Any detector as an ONNX file, including FastestDet."""

TORCHVISION_DETECTORS = (
    "fasterrcnn_resnet50_fpn_v2",
    "fasterrcnn_mobilenet_v3_large_320_fpn",
    "ssdlite320_mobilenet_v3_large",
    "retinanet_resnet50_fpn_v2",
)
"""Supported detection models of torchvision, with COCO weights."""

DETECTOR_NAMES = (FASTESTDET, ONNX, *TORCHVISION_DETECTORS)
"""Every detector."""

GOLDEN_NAMES = (RESNEXT29, *RESNEXT101S, *DETECTOR_NAMES, FILE)
"""Every golden model, including detectors."""
