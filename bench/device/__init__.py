"""A device's figures: epochs against PyG's, gathers against its copy bandwidth, and epochs streamed to it."""
