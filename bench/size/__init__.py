"""A graph that is larger than memory: who trains on it inside a hard limit, and who is killed."""
