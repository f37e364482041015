"""Students' mistakes, generated: wrong procedures that run, and questions whose wrong options they compute.

for question in questions(2_000, seed=1):
    for option, rule in enumerate(question.rules):
        if rule is not None:
            query_text(question, option)  # its only relevant document is the sentence of that rule
"""

from data.mistakes.generate import PROBLEMS, RULES, Question, query_text, questions, work
from data.mistakes.rules import Answer, MalRule, Params, Problem

__all__ = ["PROBLEMS", "RULES", "Answer", "MalRule", "Params", "Problem", "Question", "query_text", "questions", "work"]
