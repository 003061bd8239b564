"""Records of the weights that serve, in a live run."""

from types import SimpleNamespace

import pytest

from ekya.control.protocols import Batch
from ekya.core import events as ev
from ekya.core.configs import RetrainConfig
from ekya.core.units import BASE_VERSION, JobId, ModelVersion, StreamId
from ekya.pipeline.run_writer import ModelRecord
from ekya.results.storage.run_folder import RunFolder
from ekya.results.storage.run_state import StateStore
from ekya.runtime.driver.observers import ModelKeeper

OLD, NEW = StreamId("old"), StreamId("new")
GAMMA = RetrainConfig(4, 16, 0, 0, 1.0)


def test_adopted_weights_are_recorded_with_the_file_of_the_other_stream(tmp_path):
    folder = RunFolder.create(tmp_path, "run")
    with StateStore(folder.state) as store:
        ModelRecord(folder, store, OLD).add_model(ModelVersion(2), None, 1, GAMMA, 0.8, 40)
        adopted = ev.ModelAdopted(90, NEW, ModelVersion(1), OLD, ModelVersion(2), 0.7, 5)
        unknown = ev.ModelSwapped(95, NEW, ModelVersion(2), JobId(9), 0.9, 5)
        ModelKeeper(folder, store)(Batch(95, (adopted, unknown)), SimpleNamespace(commands=()))
        (row,) = store.models(NEW)
    assert (row.version, row.served_from_us, row.gamma, row.validation_accuracy) == (1, 90, GAMMA, 0.7)
    assert row.path == folder.relative(folder.model(OLD, ModelVersion(2)))


def test_base_model_that_serves_again_after_an_adoption_is_recorded_with_its_own_file(tmp_path):
    folder = RunFolder.create(tmp_path, "run")
    with StateStore(folder.state) as store:
        ModelRecord(folder, store, OLD).add_model(ModelVersion(2), None, 1, GAMMA, 0.8, 40)
        ModelRecord(folder, store, NEW).add_model(BASE_VERSION, None, -1, None, None, 0)
        adopted = ev.ModelAdopted(90, NEW, ModelVersion(1), OLD, ModelVersion(2), 0.7, 5)
        back = ev.RolledBack(190, NEW, ModelVersion(2), BASE_VERSION, 5)
        keeper = ModelKeeper(folder, store)
        for event in (adopted, back):
            keeper(Batch(event.t_us, (event,)), SimpleNamespace(commands=()))
        base, _, again = store.models(NEW)
        never = ev.RolledBack(290, NEW, ModelVersion(4), ModelVersion(3), 5)
        with pytest.raises(LookupError, match="weights 3 of new are not recorded"):
            keeper(Batch(290, (never,)), SimpleNamespace(commands=()))
    assert (again.version, again.path, again.validation_accuracy) == (2, base.path, None)
