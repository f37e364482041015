"""Models and exact search: embedders, rerankers, decoders, adapters, losses and metrics. No Ray, no data formats."""

import logging

# It warns at its import of kernels for CPUs that it would fetch from the hub, in every command.
logging.getLogger("bitsandbytes").setLevel(logging.ERROR)
