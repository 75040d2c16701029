"""Ops in their prefill form: a chunk of T tokens of one sequence."""
