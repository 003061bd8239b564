"""Facts of an exported model, and the model card that tells them with a few lines of code that use it."""

from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass

from ekya.core.units import StreamId
from ekya.models.edge.architecture_table import Task
from ekya.models.edge.detection.read_objects import LEAST_CONFIDENCE, MOST_OBJECTS


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelFacts:
    """Facts of an exported model.

    Attributes:
        task, architecture: of the edge model.
        names: its classes, by number.
        threshold: score from which an object counts; None for a classifier.
        resolution: side in pixels that frames or crops are resized to.
        crop_side: side in pixels of a classifier's crops; None for a detector.
        run, stream: where it served.
        version: of its weights; 0 is the base model.
        window: in which they were retrained; -1 for the base model.
        weights_sha256: of their file in the run's folder.
        base, licence, source: weights that the stream began with, their terms, and who publishes them.
        golden: what made the labels that it learned from, and its licence if that is known.
        ekya: version that exported it.
        reference: the golden model that accuracy is agreement with; None where the truth was known.
        accuracy: figures of the run's summary by their names there; ``last_window`` is that of its last one,
            and ``validation_accuracy`` that of these weights on labels that they did not learn from.
    """

    task: Task
    architecture: str
    names: tuple[str, ...]
    threshold: float | None
    resolution: int
    crop_side: int | None
    run: str
    stream: StreamId
    version: int
    window: int
    weights_sha256: str
    base: str
    licence: str
    source: str
    golden: str
    ekya: str
    reference: str | None
    accuracy: Mapping[str, float | None]

    @property
    def input(self) -> str:
        """What the file takes, in words."""
        images = "`images`, 32-bit floats, RGB in [0, 1]"
        if self.crop_side is not None:
            return f"{images}, (N, 3, {self.crop_side}, {self.crop_side}): N crops"
        return (
            f"{images}, (1, 3, H, W): a whole frame of any size, which the file resizes itself; "
            "`orig_target_sizes`, 64-bit integers, (1, 2): its width and height"
        )

    def as_metadata(self) -> dict[str, str]:
        """Returns the facts as the file holds them; ``names`` as other tools write and read them."""
        plain = {key: str(value) for key, value in asdict(self).items() if value is not None}
        del plain["accuracy"]
        return plain | {"names": repr(dict(enumerate(self.names))), "input": self.input}


_USE = {
    Task.DETECT: """\
frame = cv2.imread("frame.jpg")
images = frame[None, :, :, ::-1].transpose(0, 3, 1, 2).astype(np.float32) / 255
answers = session.run(None, {{"images": images, "orig_target_sizes": np.array([frame.shape[1::-1]])}})
objects = [(names[label], box, score) for label, box, score in zip(*(one[0] for one in answers))]
print([one for one in objects if one[2] >= {facts.threshold}])
""",
    Task.CLASSIFY: """\
size = ({facts.crop_side}, {facts.crop_side})
crop = cv2.resize(cv2.imread("crop.jpg"), size, interpolation=cv2.INTER_AREA)
images = crop[None, :, :, ::-1].transpose(0, 3, 1, 2).astype(np.float32) / 255
(probabilities,) = session.run(None, {{"images": images}})
print(names[probabilities[0].argmax()], probabilities[0].max())
""",
}

_OUTPUT = {
    Task.DETECT: f"""\
Output, the most certain object first: `labels` (1, N), numbers of classes; `boxes` (1, N, 4), x0 y0 x1 y1
in units of `orig_target_sizes`, so in pixels of the frame, or in parts of it for a size of 1, 1; `scores`
(1, N). Scores are scaled so that the model's own threshold is {{facts.threshold}}: an object counts from
there on. Less certain ones come too, down to {LEAST_CONFIDENCE}, and {MOST_OBJECTS} objects at most. Boxes
of a class that overlap are suppressed already.""",
    Task.CLASSIFY: """\
Output: `probabilities` (N, C), of each class. A crop is a square around the centre of an object's box, with
1.1 times its longer side.""",
}

_LIMIT = {
    Task.DETECT: "It was made for whole frames of one camera. On another scene, or on a part of a frame, it",
    Task.CLASSIFY: "It names objects in boxes that something else finds. On those of another camera it",
}

_FIGURES = {
    "validation_accuracy": "these weights, on labels that they did not learn from",
    "last_window": "what the camera answered in the run's last window",
    "mean_accuracy": "what it answered in the whole run, with all weights that served",
    "golden_part": "part of its frames that the golden detector answered in place of its own model",
    "student_accuracy": "its own models alone, without the golden detector",
    "student_without_retraining": "the base model alone",
}


def write_model_card(facts: ModelFacts, file: str, sha256: str) -> str:
    """Returns a model's card as Markdown, with licence and checksum in the lines where Ekya reads them.

    Args:
        facts: of the model.
        file: name of its ONNX file.
        sha256: of that file.
    """
    origin = "not retrained" if facts.window < 0 else f"retrained in window {facts.window}"
    return f"""\
# {file}

A {facts.architecture}, {origin}: the model of camera `{facts.stream}` at the end of the run `{facts.run}`.

- licence: {facts.licence}
- source: {facts.source}
- base: {facts.base}
- labels: by {facts.golden}
- classes: {", ".join(facts.names)}
- weights: version {facts.version} of the camera's, sha256 {facts.weights_sha256}
- made by: Ekya {facts.ekya}
- sha256: {sha256}

## Accuracy

{chr(10).join(_accuracy_lines(facts))}

## Use

```python
import ast, cv2, numpy as np, onnxruntime

session = onnxruntime.InferenceSession("{file}", providers=["CPUExecutionProvider"])
names = ast.literal_eval(session.get_modelmeta().custom_metadata_map["names"])
{_USE[facts.task].format(facts=facts)}```

Input: {facts.input}.

{_OUTPUT[facts.task].format(facts=facts)}

## Limits

- {_LIMIT[facts.task]} may be worse than its base.
- It does not adapt any more: when the scene changes, export the weights of a later window.
- The licence is that of the base weights. Whether that of the golden model extends to what was learned from
  its labels is for you to judge.
"""


def _accuracy_lines(facts: ModelFacts) -> Iterator[str]:
    measure = (
        "F1 at an IoU of 0.5" if facts.task is Task.DETECT else "Part of the objects with the right name"
    )
    truth = (
        "the truth" if facts.reference is None else f"the golden model {facts.reference} and not with truth"
    )
    yield f"{measure}, in agreement with {truth}.\n"
    for name, what in _FIGURES.items():
        if (value := facts.accuracy.get(name)) is not None:
            yield f"- {what}: {value:.1%}"
