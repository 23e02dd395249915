"""Makes ``fakes`` importable by every test, and lets property tests take their time on a busy machine."""

import gc
import sys
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings

sys.path.insert(0, str(Path(__file__).parent))

settings.register_profile("busy", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("busy")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """A proof has an hour however it is started; it once failed at the limit of a test, which is meant for what hangs."""
    for item in items:
        if item.get_closest_marker("slow") and not item.get_closest_marker("timeout"):
            item.add_marker(pytest.mark.timeout(3600))


def pytest_collection_finish() -> None:
    """What was imported stays: each stage of a run collects garbage, and would look through all of it for a third of a second."""
    gc.collect()
    gc.freeze()
