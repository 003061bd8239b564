"""Constants that decide how hard the rendered cities are, and nothing else.

They were chosen from pictures and from two trainings, and then fixed: results of models that were
trained on generated cities stay comparable only while these are not changed. With the first choice, which
also had views from above, that no car has, a golden model named 82.6% right in cities that it had not seen.
"""

WRONG_LABELS = 0.03
"""Part of the objects whose label names another of the six classes, as people make mistakes."""

MIN_VISIBLE = 0.65
"""Objects of which less is visible are labelled as a group, or not at all below ``LEAST_VISIBLE``."""

LEAST_VISIBLE = 0.08

SMALLEST, LARGEST = 0.13, 0.62
"""Range of the height that a person would have at an object's place, as a part of the picture's."""

PICTURES_A_SECTION = 28, 64
"""Least and most pictures until light, livery, clothing, view and mix of a city change."""

KEEPS_CITY = 0.6
"""Chance that a new section takes a property of its city, and not any."""

DENSITY = 5.0, 11.0
"""Range of the number of objects in view, which varies by city."""

LOOK_ALIKES = 0.06
"""Part of the vehicles in colours that are another class's in their section."""

HUE_DEGREES = 50.0
"""Cities shift the hue of all paint and cloth by up to this much, sections by up to a third of it."""

MIX_EVENNESS = 2.2
"""Parameter of the Dirichlet distribution of a section's mix; larger is more even."""

LEAST_MIX = 0.07
"""Least part of each class in a section."""

PARTS_IN_FRONT = 0.15
"""Poles, bushes, bins and signs for each object."""

BLUR_SIGMA = 0.2, 0.9
"""Sharpness of cameras, in pixels at the width 512."""

MOVING = 0.2
"""Part of the objects that are smeared by their movement."""

NOISE = 0.8, 1.7
"""Noise of cameras, as a multiple of what the light has in the synthetic city."""

DIRT = 0.3
"""Strength of shades, reflections and dirt on surfaces; 0 leaves flat paint."""

PARKED = 0.35
"""Part of the bicycles and motorcycles without a rider."""
