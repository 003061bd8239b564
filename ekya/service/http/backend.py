"""Protocol between the HTTP server and the service: facts to show, and commands to carry out."""

from collections.abc import Mapping
from typing import Protocol

from ekya.fleet.run.live.lending_desk import LendingDesk
from ekya.results.storage.run_state import ModelRow
from ekya.results.storage.validation_files import KeptValidation
from ekya.service.status import RetrainingRow, Series, ServiceStatus


class Backend(Protocol):
    """The service behind the HTTP server. Methods are called from several threads, and may block.

    Changes return when they are carried out; those that wait for a camera return why they are not, or "".
    Each raises ``NotThereError`` for an unknown camera, with a sentence, and ``UserError`` for a request that
    the caller can correct.
    """

    def status(self) -> ServiceStatus:
        """Returns the state of the service and of its cameras."""

    def series(self, camera: str) -> Series:
        """Returns a camera's accuracy and shares over time."""

    def retrainings(self, camera: str) -> tuple[RetrainingRow, ...]:
        """Returns a camera's last retrainings, the oldest first."""

    def read_validation(self, camera: str, job: int) -> KeptValidation:
        """Returns the validation of a retraining of a camera; ``NotThereError`` where none is kept."""

    def metrics_text(self) -> bytes:
        """Returns the metrics in Prometheus' text format."""

    def newest_picture(self, camera: str) -> bytes | None:
        """Returns the newest frame with its boxes as JPEG; None before the first."""

    def newest_answer(self, camera: str) -> dict[str, object] | None:
        """Returns the newest answer as it is sent to sinks; None before the first."""

    def kept_models(self, camera: str) -> tuple[ModelRow, ...]:
        """Returns the models that served a camera, by version."""

    def add_camera(self, values: Mapping[str, object]) -> str:
        """Adds a camera, given as a stream of the fleet file; returns when it serves."""

    def remove_camera(self, camera: str) -> None:
        """Removes a camera for good."""

    def pause_camera(self, camera: str) -> None:
        """Stops analysing a camera until it is resumed."""

    def resume_camera(self, camera: str) -> str:
        """Goes on with a paused camera; returns when it serves."""

    def change_camera(self, camera: str, values: Mapping[str, object]) -> None:
        """Changes terms of a camera, as in ``CameraTerms``."""

    def change_fleet(self, values: Mapping[str, object]) -> bool:
        """Changes terms of the fleet, as in ``FleetTerms``; returns whether the service starts again."""

    def add_class(self, name: str) -> None:
        """Adds a class to the fleet, for which the service starts again."""

    def freeze_model(self, camera: str, frozen: bool) -> None:
        """Keeps a camera's model without retraining, or lets it be retrained again."""

    def roll_back(self, camera: str, version: int | None = None) -> str:
        """Serves a kept model again; for None the one before the present one; returns when it does."""

    def forget_pictures(self, camera: str) -> None:
        """Deletes the pictures that are kept of a camera."""

    def ask_labels(self, camera: str) -> None:
        """Has the golden model label a camera now."""

    def lending(self) -> LendingDesk | None:
        """Returns what lends to other services; None where this one does not."""
