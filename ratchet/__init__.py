"""Ratchet: iterated finetuning of retrievers and small LLMs as resumable recipes on Ray.

Everything is imported as `ratchet.<folder>`: `ratchet.jobs`, `ratchet.models`, `ratchet.data`. In a checkout the
folders lie at the top, and this package holds a symbolic link to each. A file of the user's own that is called
`data.py` or `models.py` is therefore never mistaken for a part of Ratchet, nor the other way round.
"""
