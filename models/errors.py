"""The one error of `models`."""

from __future__ import annotations


class ModelError(Exception):
    """What was given cannot work; trying again gives the same. The message is the finished sentence:
    *where: what was given; what was expected; what to do*."""

    permanent = True
