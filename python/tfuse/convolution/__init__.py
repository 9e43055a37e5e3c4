"""Windows that move over images: convolutions and pooling."""
