"""Everything between OpenAI messages and token ids: templates, tokens, and reading the output."""
