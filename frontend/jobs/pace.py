"""How many requests of Jobs an engine takes beside people's before everybody's tokens come noticeably later.

On a GPU a batch of many takes hardly longer for a step than a batch of few; on a CPU each request counts. So it is
learned from what the requests of Jobs took themselves: more at a time as long as their tokens come about as fast as
when there were few, and fewer at once when they do not. Now and then it is learned anew, from few on, since engines and
what is asked of them change.
"""
from __future__ import annotations

#: By how much the tokens may come later than at best.
SLOWER = 1.3
#: What becomes of the places with a request that was fast enough, and with one that was not.
GROWS, SHRINKS = 1.05, 0.8
#: Completion tokens from which on a request says something about steps, and not about its prompt.
FEWEST = 4
#: Requests after which it is learned anew.
LESSON = 1000


class Pace:
    """What is known of one model's engines."""

    def __init__(self) -> None:
        self._places = 0.0
        self.forget()

    def forget(self) -> None:
        """Learn anew, from few on."""
        self._places, self._best, self._seen = 0.0, float("inf"), 0

    def observe(self, among: int, seconds: float, tokens: int) -> None:
        """A request that began when so many were there took so many seconds for so many tokens of each choice."""
        if tokens < FEWEST or among > 2 * self._places + 1:  # it began when more were allowed
            return
        self._seen += 1
        if self._seen > LESSON:
            self.forget()
            return
        each = seconds / tokens
        self._best = min(self._best, each)
        self._places *= GROWS if each <= self._best * SLOWER else SHRINKS

    def beside(self, least: int, most: int) -> int:
        """How many may be there beside people's."""
        self._places = min(max(self._places, least), max(least, most))
        return int(self._places)
