"""``--fail`` of the fleet commands."""

import pytest

from ekya.cli.options import Failing, read_failing
from ekya.core.errors import UserError

S = 1_000_000


def test_fail_has_names_and_times():
    words = ["a@5", "b@x@7.5:8"]
    assert read_failing(words, "NODE", returns=True) == (
        Failing("a", 5 * S, None),
        Failing("b@x", 7_500_000, 8 * S),
    )
    assert read_failing(["a@0"], "SITE", returns=False) == (Failing("a", 0, None),)


@pytest.mark.parametrize(
    "wrong",
    ["a", "@5", "a@", "a@5:4", "a@5:5", "a@x", "a@1:2:3", "a@-1", "a@nan", "a@inf", "a@1:inf", "a@1:nan"],
)
@pytest.mark.parametrize("returns", [True, False])
def test_fail_of_another_form_is_refused(wrong, returns):
    with pytest.raises(UserError, match=rf"--fail {wrong}: write NODE@SECONDS"):
        read_failing([wrong], "NODE", returns)


def test_fail_that_ends_is_refused_where_nobody_returns():
    with pytest.raises(UserError, match=r"--fail a@1:2: write SITE@SECONDS$"):
        read_failing(["a@1:2"], "SITE", returns=False)
