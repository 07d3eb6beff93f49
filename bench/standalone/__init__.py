"""Files that run without sagann and bench, in whatever environment a peer needs."""
