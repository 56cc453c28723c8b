"""What tests and fuzzers share: how Hypothesis runs."""

from hypothesis import settings

# A shared machine makes any deadline flaky; the blob is the seed that a failure needs to be seen again.
settings.register_profile("veen", settings.default, deadline=None, print_blob=True)
settings.load_profile("veen")
