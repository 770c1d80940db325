"""One problem, and the prompt that asks it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from skipkv.evaluation.grading import grade
from skipkv.thinking import THINK_START

BOXED = "\nPlease reason step by step, and put your final answer within \\boxed{}."


@dataclass(frozen=True)
class Problem:
    """A question, its right answer, and what is said behind the question."""

    question: str
    answer: str
    instruction: str = ""

    def is_right(self, text: str) -> bool:
        """Whether what the model wrote is right: here, whether its final answer is the right one."""
        return grade(text, self.answer)


def prompt_for(problem: Problem, tokenizer: Any) -> str:
    """The text that the model continues: one user turn, no system prompt, "<think>" opened where the model thinks.

    (As the authors of R1 advise. Without a chat template, question and instruction stand alone.)
    """
    asked = problem.question + problem.instruction
    if not getattr(tokenizer, "chat_template", None):
        return asked + "\n"
    turn = [{"role": "user", "content": asked}]
    prompt: str = tokenizer.apply_chat_template(turn, add_generation_prompt=True, tokenize=False)
    thinks = tokenizer.convert_tokens_to_ids(THINK_START) not in (None, tokenizer.unk_token_id)
    return prompt + THINK_START + "\n" if thinks and THINK_START not in prompt else prompt
