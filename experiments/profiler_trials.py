"""Micro-profiles of the cases of ``profiler_truths.py``, in both ways, for ``profiler_worth.py``."""

from dataclasses import dataclass, replace

from profiler_truths import Case, Given, city_of, is_steady

from ekya.config.fleet_file import FleetConfig
from ekya.core.profile import FamilyCurve, Profiler, family_of
from ekya.models.golden.golden_model import GoldenModel
from ekya.pipeline.collector import WindowMaterial
from ekya.pipeline.costs import CostCard
from ekya.pipeline.inference import Classifier
from ekya.pipeline.setup import stream_setup
from ekya.pipeline.stream_preparation import StreamPreparation, counted_curve
from ekya.planning.profiling.pruning import ENOUGH_ACCURACY


@dataclass(frozen=True, slots=True)
class Recorded:
    """One stream and window: the micro-profiles, and the true outcome of every γ.

    Attributes:
        fleet, seed: of the case.
        steady: whether the script changes nothing in the window that follows the labels.
        serving_accuracy: of the model that is retrained, on the validation part.
        before: of the same model, in the window that follows.
        curves, trial_gpu_s: of the micro-profiler, and their cost.
        plain_curves, plain_gpu_s: likewise of the paper's plain version.
        given: true outcomes.
    """

    fleet: str
    seed: int
    steady: bool
    training_crops: int
    validation_crops: int
    serving_accuracy: float
    before: float
    curves: tuple[FamilyCurve, ...]
    trial_gpu_s: float
    plain_curves: tuple[FamilyCurve, ...]
    plain_gpu_s: float
    given: tuple[Given, ...]

    @property
    def in_need(self) -> bool:
        """True if a run would micro-profile it."""
        return self.serving_accuracy < ENOUGH_ACCURACY


def recorded(fleet: FleetConfig, case: Case, golden: GoldenModel, card: CostCard) -> Recorded:
    """Micro-profiles a case in both ways."""
    settings = stream_setup(fleet, case.place, city_of(fleet.streams[case.place]).fps, case.seed).settings
    serving = Classifier(case.model, settings.classes)
    nothing = WindowMaterial(case.labels.window, (), ())
    prepared = StreamPreparation(settings, nothing, serving, golden, case.exemplars)
    ours, trial_gpu_s = tried(prepared, case, Profiler.EKYA, card)
    plain, plain_gpu_s = tried(prepared, case, Profiler.PAPER, card)
    return Recorded(
        fleet.name,
        case.seed,
        is_steady(fleet, case.place, case.window),
        len(case.labels.training.examples),
        len(case.labels.validation.examples),
        prepared.serving_accuracy(case.labels),
        case.before,
        ours,
        trial_gpu_s,
        plain,
        plain_gpu_s,
        case.given,
    )


def tried(
    prepared: StreamPreparation, case: Case, profiler: Profiler, card: CostCard
) -> tuple[tuple[FamilyCurve, ...], float]:
    """Returns every family's curve, and their total GPU-seconds."""
    by = replace(prepared, settings=replace(prepared.settings, profiler=profiler))
    curves, spent = [], 0.0
    for rank, family in enumerate(sorted({family_of(given.config) for given in case.given})):
        trial = by.trial(family, case.labels, clock=float, first=rank == 0)
        curve, gpu_s = counted_curve(trial, card)
        curves.append(curve)
        spent += gpu_s
    return tuple(curves), spent
