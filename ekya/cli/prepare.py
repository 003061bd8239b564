"""``ekya prepare``: checks and indexes a data set and writes a fleet file for it."""

import json
import logging
import math
import shutil
import statistics
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
import yaml
from rich.console import Console

from ekya.cli import options as opt
from ekya.cli.command import Output, command, open_bars, require_writable
from ekya.cli.options import split_names
from ekya.core.errors import UserError
from ekya.core.unique_tuple import require_distinct
from ekya.core.units import StreamId
from ekya.results.storage.run_folder import check_stream_name
from ekya.system.files import user_errors, write_text_atomic

if TYPE_CHECKING:
    from pydantic import BaseModel

    from ekya.streams.datasets.dataset import Dataset, StreamFindings, Survey

_LOG = logging.getLogger(__name__)

FINDINGS = "findings.json"
"""Findings per stream, in the folder of the index."""

_SHOWN_PROBLEMS = 10

_WINDOWS_A_STREAM = 10
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


@dataclass(frozen=True, kw_only=True)
class PrepareConfig:
    """Options of ``ekya prepare``."""

    name: Annotated[
        str, typer.Argument(metavar="NAME", help="cityscapes, waymo, sample-list or image-folder.")
    ]
    root: Annotated[Path, typer.Option(metavar="DIR", help="Folder of the data set.")]
    out: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Fleet file to write; default: NAME.yaml.")
    ] = None
    streams: opt.OnlyStreams = ""
    classes: opt.Classes = None
    gpus: opt.Gpus = None
    window: opt.Window = None
    resume: Annotated[bool, typer.Option(help="Resume an interrupted check.")] = False
    overwrite: Annotated[bool, typer.Option(help="Replace an earlier result.")] = False
    json_to: opt.Json = None


@command(
    PrepareConfig,
    "ekya prepare cityscapes --root ~/data/cityscapes",
    "ekya prepare cityscapes --root ~/data/cityscapes --streams aachen,bremen --out two.yaml",
    "ekya prepare sample-list --root ~/crossings --window 60 --json -",
    "ekya prepare image-folder --root ~/crops --resume",
)
def prepare(config: PrepareConfig, output: Output) -> None:
    """Check a data set, say what is missing and where it is had, and write a fleet file for it.

    Nothing is downloaded. Every picture is decoded once; beside the fleet file comes a folder with its index.
    The exit code is 1 where something is missing or damaged, and 2 where nothing can be used.
    """
    from ekya.streams.sources import DATASETS

    dataset = DATASETS.get(config.name)
    if dataset is None:
        raise UserError(f"{config.name}: there is no such data set; use one of {', '.join(DATASETS)}")
    if not config.root.is_dir():
        raise UserError(f"--root {config.root}: there is no such folder; name the one that holds the data")
    root = config.root.resolve()
    out = config.out or Path(f"{dataset.name}.yaml")
    require_writable("--out", out, is_read=True)
    out = out.resolve()
    survey = dataset.survey(root)
    streams = _chosen(survey, split_names(config.streams))
    if not streams:
        output.write_json(_report(dataset, root, survey, {}, None))
        raise UserError(
            f"{root}: nothing of {dataset.title} is there; it is had from {dataset.had_from} "
            f"({dataset.licence}), and its folder has to hold {dataset.layout}"
        )
    classes = tuple(one for one in split_names(config.classes) if one != "auto") or dataset.classes_in(root)
    try:
        require_distinct(classes)
    except ValueError as error:
        raise UserError(f"{root}: its classes: {error} with --classes") from None
    places = _Places(out)
    places.make_space(config.resume, config.overwrite)
    check = _Check(dataset, root, classes, places)
    try:
        findings = check.examine(streams, output.console)
    except KeyboardInterrupt:
        _LOG.info("interrupted: what was finished is kept, and the same command with --resume goes on")
        raise
    problems = [problem for found in findings.values() for problem in found.problems]
    usable = {name: found for name, found in findings.items() if found.frames}
    if not usable:
        output.write_json(_report(dataset, root, survey, findings, None))
        first = next(iter(problems), "there is none")
        raise UserError(f"{root}: no frame can be used, the first since {first}")
    sources = {name: dataset.make_indexed_spec(root, name, places.index_file(name)) for name in usable}
    with places.installed():
        write_text_atomic(
            out, _fleet_text(dataset, out, classes, usable, sources, config.gpus, config.window)
        )
    output.write_json(_report(dataset, root, survey, findings, out))
    output.print_text(_in_words(dataset, survey, findings, problems, out))
    if survey.missing or problems:
        raise typer.Exit(1)


@dataclass(frozen=True, slots=True)
class _Places:
    """Paths of the output: the fleet file, and the folder of its index in the same folder."""

    out: Path

    @property
    def index(self) -> Path:
        return self.out.with_suffix(".index")

    @property
    def partial(self) -> Path:
        return self.out.with_suffix(".index.partial")

    def index_file(self, stream: str) -> Path:
        return self.index / f"{stream}.jsonl"

    def make_space(self, resume: bool, overwrite: bool) -> None:
        """Refuses existing files, unless they are to be resumed or replaced."""
        with user_errors(self.out):
            for path in (self.out, self.index):
                if path.exists() and not overwrite:
                    raise UserError(
                        f"{path}: is there already; add --overwrite, or name another file by --out"
                    )
            if self.partial.exists() and not resume:
                if not overwrite:
                    raise UserError(
                        f"{self.partial}: was begun and interrupted; go on with it by --resume, or "
                        "begin anew by --overwrite"
                    )
                shutil.rmtree(self.partial)
            self.partial.mkdir(exist_ok=True)

    @contextmanager
    def installed(self) -> Iterator[None]:
        """Replaces the old index by the partial one; it becomes partial again if the fleet file fails."""
        with user_errors(self.index):
            if self.index.exists():
                shutil.rmtree(self.index)
            self.partial.rename(self.index)
        try:
            yield
        except BaseException:
            self.index.rename(self.partial)
            raise


def _chosen(survey: "Survey", wanted: Sequence[str]) -> Mapping[str, int]:
    for name in wanted:
        if name not in survey.frames:
            there = ", ".join(survey.frames) or "there are none"
            raise UserError(f"--streams {name}: there is no such stream; choose from: {there}")
    for name in survey.frames:
        check_stream_name(StreamId(name))
    return {name: count for name, count in survey.frames.items() if not wanted or name in wanted}


@dataclass(frozen=True, slots=True)
class _Check:
    """Examination of a data set's streams, which is saved after each stream."""

    dataset: "Dataset"
    root: Path
    classes: tuple[str, ...]
    places: _Places

    def examine(self, streams: Mapping[str, int], console: Console) -> "dict[str, StreamFindings]":
        """Examines the streams that an interrupted check lacks."""
        before = self._findings_before()
        findings: dict[str, StreamFindings] = {}
        with open_bars(console) as bars:
            for name, count in streams.items():
                index = self.places.partial / f"{name}.jsonl"
                task = bars.add_task(name, total=count)
                if name in before and index.exists():
                    findings[name] = before[name]
                else:
                    findings[name] = self.dataset.examine(
                        self.root, name, self.classes, index, partial(bars.advance, task)
                    )
                    _LOG.info("examined %s", name)
                written = {**self._key(), "streams": {one: asdict(found) for one, found in findings.items()}}
                text = json.dumps(written, indent=1, ensure_ascii=False) + "\n"
                write_text_atomic(self.places.partial / FINDINGS, text)
        return findings

    def _key(self) -> Mapping[str, object]:
        """Returns the arguments of the check, with which it can be resumed."""
        return {"dataset": self.dataset.name, "root": str(self.root), "classes": list(self.classes)}

    def _findings_before(self) -> "dict[str, StreamFindings]":
        """Returns the findings of an interrupted check; empty if there was none.

        Raises:
            UserError: the check had other arguments, or its file is damaged.
        """
        from pydantic import TypeAdapter

        from ekya.streams.datasets.dataset import StreamFindings

        file = self.places.partial / FINDINGS
        if not file.exists():
            return {}
        try:
            written = json.loads(file.read_bytes())
            same = all(written[name] == value for name, value in self._key().items())
            found = TypeAdapter(dict[str, StreamFindings]).validate_python(written["streams"])
        except (ValueError, KeyError, TypeError) as error:
            raise UserError(f"{file}: is damaged; begin anew by --overwrite") from error
        if not same:
            raise UserError(f"{file}: is of another root, data set or classes; begin anew by --overwrite")
        return found


def _fleet_text(
    dataset: "Dataset",
    out: Path,
    classes: tuple[str, ...],
    findings: "Mapping[str, StreamFindings]",
    sources: "Mapping[str, BaseModel]",
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
    from ekya.config.files import relative_paths
    from ekya.config.fleet_reading import parse_fleet
    from ekya.config.shipped import shipped_root
    from ekya.models.golden.spec import RESNEXT101

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


def _window_s(findings: "Mapping[str, StreamFindings]") -> float:
    """Returns about a tenth of a stream, but at least the duration of a few frames."""
    durations = [found.duration_s for found in findings.values()]
    frame_s = max(found.duration_s / found.frames for found in findings.values())
    tenth_s = statistics.median(durations) / _WINDOWS_A_STREAM
    return math.ceil(10 * max(tenth_s, _FEWEST_FRAMES * frame_s)) / 10


def _entry(source: "BaseModel") -> Mapping[str, object]:
    """Returns the ``source`` section: its kind and the keys that were set."""
    return {
        **source.model_dump(mode="json", include={"kind"}),
        **source.model_dump(mode="json", exclude_unset=True),
    }


def _with_comments(
    dataset: "Dataset", out: Path, findings: "Mapping[str, StreamFindings]", raw: Mapping[str, object]
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


def _report(
    dataset: "Dataset",
    root: Path,
    survey: "Survey",
    findings: "Mapping[str, StreamFindings]",
    out: Path | None,
) -> Mapping[str, object]:
    return {
        "dataset": dataset.name,
        "title": dataset.title,
        "licence": dataset.licence,
        "had_from": dataset.had_from,
        "layout": dataset.layout,
        "root": str(root),
        "fleet": None if out is None else str(out),
        "missing": list(survey.missing),
        "streams": {name: asdict(found) for name, found in findings.items()},
    }


def _in_words(
    dataset: "Dataset",
    survey: "Survey",
    findings: "Mapping[str, StreamFindings]",
    problems: Sequence[str],
    out: Path,
) -> str:
    lines = [f"{dataset.title}; {dataset.licence}"]
    for name, found in findings.items():
        objects = ", ".join(f"{count} {what}" for what, count in found.objects.items()) or "no objects"
        damaged = f", {len(found.problems)} missing or damaged" if found.problems else ""
        lines.append(f"{name}: {found.frames} frames in {found.duration_s:g} s{damaged}; {objects}")
    lines += [f"missing: {sentence}" for sentence in survey.missing]
    if survey.missing:
        lines.append(f"It is had from {dataset.had_from}.")
    lines += [f"left out: {problem}" for problem in problems[:_SHOWN_PROBLEMS]]
    if len(problems) > _SHOWN_PROBLEMS:
        more = len(problems) - _SHOWN_PROBLEMS
        lines.append(f"left out: {more} more, all of them in {out.with_suffix('.index') / FINDINGS}")
    return "\n".join([*lines, f"ekya run {out}"])
