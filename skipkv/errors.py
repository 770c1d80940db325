"""The one exception for bad input: its text is a single line a user can act on."""

from __future__ import annotations


class BadInput(ValueError):
    """What the user gave cannot work; the message says what was given and what would be right."""


def require_at_least(name: str, value: int, least: int) -> None:
    """Raises BadInput where a number is below what can work."""
    if value < least:
        raise BadInput(f"{name} is {value}; it must be at least {least}")
