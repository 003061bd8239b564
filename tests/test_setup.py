"""From a fleet file to the loop's constants and the first λ."""

import pytest

from ekya.config import DEFAULT_FLEET, load_fleet
from ekya.control.options import StreamTerms
from ekya.core.ids import StreamId
from ekya.core.view import Objective
from ekya.errors import UserError
from ekya.setup import first_inference_options, loop_options
from ekya.shipped import shipped_path
from ekya.workers.costs import load_card

CAMERA = StreamId("cam-2")
COSTS = {24: 0.001, 32: 0.002}


def fleet(**terms):
    shipped = load_fleet(shipped_path(DEFAULT_FLEET), {"objective": "max-min"})
    streams = tuple(s.model_copy(update=terms if s.id == CAMERA else {}) for s in shipped.streams)
    return shipped.model_copy(update={"streams": streams})


def test_the_loop_is_told_what_is_maximised_and_what_streams_were_promised():
    options = loop_options(fleet(weight=2.5, max_age_s=0.75), load_card(), 0, 1, 2000)
    assert options.objective is Objective.MAX_MIN
    assert options.terms == (StreamTerms(CAMERA, 2.5, 750_000),)


def test_a_latency_limit_that_no_share_could_keep_is_the_users_error():
    """At 10 frames a second an answer stands for a tenth of a second at least."""
    assert first_inference_options(fleet(max_age_s=0.3), CAMERA, 10.0, COSTS)
    with pytest.raises(
        UserError, match=r"'streams\.cam-2\.max_age_s': 0\.05 is too little.* use at least 0\.1"
    ):
        first_inference_options(fleet(max_age_s=0.05), CAMERA, 10.0, COSTS)
