"""The version of Ratchet. It is not in `ratchet/__init__.py`, which is part of the fingerprint of every job."""

VERSION = "0.2.0"
