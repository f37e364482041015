"""The error of this floor."""


class DataError(Exception):
    """The data given cannot be used. Message: *file:line or field: what was given; what was expected; what to do*."""

    permanent = True
