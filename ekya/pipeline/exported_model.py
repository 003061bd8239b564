"""Writes the weights that serve a camera at the end of a run as an ONNX file, with a model card beside it."""

import hashlib
import json
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

import onnx
from pydantic import ValidationError

from ekya import __version__
from ekya.config.fleet_file import FleetConfig
from ekya.config.keys_in_words import describe_first_problem
from ekya.config.shipped import DETECTOR_BASE, shipped_root
from ekya.core.errors import UserError
from ekya.core.objects import SURE
from ekya.core.units import BASE_VERSION, StreamId
from ekya.models.catalogue import find_model, licence_of
from ekya.models.edge.architecture_table import Task
from ekya.models.edge.checkpoints import load_model
from ekya.models.edge.onnx_export import export_model
from ekya.models.edge.spec import LEAST_FRAME_SIDE, SIDE_STEP
from ekya.models.golden.checksum import sha256_of
from ekya.pipeline.discover_classes import fleet_classes
from ekya.pipeline.model_card import ModelFacts, write_model_card
from ekya.pipeline.setup import crop_side
from ekya.results.storage.run_folder import RunFolder
from ekya.results.storage.run_state import ModelRow, StateStore
from ekya.system.files import write_bytes_atomic, write_text_atomic
from ekya.system.yaml_file import read_mapping


def export_serving_model(
    folder: RunFolder, stream: StreamId, out: Path, resolution: int | None = None
) -> dict[str, Any]:
    """Writes the newest weights of a stream as ``out``, and its card beside it; both replace what is there.

    Args:
        folder: of a run or a service, which may be going on.
        stream: its camera.
        out: ONNX file.
        resolution: side in pixels that frames or crops are resized to; None is that of the last λ.

    Returns:
        Its facts, with ``file``, ``card`` and the file's ``sha256``.

    Raises:
        UserError: there is no such stream; its weights are gone or damaged; the golden detector alone has
            answered; or no model takes the resolution.
    """
    fleet = _read_fleet(folder)
    names = [one.id for one in fleet.streams]
    if stream not in names:
        raise UserError(f"{folder.path}: it has no camera {stream}; name one of {', '.join(names)}")
    row = _serving_row(folder, stream)
    summary = json.loads(folder.summary.read_text(encoding="utf-8")) if folder.summary.is_file() else {}
    found = summary.get("streams", {}).get(stream, {})
    if found.get("golden_part") == 1.0 and row.version == BASE_VERSION:
        raise UserError(
            f"{stream}: the golden detector answered all its frames, so no model of its own served; use that "
            f"detector itself, {fleet.golden.weights or fleet.golden.model}"
        )
    model, most = load_model(folder.path / row.path), crop_side(fleet)
    side = resolution or _last_side(found) or fleet.edge.resolution
    detects = model.detector is not None
    if (side % SIDE_STEP or side < LEAST_FRAME_SIDE) if detects else side > most:
        fits = f"a multiple of {SIDE_STEP} from {LEAST_FRAME_SIDE} on" if detects else f"{most} at most"
        raise UserError(f"--resolution {side}: no side that {model.architecture} takes here; use {fits}")
    licences = summary.get("licences", {})
    base, licence, source = _base_of(fleet, licences)
    facts = ModelFacts(
        task=fleet.edge.task,
        architecture=model.architecture,
        names=fleet_classes(fleet) if detects else model.classes,
        threshold=SURE if detects else None,
        resolution=side,
        crop_side=None if detects else most,
        run=folder.path.resolve().name,
        stream=stream,
        version=row.version,
        window=row.window,
        weights_sha256=sha256_of(folder.path / row.path),
        base=base,
        licence=licence,
        source=source,
        golden=_golden_of(fleet, licences),
        reference=summary.get("reference"),
        accuracy={**_figures(found), "validation_accuracy": row.validation_accuracy},
        ekya=__version__,
    )
    file = onnx.load_from_string(export_model(model, facts.names, side, most))
    file.producer_name, file.producer_version = "ekya", __version__
    onnx.helper.set_model_props(file, facts.as_metadata())
    content: bytes = file.SerializeToString()
    write_bytes_atomic(out, content)
    sha256, card = hashlib.sha256(content).hexdigest(), out.with_suffix(".md")
    write_text_atomic(card, write_model_card(facts, out.name, sha256))
    return {"file": str(out), "card": str(card), "sha256": sha256, **asdict(facts)}


def _read_fleet(folder: RunFolder) -> FleetConfig:
    """Returns the fleet of a folder, whether or not its videos and weights are still there."""
    raw = read_mapping(folder.fleet)
    try:
        return FleetConfig.model_validate(raw, context=set())
    except ValidationError as error:
        raise UserError(f"{folder.fleet}: {describe_first_problem(error, raw, FleetConfig)}") from None


def _serving_row(folder: RunFolder, stream: StreamId) -> ModelRow:
    rows = []
    if folder.state.is_file():
        with StateStore(folder.state) as store:
            rows = store.read_models(stream)
    if not rows or not (folder.path / rows[-1].path).is_file():
        raise UserError(
            f"{folder.path}: it keeps no weights of {stream}; begin the run again, or restore a backup of it"
        )
    return rows[-1]


def _last_side(found: Mapping[str, Any]) -> int | None:
    """Returns the resolution of the last window in which the edge model answered; None without a summary."""
    lambdas = (window["lambda"] or {} for window in reversed(found.get("windows", ())))
    return next((one["resolution"] for one in lambdas if one.get("resolution")), None)


def _figures(found: Mapping[str, Any]) -> dict[str, float | None]:
    names = ("mean_accuracy", "golden_part", "student_accuracy", "student_without_retraining")
    windows = found.get("windows") or [{}]
    return {"last_window": windows[-1].get("accuracy"), **{name: found.get(name) for name in names}}


def _base_of(fleet: FleetConfig, licences: Mapping[str, str]) -> tuple[str, str, str]:
    """Returns the name of the weights that every stream began with, their licence, and their source."""
    weights = fleet.edge.weights
    if weights is None and fleet.edge.task is Task.DETECT:
        weights = shipped_root() / DETECTOR_BASE
    if weights is None:
        return "fresh weights", "that of the run's owner", "the run"
    if weights.is_relative_to(shipped_root() / "golden_models"):
        return weights.name, "Apache-2.0", "Ekya"
    licence, published = licences.get(weights.stem) or licence_of(weights), find_model(weights.stem)
    source = published.source if published is not None and licence else str(weights)
    return weights.name, licence or f"not known, that of {weights.name}", source


def _golden_of(fleet: FleetConfig, licences: Mapping[str, str]) -> str:
    name = fleet.golden.model if fleet.golden.weights is None else fleet.golden.weights.stem
    return f"{name} ({licences[name]})" if name in licences else name
