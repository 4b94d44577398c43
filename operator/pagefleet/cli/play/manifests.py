"""From manifest files to what should run on this machine."""

from collections.abc import AsyncGenerator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from pagefleet.api.manifest import LoadedService, read_manifests
from pagefleet.api.v1alpha1 import AutoscalingMode, InferenceService
from pagefleet.capacity.text import bytes_text
from pagefleet.cli.play.division import Need, divide
from pagefleet.cli.play.fleet import LocalService
from pagefleet.cli.play.local_plan import LocalPlan, plan_here
from pagefleet.cli.play.plan import WantedService, share_of_machine
from pagefleet.cli.play.scaling import ScalingTerms
from pagefleet.engine.machine import usable_cores
from pagefleet.operator.plan.engine_arguments import UnsupportedSpec, locate_model, render_engine_arguments

HOST = "127.0.0.1"


@dataclass(frozen=True, slots=True)
class LocalManifests:
    """Hold what files ask for. Use the services only where there are no errors."""

    services: tuple[LocalService, ...] = ()
    specs: tuple[InferenceService, ...] = ()
    """The services as they are written."""
    errors: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()
    """What is valid but has no effect on this machine, one sentence each."""

    @property
    def memory_share(self) -> float:
        """The part of the machine's memory that each replica gets."""
        return share_of_machine(one.wanted for one in self.services)

    @property
    def refusals(self) -> list[str]:
        """List why services cannot run here, one sentence each."""
        return [f"{one.wanted.name}: {one.wanted.refusal}" for one in self.services if one.wanted.refusal]


def load(files: Sequence[Path], *, has_hub_token: bool = False, extra_flags: Sequence[str] = ()) -> LocalManifests:
    """Read files and turn every InferenceService into what play runs; never raises for what a file holds.

    `has_hub_token`: whether engines started here can read gated models. `extra_flags` go to every engine.
    """
    sets = [read_manifests(file) for file in files]
    loaded = [service for one in sets for service in one.services]
    errors = [str(error) for one in sets for error in one.errors] or _find_clashes(loaded)
    if not errors and not loaded:
        names = ", ".join(map(str, files))
        errors = [f"{names}: there is no InferenceService in it; examples/quickstart.yaml shows a small one"]
    if errors:
        return LocalManifests(errors=tuple(errors))
    services = [one.service for one in loaded]
    return LocalManifests(
        services=_scaled([_local(service, has_hub_token, extra_flags) for service in services], services),
        specs=tuple(services),
        notes=tuple(note for service in services for note in _notes(service)),
    )


def _find_clashes(loaded: Sequence[LoadedService]) -> list[str]:
    """Find names used twice over all files: play has one URL and no namespaces."""
    errors: dict[tuple[str, int], str] = {}  # by place: equal services are one mistake
    for field, names in (
        ("metadata.name", [one.service.metadata.name for one in loaded]),
        ("the model name", [one.service.served_name for one in loaded]),
    ):
        first: dict[str, LoadedService] = {}
        for name, one in zip(names, loaded, strict=True):
            other = first.setdefault(name, one)
            if other is not one:
                where = f"{other.file}:{other.line}"
                error = f"{one.file}:{one.line}: {field} {name} is also used in {where}; rename one"
                errors.setdefault((one.file, one.line), error)
    return list(errors.values())


def _local(service: InferenceService, has_hub_token: bool, extra_flags: Sequence[str]) -> LocalService:
    name, served_name, replicas = service.metadata.name, service.served_name, service.spec.replicas
    try:
        model = locate_model(service)
        if service.spec.model.token_secret is not None and not has_hub_token:
            raise _NoToken(service.spec.model.token_secret.name)
        configuration = (*render_engine_arguments(service, model=model, host=HOST, port=0, admin_port=0), *extra_flags)
    except (UnsupportedSpec, _NoToken) as refusal:
        wanted = WantedService(name, served_name, replicas, (), refusal=str(refusal))
        return LocalService(wanted, lambda _port, _admin_port, _share: [])

    def render(port: int, admin_port: int, share: float) -> list[str]:
        arguments = render_engine_arguments(
            service,
            model=model,
            host=HOST,
            port=port,
            admin_port=admin_port,
            memory_share=share,
            threads=share_of_cores(usable_cores(), share),
        )
        return [*arguments, *extra_flags]

    return LocalService(WantedService(name, served_name, replicas, configuration), render)


def _scaled(local: Sequence[LocalService], services: Sequence[InferenceService]) -> tuple[LocalService, ...]:
    """Return the services with what autoscaling may make of them, as far as the memory of this machine goes."""
    plans = [plan_here(service) if _mode(service) is not AutoscalingMode.OFF else LocalPlan() for service in services]
    most = divide(
        [
            Need(
                replicas=0 if one.wanted.refusal else _most_allowed(service),
                is_scaled=_mode(service) is AutoscalingMode.ACTIVE,
                least_bytes=plan.least_bytes,
                usable_bytes=plan.usable_bytes,
            )
            for one, service, plan in zip(local, services, plans, strict=True)
        ]
    )
    return tuple(
        one if _mode(service) is AutoscalingMode.OFF else _with_scaling(one, service, plan, replicas)
        for one, service, plan, replicas in zip(local, services, plans, most, strict=True)
    )


def _with_scaling(local: LocalService, service: InferenceService, plan: LocalPlan, most: int) -> LocalService:
    is_active = _mode(service) is AutoscalingMode.ACTIVE
    note = ""
    if is_active and most < _most_allowed(service) and plan.least_bytes and plan.usable_bytes:
        note = (
            f"a replica needs {bytes_text(plan.least_bytes)} of the {bytes_text(plan.usable_bytes)} that replicas may "
            f"share on this machine, which is enough for {most}"
        )
    spec = service.spec.autoscaling
    terms = ScalingTerms(
        service=service.model_copy(update={"status": service.status.model_copy(update={"plan": plan.status})}),
        is_active=is_active,
        most_replicas=most if is_active or spec is None else spec.max_replicas,
        memory_note=note,
    )
    wanted = replace(local.wanted, replicas=terms.first_replicas(), most_replicas=most if is_active else None)
    return replace(local, wanted=wanted, scaling=terms)


def _mode(service: InferenceService) -> AutoscalingMode:
    return AutoscalingMode.OFF if service.spec.autoscaling is None else service.spec.autoscaling.mode


def _most_allowed(service: InferenceService) -> int:
    """Return the replicas that the user allows."""
    if _mode(service) is AutoscalingMode.ACTIVE and service.spec.autoscaling is not None:
        return service.spec.autoscaling.max_replicas
    return service.spec.replicas


def share_of_cores(cores: int, share: float) -> int | None:
    """Return one replica's threads when several share the machine; None leaves the choice to a replica alone.

    One core is left to the engines' HTTP processes and the router, as an engine alone does.
    """
    return None if share >= 1 else max(1, int((cores - 1) * share))


class _NoToken(Exception):
    def __init__(self, secret: str) -> None:
        super().__init__(
            f"spec.model.tokenSecret is {secret}, and Secrets live in a cluster; "
            "set the variable HF_TOKEN to the token and start again."
        )


def _notes(service: InferenceService) -> list[str]:
    notes = []
    if service.spec.template.metadata or service.spec.template.spec:
        notes.append(f"{service.metadata.name}: spec.template has no effect here, it is about pods.")
    return notes


async def watch(files: Sequence[Path]) -> AsyncGenerator[None, None]:
    """Yield after any of the files changed, once things are quiet. Runs until it is cancelled."""
    from watchfiles import awatch

    # Folders, because most editors put a new file in the old one's place.
    wanted: Mapping[Path, Path] = {file.resolve(): file for file in files}
    folders = {file.parent for file in wanted}
    async for _changes in awatch(
        *folders,
        watch_filter=lambda _change, path: Path(path).resolve() in wanted,
        recursive=False,
        step=100,
    ):
        yield
