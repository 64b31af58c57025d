"""Text from outside -> one printable line of bounded length, for logs, errors and the audit log."""

from __future__ import annotations

__all__ = ["counted", "plain_text", "plain_value"]

CHARACTERS_MAX = 300
_VALUE_CHARACTERS_MAX = 80


def plain_text(text: str, max_characters: int = CHARACTERS_MAX) -> str:
    """Control characters, line breaks and whatever cannot be printed become spaces; a long text is cut."""
    if len(text) > max_characters:
        text = f"{text[: max_characters - 3]}..."
    if text.isprintable():
        return text
    return "".join(character if character.isprintable() else " " for character in text)


def counted(count: int, noun: str) -> str:
    """``1 round``, ``2 rounds``."""
    return f"{count} {noun}{'' if count == 1 else 's'}"


def plain_value(value: object) -> str:
    """A value of a file or a message, for an error. Never the whole of a large one."""
    if isinstance(value, str):
        return repr(plain_text(value, _VALUE_CHARACTERS_MAX))
    if isinstance(value, dict | list | tuple | set):
        return f"{'a mapping' if isinstance(value, dict) else 'a list'} of {len(value)}"
    # str() of an integer takes time that grows with the square of its digits, and Python may refuse it.
    if isinstance(value, int) and value.bit_length() > 64:
        return f"an integer of {value.bit_length()} bits"
    return plain_text(repr(value), _VALUE_CHARACTERS_MAX)
