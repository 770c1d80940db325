"""The process that judges answers: a JSON pair [text, gold] per line comes in, 1 or 0 goes out."""

from __future__ import annotations

import json
import logging
import os
import re
import sys

from math_verify import parse, verify

from skipkv.thinking import answer_of

MEMORY = 4 << 30  # bytes; 9^{9^{9^9}} wants more

# It warns, at every call, that its own timeouts are off.
for name in ("math_verify.parser", "math_verify.grader"):
    logging.getLogger(name).setLevel(logging.CRITICAL)


def final_answer(text: str) -> str:
    """From the last box behind "</think>" on; all that follows the thinking where there is no box."""
    final = answer_of(text)
    return final[max(0, final.rfind("\\boxed")) :]


def plain(text: str) -> str:
    """Without box, spaces and text marks: equal then means equal, also for words that math-verify does not read."""
    text = re.sub(r"\\boxed\{(.*)\}", r"\1", text, flags=re.DOTALL)
    text = re.sub(r"\\(text|textbf|mathrm|mbox)\s*\{([^{}]*)\}", r"\2", text)
    return re.sub(r"[\s$]|\\[ ,;!]|\.$", "", text)


def judge(text: str, gold: str) -> bool:
    """The verdict on one answer."""
    final, right = final_answer(text), f"\\boxed{{{gold}}}"
    if "\\boxed" in final and plain(final) == plain(right):
        return True
    # math-verify's timeouts are signals; None switches them off, the parent process keeps the time.
    answer = parse(final, parsing_timeout=None)
    return bool(answer) and bool(verify(parse(right, parsing_timeout=None), answer, timeout_seconds=None))


def main() -> None:
    if os.name == "posix":
        import resource

        resource.setrlimit(resource.RLIMIT_AS, (MEMORY, MEMORY))
    print("ready", flush=True)
    for line in sys.stdin:
        try:
            verdict = judge(*json.loads(line))
        except Exception:  # whatever an answer does to the parser, it is not right
            verdict = False
        print(int(verdict), flush=True)


if __name__ == "__main__":
    main()
