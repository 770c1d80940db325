"""Is an answer right? Mathematics is judged by math-verify, in a process of its own under a hard limit.

math-verify's own timeouts are signals: they fire in the main thread only, and not inside one long computation. A worker
process can be killed whatever it does, so grading never hangs, and gives the same verdict from any thread.
"""

from __future__ import annotations

import atexit
import json
import subprocess
import sys
import threading
from queue import Empty, Queue

SECONDS = 10.0  # for one verdict; the first one waits longer, for imports
STARTING = 120.0


class Grader:
    """A worker process that gives verdicts one by one; a new one takes the place of one that was killed."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._process: subprocess.Popen[str] | None = None
        self._said: Queue[str] = Queue()

    def grade(self, text: str, gold: str, seconds: float = SECONDS) -> bool:
        """The worker's verdict; False where it takes longer than `seconds`, or dies of the answer."""
        with self._lock:
            process = self._running()
            assert process.stdin is not None
            try:
                process.stdin.write(json.dumps([text, gold]) + "\n")
                process.stdin.flush()
                return self._said.get(timeout=seconds) == "1"
            except (Empty, OSError):
                self.close()
                return False

    def close(self) -> None:
        """Kills the worker."""
        if self._process:
            self._process.kill()
            self._process.wait()
            self._process = None

    def _running(self) -> subprocess.Popen[str]:
        if self._process is None or self._process.poll() is not None:
            self._said = Queue()
            command = [sys.executable, "-m", "skipkv.evaluation.grading_worker"]
            self._process = subprocess.Popen(
                command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, encoding="utf-8"
            )
            threading.Thread(target=self._listen, args=(self._process, self._said), daemon=True).start()
            self._said.get(timeout=STARTING)  # it says "ready"
        return self._process

    @staticmethod
    def _listen(process: subprocess.Popen[str], said: Queue[str]) -> None:
        assert process.stdout is not None
        for line in process.stdout:
            said.put(line.strip())
        said.put("died")


_GRADER = Grader()
atexit.register(_GRADER.close)


def grade(text: str, gold: str) -> bool:
    """Whether the final answer in `text` equals `gold`.

    Only what follows "</think>" counts, where there is such a mark: a result that was considered is not an answer. The
    last \\boxed there is the answer.

    Args:
        text: what the model wrote.
        gold: the right answer, as plain text or LaTeX.
    """
    return _GRADER.grade(text, gold)
