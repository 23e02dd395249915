"""Lets the tests of this folder import ``tiny_models``, and gives them its fixtures."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))

from tiny_models import loaded, model_folder

__all__ = ["loaded", "model_folder"]
