"""Installs the plugin `fault_sketch` where it is imported."""

from . import fault_sketch

fault_sketch.install()
