"""Preparation of a data set: every frame is read once, and index, labels and fleet file are written.

What is finished is kept stream by stream in a folder beside the fleet file (``.index.partial``). When all is
there, labels, index and fleet file take the place of earlier ones, in this order: who finds a fleet file
that is named in its index finds all that belongs to it, and whatever was interrupted can be done again.
"""

import hashlib
import logging
import shutil
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path

import numpy as np
import yaml
from numpy.typing import NDArray
from pydantic import TypeAdapter

from ekya.config.fleet_reading import parse_fleet
from ekya.config.shipped import shipped_root
from ekya.core.errors import FullDiskError, UserError
from ekya.core.unique_tuple import require_distinct
from ekya.core.units import StreamId
from ekya.models.golden.detections import Detections
from ekya.models.golden.label_file import LabelHead, LabelTable, join_label_files
from ekya.pipeline.dataset_fleet import fleet_text
from ekya.pipeline.prelabel import TRUTH, known_objects
from ekya.results.storage.run_folder import check_stream_name
from ekya.streams.datasets.dataset import Dataset, StreamFindings, Survey
from ekya.streams.sources import DATASETS
from ekya.system.files import hold_folder, link_or_copy, user_errors, write_bytes_atomic, write_text_atomic

_LOG = logging.getLogger(__name__)

FINDINGS = "findings.json"
"""Findings per stream, in the folder of the index."""

_SHOWN_PROBLEMS = 10

Progress = Callable[[str, int], None]
"""Called with a stream, and with the number of its frames that are examined since the last call."""


@dataclass(frozen=True, slots=True)
class Places:
    """Paths of what a preparation writes, all in the folder of the fleet file ``out``."""

    out: Path

    @property
    def index(self) -> Path:
        """Folder of the index."""
        return self.out.with_suffix(".index")

    @property
    def partial(self) -> Path:
        """Folder of what is finished of a preparation that is not."""
        return self.out.with_suffix(".index.partial")

    @property
    def labels(self) -> Path:
        """Label file of all streams."""
        return self.out.with_suffix(".labels.parquet")

    def refuse_existing(self, resume: bool, overwrite: bool) -> None:
        """Refuses files of an earlier preparation, unless they are to be resumed or replaced.

        Raises:
            UserError: names the file.
        """
        for path in (self.out, self.index, self.labels):
            # The fleet file is written last: without it, the others are of a preparation that was cut off.
            if path.exists() and not overwrite and (path == self.out or not resume):
                raise UserError(f"{path}: is there already; add --overwrite, or name another file by --out")
        if self.partial.exists() and not (resume or overwrite):
            raise UserError(
                f"{self.partial}: was begun and interrupted; go on with it by --resume, or begin anew by "
                "--overwrite"
            )


@dataclass(frozen=True, slots=True, kw_only=True)
class _Saved:
    """Content of ``FINDINGS``.

    Attributes:
        dataset, root, classes: of the preparation.
        listed: number of frames of each stream by the survey.
        pretraining: see ``Preparation``.
        fleets: SHA-256 of the fleet file that belongs to it, then of the one that this has replaced.
        streams: findings of the streams that are examined.
    """

    dataset: str
    root: str
    classes: tuple[str, ...]
    listed: Mapping[str, int] = field(default_factory=dict)
    pretraining: tuple[str, ...] = ()
    fleets: tuple[str, ...] = ()
    streams: Mapping[str, StreamFindings] = field(default_factory=dict)


_SAVED = TypeAdapter(_Saved)


@dataclass(frozen=True, slots=True, kw_only=True)
class Preparation:
    """A data set that is to be prepared.

    Attributes:
        dataset, root: the data set, and the absolute path of its folder.
        survey: of the folder.
        streams: number of frames by the survey of the streams that were chosen.
        pretraining: of these, those that models learn from and no run plays, unless there are no others.
        classes: of the fleet.
        places: what is written.
    """

    dataset: Dataset
    root: Path
    survey: Survey
    streams: Mapping[str, int]
    pretraining: tuple[str, ...]
    classes: tuple[str, ...]
    places: Places

    def refuse_other(self) -> None:
        """Refuses to resume an interrupted preparation that had other arguments, or is damaged.

        Raises:
            UserError: names its file.
        """
        saved = _read_saved(self.places.partial)
        if saved is not None and not self._has_same_arguments(saved):
            raise UserError(
                f"{self.places.partial / FINDINGS}: is of another root, data set or classes; begin anew by "
                "--overwrite"
            )

    def examine(self, progress: Progress, *, resume: bool) -> dict[str, StreamFindings]:
        """Reads every frame of the streams; what is finished is kept.

        Args:
            progress: receives the progress.
            resume: take what is finished of a preparation with the same arguments, interrupted or complete.

        Raises:
            UserError: full disk, no permission and the like, or another process prepares the same.
        """
        partial = self.places.partial
        with user_errors(partial):
            if partial.exists() and not (resume and self._can_go_on()):
                shutil.rmtree(partial)
            partial.mkdir(exist_ok=True)
        with hold_folder(partial):
            before = _read_saved(partial)
            known = self._link_known() if resume else {}
            findings: dict[str, StreamFindings] = {}
            for name, count in self.streams.items():
                if name in known:
                    findings[name] = known[name]
                    progress(name, count)
                else:
                    findings[name] = self._examine_stream(name, progress)
                self._save(findings, () if before is None else before.fleets)
        return findings

    def install(
        self,
        findings: Mapping[str, StreamFindings],
        gpus: float | None = None,
        window_s: float | None = None,
        *,
        keeps_fleet: bool = False,
    ) -> None:
        """Writes labels, index and fleet file of streams that are examined.

        Args:
            findings: as ``examine`` returns them.
            gpus, window_s: see ``fleet_text``.
            keeps_fleet: leave the fleet file as it is.

        Raises:
            UserError: no frame can be used, the fleet file would be invalid, or full disk and the like.
        """
        places = self.places
        usable = {name: found for name, found in findings.items() if found.frames}
        if not usable:
            first = next(
                (problem for found in findings.values() for problem in found.problems), "none is there"
            )
            raise UserError(f"{self.root}: no frame can be used, the first since {first}")
        sources = {
            name: self.dataset.make_indexed_spec(self.root, name, _index_file(places.index, name))
            for name in usable
        }
        text = fleet_text(
            self.dataset,
            places.out,
            self.classes,
            usable,
            sources,
            self.pretraining,
            places.labels,
            gpus,
            window_s,
        )
        # An edited file is none of those that may be replaced.
        self._save(findings, (_sha256(text.encode()), *(() if keeps_fleet else _sha256_of(places.out))))
        join_label_files([_label_file(places.partial, name) for name in usable], places.labels)
        with self._installed_index():
            parse_fleet(yaml.safe_load(text), str(places.out), (places.out.parent, shipped_root()))
            if not keeps_fleet:
                write_text_atomic(places.out, text)

    def prepare_once(self, progress: Progress, *, asked: bool) -> Mapping[str, StreamFindings]:
        """Prepares what is not prepared yet, and returns the findings.

        A fleet file that was edited is kept, with its streams and classes.

        Args:
            progress: receives the progress.
            asked: streams or classes were asked for, so another choice of an edited file is refused.

        Raises:
            UserError: the fleet file is not of this data set and folder, or as ``examine`` and ``install``.
        """
        out, index = self.places.out, _read_saved(self.places.index)
        saved = index or _read_saved(self.places.partial)
        edited = False
        if out.exists():
            if saved is None:
                raise UserError(
                    f"{out}: was not made by ekya prepare; rename it, or play it by ekya replay {out.name}"
                )
            if (saved.dataset, saved.root) != (self.dataset.name_with_drift, str(self.root)):
                raise UserError(
                    f"{out}: is of {saved.dataset} in {saved.root}; rename it, or work in another folder"
                )
            edited = not set(_sha256_of(out)) <= set(saved.fleets)
        chosen = self
        if edited and saved is not None:
            of_file = {name: count for name, count in self.survey.frames.items() if name in saved.streams}
            chosen = replace(self, streams=of_file, classes=saved.classes)
            if asked and (chosen.streams, chosen.classes) != (self.streams, self.classes):
                raise UserError(
                    f"{out}: was edited, and was made with other streams or classes; leave out --streams and "
                    "--classes, or rename it"
                )
            _LOG.info("%s was edited, and is used as it is", out)
        if index is not None and chosen._is_current(index, edited):
            return index.streams
        findings = chosen.examine(progress, resume=True)
        chosen.install(findings, keeps_fleet=edited)
        return findings

    def describe_left_out(self, findings: Mapping[str, StreamFindings]) -> list[str]:
        """Returns a line for each of the first files that are missing or damaged, and their number."""
        problems = [f"missing: {sentence}" for sentence in self.survey.missing]
        problems += [f"left out: {problem}" for found in findings.values() for problem in found.problems]
        if not problems:
            return []
        lines = [f"Missing or damaged: {len(problems)}; the rest is used.", *problems[:_SHOWN_PROBLEMS]]
        if more := len(problems[_SHOWN_PROBLEMS:]):
            lines.append(f"and {more} more; the damaged ones are in {self.places.index / FINDINGS}")
        if self.survey.missing:
            lines.append(f"It is had from {self.dataset.had_from}.")
        return lines

    def _is_current(self, index: _Saved, edited: bool) -> bool:
        """Returns whether all that was written fits the arguments and the survey."""
        places = self.places
        return (
            not places.partial.exists()
            and places.labels.exists()
            and self._has_same_arguments(index)
            and dict(index.listed) == dict(self.streams)
            and (edited or index.pretraining == self.pretraining)
            and all(
                _index_file(places.index, name).exists() for name, of in index.streams.items() if of.frames
            )
            and (edited or index.fleets[:1] == _sha256_of(places.out))
        )

    def _has_same_arguments(self, saved: _Saved) -> bool:
        now = (self.dataset.name_with_drift, str(self.root), self.classes)
        return (saved.dataset, saved.root, saved.classes) == now

    def _can_go_on(self) -> bool:
        saved = _read_saved(self.places.partial)
        return saved is not None and self._has_same_arguments(saved)

    def _link_known(self) -> dict[str, StreamFindings]:
        """Returns what is known of streams whose number of frames is as it was; brings their files here."""
        known: dict[str, StreamFindings] = {}
        for folder in (self.places.partial, self.places.index):
            saved = _read_saved(folder)
            if saved is None or not self._has_same_arguments(saved):
                continue
            for name, found in saved.streams.items():
                files = (_index_file(folder, name), _label_file(folder, name))
                is_there = found.frames and all(file.exists() for file in files)
                if name in known or not is_there or saved.listed.get(name) != self.streams.get(name):
                    continue
                known[name] = found
                for file in files if folder == self.places.index else ():
                    here = self.places.partial / file.name
                    with user_errors(here):
                        here.unlink(missing_ok=True)
                        link_or_copy(here, file)
        return known

    def _examine_stream(self, name: str, progress: Progress) -> StreamFindings:
        stream, objects = StreamId(name), dict[int, Detections]()

        def on_frame(shown: tuple[NDArray[np.float32], NDArray[np.int64]] | None) -> None:
            if shown is not None:
                objects[len(objects)] = known_objects(*shown)
            progress(name, 1)

        index = _index_file(self.places.partial, name)
        try:
            found = self.dataset.examine(self.root, name, self.classes, index, on_frame)
        except FullDiskError:
            raise
        except UserError as error:
            _LOG.warning("%s is left out: %s", name, error)
            return StreamFindings(0, 0.0, problems=(str(error),))
        table = LabelTable(LabelHead(by=TRUTH, names=self.classes, finds=False), {stream: objects})
        table.finish_stream(stream, len(objects))
        table.save_table(_label_file(self.places.partial, name))
        return found

    def _save(self, findings: Mapping[str, StreamFindings], fleets: tuple[str, ...]) -> None:
        saved = _Saved(
            dataset=self.dataset.name_with_drift,
            root=str(self.root),
            classes=self.classes,
            listed={name: self.streams[name] for name in findings},
            pretraining=self.pretraining,
            fleets=fleets,
            streams=findings,
        )
        write_bytes_atomic(self.places.partial / FINDINGS, _SAVED.dump_json(saved, indent=1) + b"\n")

    @contextmanager
    def _installed_index(self) -> Iterator[None]:
        """Replaces the old index by the partial one; it becomes partial again if the fleet file fails."""
        places = self.places
        with user_errors(places.index):
            if places.index.exists():
                shutil.rmtree(places.index)
            places.partial.rename(places.index)
        try:
            yield
        except BaseException:
            places.index.rename(places.partial)
            raise


def plan_preparation(
    name: str,
    root: Path,
    out: Path | None,
    streams: Sequence[str],
    classes: Sequence[str],
    drift: str | None = None,
) -> Preparation:
    """Surveys the folder of a data set, and returns what is to be prepared.

    Args:
        name: of the data set.
        root: its folder.
        out: fleet file; None for ``NAME.yaml``, or ``NAME-DRIFT.yaml``.
        streams: names of streams; empty for all.
        classes: of the fleet; empty for those of the data set.
        drift: order of the frames; None for that of time.

    Raises:
        UserError: there is no such data set, order, folder or stream, or a class stands there twice.
    """
    dataset = DATASETS.get(name)
    if dataset is None:
        raise UserError(f"{name}: there is no such data set; use one of {', '.join(DATASETS)}")
    if drift is not None:
        dataset = dataset.in_drift(drift)
    if not root.is_dir():
        raise UserError(f"{root}: there is no such folder; name the one that holds the data")
    root = root.resolve()
    survey = dataset.survey(root)
    for stream in streams:
        if stream not in survey.frames:
            there = ", ".join(survey.frames) or "there are none"
            raise UserError(f"--streams {stream}: there is no such stream; choose from: {there}")
    for stream in survey.frames:
        check_stream_name(StreamId(stream))
    chosen = {one: count for one, count in survey.frames.items() if not streams or one in streams}
    of_fleet = tuple(classes) or (dataset.classes_in(root) if chosen else ())
    try:
        require_distinct(of_fleet)
    except ValueError as error:
        raise UserError(f"{root}: its classes: {error} with --classes") from None
    places = Places((out or Path(f"{dataset.name_with_drift}.yaml")).resolve())
    return Preparation(
        dataset=dataset,
        root=root,
        survey=survey,
        streams=chosen,
        pretraining=() if streams else tuple(name for name in chosen if name in dataset.pretraining),
        classes=of_fleet,
        places=places,
    )


def _index_file(folder: Path, stream: str) -> Path:
    return folder / f"{stream}.jsonl"


def _label_file(folder: Path, stream: str) -> Path:
    return folder / f"{stream}.labels.parquet"


def _sha256(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()


def _sha256_of(file: Path) -> tuple[str, ...]:
    """Returns the checksum of a file; empty if there is none."""
    with user_errors(file):
        return (_sha256(file.read_bytes()),) if file.exists() else ()


def _read_saved(folder: Path) -> _Saved | None:
    """Returns the findings in a folder; None if it has none.

    Raises:
        UserError: they are damaged.
    """
    file = folder / FINDINGS
    with user_errors(file):
        if not file.exists():
            return None
        content = file.read_bytes()
    try:
        return _SAVED.validate_json(content)
    except ValueError as error:
        raise UserError(f"{file}: is damaged; begin anew by ekya prepare with --overwrite") from error
