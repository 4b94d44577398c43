"""`pagefleet validate`: check manifests without running anything."""

from pathlib import Path
from typing import Annotated

import typer

from pagefleet.cli.errors import UserMistake


def validate(
    files: Annotated[list[Path], typer.Argument(metavar="FILE...", help="Manifests (YAML).", show_default=False)],
) -> None:
    """Check manifests: one line per mistake and exit code 2, or what is valid, and the knobs that Auto would choose."""
    from pagefleet.api.manifest import read_manifests
    from pagefleet.cli.plan.auto_choice import describe_auto
    from pagefleet.operator.plan.engine_arguments import find_unsupported

    sets = [read_manifests(file) for file in files]
    if errors := [str(error) for one in sets for error in one.errors]:
        raise UserMistake(errors)
    services = [loaded.service for one in sets for loaded in one.services]
    for service in services:
        for refused in find_unsupported(service.spec):
            typer.echo(f"{service.metadata.name}: valid, but {refused}", err=True)
    typer.echo(f"Valid: {', '.join(service.metadata.name for service in services) or 'no InferenceService in it'}.")
    for service in services:
        for line in describe_auto(service):
            typer.echo(line)
