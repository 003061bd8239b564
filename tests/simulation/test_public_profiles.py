"""Tests of reading the public implementation's JSON profiles as a trace."""

import copy
import json

import pytest

from ekya.core.errors import UserError
from ekya.core.trace import BASE, Origin
from ekya.planning.schedulers.registry import make_scheduler
from ekya.simulation.trace.public_profiles import PREDICTED, STARTS, TRAINED, read_public_profiles
from ekya.simulation.trace.simulate import Conditions, simulate

MODEL = "resnet18"
CITY = {
    TRAINED: {
        "1": [["0_8", 0.5, 0.7, 16.0, MODEL], ["0_4", 0.5, 0.6, 8.0, MODEL], ["3_8", 0.4, 0.9, 80.0, MODEL]],
        "2": [["0_8", 0.6, 0.65, 16.0, MODEL], ["3_8", 0.55, 0.8, 80.0, MODEL]],
    },
    PREDICTED: {
        "1": [
            ["0_8", 0.5, 0.75, 17.0, MODEL],
            ["0_4", 0.5, 0.65, 9.0, MODEL],
            ["3_8", 0.4, 0.85, 82.0, MODEL],
        ],
        "2": [["0_8", 0.6, 0.7, 17.0, MODEL], ["3_8", 0.55, 0.75, 82.0, MODEL]],
    },
    STARTS: {"1": {"0": [0.5, MODEL], "3": [0.4, MODEL]}, "2": {"0": [0.6, MODEL], "3": [0.55, MODEL]}},
}


def written(folder, city=CITY, name="bochum"):
    path = folder / f"{name}.json"
    path.write_text(json.dumps(city), encoding="utf-8")
    return path


def test_public_profiles_tasks_are_windows_cities_are_streams(tmp_path):
    short = copy.deepcopy(CITY)
    for key in (TRAINED, PREDICTED, STARTS):
        del short[key]["2"]
    trace = read_public_profiles([written(tmp_path), written(tmp_path, short, "aachen")])
    assert [stream.stream for stream in trace.streams] == ["aachen", "bochum"]
    assert trace.windows == 2
    assert read_public_profiles([tmp_path / "bochum.json"]).windows == 3


def test_public_profiles_entries_are_epochs(tmp_path):
    trace = read_public_profiles([written(tmp_path)])
    _, first, second = trace.streams[0].windows
    cheap, dear = first.trainings
    assert [(epoch.epoch, epoch.gpu_s) for epoch in cheap.epochs if epoch.epoch in (4, 8)] == [
        (4, 8.0),
        (8, 16.0),
    ]
    reached = [epoch.standings[0].served_accuracy for epoch in cheap.epochs]
    assert reached[3] == pytest.approx(0.6)
    assert reached[7] == pytest.approx(0.7)
    assert reached[5] == pytest.approx(0.65)
    assert dear.epochs[-1].gpu_s == 80.0
    assert len(second.trainings[0].epochs) == 8
    assert {(config.head_width, config.epochs) for config in trace.retrain_configs} == {
        (0, 4),
        (0, 8),
        (3, 8),
    }


def test_public_profiles_window_starts_at_lowest_accuracy(tmp_path):
    windows = read_public_profiles([written(tmp_path)]).streams[0].windows
    assert [window.start_of(BASE).served_accuracy for window in windows] == [0.4, 0.4, 0.55]
    assert windows[2].start_of(Origin(1)).served_accuracy == 0.55


def test_public_profiles_predictions_are_kept(tmp_path):
    window = read_public_profiles([written(tmp_path)]).streams[0].windows[1]
    said = {one.config.epochs: (one.accuracy, one.gpu_s) for one in window.trials[0].predicted}
    assert said == {4: (0.65, 9.0), 8: (0.75, 17.0)}


def test_public_profiles_can_be_simulated(tmp_path):
    trace = read_public_profiles([written(tmp_path), written(tmp_path, name="essen")])
    played = simulate(trace, make_scheduler("thief"), Conditions(gpus=2.0))
    nothing = simulate(trace, make_scheduler("no-retrain"), Conditions(gpus=2.0))
    assert played.mean_accuracy > nothing.mean_accuracy > 0.2


def broken(change):
    city = copy.deepcopy(CITY)
    change(city)
    return city


@pytest.mark.parametrize(
    ("change", "says"),
    [
        (lambda city: city.pop(TRAINED), f"'{TRAINED}': .*Field required"),
        (lambda city: city[PREDICTED].pop("2"), f"'{PREDICTED}'.*task 2"),
        (lambda city: city[STARTS].pop("1"), f"'{STARTS}'.*task 1"),
        (lambda city: city[TRAINED].update(one=[]), rf"'{TRAINED}\.one': 'one': .*valid integer"),
        (lambda city: city[TRAINED]["1"][0].pop(), rf"'{TRAINED}\.1\.0\.4'"),
        (
            lambda city: city[TRAINED]["1"][2].__setitem__(2, 90),
            rf"'{TRAINED}\.1\.2\..*': 90: .*less than or equal to 1",
        ),
        (lambda city: city[TRAINED]["1"][0].__setitem__(3, -1), rf"'{TRAINED}\.1\.0\..*': -1"),
        (lambda city: city[TRAINED]["1"][0].__setitem__(3, float("inf")), rf"'{TRAINED}\.1\.0\..*': inf"),
        (lambda city: city[TRAINED]["1"][0].__setitem__(0, "zero"), rf"'{TRAINED}\.1\.0\..*': 'zero'"),
        (lambda city: city[TRAINED]["1"][0].__setitem__(0, "0_99999999"), "1 to 10000 epochs"),
        (lambda city: city[TRAINED]["1"].append(city[TRAINED]["1"][0]), "0_8 stands there twice"),
        (lambda city: city[TRAINED].update({"1": []}), rf"'{TRAINED}\.1': .*at least 1 item"),
        (lambda city: city[STARTS].update({"1": {}}), rf"'{STARTS}\.1'"),
        (lambda city: city.update({TRAINED: {}}), "at least 1 item"),
        (lambda city: city.update({TRAINED: 3}), "valid dictionary"),
    ],
)
def test_public_profiles_wrong_value_names_file_and_key(tmp_path, change, says):
    path = written(tmp_path, broken(change))
    with pytest.raises(UserError, match=says) as refused:
        read_public_profiles([path])
    assert str(path) in str(refused.value)


def test_public_profiles_other_file_is_refused(tmp_path):
    path = tmp_path / "city.json"
    path.write_text("{", encoding="utf-8")
    with pytest.raises(UserError, match="not JSON"):
        read_public_profiles([path])
    path.write_text("[]", encoding="utf-8")
    with pytest.raises(UserError, match="valid dictionary"):
        read_public_profiles([path])
