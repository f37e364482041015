"""Models and exact search: embedders, rerankers, decoders, adapters, losses and ranking metrics. Imports no Ray and no
data format."""

import logging

# It warns at its import of kernels for CPUs that it would fetch from the hub, in every command.
logging.getLogger("bitsandbytes").setLevel(logging.ERROR)
