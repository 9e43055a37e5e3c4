"""Flash attention, and Keras's attention layers by it."""
