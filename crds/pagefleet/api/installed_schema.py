"""The CustomResourceDefinition as the cluster has it: an older one refuses a status with newer fields as a whole."""

import logging
from dataclasses import dataclass
from typing import Any

from pagefleet.api import VERSION
from pagefleet.api.client import KubernetesClient
from pagefleet.api.client_errors import ApiError
from pagefleet.api.crd import CRD_NAME, schema_hash
from pagefleet.api.labels import SCHEMA_HASH_ANNOTATION
from pagefleet.api.resources import CUSTOM_RESOURCE_DEFINITIONS, INFERENCE_SERVICES

JsonObject = dict[str, Any]
INSTALL = "pagefleet crds | kubectl apply --server-side -f -"

logger = logging.getLogger(__name__)


class SchemaMissing(Exception):
    """Say that the cluster has no InferenceService, and how to give it one."""


@dataclass(frozen=True, slots=True)
class InstalledSchema:
    """What the cluster knows of a service's status."""

    is_current: bool = True
    status: JsonObject | None = None
    """Schema of `status`, where it is not this version's."""

    def prune(self, status: JsonObject) -> JsonObject:
        """Return a status without the fields that the cluster does not know."""
        return status if self.status is None else _prune(status, self.status)


async def read_installed_schema(client: KubernetesClient) -> InstalledSchema:
    """Read the CustomResourceDefinition; raises SchemaMissing. Without the right to read it, it is trusted."""
    try:
        found = await client.get(CUSTOM_RESOURCE_DEFINITIONS, None, CRD_NAME)
    except ApiError as error:
        logger.info("the CustomResourceDefinition can't be read, it is taken for current: %s", error)
        if await client.serves(INFERENCE_SERVICES):
            return InstalledSchema()
        found = None
    if found is None:
        raise SchemaMissing(f"The cluster has no {CRD_NAME}; install it: {INSTALL}")
    if (found["metadata"].get("annotations") or {}).get(SCHEMA_HASH_ANNOTATION) == schema_hash():
        return InstalledSchema()
    logger.warning("%s is of another version, newer status fields are left out; update it: %s", CRD_NAME, INSTALL)
    versions = found["spec"]["versions"]
    schema: JsonObject = next((one["schema"]["openAPIV3Schema"] for one in versions if one["name"] == VERSION), {})
    return InstalledSchema(is_current=False, status=(schema.get("properties") or {}).get("status"))


def _prune(value: Any, schema: JsonObject) -> Any:
    if isinstance(value, list):
        return [_prune(item, schema.get("items") or {}) for item in value]
    properties = schema.get("properties")
    if not isinstance(value, dict) or properties is None:
        return value
    return {key: _prune(part, properties[key]) for key, part in value.items() if key in properties}
