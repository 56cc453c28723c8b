"""Generators and checks for developers; not part of the distribution."""
