"""GSM8K: grade-school word problems (Cobbe et al., arXiv:2110.14168)."""

from __future__ import annotations

from skipkv.evaluation.tasks.source import Hub

HUB = Hub("openai/gsm8k", "test", "main")
MAX_NEW_TOKENS = 8192  # as the method's authors allow
