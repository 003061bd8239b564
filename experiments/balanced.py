"""Accuracy of edge models within each class."""

import numpy as np

from ekya.models.edge.model import EdgeModel
from ekya.models.edge.predictor import accuracy
from ekya.models.training.labelled import LabelledCrops


def balanced_accuracy(model: EdgeModel, labelled: LabelledCrops) -> float:
    """Returns the mean over the classes that occur of the accuracy within each; 0.0 for no crops."""
    classes = np.unique(labelled.classes)
    within = [accuracy(model, labelled.take(np.flatnonzero(labelled.classes == index))) for index in classes]
    return float(np.mean(within)) if within else 0.0
