"""Environments of other suites by name: ``reasoning-gym:NAME``, ``textarena:NAME``, ``gymnasium:ID``, ``verifiers:MODULE``."""
