"""Packages of an environment, for other programs to install: a taskset for verifiers."""
