"""Fleet file of a prepared data set."""

import math
import statistics
from collections.abc import Mapping
from pathlib import Path

import yaml
from pydantic import BaseModel

from ekya.config.files import relative_paths
from ekya.config.fleet_reading import parse_fleet
from ekya.config.shipped import shipped_root
from ekya.models.golden.registry import RESNEXT101
from ekya.streams.datasets.dataset import Dataset, StreamFindings

_WINDOWS = 10
_FEWEST_FRAMES = 10
_EDGE_WEIGHTS = "golden_models/synthetic_city_resnet18_base.safetensors"

_COMMENTS: Mapping[str, str] = {
    "window_s": "About ten windows a stream, as in the paper's Figure 2.",
    "golden": (
        "The paper's golden model, whose weights are downloaded. The data's own labels cost nothing:\n"
        "# ekya golden label {out} --from-truth --out labels.parquet\n"
        "# golden: {{model: file, weights: labels.parquet}}"
    ),
    "edge": "A base that has seen the synthetic city alone; one of your own is better.",
    "streams": "Delete what is not to take part. The data are labelled, so accuracy is against their labels.",
}


def fleet_text(
    dataset: Dataset,
    out: Path,
    classes: tuple[str, ...],
    findings: Mapping[str, StreamFindings],
    sources: Mapping[str, BaseModel],
    gpus: float | None,
    window_s: float | None,
) -> str:
    """Returns the fleet file as YAML with comments.

    Args:
        dataset: the data set.
        out: path of the fleet file; paths in its folder are written relative to it.
        classes: the class names.
        findings: of the streams that have frames.
        sources: of the same streams.
        gpus, window_s: None leaves ``gpus`` open, and takes about a tenth of a stream as window.

    Raises:
        UserError: the values contradict each other, such as too few GPUs for the streams.
    """
    raw: dict[str, object] = {
        "name": out.stem,
        "classes": list(classes),
        **({} if gpus is None else {"gpus": gpus}),
        "window_s": window_s or _window_s(findings),
        "golden": {"model": RESNEXT101},
        "edge": {"model": "resnet18", "weights": _EDGE_WEIGHTS},
        "streams": [{"id": name, "source": _entry(source)} for name, source in sorted(sources.items())],
    }
    raw = {key: relative_paths(value, [out.parent]) for key, value in raw.items()}
    parse_fleet(raw, str(out), (out.parent, shipped_root()))
    return _with_comments(dataset, out, findings, raw)


def _window_s(findings: Mapping[str, StreamFindings]) -> float:
    """Returns about a tenth of a stream, but at least the duration of a few frames."""
    durations = [found.duration_s for found in findings.values()]
    frame_s = max(found.duration_s / found.frames for found in findings.values())
    tenth_s = statistics.median(durations) / _WINDOWS
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
    lost = sum(len(found.problems) for found in findings.values())
    lines = [
        f"# {dataset.title}. Streams: {len(findings)}, frames: {frames}, missing or damaged: {lost}.",
        f"# Made by ekya prepare {dataset.name}. Licence: {dataset.licence}.",
    ]
    for key, value in raw.items():
        if key in _COMMENTS:
            lines.append(f"# {_COMMENTS[key].format(out=out)}")
        plain = key in {"classes", "preparation", "golden", "edge"}
        text = yaml.safe_dump(
            {key: value}, sort_keys=False, allow_unicode=True, default_flow_style=None if plain else False
        )
        lines.append(text.rstrip())
    return "\n".join(lines) + "\n"
