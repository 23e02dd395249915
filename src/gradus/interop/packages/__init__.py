"""Packages of an environment, for other programs to install: a server for OpenEnv, or a taskset for verifiers."""
