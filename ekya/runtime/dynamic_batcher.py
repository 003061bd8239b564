"""Batches the requests of concurrent threads into as few calls as possible."""

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


class DynamicBatcher(Generic[QuestionT, AnswerT]):
    """A thread that asks while no call is in flight makes the next call for all waiting threads.

    A request does not wait for others to arrive, only for the call in flight and until the share lets the
    next one run.
    """

    def __init__(
        self,
        scope: Callable[[], AbstractContextManager[None]],
        answer: Callable[[Sequence[QuestionT]], Sequence[AnswerT]],
    ) -> None:
        """Starts with an empty queue.

        Args:
            scope: context of each call; may block before the call until its share lets it run, and after it.
            answer: the call: maps at least one question to the answers, in order.
        """
        self._scope = scope
        self._answer = answer
        self._changed = threading.Condition()
        self._waiting: list[_Waiting[QuestionT, AnswerT]] = []
        self._is_called = False

    def ask(self, question: Callable[[], QuestionT]) -> AnswerT:
        """Returns the answer to a question.

        Args:
            question: evaluated in the thread that makes the call, when the call begins.

        Raises:
            Exception: raised by this question, or by the call because of it; errors of other questions are
                raised in their threads.
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
        """Answers all waiting requests, before the share's scope can delay the calling thread on exit."""
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
            # One question caused the error, and only its thread should get it.
            for alone in asked:
                self._settle([alone])
            return
        for (one, _), answer in zip(asked, answers, strict=True):
            one.answer.set_result(answer)
