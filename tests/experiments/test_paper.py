"""The recipe of the paper's setting on Cityscapes, in small on a generated folder."""

import csv

import paper
import pytest
from generators import run_generator

from ekya.core.errors import UserError


@pytest.mark.long
def test_paper_recipe_writes_its_tables_and_goes_on_with_what_is_finished(tmp_path, monkeypatch):
    root, out = tmp_path / "root", tmp_path / "out"
    assert run_generator("cityscapes", "--out", root, "--cities", 7, "--pictures", 84, "--width", 512) == 0
    monkeypatch.chdir(tmp_path)

    def play(schedulers):
        paper.main(root, out=out, streams=2, window=8.0, gpus="1", schedulers=schedulers, families=1)
        with (out / "paper_runs.csv").open(newline="", encoding="utf-8") as file:
            return {row["scheduler"]: float(row["accuracy"]) for row in csv.DictReader(file)}

    first = play("paper,no-retrain")
    assert first.keys() == {"ekya", "paper", "no-retrain"}
    for figure, what in ((6, "Table 3"), (7, "accuracy of paper"), (8, "without adaptive shares")):
        assert what in (out / f"paper_figure{figure}_paper.csv").read_text(encoding="utf-8")
    played_again = "ekya.simulation.emulated.play_once.emulate"
    monkeypatch.setattr(played_again, lambda *_: pytest.fail("it had run before"))
    monkeypatch.setattr("ekya.pipeline.train_models.train_model", lambda *_: pytest.fail("it was trained"))
    again = play("paper")
    assert again.keys() == {"ekya", "paper"}
    with pytest.raises(UserError, match="--streams 3: with the 2 that are held out it takes 5 cities"):
        paper.main(root, out=out, streams=3, window=8.0, families=1)
