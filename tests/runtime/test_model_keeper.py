"""Records of the weights that serve, in a live run."""

from types import SimpleNamespace

import pytest

from ekya.control.loop_state import LoopState
from ekya.control.protocols import Batch
from ekya.core import events as ev
from ekya.core.state import FleetState
from ekya.core.units import BASE_VERSION, JobId, ModelVersion, StreamId
from ekya.pipeline.run_writer import ModelRecord
from ekya.results.storage.run_folder import RunFolder
from ekya.results.storage.run_state import StateStore
from ekya.runtime.driver.observers import ModelKeeper

OLD, NEW = StreamId("old"), StreamId("new")


def test_adopted_weights_and_a_roll_back_behind_them_are_recorded_with_their_own_files(tmp_path):
    folder, result = (
        RunFolder.create_numbered(tmp_path, "run"),
        SimpleNamespace(commands=(), state=LoopState(FleetState(window=3), {})),
    )
    with StateStore(folder.state) as store:
        ModelRecord(folder, store, NEW).add_model(BASE_VERSION, None, -1, None, None, 0)
        adopted = ev.ModelAdopted(90, NEW, ModelVersion(1), OLD, ModelVersion(2), 0.7, 5, 7)
        back = ev.RolledBack(190, NEW, ModelVersion(2), BASE_VERSION, 5)
        unknown = ev.ModelSwapped(195, NEW, ModelVersion(3), JobId(9), 0.9, 5)
        keeper = ModelKeeper(folder, store)
        for event in (adopted, back, unknown):
            keeper(Batch(event.t_us, (event,)), result)
        base, kept, again = store.read_models(NEW)
        never = ev.RolledBack(290, NEW, ModelVersion(5), ModelVersion(4), 5)
        with pytest.raises(LookupError, match="weights 4 of new are not recorded"):
            keeper(Batch(290, (never,)), result)
    assert (kept.version, kept.served_from_us, kept.window, kept.validation_accuracy) == (1, 90, 3, 0.7)
    assert kept.path == folder.relative_path(folder.model(NEW, ModelVersion(1)))
    assert (again.version, again.path, again.validation_accuracy) == (2, base.path, None)
