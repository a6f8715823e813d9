"""Settings of all property tests: how long an example takes is the machine's business, not a test's."""

from hypothesis import settings

settings.register_profile("pwire", deadline=None)
settings.load_profile("pwire")
