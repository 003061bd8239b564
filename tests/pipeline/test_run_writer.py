from dataclasses import replace

import pytest

from ekya.core.configs import RetrainConfig
from ekya.core.units import BASE_VERSION, ModelVersion, StreamId
from ekya.models.edge.checkpoints import load_model, to_bytes
from ekya.models.edge.model import build_edge_model
from ekya.pipeline.run_writer import ModelRecord
from ekya.results.storage.run_folder import RunFolder
from ekya.results.storage.run_state import StateStore

CAM = StreamId("cam")
GAMMA = RetrainConfig(4, 16, 0, 0, 1.0)


def test_serve_again_records_a_new_version_of_the_same_file(tmp_path) -> None:
    folder = RunFolder.create_numbered(tmp_path, "run")
    with StateStore(folder.state) as store:
        record = ModelRecord(folder, store, CAM)
        model = build_edge_model(("car", "bus"), 0, 1)
        record.add_model(BASE_VERSION, to_bytes(model), -1, None, None, 0)
        record.add_model(ModelVersion(1), to_bytes(model), 2, GAMMA, 0.8, 40)
        record.serve_again(ModelVersion(2), BASE_VERSION, 60)
        first, second, again = store.read_models(CAM)
        assert again == replace(first, version=ModelVersion(2), served_from_us=60)
        assert second.gamma == GAMMA
        assert load_model(folder.path / again.path).classes == ("car", "bus")


def test_weights_that_are_not_recorded_cannot_serve_again(tmp_path) -> None:
    folder = RunFolder.create_numbered(tmp_path, "run")
    with StateStore(folder.state) as store:
        record = ModelRecord(folder, store, CAM)
        with pytest.raises(LookupError, match="weights 1 of cam are not recorded"):
            record.serve_again(ModelVersion(2), ModelVersion(1), 60)
