"""The commands of the log of other compilers and of its releases, and `tunewright audit`.

Nothing here imports the client of a server before one of these commands is called.
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

import typer

from tunewright.tuner.cli import app
from tunewright.tuner.cli.answers import CommandAnswer, confirm
from tunewright.tuner.cli.app import FAULT, command
from tunewright.tuner.cli.options import DbOption
from tunewright.tuner.cli.options import ServerOption as OtherServerOption
from tunewright.tuner.errors import Refused
from tunewright.tuner.text import printable

from .command_options import ServerOption, YesOption, require

log_app = typer.Typer(help="The log of other compilers.", no_args_is_help=True)
app.add_typer(log_app, name="log")
release_app = typer.Typer(help="Releases of the log: what a namespace served at a moment.", no_args_is_help=True)
log_app.add_typer(release_app, name="release")

NamespaceArgument = Annotated[
    str, typer.Argument(metavar="NAMESPACE", help="A compiler's part of the log.", show_default=False)
]
ReleaseArgument = Annotated[str, typer.Argument(metavar="NAME", help="The release's name.", show_default=False)]


LogKeyArgument = Annotated[str, typer.Argument(metavar="KEY", help="The entry's key.", show_default=False)]
ChoiceArgument = Annotated[
    str,
    typer.Argument(metavar="CHOICE", help="The value's name, or its begin.", show_default=False),
]


@command(log_app, "list")
def list_log(
    namespace: Annotated[
        str | None, typer.Argument(metavar="NAMESPACE", help="Only its entries.", show_default="the namespaces")
    ] = None,
    key: Annotated[str | None, typer.Option(metavar="KEY", help="Of this key alone.", show_default="any")] = None,
    server: ServerOption = None,
) -> CommandAnswer:
    """List the namespaces of the log, or the entries of one that changed last."""
    from .client import log_commands as commands

    if namespace is None:
        if key is not None:
            raise Refused("--key needs a NAMESPACE")
        return CommandAnswer(commands.list_namespaces(server), commands.render_namespaces)
    return CommandAnswer(commands.list_entries(server, namespace, key), commands.render_entries)


@command(log_app, "approve")
def approve_value(
    namespace: NamespaceArgument, key: LogKeyArgument, choice: ChoiceArgument, server: ServerOption = None
) -> CommandAnswer:
    """Have a value served wherever its cost may be as low as any other's."""
    return _decide(server, namespace, key, choice, "approved")


@command(log_app, "retire")
def retire_value(
    namespace: NamespaceArgument, key: LogKeyArgument, choice: ChoiceArgument, server: ServerOption = None
) -> CommandAnswer:
    """Never serve a value again, however fast it is told to be; approve takes that back."""
    return _decide(server, namespace, key, choice, "retired")


def _decide(server: str | None, namespace: str, key: str, choice: str, state: str) -> CommandAnswer:
    from .client import log_commands as commands

    return CommandAnswer(commands.decide(server, namespace, key, choice, state), commands.render_decision)


@command(log_app, "export")
def export_log(
    namespace: NamespaceArgument,
    output: Annotated[Path, typer.Option("--output", "-o", metavar="FILE", help="Where to.", show_default=False)],
    server: ServerOption = None,
) -> CommandAnswer:
    """Write all entries of a namespace into a file of JSON lines."""
    from .client import log_commands as commands

    return CommandAnswer(commands.export_lines(server, namespace, output), commands.render_export)


@command(log_app, "import")
def import_log(
    namespace: NamespaceArgument,
    file: Annotated[
        Path, typer.Argument(metavar="FILE", help="Of JSON lines, as export writes them.", show_default=False)
    ],
    server: ServerOption = None,
) -> CommandAnswer:
    """Add the entries of a file to a namespace; those that are known change nothing."""
    from .client import log_commands as commands

    return CommandAnswer(commands.import_lines(server, namespace, file), commands.render_import)


@command(log_app, "add")
def add_files(
    namespace: NamespaceArgument,
    files: Annotated[list[Path], typer.Argument(metavar="FILE...", help="What it left.", show_default=False)],
    kind: Annotated[
        Literal["tvm", "t4"],
        typer.Option("--from", metavar="TUNER", help="Whose: tvm, or t4 for Kernel Tuner.", show_default=False),
    ],
    key: Annotated[str | None, typer.Option("--key", metavar="KEY", help="The kernel, of T4.")] = None,
    device: Annotated[str, typer.Option("--device", metavar="NAME", help="What it was timed on, of T4.")] = "",
    versions: Annotated[
        list[str] | None,
        typer.Option("--version", metavar="NAME=TEXT", help="Of what it was built with, of T4; several times."),
    ] = None,
    server: ServerOption = None,
) -> CommandAnswer:
    """Add what another tuner left in files to a namespace."""
    from .client import log_commands as commands
    from .client.log_files import add_files as add

    return CommandAnswer(add(server, namespace, files, kind, key, device, versions or ()), commands.render_import)


@command(log_app, "delete")
def delete_log(namespace: NamespaceArgument, yes: YesOption = False, server: ServerOption = None) -> CommandAnswer:
    """Delete a namespace with all of its entries; one with releases stays."""
    from .client import log_commands as commands

    confirm(f"Delete all of {printable(namespace)}?", is_confirmed=yes)
    return CommandAnswer(commands.delete_namespace(server, namespace), commands.render_delete)


@command(log_app, "sync")
def sync_folder(
    tool: Annotated[
        Literal["vllm-moe", "sglang-moe", "flashinfer", "iree"],
        typer.Argument(metavar="TOOL", help="Whose folder it is.", show_default=False),
    ],
    root: Annotated[
        Path, typer.Option("--root", metavar="DIR", help="The folder, as the program is told it.", show_default=False)
    ],
    push: Annotated[bool, typer.Option("--push", help="Only to the log, also where it has another file.")] = False,
    pull: Annotated[bool, typer.Option("--pull", help="Only from the log, also over files that differ.")] = False,
    only: Annotated[
        list[str] | None,
        typer.Option("--only", metavar="NAME=TEXT", help="Take what is for this; may be given several times."),
    ] = None,
    namespace: Annotated[
        str | None, typer.Option("--namespace", metavar="NAMESPACE", help="Of the log.", show_default="TOOL")
    ] = None,
    server: ServerOption = None,
) -> CommandAnswer:
    """Give a folder in which a program keeps what it tuned what it lacks and the log has, and the other way round."""
    from .client.folders import command as folders

    report = folders.sync_folder(tool, root, namespace, server, push=push, pull=pull, only=only or ())
    return CommandAnswer(report, folders.render_sync, exit_code=FAULT if report["key_fault"] else 0)


@command(release_app, "create")
def create_release(
    namespace: NamespaceArgument,
    name: ReleaseArgument,
    notes: Annotated[str, typer.Option(metavar="TEXT", help="What to say of it.", show_default="nothing")] = "",
    environment: Annotated[
        list[str] | None,
        typer.Option(metavar="FINGERPRINT", help="Of this environment alone; may be given several times."),
    ] = None,
    server: ServerOption = None,
) -> CommandAnswer:
    """Make a signed release of what a namespace serves now. It never changes."""
    from .client import release_commands as commands

    return CommandAnswer(commands.create(server, namespace, name, notes, environment), commands.render)


@command(release_app, "list")
def list_releases(namespace: NamespaceArgument, server: ServerOption = None) -> CommandAnswer:
    """List the releases of a namespace, the newest first."""
    from .client import release_commands as commands

    return CommandAnswer(commands.list_releases(server, namespace), commands.render_list)


@command(release_app, "show")
def show_release(namespace: NamespaceArgument, name: ReleaseArgument, server: ServerOption = None) -> CommandAnswer:
    """Show what is signed of a release, and whether it is promoted."""
    from .client import release_commands as commands

    return CommandAnswer(commands.show(server, namespace, name), commands.render)


@command(release_app, "promote")
def promote_release(
    namespace: NamespaceArgument,
    name: Annotated[
        str | None, typer.Argument(metavar="NAME", help="The release's name.", show_default="with --none")
    ] = None,
    none: Annotated[bool, typer.Option("--none", help="No release: answer lookups from all entries again.")] = False,
    server: ServerOption = None,
) -> CommandAnswer:
    """Have lookups of a namespace answered from a release alone."""
    from .client import release_commands as commands

    if none is (name is not None):
        raise Refused("name the release, or say --none")
    return CommandAnswer(commands.promote(server, namespace, name), commands.render_promotion)


@command(release_app, "diff")
def compare_releases(
    namespace: NamespaceArgument,
    name: ReleaseArgument,
    other: Annotated[
        str | None, typer.Argument(metavar="OTHER", help="Another release.", show_default="what is served now")
    ] = None,
    server: ServerOption = None,
) -> CommandAnswer:
    """List the keys that another release, or the log as it is now, serves otherwise."""
    from .client import release_commands as commands

    return CommandAnswer(commands.compare(server, namespace, name, other), commands.render_changes)


@command(release_app, "export")
def export_release(
    namespace: NamespaceArgument,
    name: ReleaseArgument,
    output: Annotated[Path, typer.Option("--output", "-o", metavar="FILE", help="Where to.", show_default=False)],
    server: ServerOption = None,
) -> CommandAnswer:
    """Write a release with its signature into a file."""
    from .client import release_commands as commands

    return CommandAnswer(commands.export(server, namespace, name, output), commands.render_export)


@command(release_app, "delete")
def delete_release(namespace: NamespaceArgument, name: ReleaseArgument, server: ServerOption = None) -> CommandAnswer:
    """Delete a release that is not promoted. Its entries stay."""
    from .client import release_commands as commands

    return CommandAnswer(commands.delete(server, namespace, name), commands.render_delete)


@command(release_app, "key")
def show_release_key(
    server: ServerOption = None,
    make: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="Of no server: make a key for one, in a file.", show_default=False),
    ] = None,
) -> CommandAnswer:
    """Print the public key that releases of a server are checked with, or make a key for a server."""
    from .client import release_commands as commands

    if make is None:
        return CommandAnswer(commands.key(server), commands.render_key, alone="public_key")
    if server is not None:
        raise Refused("--make makes a file on this machine: it goes without --server")
    require("log release key --make", "cryptography")
    from .http.release_key import make_release_key

    try:
        public_key = make_release_key(make).public_key
    except FileExistsError as error:
        raise Refused(f"{make} is there already: a release key is never replaced") from error
    return CommandAnswer({"public_key": public_key}, commands.render_key, alone="public_key")


@command(log_app, "rollback")
def roll_back_log(namespace: NamespaceArgument, server: ServerOption = None) -> CommandAnswer:
    """Have lookups answered from the release that was promoted before."""
    from .client import release_commands as commands

    return CommandAnswer(commands.roll_back(server, namespace), commands.render_promotion)


@command(log_app, "verify")
def verify_release(
    file: Annotated[Path, typer.Argument(metavar="FILE", help="An exported release.", show_default=False)],
    key: Annotated[str, typer.Option(metavar="PUBLICKEY", help="Of who signed it.", show_default=False)],
    namespace: Annotated[
        str | None, typer.Option(metavar="NAMESPACE", help="That it must be of.", show_default="any")
    ] = None,
    name: Annotated[str | None, typer.Option(metavar="NAME", help="That it must have.", show_default="any")] = None,
) -> CommandAnswer:
    """Check that an exported release is what was signed. Needs no server."""
    from .client import release_commands as commands

    require("log verify", "cryptography")
    data = commands.check(file, key, namespace, name)
    return CommandAnswer(data, commands.render_check, exit_code=0 if data["signed"] else FAULT)


@command()
def audit(
    namespace: Annotated[
        str | None,
        typer.Argument(
            metavar="NAMESPACE", help="Of the log, this alone.", show_default="all, and what was tuned here"
        ),
    ] = None,
    server: OtherServerOption = None,
    db: DbOption = None,
) -> CommandAnswer:
    """Find keys and tasks on which machines of one fleet would not agree. Ends with 1 where there are any."""
    from .client import audit_commands as commands

    data = commands.audit(namespace, server, db)
    return CommandAnswer(data, commands.render, exit_code=0 if data["agree"] else FAULT)
