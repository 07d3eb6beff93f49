"""Edge functions: what is computed on every edge and how it is reduced, in one pass, in several dialects."""
