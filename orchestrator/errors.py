"""What can go wrong in the orchestrator.

    RatchetError
    ├── RecipeError      a recipe, a parameter or a --set line is wrong
    ├── InputError       a file or folder that the person gave is missing or changed under way
    ├── CanonicalError   a setting has no stable form (also a TypeError)
    ├── StoreError       the store cannot do what was asked (full disk, missing run)
    │   ├── Damaged      a kept result is no longer what was committed
    │   └── Unreachable  object storage does not answer (also a ConnectionError)
    ├── Fenced           the lease was taken over: this attempt may not commit
    └── Interrupted      the run was told to stop

`permanent`: trying the same again cannot help. Messages read *where: what was given; what was expected; what to do*.
"""

from __future__ import annotations


class RatchetError(Exception):
    permanent = True


class RecipeError(RatchetError):
    pass


class InputError(RatchetError):
    pass


class CanonicalError(RatchetError, TypeError):
    pass


class StoreError(RatchetError):
    pass


class Damaged(StoreError):
    pass


class Unreachable(StoreError, ConnectionError):
    permanent = False


class Fenced(RatchetError):
    permanent = False


class Interrupted(RatchetError):
    permanent = False
