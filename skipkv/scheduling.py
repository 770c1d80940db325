"""In which order requests enter the rows of a batch."""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

SCHEDULES = ("static", "grouped", "continuous")


@dataclass
class Queue:
    """Requests that wait for a row.

    static: batches in the order given, each run to its end. grouped: the same, sorted by prompt length first (SkipKV,
    section 3.3). continuous: a row takes the next request as soon as its own is finished.
    """

    lengths: Mapping[int, int]  # tokens of each request's prompt
    schedule: str
    waiting: deque[int] = field(init=False)

    def __post_init__(self) -> None:
        order = sorted(self.lengths, key=self.lengths.__getitem__) if self.schedule == "grouped" else self.lengths
        self.waiting = deque(order)

    def next_for(self, free: Sequence[int], rows: int) -> dict[int, int]:
        """Which request each free row takes now: row -> request; empty while a static batch still runs."""
        if self.schedule != "continuous" and len(free) < rows:
            return {}
        return {row: self.waiting.popleft() for row in free if self.waiting}
