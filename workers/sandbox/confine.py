"""Confinement of a child.

Every child gives up new privileges (so no set-user-id program helps it) and inherits no secrets. A child that handles
untrusted input is *confined*: it has no capabilities, writes no file, starts no program, opens no TCP connection and
has almost no environment. Limits forbid writing on any Linux; Landlock, where the kernel has it, forbids the rest.
Reading is allowed: what was read leaves the child in a reply only.
See https://docs.kernel.org/userspace-api/landlock.html.
"""

from __future__ import annotations

import ctypes
import ctypes.util
import os
import re
import resource
import struct
from collections.abc import Mapping

PR_SET_NO_NEW_PRIVS = 38

CAPABILITY_VERSION = 0x20080522

SYS_CREATE_RULESET, SYS_RESTRICT_SELF = 444, 446
"""Numbers of system calls, the same on every architecture."""

CREATE_RULESET_VERSION = 1

FS_RIGHTS = {1: 0b1_1111_1111_0011, 2: 1 << 13, 3: 1 << 14, 5: 1 << 15}
"""Rights to take away, by the first version of Landlock that has them: executing, writing, removing and making files of
any kind; linking and renaming across folders; truncating; commands to devices. Reading is allowed."""

NET_RIGHTS = {4: 0b11}
"""Binding and connecting TCP."""

SCOPES = {6: 0b11}
"""Abstract sockets, and signals to processes outside."""

OPEN_FILES = 64

CONFINED_VARIABLES = ("LANG", "LC_ALL", "LC_CTYPE", "LD_LIBRARY_PATH", "PATH", "PYTHONHOME", "PYTHONPATH", "TZ")
"""Environment variables of a confined child: the search paths of the interpreter and its libraries."""

SECRET = re.compile(r"(^|_)(API_?KEY|KEYS?|TOKEN|SECRETS?|PASS(WORD|WD)?|PGPASS\w*|CREDENTIALS?|AUTH|DSN)(_|$)", re.I)
"""Names of environment variables that hold secrets."""


def environment(variables: Mapping[str, str], confined: bool) -> dict[str, str]:
    """The part of the parent's environment for a child: no keys, tokens, or addresses (they carry passwords)."""
    if confined:
        return {name: variables[name] for name in CONFINED_VARIABLES if name in variables} | {
            "PYTHONDONTWRITEBYTECODE": "1"
        }
    return {name: text for name, text in variables.items() if not SECRET.search(name) and "://" not in text}


def give_up_privileges() -> None:
    """No program that this process starts gains rights."""
    if _libc().prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0):
        raise OSError(ctypes.get_errno(), "no_new_privs")


def confine() -> None:
    """Confine this process for good. It must have a single thread, as Landlock binds the calling thread only.

    Raises OSError where the kernel has Landlock and refuses.
    """
    resource.setrlimit(resource.RLIMIT_FSIZE, (0, 0))
    resource.setrlimit(resource.RLIMIT_NOFILE, (OPEN_FILES, OPEN_FILES))
    _drop_capabilities()
    if version := landlock_version():
        _restrict(version)
    setattr(ctypes.util, "find_library", _find_no_library)  # noqa: B010 - it starts programs, through files that it writes


def _find_no_library(name: str) -> None:
    """The answer of `find_library` for an unknown library: callers then try their defaults."""


def _drop_capabilities() -> None:
    """Drop the rights of root, such as reading the memory of its other processes despite Landlock."""
    none = struct.pack("6I", *[0] * 6)  # effective, permitted, inheritable, twice 32 of each
    if _libc().capset(struct.pack("Ii", CAPABILITY_VERSION, 0), none):
        raise OSError(ctypes.get_errno(), "capset")


def confinement() -> str:
    """How children are confined on this machine: one line for people."""
    version = landlock_version()
    if not version:
        return "limits only: the kernel offers no Landlock, so a child could start programs and open connections"
    network = ", opening TCP connections" if version >= min(NET_RIGHTS) else ""
    shortcoming = "" if version >= min(NET_RIGHTS) else "; it is too old to forbid TCP connections"
    return f"limits and Landlock {version}: no writing, starting programs{network}{shortcoming}"


def landlock_version() -> int:
    """The version of Landlock that the kernel offers; 0 where it has none, or it is turned off."""
    version: int = _libc().syscall(SYS_CREATE_RULESET, None, ctypes.c_size_t(0), CREATE_RULESET_VERSION)
    return max(version, 0)


def _restrict(version: int) -> None:
    """Take away all rights that this version has: a ruleset without rules allows none of them."""
    masks = [
        sum(bits for since, bits in rights.items() if since <= version) for rights in (FS_RIGHTS, NET_RIGHTS, SCOPES)
    ]
    while not masks[-1]:  # an old kernel has a shorter structure
        masks.pop()
    attributes = struct.pack(f"{len(masks)}Q", *masks)
    ruleset = _libc().syscall(SYS_CREATE_RULESET, attributes, ctypes.c_size_t(len(attributes)), 0)
    if ruleset < 0:
        raise OSError(ctypes.get_errno(), "Landlock takes no ruleset")
    try:
        if _libc().syscall(SYS_RESTRICT_SELF, ruleset, 0):
            raise OSError(ctypes.get_errno(), "Landlock does not restrict")
    finally:
        os.close(ruleset)


def _libc() -> ctypes.CDLL:
    return ctypes.CDLL(None, use_errno=True)
