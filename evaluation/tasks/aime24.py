"""AIME 2024: the 30 problems of both papers."""

from __future__ import annotations

from skipkv.evaluation.tasks.source import Hub

HUB = Hub("HuggingFaceH4/aime_2024", "train")
MAX_NEW_TOKENS = 16384  # as the method's authors allow
