"""How long generated tests look: briefly by default, and four times as long in `make test-slow`."""

from hypothesis import settings

settings.register_profile("brief", max_examples=25)
settings.register_profile("thorough", max_examples=100)
settings.load_profile("brief")
