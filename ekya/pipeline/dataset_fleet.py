"""Fleet file of a prepared data set, as YAML with comments."""

import math
import statistics
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path

import yaml
from pydantic import BaseModel

from ekya.config.files import relative_paths
from ekya.config.shipped import describe_better_base
from ekya.models.golden.spec import FILE
from ekya.streams.datasets.dataset import Dataset, StreamFindings

_WINDOWS_A_STREAM = 10
_FEWEST_FRAMES = 10
_EDGE_WEIGHTS = "golden_models/synthetic_city_resnet18_base.safetensors"

_COMMENTS: Mapping[str, str] = {
    "window_s": "About ten windows a stream, as in the paper's Figure 2.",
    "golden": (
        "The labels that came with the data, which cost nothing. The paper's golden model is\n"
        "# {model: resnext101_32x8d}, whose weights are downloaded."
    ),
    "edge": "A base that has seen a rendered city only.",
    "streams": "Delete what is not to take part. The data are labelled, so accuracy is against their labels.",
    "pretraining": "No run plays these: ekya edge train and ekya golden train learn from them.",
}


def fleet_text(
    dataset: Dataset,
    out: Path,
    classes: tuple[str, ...],
    findings: Mapping[str, StreamFindings],
    sources: Mapping[str, BaseModel],
    pretraining: Collection[str],
    labels: Path,
    gpus: float | None = None,
    window_s: float | None = None,
) -> str:
    """Returns the text of the fleet file.

    Args:
        dataset: the data set.
        out: path of the fleet file; paths in its folder are written relative to it.
        classes: the class names.
        findings: of the streams that have frames.
        sources: of the same streams.
        pretraining: those of them that models learn from and no run plays, unless there are no others.
        labels: file with the labels of all streams.
        gpus, window_s: None leaves ``gpus`` open, and takes about a tenth of a stream as window.
    """
    played = findings.keys() - set(pretraining) or findings.keys()
    entries = [{"id": name, "source": _entry(source)} for name, source in sorted(sources.items())]
    aside = [one for one in entries if one["id"] not in played]
    raw: dict[str, object] = {
        "name": out.stem,
        "classes": list(classes),
        **({} if gpus is None else {"gpus": gpus}),
        "window_s": window_s or _window_s([findings[name] for name in played]),
        "golden": {"model": FILE, "weights": str(labels)},
        "edge": {"model": "resnet18", "weights": _EDGE_WEIGHTS},
        "streams": [one for one in entries if one["id"] in played],
        **({"pretraining": aside} if aside else {}),
    }
    raw = {key: relative_paths(value, [out.parent]) for key, value in raw.items()}
    return _with_comments(dataset, out, findings, raw)


def _window_s(findings: Sequence[StreamFindings]) -> float:
    """Returns about a tenth of a stream, but at least the duration of a few frames."""
    frame_s = max(found.duration_s / found.frames for found in findings)
    tenth_s = statistics.median(found.duration_s for found in findings) / _WINDOWS_A_STREAM
    return math.ceil(10 * max(tenth_s, _FEWEST_FRAMES * frame_s)) / 10


def _entry(source: BaseModel) -> Mapping[str, object]:
    """Returns the ``source`` section: its kind and the keys that were set."""
    return {
        **source.model_dump(mode="json", include={"kind"}),
        **source.model_dump(mode="json", exclude_unset=True),
    }


def _with_comments(
    dataset: Dataset, out: Path, findings: Mapping[str, StreamFindings], raw: Mapping[str, object]
) -> str:
    frames = sum(found.frames for found in findings.values())
    drift = f" --drift {dataset.drift}" if dataset.drift else ""
    lost = sum(len(found.problems) for found in findings.values())
    lines = [
        f"# {dataset.title}. Streams: {len(findings)}, frames: {frames}, missing or damaged: {lost}.",
        f"# Made by ekya prepare {dataset.name}{drift}. Licence: {dataset.licence}.",
    ]
    for key, value in raw.items():
        if key in _COMMENTS:
            lines.append(f"# {_COMMENTS[key]}")
        if key == "edge":
            lines.append(f"# {describe_better_base(out.name)}.")
        plain = key in {"classes", "golden", "edge"}
        text = yaml.safe_dump(
            {key: value}, sort_keys=False, allow_unicode=True, default_flow_style=None if plain else False
        )
        lines.append(text.rstrip())
    return "\n".join(lines) + "\n"
