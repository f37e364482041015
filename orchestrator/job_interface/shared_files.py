"""Files of a store that the machines of a step share.

If the store is a folder, all machines see it, and there is nothing to do. If it is a bucket, each machine has a folder
of its own under the same path, and files go from one machine to another through the bucket: `send` and `fetch`.
"""

import os
from contextlib import suppress
from pathlib import Path

from ratchet.orchestrator.atomic_file import remove_tree


class SharedFiles:
    """Files in a folder that all machines see. See `bucket.Bucket` for object storage."""

    downloads = False
    """Whether a machine has only what it has made or fetched."""

    def send(self, path: Path, to: Path | None = None) -> None:
        """Make the current content of a file or folder visible to other machines. to: the path under which they see it,
        if it is another."""

    def fetch(self, path: Path) -> None:
        """Bring a file or folder, as other machines have sent it, to this machine. What nobody sent stays missing."""

    def list_sent(self, folder: Path) -> list[str]:
        """Return the sorted names of the files and folders in a folder that any machine has sent."""
        with suppress(FileNotFoundError):
            return sorted(os.listdir(folder))
        return []

    def discard(self, folder: Path) -> None:
        """Remove a folder here, and for all machines."""
        with suppress(OSError):
            remove_tree(folder)
