"""``ekya prepare``: checks and indexes a data set and writes a fleet file for it."""

import json
import logging
import shutil
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path

from rich.console import Console

from ekya.cli.output import Output, bars_of, require_writable
from ekya.cli.prepared_fleet import fleet_text
from ekya.core.errors import UserError
from ekya.core.units import StreamId
from ekya.results.storage.run_folder import check_stream_name
from ekya.streams.datasets.dataset import Dataset, StreamFindings, Survey
from ekya.streams.sources import DATASETS
from ekya.system.files import user_errors, write_text_atomic

_LOG = logging.getLogger(__name__)

FINDINGS = "findings.json"
"""Findings per stream, in the folder of the index."""

_SHOWN_PROBLEMS = 10


@dataclass(frozen=True, slots=True)
class PrepareArguments:
    """Arguments of the command line.

    Attributes:
        name: of the data set.
        root: its folder.
        out: the fleet file; None is ``NAME.yaml`` in the current folder.
        streams: only these; empty for all.
        classes: override the data set's.
        gpus, window_s: of the fleet; None chooses values that suit the streams.
        resume: continue an interrupted check.
        overwrite: replace an existing result.
    """

    name: str
    root: Path
    out: Path | None = None
    streams: tuple[str, ...] = ()
    classes: tuple[str, ...] = ()
    gpus: float | None = None
    window_s: float | None = None
    resume: bool = False
    overwrite: bool = False


def prepare_dataset(arguments: PrepareArguments, output: Output) -> bool:
    """Checks a data set and writes its index and its fleet file.

    Returns:
        Whether nothing is missing or damaged; the files are written in both cases.

    Raises:
        UserError: the data set is unknown or empty, files exist already, or nothing can be written.
        KeyboardInterrupt: after Ctrl-C; ``resume`` continues after the last finished stream.
    """
    dataset = DATASETS.get(arguments.name)
    if dataset is None:
        raise UserError(f"{arguments.name}: there is no such data set; use one of {', '.join(DATASETS)}")
    if not arguments.root.is_dir():
        raise UserError(f"--root {arguments.root}: there is no such folder; name the one that holds the data")
    root = arguments.root.resolve()
    out = (arguments.out or Path(f"{dataset.name}.yaml")).resolve()
    require_writable("--out", out)
    survey = dataset.survey(root)
    streams = _chosen(survey, arguments.streams)
    if not streams:
        _report(output, dataset, root, survey, {}, None)
        raise UserError(
            f"{root}: nothing of {dataset.title} is there; it is had from {dataset.had_from} "
            f"({dataset.licence}), and its folder has to hold {dataset.layout}"
        )
    classes = arguments.classes or dataset.classes_in(root)
    places = _Places(out)
    places.make_room(arguments.resume, arguments.overwrite)
    key = {"dataset": dataset.name, "root": str(root), "classes": list(classes)}
    try:
        findings = _examine_all(dataset, root, streams, classes, places, key, output.console)
    except KeyboardInterrupt:
        _LOG.info("interrupted: what was finished is kept, and the same command with --resume goes on")
        raise
    usable = {name: found for name, found in findings.items() if found.frames}
    if not usable:
        _report(output, dataset, root, survey, findings, None)
        raise UserError(f"{root}: no frame can be used, the first since {_first_problem(findings)}")
    sources = {name: dataset.source(root, name, places.index_file(dataset, name)) for name in usable}
    with places.installed():
        text = fleet_text(dataset, out, classes, usable, sources, arguments.gpus, arguments.window_s)
        write_text_atomic(out, text)
    _report(output, dataset, root, survey, findings, out)
    _say(output.console, dataset, survey, findings, out)
    return not survey.missing and not any(found.problems for found in findings.values())


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

    def index_file(self, dataset: Dataset, stream: str) -> Path:
        return self.index / f"{stream}.jsonl"

    def make_room(self, resume: bool, overwrite: bool) -> None:
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


def _chosen(survey: Survey, asked: tuple[str, ...]) -> Mapping[str, int]:
    for name in asked:
        if name not in survey.frames:
            there = ", ".join(survey.frames) or "there are none"
            raise UserError(f"--streams {name}: there is no such stream; choose from: {there}")
    for name in survey.frames:
        check_stream_name(StreamId(name))
    return {name: count for name, count in survey.frames.items() if not asked or name in asked}


def _examine_all(
    dataset: Dataset,
    root: Path,
    streams: Mapping[str, int],
    classes: tuple[str, ...],
    places: _Places,
    key: Mapping[str, object],
    console: Console,
) -> dict[str, StreamFindings]:
    """Examines the streams that an interrupted check lacks; saves the findings after each stream."""
    before = _read_findings(places.partial / FINDINGS, key)
    findings: dict[str, StreamFindings] = {}
    with bars_of(console) as bars:
        for name, count in streams.items():
            index = places.partial / f"{name}.jsonl"
            task = bars.add_task(name, total=count)
            if name in before and index.exists():
                findings[name] = before[name]
            else:
                findings[name] = dataset.examine(root, name, classes, index, partial(bars.advance, task))
                _LOG.info("looked at %s", name)
            written = {**key, "streams": {one: asdict(found) for one, found in findings.items()}}
            write_text_atomic(
                places.partial / FINDINGS, json.dumps(written, indent=1, ensure_ascii=False) + "\n"
            )
    return findings


def _read_findings(file: Path, key: Mapping[str, object]) -> dict[str, StreamFindings]:
    """Returns the findings of an interrupted check; empty if there was none.

    Raises:
        UserError: the check had other arguments, or its file is damaged.
    """
    if not file.exists():
        return {}
    try:
        written = json.loads(file.read_bytes())
        same = all(written[name] == value for name, value in key.items())
        found = {
            name: StreamFindings(
                int(one["frames"]), float(one["duration_s"]), dict(one["objects"]), tuple(one["problems"])
            )
            for name, one in written["streams"].items()
        }
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise UserError(f"{file}: is damaged; begin anew by --overwrite") from error
    if not same:
        raise UserError(f"{file}: is of another root, data set or classes; begin anew by --overwrite")
    return found


def _report(
    output: Output,
    dataset: Dataset,
    root: Path,
    survey: Survey,
    findings: Mapping[str, StreamFindings],
    out: Path | None,
) -> None:
    output.report(
        {
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
    )


def _say(
    console: Console, dataset: Dataset, survey: Survey, findings: Mapping[str, StreamFindings], out: Path
) -> None:
    problems = [problem for found in findings.values() for problem in found.problems]
    lines = [f"{dataset.title}; {dataset.licence}"]
    lines += [f"{name}: {_in_words(found)}" for name, found in findings.items()]
    lines += [f"missing: {sentence}" for sentence in survey.missing]
    if survey.missing:
        lines.append(f"It is had from {dataset.had_from}.")
    lines += [f"left out: {problem}" for problem in problems[:_SHOWN_PROBLEMS]]
    if len(problems) > _SHOWN_PROBLEMS:
        more = len(problems) - _SHOWN_PROBLEMS
        lines.append(f"left out: {more} more, all of them in {out.with_suffix('.index') / FINDINGS}")
    lines.append(f"ekya run {out}")
    console.print("\n".join(lines), highlight=False, soft_wrap=True, markup=False)


def _in_words(found: StreamFindings) -> str:
    objects = ", ".join(f"{count} {name}" for name, count in found.objects.items()) or "no objects"
    damaged = f", {len(found.problems)} missing or damaged" if found.problems else ""
    return f"{found.frames} frames in {found.duration_s:g} s{damaged}; {objects}"


def _first_problem(findings: Mapping[str, StreamFindings]) -> str:
    return next((problem for found in findings.values() for problem in found.problems), "there is none")
