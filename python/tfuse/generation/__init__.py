"""Generation: decoders' steps as chains of ops, and many requests at once."""
