"""The version of Ratchet. Not in `ratchet/__init__.py`: that is part of the code digest of every job."""

VERSION = "0.2.0"
