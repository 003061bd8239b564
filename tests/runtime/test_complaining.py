"""What an actor finds wrong with its input reaches the user as one sentence."""

import pytest
from ray.exceptions import ActorDiedError, RayTaskError

from ekya.errors import UserError
from ekya.runtime.complaining import complaining, in_words, or_complaint

SENTENCE = "golden.onnx: is not an ONNX file; name another"


class Worker:
    """An actor's class."""

    def __init__(self, fine):
        if not fine:
            raise UserError(SENTENCE)
        self.made = True

    def ready(self):
        return "ready"


def test_a_constructor_complains_when_it_is_asked_whether_it_is_ready():
    complaining_worker = complaining(Worker)
    assert complaining_worker.__name__ == "Worker"
    with pytest.raises(UserError, match=SENTENCE):
        complaining_worker(False).ready()
    fine = complaining_worker(True)
    assert fine.made
    assert fine.ready() == "ready"


def test_what_ray_wraps_comes_back_as_the_sentence_alone():
    def ask(error):
        def asked():
            raise error

        return or_complaint(asked)

    with pytest.raises(UserError) as caught:
        ask(RayTaskError("ready", "Traceback: a page of it", UserError(SENTENCE)).as_instanceof_cause())
    assert str(caught.value) == SENTENCE
    with pytest.raises(RayTaskError):
        ask(RayTaskError("ready", "Traceback: a page of it", ValueError("a fault")).as_instanceof_cause())
    with pytest.raises(ActorDiedError):
        ask(ActorDiedError())
    assert or_complaint(lambda: 3) == 3


def test_a_constructor_that_failed_is_told_by_its_error_and_a_process_that_died_by_its_first_line():
    failed = ActorDiedError(
        RayTaskError("__init__", "Traceback:\n  a page of it\nOSError: no space", OSError())
    )
    assert in_words(failed) == "OSError: no space"
    assert in_words(ActorDiedError()) == "The actor died unexpectedly before finishing this task."
