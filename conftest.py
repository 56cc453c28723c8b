"""Shared by tests and fuzzers: the settings of Hypothesis, and signals."""

import signal

from hypothesis import HealthCheck, settings

# On a shared machine deadlines and the too-slow health check are flaky. The printed blob reproduces a failure. By
# default generated tests run a few fixed cases, so a failure is caused by a change; `make test-slow` runs four times as
# many, different each time.
_SHARED = settings(deadline=None, print_blob=True, suppress_health_check=[HealthCheck.too_slow])
settings.register_profile("veen", _SHARED, max_examples=25, derandomize=True)
settings.register_profile("thorough", _SHARED)
settings.load_profile("veen")

# A shell starts background jobs with SIGINT ignored, and the programs that tests start would inherit that: Ctrl-C could
# not stop them.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)
