"""Token text made visible: what cannot be seen is written out, what can be seen is left alone.

Token text is untrusted and may hold anything: newlines, control and zero-width characters, marks
that reverse the reading direction, a combining accent without a letter. `visible` gives the same
characters as `visible` in data.js (a test compares the two); the callers then put them in as text,
never as markup. Used by notebooks 00 and 07.
"""

from __future__ import annotations

import unicodedata

NAMED = {" ": "·", "\n": "⏎", "\t": "⇥"}
# control, format, surrogate, private, separators
HIDDEN = {"Cc", "Cf", "Cs", "Co", "Zl", "Zp", "Zs"}
# letters, marks and symbols drawn as nothing
BLANK = set("\u034f\u115f\u1160\u17b4\u17b5\u2800\u3164\uffa0")


def is_hidden(character: str) -> bool:
    """True where a reader would see nothing, or would see the text around it rearranged."""
    variation = 0xFE00 <= ord(character) <= 0xFE0F or 0xE0100 <= ord(character) <= 0xE01EF
    return variation or character in BLANK or unicodedata.category(character) in HIDDEN


def escape_hidden(character: str) -> str:
    """One hidden character as its code: a backslash, u and four digits, or braces around more."""
    code = ord(character)
    return f"\\u{code:04x}" if code <= 0xFFFF else f"\\u{{{code:x}}}"


def visible(text: str) -> str:
    """The text with spaces as ·, newlines as ⏎, tabs as ⇥, hidden characters as codes, a leading
    accent on a ◌.
    """
    shown = "".join(NAMED.get(c) or (escape_hidden(c) if is_hidden(c) else c) for c in text)
    return (
        "◌" + shown
        if text and unicodedata.category(text[0]).startswith("M") and not is_hidden(text[0])
        else shown
    )


def readable(text: str) -> str:
    """Running text: spaces, newlines and tabs stay what they are, everything else hidden is written
    out.
    """
    return "".join(c if c in NAMED else (escape_hidden(c) if is_hidden(c) else c) for c in text)


def token_text(texts: dict[int, str], token: int) -> str:
    """What a cell shows for an id: its visible text, or the id where it has none."""
    return visible(texts.get(token, "")) or f"#{token}"
