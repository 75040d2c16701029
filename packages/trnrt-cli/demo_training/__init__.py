"""Makes the demo checkpoint: data, tokenizer, training, export, evaluation. Not in the wheel."""
