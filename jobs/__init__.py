"""Jobs, one per file: declared in `jobs/<group>/<verb>.py`, implemented in `jobs/<group>/implementation/<verb>.py`."""
