"""Generated multiple-choice questions: each wrong option is computed by one of some ninety wrong procedures.

for question in generate_questions(2_000, seed=1):
    for option, rule in enumerate(question.rules):
        if rule is not None:
            format_query(question, option)  # its one positive: the sentence of that rule
"""

from benchmarks.misconceptions.generator import RULES, Question, format_query, generate_questions

__all__ = ["RULES", "Question", "format_query", "generate_questions"]
