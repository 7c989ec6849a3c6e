"""The mathematics of the other systems: tensors in, tensors out."""
