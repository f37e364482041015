"""Models and exact search: embedders, rerankers, decoders, adapters, losses and metrics. No Ray, no data formats."""

import logging

# On import, in every command, bitsandbytes warns about CPU kernels that it would fetch from the hub.
logging.getLogger("bitsandbytes").setLevel(logging.ERROR)
