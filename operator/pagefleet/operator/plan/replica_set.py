"""The ReplicaSet of one revision: Kubernetes keeps its pods alive, the operator decides how many there are."""

from pagefleet.api.labels import revision_labels, revision_selector
from pagefleet.api.resources import REPLICA_SETS
from pagefleet.api.v1alpha1 import InferenceService
from pagefleet.operator.plan.intent import Intent, make_intent
from pagefleet.operator.plan.names import revision_name
from pagefleet.operator.plan.pod_template import label_template
from pagefleet.operator.plan.revision import Revision


def render_replica_set(service: InferenceService, revision: Revision, replicas: int) -> Intent:
    """Return the ReplicaSet of a revision.

    `replicas` is always sent: leaving out a field that we owned would set it to its default, 1.
    """
    name = service.metadata.name
    return make_intent(
        REPLICA_SETS,
        service,
        revision_name(name, revision.revision),
        {
            "spec": {
                "replicas": replicas,
                "selector": {"matchLabels": revision_selector(name, revision.revision)},
                "template": label_template(revision.template, name, revision.revision),
            }
        },
        labels=revision_labels(name, revision.revision),
    )
