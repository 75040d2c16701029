"""Plain torch functions the references of all ops are composed of; no op, no custom kernel.

They trace to static-shape ATen, break ties toward the lower index, and compute norms, softmax,
gates, router, mHC, indexer scores and the KDA recurrence in float32 whatever the activation dtype.
"""
