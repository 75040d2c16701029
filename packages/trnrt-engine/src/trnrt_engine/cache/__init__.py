"""Who holds which page and which state slot; ids only, no tensors."""
