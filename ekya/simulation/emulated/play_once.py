"""Runs on virtual time that are played once: a finished one of the same inputs would be the same."""

import hashlib
import logging
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path

import torch

import ekya
from ekya.config.fleet_file import FleetConfig
from ekya.config.fleet_reading import dump_fleet
from ekya.config.shipped import shipped_root
from ekya.core.plug_ins import PlugInGroup, find_plug_ins
from ekya.pipeline.costs import CostCard
from ekya.planning.schedulers.registry import scheduler_word
from ekya.planning.schedulers.scheduler import Scheduler
from ekya.results.storage.run_folder import RunFolder
from ekya.simulation.emulated.run import emulate
from ekya.system.files import write_bytes_atomic, write_text_atomic

_LOG = logging.getLogger(__name__)


def play_once(
    root: Path, name: str, fleet: FleetConfig, scheduler: str | Scheduler, seed: int, card: CostCard
) -> Path:
    """Plays a run to its end, unless a finished one in ``root`` was made of the same; returns its folder.

    A scheduler that is given as an object is always played, since its code may have changed.

    Raises:
        KeyboardInterrupt: after Ctrl-C; what happened until then is measured and written.
    """
    inputs = hash_inputs(fleet, scheduler, seed, card) if isinstance(scheduler, str) else None
    for made in sorted(root.glob(f"{name}*/inputs.sha256")):
        if made.read_text(encoding="utf-8") == inputs:
            _LOG.info(
                "%s, seed %d: is finished in %s, of the same inputs, and is not played again",
                scheduler,
                seed,
                made.parent,
            )
            return made.parent
    folder = RunFolder.create_numbered(root, name)
    _reuse_references(fleet, root, folder)
    _LOG.info("%s, seed %d: runs in %s", scheduler_word(scheduler), seed, folder.path)
    emulate(folder, fleet, scheduler, seed, lambda batch, step: None, card)
    if inputs is not None:
        write_text_atomic(folder.inputs, inputs)
    return folder.path


def hash_inputs(fleet: FleetConfig, scheduler: str, seed: int, card: CostCard) -> str:
    """Returns the SHA-256 of all that a run on virtual time is made of: with the same one it is the same.

    Code and shipped weights count by content, those of plug-ins too, and the files that the fleet names by
    size and time of change, with all files in a folder that it names.
    """
    hashed = hashlib.sha256(repr((dump_fleet(fleet), scheduler, seed, card, torch.__version__)).encode())
    for file in sorted(file for code in _find_code() for file in _files_in(code)):
        hashed.update(file.read_bytes())
    for file in sorted(file for data in {*_find_paths(fleet.model_dump())} for file in _files_in(data)):
        state = file.stat()
        hashed.update(repr((str(file), state.st_size, state.st_mtime_ns)).encode())
    return hashed.hexdigest()


def _find_code() -> Iterator[Path]:
    yield Path(ekya.__file__).parent
    yield shipped_root() / "golden_models"
    packages = {
        point.module.partition(".")[0] for group in PlugInGroup for point in find_plug_ins(group).values()
    }
    for spec in map(find_spec, sorted(packages)):
        if spec is not None:
            yield from map(Path, spec.submodule_search_locations or [spec.origin or ""])


def _files_in(path: Path) -> list[Path]:
    every = path.rglob("*") if path.is_dir() else [path]
    return [file for file in every if file.is_file() and "__pycache__" not in file.parts]


def _find_paths(value: object) -> Iterator[Path]:
    match value:
        case Path():
            yield value
        case dict():
            for one in value.values():
                yield from _find_paths(one)
        case list() | tuple():
            for one in value:
                yield from _find_paths(one)


def _reuse_references(fleet: FleetConfig, root: Path, folder: RunFolder) -> None:
    """Copies the golden detector's labels of whole videos from an earlier run; they are the same for all."""
    for stream in fleet.streams:
        made = sorted(root.glob(f"*/reference/{stream.id}.parquet"))
        if made and not stream.source.gives_truth:
            write_bytes_atomic(folder.reference(stream.id), made[0].read_bytes())
