"""The demo checkpoint: this package's folder is the model folder (`--model demo`)."""
