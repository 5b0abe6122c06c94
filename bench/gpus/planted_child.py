"""The plugin `planted`, at work: see there."""

from . import planted

planted.install()
