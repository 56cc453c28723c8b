"""Shared by tests and fuzzers: the settings of Hypothesis."""

from hypothesis import HealthCheck, settings

# On a shared machine deadlines and the too-slow health check are flaky. The printed blob reproduces a failure. By
# default generated tests run a few fixed cases, so a failure is caused by a change; `make test-slow` runs four times as
# many, different each time.
_SHARED = settings(deadline=None, print_blob=True, suppress_health_check=[HealthCheck.too_slow])
settings.register_profile("veen", _SHARED, max_examples=25, derandomize=True)
settings.register_profile("thorough", _SHARED)
settings.load_profile("veen")
