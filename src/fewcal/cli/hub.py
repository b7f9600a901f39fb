"""`fewcal hub push` and `fewcal hub pull`: banks and classifiers on the Hugging Face Hub."""

from pathlib import Path
from typing import Annotated

import typer

from fewcal.apply.checks import checked_new_file
from fewcal.cli.options import Quiet, readable_model

hub = typer.Typer(no_args_is_help=True, help="Banks and classifiers on the Hugging Face Hub.")
Repo = Annotated[str, typer.Argument(help="user/name on the Hub.")]


@hub.command()
def push(
    file: Annotated[Path, typer.Argument(help="A bank or a classifier.", callback=readable_model)],
    repo: Repo,
    public: Annotated[bool, typer.Option("--public", help="Let everybody read a new repository.")] = False,
    quiet: Quiet = False,
) -> None:
    """Upload a bank or a classifier with a model card.

    The token is that of `hf auth login`, or HF_TOKEN in the environment.
    """
    from fewcal.apply.hub import push_to_hub

    address = push_to_hub(file, repo, private=not public)
    if not quiet:
        print(address)


@hub.command()
def pull(
    repo: Repo,
    out: Annotated[Path, typer.Argument(help="The file to write.", callback=checked_new_file)],
    revision: Annotated[str | None, typer.Option(help="A branch, a tag or a commit.")] = None,
    quiet: Quiet = False,
) -> None:
    """Download a bank or a classifier."""
    from fewcal.apply.hub import pull_from_hub

    pull_from_hub(repo, out, revision=revision)
    if not quiet:
        print(f"{out}: {out.stat().st_size / 1e6:.1f} MB")
