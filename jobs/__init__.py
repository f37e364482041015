"""Jobs, one per file: `jobs/<group>/<verb>.py`."""
