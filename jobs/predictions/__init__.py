"""Jobs on new queries: read them, fuse rankings, write the predictions."""
