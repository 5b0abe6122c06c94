"""The plugin `simulated`, at work: see there."""

from importlib import import_module

import_module("simulated").install()
