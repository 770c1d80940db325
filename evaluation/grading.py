"""Is an answer right? Mathematics is judged by math-verify."""

from __future__ import annotations

import logging

from math_verify import parse, verify

# It warns, at every call, that its timeouts are off.
for name in ("math_verify.parser", "math_verify.grader"):
    logging.getLogger(name).setLevel(logging.ERROR)


def grade(text: str, gold: str) -> bool:
    """Whether the final answer in `text` equals `gold`.

    Only what follows "</think>" counts, where there is such a mark: a result that was considered is not an answer.

    Args:
        text: what the model wrote.
        gold: the right answer, as plain text or LaTeX.
    """
    final = text.rsplit("</think>", 1)[-1]
    final = final[max(0, final.rfind("\\boxed")) :]  # the last box is the answer
    # math-verify's own timeouts are signals, which fire in the main thread only; None switches them off.
    answer = parse(final, parsing_timeout=None)
    right = parse(f"\\boxed{{{gold}}}", parsing_timeout=None)
    return bool(answer) and bool(verify(right, answer, timeout_seconds=None))
