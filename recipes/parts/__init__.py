"""Building blocks that several recipes share."""
