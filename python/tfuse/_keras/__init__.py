"""What tfuse.enable() replaces in Keras and KerasHub."""
