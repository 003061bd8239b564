"""The first run on a GPU, lost again by its own beliefs, and the same fleet with those of today."""

from argparse import Namespace

import pytest
from gpu_card import play_card


@pytest.mark.long
@pytest.mark.timeout(7200)
def test_first_run_is_lost_by_its_beliefs_and_cured_by_those_of_the_card(tmp_path):
    """Real training of 16 cameras, so margins leave room for the arithmetic of other processors."""
    ways = "first/ekya,first/uniform,ekya"
    asked = {"card": "h200", "gpus": 1, "cameras": 16, "windows": 2, "seeds": "1", "ways": ways}
    result = play_card(Namespace(**asked, runs=tmp_path))
    lost, rule, cured = result["runs"]
    analysed = [run["frames"]["analysed"] / run["frames"]["due"] for run in (lost, rule, cured)]
    assert analysed[0] < 0.6 and analysed[1] < 0.8, "about half of the frames, as in that run"
    assert analysed[2] >= 0.95
    assert all(run["frames"]["lost"] == 0 for run in result["runs"])
    assert lost["mean_accuracy"] < rule["mean_accuracy"] + 0.01, "a rule of one line was better"
    assert cured["mean_accuracy"] > lost["mean_accuracy"] + 0.08
