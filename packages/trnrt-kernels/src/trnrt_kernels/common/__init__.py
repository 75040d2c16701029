"""Small parts that kernels, references and models share."""
