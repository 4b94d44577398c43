"""`pagefleet crds`: print the CustomResourceDefinition, or check that a file still holds it."""

from pathlib import Path
from typing import Annotated

import typer

from pagefleet.cli.errors import CommandError, UserMistake


def crds(
    check: Annotated[
        bool, typer.Option("--check", help="Compare with --file, print nothing, fail where stale.")
    ] = False,
    file: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="The file of --check.  [default: the repository's]", show_default=False),
    ] = None,
) -> None:
    """Print the CustomResourceDefinition of InferenceService, for `kubectl apply --server-side -f -`."""
    from pagefleet.api.crd import CRD_FILE, crd_yaml

    if not check:
        if file is not None:
            raise UserMistake("--file is read by --check only; to write a file, run pagefleet crds > FILE.")
        typer.echo(crd_yaml(), nl=False)
        return
    path = file or Path(CRD_FILE)
    try:
        present = path.read_text()
    except OSError as error:
        raise UserMistake(
            f"{path} can't be read ({error.strerror}); run this in the repository, or name a --file."
        ) from error
    if present != crd_yaml():
        raise CommandError(f"{path} is stale: run pagefleet crds > {path}.")
