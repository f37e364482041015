"""Generated multiple-choice questions: each wrong option is computed by one of some ninety wrong procedures.

for question in generate_questions(2_000, seed=1):
    for option, rule in enumerate(question.rules):
        if rule is not None:
            format_query(question, option)  # its one positive: the sentence of that rule
"""

from ratchet.data.synthetic_misconceptions.generator import (
    PROBLEMS,
    RULES,
    Question,
    format_query,
    generate_questions,
    generate_worked,
)
from ratchet.data.synthetic_misconceptions.mal_rules import Answer, MalRule, Params, Problem

__all__ = [
    "PROBLEMS",
    "RULES",
    "Answer",
    "MalRule",
    "Params",
    "Problem",
    "Question",
    "format_query",
    "generate_questions",
    "generate_worked",
]
