"""Jobs: one verb per file, declared in `jobs/<group>/<verb>.py` and done in `jobs/<group>/implementation/<verb>.py`."""
