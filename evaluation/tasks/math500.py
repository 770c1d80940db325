"""MATH-500: 500 competition problems (Lightman et al., arXiv:2305.20050)."""

from __future__ import annotations

from skipkv.evaluation.tasks.source import Hub

HUB = Hub("HuggingFaceH4/MATH-500", "test")
MAX_NEW_TOKENS = 16384  # as the method's authors allow
