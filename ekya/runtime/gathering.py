"""What threads of one process ask at the same time, answered in as few calls as possible."""

import threading
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from typing import Generic, TypeVar

QuestionT = TypeVar("QuestionT")
AnswerT = TypeVar("AnswerT")


@dataclass(slots=True, eq=False)
class _Waiting(Generic[QuestionT, AnswerT]):
    question: Callable[[], QuestionT]
    answer: Future[AnswerT] = field(default_factory=Future)


class Gathering(Generic[QuestionT, AnswerT]):
    """A thread that asks while no call is under way makes the next one, for all that ask by then.

    Nobody waits for others to come: at most for the call under way, and for the turn that the share gives.
    """

    def __init__(
        self,
        scope: Callable[[], AbstractContextManager[None]],
        answer: Callable[[Sequence[QuestionT]], Sequence[AnswerT]],
    ) -> None:
        """Nobody asks yet.

        Args:
            scope: around each call; may wait before it, until it is its turn, and after it.
            answer: the call: what is asked, at least one question, to the answers in order.
        """
        self._scope = scope
        self._answer = answer
        self._changed = threading.Condition()
        self._waiting: list[_Waiting[QuestionT, AnswerT]] = []
        self._is_called = False

    def ask(self, question: Callable[[], QuestionT]) -> AnswerT:
        """The answer to a question.

        Args:
            question: asked for, in the thread that makes the call, when the call begins.

        Raises:
            Exception: what the question raised, or the call because of it; others' errors are theirs.
        """
        mine: _Waiting[QuestionT, AnswerT] = _Waiting(question)
        with self._changed:
            self._waiting.append(mine)
            self._changed.wait_for(lambda: mine.answer.done() or not self._is_called)
            if mine.answer.done():
                return mine.answer.result()
            self._is_called = True
        try:
            with self._scope():
                self._call()
        finally:
            with self._changed:
                self._is_called = False
                if mine in self._waiting:
                    self._waiting.remove(mine)
                self._changed.notify_all()
        return mine.answer.result()

    def _call(self) -> None:
        """Whoever waits by now is answered, before the share makes the caller wait."""
        with self._changed:
            taken, self._waiting = self._waiting, []
        asked = []
        for one in taken:
            try:
                asked.append((one, one.question()))
            except Exception as error:
                one.answer.set_exception(error)
        self._settle(asked)
        with self._changed:
            self._changed.notify_all()

    def _settle(self, asked: Sequence[tuple[_Waiting[QuestionT, AnswerT], QuestionT]]) -> None:
        if not asked:
            return
        try:
            answers = self._answer([question for _, question in asked])
        except Exception as error:
            if len(asked) == 1:
                asked[0][0].answer.set_exception(error)
                return
            # One of them is at fault, and only that one is to hear of it.
            for alone in asked:
                self._settle([alone])
            return
        for (one, _), answer in zip(asked, answers, strict=True):
            one.answer.set_result(answer)
