"""A short run on virtual time of the shipped fleet with the public implementation's Γ."""

import pytest

from ekya.config.fleet_reading import load_fleet
from ekya.config.shipped import shipped_path
from ekya.core.commands import StartRetraining
from ekya.core.events import ProfileReady
from ekya.core.profile import family_of
from ekya.models.edge.checkpoints import load_model
from ekya.results.storage.journal import read_journal
from ekya.results.storage.run_folder import RunFolder
from ekya.simulation.emulated.run import emulate

pytestmark = [pytest.mark.live, pytest.mark.virtual]


@pytest.mark.long
def test_emulated_public_gamma_tries_one_family_and_keeps_the_old_head(tmp_path):
    """One camera that shows a new scene from the start, in two short windows."""
    fleet = load_fleet(shipped_path("datasets/synthetic_city/public_gamma.yaml"))
    camera = fleet.streams[0]
    scene = camera.source.scenes[1].model_copy(update={"at_s": 0})
    camera = camera.model_copy(
        update={"source": camera.source.model_copy(update={"fps": 4, "scenes": (scene,)})}
    )
    fleet = fleet.model_copy(update={"streams": (camera,), "windows": 2, "window_s": 12.0})
    folder = RunFolder.create_numbered(tmp_path, "run")
    emulate(folder, fleet, "ekya", 3, lambda batch, step: None)

    _, _, turns = read_journal(folder.journal)
    events = [event for turn in turns for event in turn.events]
    curves = [event.curve for event in events if isinstance(event, ProfileReady)]
    assert {curve.family for curve in curves} == {family_of(one) for one in fleet.retrain_configs()}
    assert [bool(curve.accuracies) for curve in curves].count(True) == 1
    started = [c for turn in turns for c in turn.commands if isinstance(c, StartRetraining)]
    assert started
    widths = {str(command.config.head_width) for command in started}
    assert widths <= {"64", "1024"}
    newest = max(
        (folder.path / "models" / "cam-1").glob("*.safetensors"), key=lambda path: path.stat().st_mtime
    )
    assert "0" in load_model(newest).kept_heads
