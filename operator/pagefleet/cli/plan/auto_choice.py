"""The knobs that `spec.tuning.mode: Auto` would choose for a service here, with the reasons that `plan` gives."""

from dataclasses import replace

from pagefleet.api.v1alpha1 import InferenceService, TuningMode
from pagefleet.capacity import CannotPlan
from pagefleet.capacity.text import bytes_text
from pagefleet.cli.errors import UserMistake
from pagefleet.cli.plan.inputs import choose_accelerator, subject_of
from pagefleet.cli.plan.model_sources import read_model_facts
from pagefleet.operator.plan.plan_request import make_request
from pagefleet.operator.plan.plan_status import chosen_flags
from pagefleet.operator.plan.tuned_knobs import NO_KNOBS
from pagefleet.operator.plan.tuning import propose


def describe_auto(service: InferenceService, *, memory_share: float = 1.0) -> list[str]:
    """Return a line for each knob, or one on why there is none; nothing where tuning is off.

    Files are read where they lie, and no hub is asked. `memory_share` is the part of the memory that a replica has.
    """
    name, tuning = service.metadata.name, service.spec.tuning
    if tuning.mode is TuningMode.OFF:
        return []
    try:
        subject = subject_of(service)
        found = choose_accelerator(subject)
        here = replace(found, memory_bytes=int((found.memory_bytes or 0) * memory_share))
        facts = read_model_facts(subject.model, revision=subject.revision, asks_hub=False)
        proposal = propose(service, NO_KNOBS, make_request(service.spec, facts, here))
    except UserMistake as mistake:
        return [f"{name}: its knobs are not planned: {mistake.sentences[0].removeprefix(f'{name}: ')}"]
    except CannotPlan as refusal:
        return [f"{name}: its knobs are not planned: {refusal}"]
    flags = chosen_flags(proposal.knobs)
    lines = [f"  --{one.knob} {one.value}: {one.sentence}" for one in proposal.plan.choices if one.knob in flags]
    where = f"on {here.name} with {bytes_text(here.memory_bytes or 0)}, for {tuning.objective}"
    if not lines:
        return [f"{name}: tuning.mode Auto would change nothing {where}"]
    return [f"{name}: tuning.mode Auto would choose {where}:", *lines]
