"""The catalogue of published models that Ekya can fetch, each pinned by its content, and the cache of them.

A file of the cache has a card beside it, with its licence, source and checksum. The checksum is verified
whenever a golden model is opened.
"""

import logging
import re
import shutil
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path

from ekya.core.errors import UserError
from ekya.system.download import Progress, PublishedFile, checksums_of, download_file
from ekya.system.files import atomic_path, cache_folder, user_errors, write_text_atomic

_LOG = logging.getLogger(__name__)


class Role(StrEnum):
    """What a model is in a fleet."""

    STUDENT = "student"
    """A small detector, of which each camera adapts its own."""

    GOLDEN = "golden"
    """A detector that labels frames, and may answer on some."""

    CLASSIFIER = "golden classifier"
    """A golden model that names the objects in given boxes."""

    START = "start"
    """Weights of ImageNet, with which ``ekya edge train`` may begin."""


@dataclass(frozen=True, slots=True)
class PublishedModel:
    """An entry of the catalogue.

    Attributes:
        name: what commands call it.
        role: in a fleet.
        file: its weights on the web.
        licence: of the weights, by its SPDX name.
        source: repository that publishes it.
        average_precision: of a detector on COCO's validation pictures, in percent, as its authors report it.
        megabytes: its length where it is not known to the byte; None if it is, or not at all.
    """

    name: str
    role: Role
    file: PublishedFile
    licence: str
    source: str
    average_precision: float | None = None
    megabytes: float | None = None

    @property
    def cached_path(self) -> Path:
        """Its file in the cache."""
        return models_folder() / f"{self.name}{Path(self.file.url).suffix}"

    @property
    def is_cached(self) -> bool:
        """Whether its file is in the cache."""
        return self.cached_path.is_file()

    @property
    def size_in_words(self) -> str:
        """Length of its file."""
        size = self.file.size_bytes
        megabytes = self.megabytes if size is None else size / 2**20
        return "some MB" if megabytes is None else f"{megabytes:.1f} MB"


def _on_github(repository: str, commit: str, path: str) -> str:
    return f"https://raw.githubusercontent.com/{repository}/{commit}/{path}"


def _deimv2(
    size: str, precision: float, size_bytes: int | None, sha256: str | None, git_blob: str | None = None
) -> PublishedModel:
    repository = "Kazuhito00/DEIMv2-ONNX-Sample"
    url = _on_github(
        repository, "f88d4382abca74edb26ed4c7f46190ac40da0ea5", f"model/deimv2_hgnetv2_{size}_coco.onnx"
    )
    file = PublishedFile(url, size_bytes, sha256, git_blob)
    return PublishedModel(f"deimv2-{size}", Role.GOLDEN, file, "Apache-2.0", repository, precision)


def _of_torchvision(
    name: str, file: str, megabytes: float, precision: float | None = None, role: Role = Role.CLASSIFIER
) -> PublishedModel:
    # torchvision's names of files end in the first digits of their SHA-256.
    digits = file.rpartition("-")[2].removesuffix(".pth")
    published = PublishedFile(f"https://download.pytorch.org/models/{file}", None, digits)
    role = role if precision is None else Role.GOLDEN
    return PublishedModel(name, role, published, "BSD-3-Clause", "pytorch/vision", precision, megabytes)


STUDENT = PublishedModel(
    "fastestdet",
    Role.STUDENT,
    PublishedFile(
        _on_github(
            "dog-qiuqiu/FastestDet",
            "50473cd155cb088aa4a99e64ff6a4b3c24fa07e1",
            "example/onnx-runtime/FastestDet.onnx",
        ),
        998_169,
        "31cb14c017fce347cb4c846ec62fdf00d76bb3beecdf4be21e7116ac67feb880",
    ),
    "BSD-3-Clause",
    "dog-qiuqiu/FastestDet",
)
"""The default student of cameras and videos."""

GOLDEN = (
    _deimv2("n", 43.0, None, None, "facaa27741d600e993b80f981b86997adbf7d556"),
    _deimv2("pico", 38.5, None, None, "e049f81944cdb9a4e0fd07de741abadcce9de516"),
    _deimv2("femto", 31.0, 4_116_144, "c6ad358f750132b891165e034c2ba507abefc5ebe1c1d2732a0acbcacc47e52c"),
    _deimv2("atto", 23.8, 2_248_408, "b114aa6610ac7c2bd9b3186ffb001afa872430db957407ef2473f7148d00646e"),
)
"""Golden detectors from which the default is chosen, the most accurate first."""

DEFAULT_GOLDEN = GOLDEN[2]
"""Golden detector that is fetched where none is in the cache."""

CATALOGUE: Sequence[PublishedModel] = (
    STUDENT,
    *GOLDEN,
    _of_torchvision(
        "fasterrcnn_resnet50_fpn_v2", "fasterrcnn_resnet50_fpn_v2_coco-dd69338a.pth", 167.1, 46.7
    ),
    _of_torchvision("retinanet_resnet50_fpn_v2", "retinanet_resnet50_fpn_v2_coco-5905b1c5.pth", 146.0, 41.5),
    _of_torchvision(
        "fasterrcnn_mobilenet_v3_large_320_fpn",
        "fasterrcnn_mobilenet_v3_large_320_fpn-907ea3f9.pth",
        74.2,
        22.8,
    ),
    _of_torchvision(
        "ssdlite320_mobilenet_v3_large", "ssdlite320_mobilenet_v3_large_coco-a79551df.pth", 13.4, 21.3
    ),
    _of_torchvision("resnext101_32x8d", "resnext101_32x8d-110c445d.pth", 339.7),
    _of_torchvision("resnext101_64x4d", "resnext101_64x4d-173b62eb.pth", 319.3),
    *(
        _of_torchvision(name, file, megabytes, role=Role.START)
        for name, file, megabytes in (
            ("resnet18", "resnet18-f37072fd.pth", 44.7),
            ("mobilenet_v3_small", "mobilenet_v3_small-047dcff4.pth", 9.8),
            ("shufflenet_v2_x1_0", "shufflenetv2_x1-5666bf0f80.pth", 8.8),
            ("efficientnet_b0", "efficientnet_b0_rwightman-7f5810bc.pth", 20.5),
            ("resnet101", "resnet101-cd907fc2.pth", 170.5),
        )
    ),
)
"""All models that Ekya can fetch."""


def models_folder() -> Path:
    """Returns the folder of fetched models in the user's cache."""
    return cache_folder() / "models"


def find_model(name: str) -> PublishedModel | None:
    """Returns the entry of this name; None if there is none."""
    return next((model for model in CATALOGUE if model.name == name), None)


def golden_candidates() -> Sequence[PublishedModel]:
    """Returns the golden detectors of which a run of video takes one: the cached ones, or the usual one."""
    return [model for model in GOLDEN if model.is_cached] or [DEFAULT_GOLDEN]


def fetch_model(
    model: PublishedModel, *, offline: bool = False, progress: Progress = lambda done, of: None
) -> Path:
    """Returns a model's file in the cache, and downloads it if it is not there with the right content.

    Args:
        model: of the catalogue.
        offline: refuse instead of downloading.
        progress: see ``download_file``.

    Raises:
        UserError: it is not there and may not or cannot be downloaded; says where to get it.
    """
    path = model.cached_path
    if not (path.is_file() and model.file.has_content_of(path)):
        if offline:
            raise UserError(_remedy(model, "is not in the cache, and --offline forbids to fetch it"))
        _LOG.info(
            "fetching %s, %s, %s, from %s", model.name, model.size_in_words, model.licence, model.file.url
        )
        try:
            download_file(model.file, path, progress)
        except UserError as error:
            raise UserError(_remedy(model, f"cannot be fetched ({error})")) from error
    _write_card(model)
    return path


def find_in_folder(model: PublishedModel, folder: Path) -> Path | None:
    """Returns the file in a folder that has a model's content, under any name; None if there is none."""
    with user_errors(folder):
        files = sorted(one for one in folder.iterdir() if one.is_file())
    sized = (file for file in files if model.file.size_bytes in (None, file.stat().st_size))
    return next((file for file in sized if model.file.has_content_of(file)), None)


def import_model(model: PublishedModel, folder: Path) -> Path:
    """Copies a model into the cache from a folder that holds its file, under any name.

    Raises:
        UserError: no file there has its content.
    """
    file = find_in_folder(model, folder)
    if file is None:
        raise UserError(
            f"--from {folder}: no file there is {model.name} ({model.file.named_checksum}); copy "
            f"{model.file.url} there"
        )
    with user_errors(model.cached_path):
        model.cached_path.parent.mkdir(parents=True, exist_ok=True)
    with atomic_path(model.cached_path) as temporary:
        shutil.copyfile(file, temporary)
    _write_card(model)
    return model.cached_path


def _remedy(model: PublishedModel, what: str) -> str:
    return (
        f"{model.name}: {what}; get {model.file.url} ({model.file.named_checksum}) on another machine, and "
        f"name its folder with ekya models fetch {model.name} --from FOLDER, or put it at {model.cached_path}"
    )


def _card_of(path: Path) -> Path:
    return path.with_suffix(".md")


def _write_card(model: PublishedModel) -> None:
    card, (sha256, _) = _card_of(model.cached_path), checksums_of(model.cached_path)
    text = (
        f"# {model.name}\n\n- licence: {model.licence}\n- source: {model.source}\n- url: {model.file.url}\n"
        f"- sha256: {sha256}\n"
    )
    if not (card.is_file() and card.read_text(encoding="utf-8") == text):
        # A cache may be for reading only: the file was verified a moment ago.
        with suppress(UserError):
            write_text_atomic(card, text)


_LICENCE_LINE = re.compile(r"^- licence: *(.+)$", re.MULTILINE)


def licence_of(weights: Path) -> str | None:
    """Returns the licence of a file of weights by the card beside it; None if none states one."""
    card = _card_of(weights)
    found = _LICENCE_LINE.search(card.read_text(encoding="utf-8")) if card.is_file() else None
    return None if found is None else found[1].strip()
