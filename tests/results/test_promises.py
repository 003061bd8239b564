"""What retrainings promised, beside what came on later labels."""

from dataclasses import replace

import pytest

from ekya.core import commands as cmd
from ekya.core import events as ev
from ekya.core.commands import StepRecord
from ekya.core.configs import RetrainConfig
from ekya.core.units import JobId, ModelVersion, StreamId
from ekya.core.weights import Compared
from ekya.results.metrics.promises import CheckedPromise, check_promises, promise_values
from ekya.results.report.promises import draw_promises
from ekya.results.report.themes import DARK, LIGHT

A, B = StreamId("a"), StreamId("b")
S = 1_000_000
GAMMA = RetrainConfig(10, 16, 0, 0, 1.0)


def labels(at_s, stream=A, accuracy=0.5, compared=None, **changes):
    event = ev.LabelsReady(at_s * S, stream, 1, 60, 20, accuracy, False, 0.5, compared=compared)
    return StepRecord(at_s * S, (replace(event, **changes),), None, ())


def start(at_s, job, expected, stream=A):
    command = cmd.StartRetraining(stream, JobId(job), 1, GAMMA, 300, expected, 2.0)
    return StepRecord(at_s * S, (), None, (command,))


def swap(at_s, job, stream=A):
    swapped = ev.ModelSwapped(at_s * S, stream, ModelVersion(job), JobId(job), 0.9, 100)
    return StepRecord(at_s * S, (swapped,), None, ())


def test_promise_is_checked_by_the_next_labels():
    later = Compared(0.6, 0.55, 12)
    steps = [labels(1), start(2, 1, 0.7), swap(3, 1), swap(4, 1), labels(20, compared=later)]
    (found,) = check_promises(steps)
    assert found == CheckedPromise(A, 20 * S, pytest.approx(0.2), pytest.approx(0.05), 12)
    assert promise_values(found) == {
        "stream": "a",
        "at_s": 20.0,
        "promised": 0.2,
        "came": 0.05,
        "objects": 12,
    }


def test_promise_is_of_the_accuracy_on_all_labels_where_that_was_measured():
    steps = [labels(1, accuracy_on_all=0.6), start(2, 1, 0.7), swap(3, 1)]
    (found,) = check_promises([*steps, labels(20, compared=Compared(0.6, 0.6, 9))])
    assert found.promised_gain == pytest.approx(0.1)


@pytest.mark.parametrize(
    "between",
    [
        [],
        [swap(3, 1), start(4, 2, 0.8), swap(5, 2)],
        [
            swap(3, 1),
            StepRecord(4 * S, (ev.RolledBack(4 * S, A, ModelVersion(1), ModelVersion(0), 0),), None, ()),
        ],
        [swap(3, 1), labels(5)],
        [swap(3, 1, B)],
    ],
    ids=["never served", "two retrainings", "rolled back", "labels that compared nothing", "another stream"],
)
def test_promise_that_cannot_be_told_is_left_out(between):
    steps = [labels(1), start(2, 1, 0.7), *between, labels(20, compared=Compared(0.6, 0.5, 9))]
    assert list(check_promises(steps)) == []


def test_figure_of_promises_is_a_picture_that_is_the_same_every_time():
    told = [{"promised": at / 10, "came": at / 20, "objects": 5 * at} for at in range(1, 4)]
    light = draw_promises(told)
    assert light.startswith(b"\x89PNG")
    assert light == draw_promises(told, LIGHT) != draw_promises(told, DARK)
