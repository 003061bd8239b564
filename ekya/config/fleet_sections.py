"""Sections of the fleet file that belong to no other package."""

from collections.abc import Mapping
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Literal, Self, cast
from urllib.parse import urlsplit

from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    ValidationInfo,
    field_validator,
    model_validator,
)

from ekya.core.areas import Areas, Polygon
from ekya.core.errors import UserError
from ekya.core.profile import Profiler
from ekya.core.unique_tuple import UniqueTuple, require_distinct
from ekya.core.units import StreamId
from ekya.models.edge.spec import SIDE_STEP
from ekya.planning.adaptation.drift import FALSE_ALARMS_PER_HOUR
from ekya.planning.adaptation.shadow_gate import ROLL_BACK_MARGIN, SERVE_MARGIN
from ekya.results.storage.run_folder import check_stream_name
from ekya.streams.ingest.camera import CameraSpec
from ekya.streams.ingest.credentials import has_password
from ekya.streams.ingest.playing import PlayConfig, PlayedSpec
from ekya.streams.ingest.process import SourceSpec
from ekya.streams.sources import AnySource

MAX_PREPARATION_FRACTION = 0.15
"""Upper bound of the part of a window in which labelling and profiling hold their share."""

_SIDE_PARTS = (1, 9 / 11, 7 / 11, 5 / 11)


class FleetSection(BaseModel):
    """Section of the fleet file: immutable, and an unknown key is an error."""

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)

    def with_defaults(self, values: Mapping[str, object]) -> Self:
        """Returns the section with these valid values for the keys that are not set, which stay unset."""
        of_file = {name: getattr(self, name) for name in type(self).model_fields}
        unset = {name: value for name, value in values.items() if name not in self.model_fields_set}
        return cast(Self, type(self).model_construct(self.model_fields_set, **{**of_file, **unset}))


def no_is_text(value: object) -> object:
    """Returns what YAML reads as false as the word that was written."""
    return "no" if value is False else value


class KeptFrames(StrEnum):
    """Frames of a window that are kept for the golden model."""

    DRAWN = "drawn"
    """Drawn by seed and window only. A detector also runs on those that λ does not analyse."""

    ANALYSED = "analysed"
    """Drawn from the frames that λ analyses, so that detecting their objects costs no extra inference."""


class PreparationConfig(FleetSection):
    """Resources of a window for labelling and profiling.

    Attributes:
        share_milli: largest share that both hold together; less where inference needs the rest for its
            minimum accuracy, but at least one δ.
        fraction: longest part of the window for which they hold it; at a smaller share they may take longer,
            up to three tenths of the window.
        streams: number of streams that are labelled and profiled per window, round robin; None for all.
        frames: frames of a window that are used.
        profiler: how γ are estimated: ``ekya``, or ``paper`` for the paper's plain version.
    """

    share_milli: int = Field(default=900, ge=1)
    fraction: float = Field(default=MAX_PREPARATION_FRACTION, gt=0, le=MAX_PREPARATION_FRACTION)
    streams: int | None = Field(default=None, ge=1)
    frames: KeptFrames = KeptFrames.DRAWN
    profiler: Profiler = Profiler.EKYA


class ShadowGateConfig(FleetSection):
    """Acceptance of new weights, and rollback.

    Attributes:
        margin: accuracy on the newest labels that new weights may lose against the serving ones.
        roll_back: accuracy that serving weights may lose against their predecessors on the labels of the
            window in which they served; 1 disables rollback.
    """

    margin: float = Field(default=SERVE_MARGIN, ge=0, lt=1)
    roll_back: float = Field(default=ROLL_BACK_MARGIN, ge=0, le=1)


class DriftConfig(FleetSection):
    """Noticing that a scene has changed inside a window, and answering it there.

    With ``notice: false`` a change shows in the next labels only, as in the paper.

    Attributes:
        notice: whether inference watches its answers and pictures for drift, and reports it at once.
        false_alarms_per_hour: of a camera, for which the threshold of the alarm is made. At the default, 0.35
            were measured on twenty steady camera-hours.
        react: whether a stream that has drifted is labelled and retrained in the same window, on frames since
            the change. Without ``notice`` there is nothing to answer.
        pool: whether retrainings learn from other labels of the same scene, too: earlier ones, and those of
            streams that drifted together. Not without ``notice``.
    """

    notice: bool = True
    false_alarms_per_hour: float = Field(default=FALSE_ALARMS_PER_HOUR, gt=0)
    react: bool = True
    pool: bool = True

    @property
    def reacts(self) -> bool:
        """True if what is noticed is answered."""
        return self.notice and self.react

    @property
    def pools(self) -> bool:
        """True if labels of the same scene are pooled."""
        return self.notice and self.pool


class RetentionConfig(FleetSection):
    """How much of the past a service and a live run keep on disk; ``ekya gc`` does the same by hand.

    What serves, what it can be rolled back to, and what a restart needs always stay. Answers, the journal,
    labels and logs of a run that ends stay, too, for its report.

    Attributes:
        days: for which a service keeps answers, journal, labels and logs.
        gigabytes: room for its whole folder; what is oldest goes first.
        models: newest models of a stream whose weights are kept; more while an earlier one may serve again.
    """

    days: float = Field(default=7.0, gt=0)
    gigabytes: float = Field(default=20.0, gt=0)
    models: int = Field(default=5, ge=2)


class HttpConfig(FleetSection):
    """Where a service answers: its REST API, its page and its metrics.

    Attributes:
        address: to listen on; the default is reached from the machine itself only.
        port: of TCP; 0 for any free one.
        metrics_open: whether everyone may read the metrics, without the service's token.
        certificate: of the service, in PEM, those of its authorities behind it: it then answers by https
            only; null for http.
        key: of the certificate, in PEM, without a passphrase; null if it is in the certificate's file.
    """

    address: str = "127.0.0.1"
    port: int = Field(default=8470, ge=0, le=65535)
    metrics_open: bool = False
    certificate: Path | None = None
    key: Path | None = None

    @model_validator(mode="after")
    def _is_encrypted_by_both(self) -> Self:
        if self.key is not None and self.certificate is None:
            raise ValueError("key is of no use without certificate; name both, or neither")
        return self


class LenderConfig(FleetSection):
    """Another service that may train for this one.

    Attributes:
        url: of that service, with its token as the password, as in
            ``https://ekya:${SOUTH_TOKEN}@10.0.0.2:8470``.
        name: in messages and plans; null for the host of the URL with its port.
        mb_s: rate of the link to it, in megabytes a second.
        ca: file with certificates that vouch for it; null for those of this machine.
        insecure: whether samples and token may go to it unencrypted, over a network that encrypts them
            itself, such as WireGuard.
    """

    url: str
    name: str | None = None
    mb_s: float = Field(default=12.5, gt=0)
    ca: Path | None = None
    insecure: bool = False

    @property
    def site(self) -> str:
        """Its name."""
        return self.name or urlsplit(self.url).netloc.rpartition("@")[2]

    @model_validator(mode="after")
    def _can_be_called(self) -> Self:
        try:
            url = urlsplit(self.url)
            host, port = url.hostname, url.port
        except ValueError:
            host, port = None, None
        if not host or port is None or url.scheme not in ("http", "https") or url.path not in ("", "/"):
            raise ValueError("write a URL with a port, as https://10.0.0.2:8470, with the token as password")
        if has_password(self.url):
            raise ValueError(
                "it has a token; put that into a variable, say SOUTH_TOKEN, and write ${SOUTH_TOKEN}"
            )
        if url.scheme == "http" and not self.insecure and host not in ("localhost", "127.0.0.1", "::1"):
            raise ValueError(
                f"{host} would get samples and token unencrypted; use https, or write insecure: true for a "
                "network that encrypts them itself"
            )
        return self


SamplesMayLeave = Literal["no", "crops", "frames"]


class LendingConfig(FleetSection):
    """What a service lends to others, and borrows of them, for retrainings.

    Attributes:
        lend: whether services that show this one's token may train here with what it can spare.
        borrow_from: services that may train for this one.
        samples_may_leave: what may be sent to them: ``no``, labelled ``crops`` of objects, or also labelled
            ``frames``, scaled to the side of the edge model, which detectors learn from.
        tier: policy that decides what is borrowed: ``net``, ``andreas``.
    """

    lend: bool = False
    borrow_from: tuple[LenderConfig, ...] = ()
    samples_may_leave: Annotated[SamplesMayLeave, BeforeValidator(no_is_text)] = "no"
    tier: Literal["net", "andreas"] = "net"

    @property
    def takes_part(self) -> bool:
        """True if it lends or borrows."""
        return self.lend or bool(self.borrow_from)


class RetrainingConfig(FleetSection):
    """Γ without ∅: all combinations of these lists. For detectors the defaults in brackets hold.

    Attributes:
        epochs: passes over the training part of the window's labels (10, 20, 40).
        batch_sizes: crops, or frames (8), in one step of SGD.
        head_widths: neurons of the hidden layer before the classes; 0 is a linear head. A detector has heads
            of its own, so 0 is its only value.
        trainable_blocks: numbers of the model's blocks, from its end, that are trained besides the head
            (0, 1, 3).
        data_fractions: parts of the training labels that are used.
    """

    epochs: UniqueTuple[Annotated[int, Field(ge=1)]] = (4, 8, 16)
    batch_sizes: UniqueTuple[Annotated[int, Field(ge=2)]] = (16,)
    head_widths: UniqueTuple[Annotated[int, Field(ge=0)]] = (0,)
    trainable_blocks: UniqueTuple[Annotated[int, Field(ge=0)]] = (0, 2)
    data_fractions: UniqueTuple[Annotated[float, Field(gt=0, le=1)]] = (0.5, 1.0)

    def for_detector(self) -> "RetrainingConfig":
        """Returns the same lists, with a detector's values for those that the file does not set."""
        return self.with_defaults(
            {"epochs": (10, 20, 40), "batch_sizes": (8,), "trainable_blocks": (0, 1, 3)}
        )


class InferencesConfig(FleetSection):
    """Λ: all combinations of these lists.

    Attributes:
        every: 3 analyses every third frame.
        resolutions: sides in pixels of the square that objects, or whole frames, are resized to. Those of a
            detector are multiples of 32 of ``edge.resolution`` at most; its defaults are 1, 9/11, 7/11 and
            5/11 of that (352, 288, 224, 160).
        golden_every: 5 offers λ in which the golden detector analyses every fifth frame instead of the edge
            model, and optical flow follows its boxes in between. Empty: it never runs in inference. Left out:
            those of 3, 5, 9 and 15 with which it keeps up with at least one camera, for detectors on
            unlabelled video.
    """

    every: UniqueTuple[Annotated[int, Field(ge=1)]] = (1, 2, 3, 5, 10)
    resolutions: UniqueTuple[Annotated[int, Field(ge=8, le=640)]] = (32, 24)
    golden_every: Annotated[tuple[Annotated[int, Field(ge=1)], ...], AfterValidator(require_distinct)] = ()

    def for_detector(self, finest: int) -> "InferencesConfig":
        """Returns the same lists, with a detector's values for those that the file does not set.

        Args:
            finest: largest side of its input in pixels.
        """
        return self.with_defaults({"resolutions": frame_sides(finest)})


def frame_sides(finest: int) -> tuple[int, ...]:
    """Returns the usual sides of a detector's input up to this one in pixels, falling."""
    sides = (round(finest * part / SIDE_STEP) * SIDE_STEP for part in _SIDE_PARTS)
    return tuple(dict.fromkeys(sides))


def _as_list(given: object) -> object:
    """Returns a list of polygons, of which there may be one alone."""
    match given:
        case [[int() | float(), *_], *_]:
            return [given]
        case _:
            return given


def _require_polygons(polygons: tuple[Polygon, ...]) -> tuple[Polygon, ...]:
    for polygon in polygons:
        for point in polygon:
            told = f"the point [{', '.join(f'{part:g}' for part in point)}]"
            if len(point) != 2:
                raise ValueError(f"{told} has {len(point)} numbers; write its x and y")
            if not all(0.0 <= part <= 1.0 for part in point):
                raise ValueError(
                    f"{told} is outside of the picture; write x and y as parts of its width and height, "
                    "from 0 to 1, and not in pixels"
                )
        if len(polygon) < 3:
            raise ValueError(f"a polygon has {len(polygon)} points; give it at least 3")
    return polygons


Polygons = Annotated[
    tuple[Polygon, ...],
    BeforeValidator(_as_list, json_schema_input_type=tuple[Polygon, ...] | Polygon),
    AfterValidator(_require_polygons),
]
"""Polygons in a file or a request."""


class StreamConfig(FleetSection):
    """One camera.

    Attributes:
        id: its name, also used in file names.
        weight: weight of its accuracy in the objective.
        max_age_s: latency limit in seconds: maximum age of the latest result; None for no limit.
        source: source of its frames.
        play: how a recording is played.
        mask: polygons of points [x, y], parts of the picture's width and height from 0 to 1; one alone needs
            no list of its own. An object does not count if the middle of its box's lower edge lies in one of
            them: it is neither label nor answer nor score.
        zone: polygons likewise. If there are any, an object counts only if that point lies in one of them.
    """

    id: StreamId
    weight: float = Field(default=1.0, gt=0)
    max_age_s: float | None = Field(default=None, gt=0)
    source: AnySource
    play: PlayConfig = PlayConfig()
    mask: Polygons = ()
    zone: Polygons = ()

    @property
    def areas(self) -> Areas:
        """Where its objects count."""
        return Areas(self.mask, self.zone)

    @property
    def analysed_url(self) -> str | None:
        """Key of the URL whose pictures are analysed; None of what is no live camera."""
        return self.source.analysed_url if isinstance(self.source, CameraSpec) else None

    @property
    def played(self) -> SourceSpec:
        """The source as it is played."""
        return self.source if self.play == PlayConfig() else PlayedSpec(source=self.source, play=self.play)

    @property
    def first_pass(self) -> SourceSpec:
        """The first pass of the source, which is scored, without the darkening of a night script."""
        return PlayedSpec(source=self.source, play=self.play.to_score())

    @property
    def unbroken(self) -> SourceSpec:
        """The first pass without camera outages, for labelling ahead."""
        return PlayedSpec(source=self.source, play=self.play.to_label())

    @field_validator("mask", "zone")
    @classmethod
    def _leaves_some_part(cls, polygons: tuple[Polygon, ...], info: ValidationInfo) -> tuple[Polygon, ...]:
        # Together with the mask, which comes first.
        Areas(**{"mask": info.data.get("mask", ()), str(info.field_name): polygons}).require_some_part()
        return polygons

    @field_validator("id")
    @classmethod
    def _can_be_a_file_name(cls, stream: StreamId) -> StreamId:
        try:
            check_stream_name(stream)
        except UserError as error:
            raise ValueError(str(error)) from error
        return stream
