"""What tests and fuzzers share: how Hypothesis runs."""

from hypothesis import HealthCheck, settings

# A shared machine makes any deadline flaky, and the health check of slowness with it; the blob is the seed that a
# failure needs to be seen again. By default generated tests look briefly and at the same cases in every run, so that a
# change is what makes one fail; `make test-slow` looks four times as long, at other cases each time.
_SHARED = settings(deadline=None, print_blob=True, suppress_health_check=[HealthCheck.too_slow])
settings.register_profile("veen", _SHARED, max_examples=25, derandomize=True)
settings.register_profile("thorough", _SHARED)
settings.load_profile("veen")
