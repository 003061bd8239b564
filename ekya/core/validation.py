"""Facts of a retraining's validation: what the models before and after it answered on the same labels."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Mistake:
    """An object of the validation labels that the retrained model got wrong.

    Attributes:
        label: its class; empty where the golden model saw nothing.
        answer: class that the model gave it; empty where it found nothing.
        confidence: of the answer, in [0, 1].
    """

    label: str
    answer: str
    confidence: float


@dataclass(frozen=True, slots=True)
class Validation:
    """Confusion of two models on the validation labels of a retraining, and mistakes of the later one.

    Objects count alike here; a validation accuracy weights them by the class mix of the window.

    Attributes:
        classes: those that occur, in the order of rows and columns; empty for nothing, which is no object of
            the golden model's, or none that a detector found.
        before: number of objects by class and by answer of the model that served when the retraining began.
        after: the same of the best epoch.
        mistakes: some of those of the best epoch, the most confident first.
    """

    classes: tuple[str, ...]
    before: tuple[tuple[int, ...], ...]
    after: tuple[tuple[int, ...], ...]
    mistakes: tuple[Mistake, ...]
