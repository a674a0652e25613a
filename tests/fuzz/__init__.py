"""Fuzzing: damaged and hostile files, and command lines."""
