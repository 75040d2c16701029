"""Ops in their decode form: one token of each of B sequences."""
