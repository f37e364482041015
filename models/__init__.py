"""Models and exact search: embedders, rerankers, decoders, adapters, losses and ranking metrics. Imports no Ray and no
data format."""
