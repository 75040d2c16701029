"""The cache and the scheduler in virtual time, without tensors: what a trace would hit."""
