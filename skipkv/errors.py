"""The one exception for bad input: its text is a single line a user can act on."""


class BadInput(ValueError):
    """What the user gave cannot work; the message says what was given and what would be right."""
