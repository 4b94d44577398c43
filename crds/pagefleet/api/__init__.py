"""The contract between the parts: resource types, conditions, labels, the capacity message and the metric table.

Everything here is pure except `manifest.read_manifests`, which reads one file, and the Kubernetes client (`client`,
`client_connection`). No other part is imported.
"""

from typing import Final

GROUP: Final = "serving.pagefleet.io"
VERSION: Final = "v1alpha1"
API_VERSION: Final = "serving.pagefleet.io/v1alpha1"
KIND: Final = "InferenceService"
PLURAL: Final = "inferenceservices"
SHORT_NAME: Final = "pf"  # not `isvc`, which other projects' resources of the same kind own
