import hashlib
import re
import shutil
from pathlib import Path

import pytest
from pydantic import ValidationError

from ekya.config.shipped import shipped_path
from ekya.core.errors import UserError
from ekya.models.golden.checksum import sha256_of, verified
from ekya.models.golden.golden_model import open_golden
from ekya.models.golden.spec import GoldenSpec

CLASSES = ("person", "car", "truck", "bus", "bicycle", "motorcycle")
SHIPPED = "golden_models/synthetic_city_resnext29"


@pytest.mark.parametrize(
    "name",
    [
        SHIPPED,
        "golden_models/synthetic_city_resnet18_base",
        "golden_models/synthetic_city_fastestdet_base",
    ],
)
def test_checksum_of_shipped_weights_is_on_their_card(name: str) -> None:
    weights = shipped_path(f"{name}.safetensors")
    card = shipped_path(f"{name}.md").read_text(encoding="utf-8")
    assert re.findall(r"sha256: `([0-9a-f]{64})`", card) == [sha256_of(weights)]
    assert sha256_of(weights) == hashlib.sha256(weights.read_bytes()).hexdigest()


def test_checksum_other_than_the_cards_is_refused(tmp_path: Path) -> None:
    weights = Path(shutil.copy(shipped_path(f"{SHIPPED}.safetensors"), tmp_path / "own.safetensors"))
    spec = GoldenSpec(weights=weights)
    assert open_golden(spec, CLASSES).classes == CLASSES, "without a card nobody says what it should be"
    (tmp_path / "own.md").write_text(f"# Mine\n\nsha256: `{'0' * 64}`\n")
    with pytest.raises(UserError, match=r"own\.safetensors.*sha256.*own\.md says 000000000000"):
        open_golden(spec, CLASSES)
    (tmp_path / "own.md").write_text(f"# Mine\n\n- sha256: {sha256_of(weights)}\n")
    assert open_golden(spec, CLASSES).classes == CLASSES
    (tmp_path / "own.md").write_text("# Mine, and no checksum\n")
    assert verified(weights) == weights


def test_checksum_in_fleet_file_overrides_the_card(tmp_path: Path) -> None:
    weights = Path(shutil.copy(shipped_path(f"{SHIPPED}.safetensors"), tmp_path / "own.safetensors"))
    (tmp_path / "own.md").write_text(f"sha256: {'0' * 64}\n")
    held = sha256_of(weights)
    assert open_golden(GoldenSpec(weights=weights, sha256=held.upper()), CLASSES).classes == CLASSES
    with pytest.raises(UserError, match=r"own\.safetensors.*golden\.sha256 says 1111"):
        open_golden(GoldenSpec(weights=weights, sha256="1" * 64), CLASSES)


def test_golden_spec_invalid_checksum_is_refused() -> None:
    with pytest.raises(ValidationError, match="64 digits"):
        GoldenSpec(weights=Path("x"), sha256="abc")
    with pytest.raises(ValidationError, match="under weights"):
        GoldenSpec(sha256="0" * 64)
