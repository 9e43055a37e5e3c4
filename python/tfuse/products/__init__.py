"""Products of matrices with what stands around them: linear layers, batched products, the loss of a head."""
