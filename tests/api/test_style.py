"""The style of pages: what stands on what can be read, in light and dark."""

import re

import pytest

from tunewright.api.dashboard.html import assets

TEXT, SHAPE = 4.5, 3.0
"""Least contrasts by WCAG 2.2 AA: of text, and of what tells a control or a state."""

ON = {
    "--ink": TEXT,
    "--faint": TEXT,
    "--link": TEXT,
    "--good": TEXT,
    "--bad": TEXT,
    "--mild": TEXT,
    "--border": SHAPE,
    "--focus": SHAPE,
    "--axis": SHAPE,
}


def colours(is_dark):
    """The variables that hold colours, as the sheet sets them that pages load first."""
    light, dark = re.findall(r":root \{([^}]*)\}", assets()["tokens.css"].content.decode())
    return {
        name: colour
        for block in (light, dark if is_dark else "")
        for name, colour in re.findall(r"(--[a-z0-9-]+):\s*#([0-9a-f]{6})", block)
    }


def luminance(colour):
    """Relative luminance (WCAG 2.2)."""
    parts = [int(colour[place : place + 2], 16) / 255 for place in (0, 2, 4)]
    linear = [part / 12.92 if part <= 0.04045 else ((part + 0.055) / 1.055) ** 2.4 for part in parts]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]


def contrast(one, other):
    low, high = sorted(map(luminance, (one, other)))
    return (high + 0.05) / (low + 0.05)


@pytest.mark.parametrize("is_dark", [False, True])
@pytest.mark.parametrize("ground", ["--paper", "--panel"])
def test_what_stands_on_what_can_be_read(is_dark, ground):
    known = colours(is_dark)
    for name, least in ON.items():
        assert contrast(known[name], known[ground]) >= least, (name, known[name])
    assert contrast(known["--paper"], known["--link"]) >= TEXT  # the first button


def test_light_and_dark_set_the_same():
    light, dark = colours(False), colours(True)
    assert light.keys() == dark.keys()
    assert not [name for name in light if light[name] == dark[name]]


def test_nothing_is_loaded_from_elsewhere():
    for asset in assets().values():
        assert not re.search(rb"@import|url\(|expression|src=['\"]?https?:", asset.content), asset.name


def test_every_variable_is_set():
    known = set()
    for asset in assets().values():
        known |= set(re.findall(r"(--[a-z0-9-]+):", asset.content.decode()))
    for asset in assets().values():
        used = set(re.findall(r"var\((--[a-z0-9-]+)\)", asset.content.decode()))
        assert used <= known, asset.name
