"""Importing this package registers all that it has."""

from sgqn_example import agent, attribution, augmentation, family  # noqa: F401
