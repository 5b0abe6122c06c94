"""The commands of webhooks.

Nothing here imports the client of a server before one of these commands is called.
"""

from __future__ import annotations

from typing import Annotated

import typer

from tunewright.tuner.cli import app
from tunewright.tuner.cli.answers import CommandAnswer
from tunewright.tuner.cli.app import command

from .command_options import ServerOption

webhook_app = typer.Typer(help="Addresses that a server tells of jobs.", no_args_is_help=True)
app.add_typer(webhook_app, name="webhook")

WebhookArgument = Annotated[
    str, typer.Argument(metavar="ID", help="The webhook's id, as webhook list has it.", show_default=False)
]


@command(webhook_app, "create")
def create_webhook(
    url: Annotated[str, typer.Argument(metavar="URL", help="Where to: https://...", show_default=False)],
    on: Annotated[
        list[str] | None,
        typer.Option(
            "--on",
            metavar="succeeded|failed|cancelled|regressed",
            help="What to tell it; may be given several times.",
            show_default="all of these",
        ),
    ] = None,
    server: ServerOption = None,
) -> CommandAnswer:
    """Have an address told of the jobs of the key, and print its secret alone on standard output."""
    from .client import webhook_commands as commands

    return CommandAnswer(commands.create_webhook(server, url, on), commands.render_create, alone="secret")


@command(webhook_app, "list")
def list_webhooks(server: ServerOption = None) -> CommandAnswer:
    """List the webhooks of the key, the newest first."""
    from .client import webhook_commands as commands

    return CommandAnswer(commands.list_webhooks(server), commands.render_webhooks)


@command(webhook_app, "delete")
def delete_webhook(webhook_id: WebhookArgument, server: ServerOption = None) -> CommandAnswer:
    """Delete a webhook: what waits is not sent any more."""
    from .client import webhook_commands as commands

    return CommandAnswer(commands.delete_webhook(server, webhook_id), commands.render_delete)


@command(webhook_app, "test")
def test_webhook(webhook_id: WebhookArgument, server: ServerOption = None) -> CommandAnswer:
    """Have a webhook told something that is about no job."""
    from .client import webhook_commands as commands

    return CommandAnswer(commands.test_webhook(server, webhook_id), commands.render_test)


@command(webhook_app, "deliveries")
def list_deliveries(webhook_id: WebhookArgument, server: ServerOption = None) -> CommandAnswer:
    """List what a webhook was told, the newest first, and what came of it."""
    from .client import webhook_commands as commands

    return CommandAnswer(commands.list_deliveries(server, webhook_id), commands.render_deliveries)
