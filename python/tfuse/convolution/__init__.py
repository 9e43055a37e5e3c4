"""Windows that move over images: convolutions, pooling, and the normalisation between them."""
