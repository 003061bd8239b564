"""Records of the weights that serve, in a live run."""

from types import SimpleNamespace

from ekya.control.protocols import Batch
from ekya.core import events as ev
from ekya.core.configs import RetrainConfig
from ekya.core.units import JobId, ModelVersion, StreamId
from ekya.pipeline.run_writer import ModelRecord
from ekya.results.storage.run_folder import RunFolder
from ekya.results.storage.run_state import StateStore
from ekya.runtime.observers import ModelKeeper

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
