from hypothesis import settings

# The first example of a property pays for Numba's compilation, or for importing PyG.
settings.register_profile("compiles", deadline=None)
settings.load_profile("compiles")
