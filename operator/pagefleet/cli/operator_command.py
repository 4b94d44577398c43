"""`pagefleet operator run`: the operator's flags; all else comes from the environment, as the chart sets it."""

from typing import Annotated

import typer

from pagefleet.cli.errors import UserMistake, require_extra

OPERATOR_MODULES = ("aiohttp", "kopf", "kubernetes", "prometheus_client")


def run(
    kubeconfig: Annotated[
        str | None,
        typer.Option(metavar="FILE", help="Credentials; default $KUBECONFIG, or those of the pod.", show_default=False),
    ] = None,
    namespace: Annotated[
        list[str] | None,
        typer.Option(help="Serve this namespace only; may be given again. Default all.", show_default=False),
    ] = None,
    http_port: Annotated[
        int | None, typer.Option(help="Port of health and metrics; default 8080.", show_default=False)
    ] = None,
) -> None:
    """Run the operator: turn InferenceServices into engine pods until stopped."""
    require_extra("operator", OPERATOR_MODULES)
    from pagefleet.operator.settings import SettingsError, read_settings
    from pagefleet.operator.start import start

    try:
        settings = read_settings(kubeconfig=kubeconfig, namespaces=tuple(namespace or ()), http_port=http_port)
    except SettingsError as error:
        raise UserMistake(f"{error}.") from error
    raise typer.Exit(start(settings))
