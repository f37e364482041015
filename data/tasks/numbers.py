"""Parser of a final answer that is one number, as people and models write it: `18`, `$1,080`, `18 eggs`, `x = 1/2`."""

from __future__ import annotations

import re
from fractions import Fraction

MAX_CHARACTERS = 300
"""Length of the longest text that is parsed."""
DIGITS = r"(?:[0-9]{1,3}(?:,[0-9]{3})+|[0-9]{1,20})(?:\.[0-9]{1,20})?|\.[0-9]{1,20}"
NUMBER = re.compile(rf"([^0-9]*?)([-+]?)(\s*)({DIGITS})(?:\s*/\s*({DIGITS}))?(?![0-9])([^0-9]*)")
CURRENCIES = "$€£¥₹"
OPERATORS = frozenset("+*/^<>=≈|\\&@#√×÷·±∞")
FRACTIONS = frozenset("½⅓⅔¼¾⅕⅛")
SCALES = frozenset(
    (
        *(
            "k",
            "K",
            "M",
            "B",
            "mn",
            "bn",
            "x",
            "y",
            "z",
            "n",
            "e",
            "pi",
            "times",
            "squared",
            "cubed",
            "or",
            "and",
        ),
        *(
            "hundred",
            "hundreds",
            "thousand",
            "thousands",
            "million",
            "millions",
            "billion",
            "trillion",
        ),
        *("dozen", "dozens"),
    )
)
"""Words behind a number that make it another number, or a term."""
BEFORE = frozenset(["not", "half", "root", "than", "least", "most", "minus", "negative"])
AFTER = frozenset(["half", "halves", "or", "minus", "plus"])
"""Words anywhere before or behind a number that make it another number, or no definite one."""
JOINED = re.compile(r"[^\W\d_]\(?$|-$")
"""The end of the text before a number that is a part of a name or a term: A4, B-2, f(3), --5."""
REPLACEMENTS = [
    (re.compile(pattern), text)
    for pattern, text in (
        ("[\u2212\u2013\ufe63\uff0d]", "-"),
        (r"\\!", ""),
        (r"\{,\}", ","),
        ("(?<=[0-9])(?:\\\\[,;: ]|[\u00a0\u2009\u202f])(?=[0-9]{3}(?![0-9]))", ","),
        (r"\\[,;: ]|~|\s", " "),
        (r"\\([$%])", r"\1"),
        (r"\\[()\[\]]|\*\*|__|`|(?<![0-9])\*|\*(?![0-9 ])", ""),
        (r"\^\{?\\circ\}?", "°"),
        (r"\\(?:text|textbf|textit|mathrm|mathbf|mbox|boxed) ?\{([^{}]*)\}", r" \1 "),
        (r"(?<=[0-9]) *\\[dt]?frac", r" \\frac"),
        (rf"\\[dt]?frac\{{({DIGITS})\}}\{{({DIGITS})\}}", r"\1/\2"),
        (r"[{}]", ""),
        (r"(?<=[^\W\d_])(?:\^[23]|[²³])", ""),  # of units, such as m²
        (rf"([-+]) *[{CURRENCIES}] *", r" \1"),
        (rf"[{CURRENCIES}]", " "),
        (r"(?i)\b(?:minus|negative) +(?=[.0-9])", "-"),
    )
]
"""Markup, separators and currencies -> plain text, in this order."""


def parse_number(text: str) -> Fraction | None:
    """Return the only number of a text, without currency, thousands separators, units and markup. None for a text with
    several numbers, an operation, or a word such as `million` that makes it another number."""
    if len(text) > MAX_CHARACTERS:
        return None
    for pattern, replacement in REPLACEMENTS:
        text = pattern.sub(replacement, text)
    found = NUMBER.fullmatch(text.strip())
    if found is None:
        return None
    before, sign, space, digits, divisor, after = found.groups()
    equation = before.rstrip()
    before = equation.removesuffix("=").rstrip()
    if JOINED.search(equation + space) and found[1] == equation:
        return None
    if sign and space and equation and equation[-1] not in "=:(":
        return None  # a dash or a minus
    if not _is_text(before, BEFORE) or not _is_text(re.sub(r"/(?=[^\W\d_])", " ", after), AFTER):
        return None
    following = re.match(r"[\s-]*([^\W\d_]+)", after)
    if following is not None and (following[1] in SCALES or following[1].lower() in SCALES):
        return None
    value = Fraction(digits.replace(",", ""))
    if divisor is not None:
        below = Fraction(divisor.replace(",", ""))
        if not below:
            return None
        value /= below
    if sign == "-":
        return -value
    return value


def format_number(value: Fraction) -> str:
    """Return the exact text of a number: a decimal, or a fraction where no decimal is exact."""
    scale = 0
    while value.denominator != 1 and (value * 10**scale).denominator != 1:
        scale += 1
        if scale > 60:
            return str(value)
    whole = f"{abs(value) * 10**scale}".rjust(scale + 1, "0")
    if scale:
        text = f"{whole[:-scale]}.{whole[-scale:]}"
    else:
        text = whole
    if value < 0:
        return f"-{text}"
    return text


def _is_text(text: str, others: frozenset[str]) -> bool:
    """Whether a text beside a number leaves it as it is: it has no digit, operator or one of the other words."""
    if any(letter.isdigit() or letter in OPERATORS or letter in FRACTIONS for letter in text):
        return False
    return others.isdisjoint(re.findall(r"[^\W\d_]+", text.lower()))
