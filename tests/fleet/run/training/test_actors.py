import pytest

from ekya.fleet.run.training.actors import TrainingActor
from ekya.gpu.cpu import CpuShares


def test_a_server_that_serves_nothing_yet_may_be_told_that_its_epoch_is_no_more():
    server = TrainingActor("server", CpuShares(1))
    server.abort()
    with pytest.raises(LookupError, match="serves no training"):
        server.end_epoch()
