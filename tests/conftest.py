"""Settings of all tests: a slow machine is no failure."""

from hypothesis import settings

settings.register_profile("placer", deadline=None)
settings.load_profile("placer")
