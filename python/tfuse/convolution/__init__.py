"""What convolutional networks are made of: batch normalisation."""
