"""OpenAI's wire types, one module an endpoint; names and shapes are OpenAI's."""
