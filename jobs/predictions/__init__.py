"""Jobs on new queries: read the queries, fuse rankings, write predictions."""
