"""A real server that speaks S3, with a bucket `kept` in it."""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager

from nodes import free_port

KEYS = {"AWS_ACCESS_KEY_ID": "a", "AWS_SECRET_ACCESS_KEY": "b", "AWS_REGION": "us-east-1"}


@contextmanager
def serve_s3() -> Iterator[int]:
    """Yield the port of the server on this machine."""
    import boto3

    port = free_port()
    process = subprocess.Popen(
        [sys.executable, "-m", "moto.server", "-H", "127.0.0.1", "-p", str(port)],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    keys = {"aws_access_key_id": "a", "aws_secret_access_key": "b", "region_name": "us-east-1"}
    client = boto3.client("s3", endpoint_url=f"http://127.0.0.1:{port}", **keys)
    end = time.monotonic() + 60
    while True:
        try:
            client.create_bucket(Bucket="kept")
            break
        except Exception:
            assert time.monotonic() < end, "the server does not answer"
            assert process.poll() is None, "the server ended"
            time.sleep(0.3)
    yield port
    process.terminate()
    process.wait(30)
