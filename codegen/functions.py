"""Functions: what a kernel is in LLVM IR, phases and microkernels, and the modules that these make."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import NamedTuple

from .microkernel import Microkernel

MICROKERNEL = "microkernel"
"""The name of every microkernel, as long as its text is all that is known of it."""


class Function(NamedTuple):
    """`define void @name(parameters)`. A note is a comment above it."""

    name: str
    parameters: str
    body: str
    note: str = ""

    @property
    def declaration(self) -> str:
        """What a module says that calls it and has it not."""
        return f"declare void @{self.name}({self.parameters})"

    def __str__(self) -> str:
        note = f"; {self.note}\n" if self.note else ""
        return f"{note}define void @{self.name}({self.parameters}) nounwind {{\n{self.body}\n}}"


class Source(NamedTuple):
    """The functions of a kernel: its phases, in order, and the microkernels that they call. As text one module."""

    triple: str
    phases: tuple[Function, ...]
    microkernels: tuple[Function, ...]

    @property
    def modules(self) -> tuple[str, ...]:
        """The modules that become an object each: that of the phases, and one for each microkernel."""
        declarations = [one.declaration for one in self.microkernels]
        return self._module((*declarations, *self.phases)), *(self._module((one,)) for one in self.microkernels)

    def __str__(self) -> str:
        return self._module((*self.phases, *self.microkernels))

    def _module(self, parts: Iterable[object]) -> str:
        return "\n\n".join([f'target triple = "{self.triple}"', *map(str, parts)]) + "\n"

    def renamed(self, names: Mapping[str, str]) -> Source:
        """With other names of some functions, also where they are called."""

        def one(function: Function) -> Function:
            body = function.body
            for old, new in names.items():
                body = body.replace(f"@{old}(", f"@{new}(")
            return function._replace(name=names.get(function.name, function.name), body=body)

        return Source(self.triple, tuple(map(one, self.phases)), tuple(map(one, self.microkernels)))


class Callees:
    """The microkernels that the phases of a kernel call, each once. `write` gives the function of one."""

    def __init__(self, symbol: str, write: Callable[[Microkernel], Function]) -> None:
        self._symbol, self._write = symbol, write
        self._names: dict[Function, str] = {}

    def name(self, microkernel: Microkernel) -> str:
        """What it is called as: its number behind the symbol of the kernel."""
        return self._names.setdefault(self._write(microkernel), f"{self._symbol}_m{len(self._names)}")

    @property
    def functions(self) -> tuple[Function, ...]:
        """All so far, in the order of their numbers."""
        return tuple(function._replace(name=name) for function, name in self._names.items())
