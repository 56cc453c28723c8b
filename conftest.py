"""What tests and fuzzers share: how Hypothesis runs."""

from hypothesis import settings

# A shared machine makes any deadline flaky; the blob is the seed that a failure needs to be seen again.
# Generated tests look briefly by default, and four times as long in `make test-slow`.
settings.register_profile("veen", settings.default, deadline=None, print_blob=True, max_examples=25)
settings.register_profile("thorough", settings.default, deadline=None, print_blob=True)
settings.load_profile("veen")
