"""Properties run without a deadline: a busy machine is no failure."""

from hypothesis import settings

settings.register_profile("calm", deadline=None)
settings.load_profile("calm")
