"""Tensors in, tensors out: encoders, adapters, losses, search, ranks. Knows no Ray and no data format."""
