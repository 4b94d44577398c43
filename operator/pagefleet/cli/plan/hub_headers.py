"""A hub repository's config.json and file headers, by HTTP range requests: no weight is downloaded."""

import os
from pathlib import Path
from typing import Any

from pagefleet.capacity import ModelFacts, read_model
from pagefleet.capacity.safetensors_header import INDEX_FILE, SINGLE_FILE
from pagefleet.cli.errors import UserMistake, require_extra
from pagefleet.cli.plan.safetensors_headers import read_headers, read_json

HUB_TIMEOUT_S = 10.0


def read_hub_model(repository: str, revision: str | None, *, asks_hub: bool = True) -> ModelFacts:
    """Return the facts of a model on the hub, or of its copy in the local cache; raises UserMistake or CannotPlan."""
    require_extra("engine", ("huggingface_hub",))
    cached = _cached_folder(repository, revision)
    if cached is not None:
        return read_model(repository, read_json(cached / "config.json"), read_headers(cached))
    if not asks_hub:
        raise UserMistake(f"{repository} is not in the local cache; pagefleet plan asks the hub")
    try:
        config, headers = _fetch(repository, revision)
    except Exception as error:
        raise UserMistake(_sentence(repository, revision, error)) from None
    return read_model(repository, config, headers)


def _cached_folder(repository: str, revision: str | None) -> Path | None:
    from huggingface_hub import try_to_load_from_cache
    from huggingface_hub.errors import HFValidationError

    try:
        config = try_to_load_from_cache(repository, "config.json", revision=revision)
    except HFValidationError as error:
        raise UserMistake(f"model {repository} is neither a path nor a hub id such as org/name: {error}") from None
    if not isinstance(config, str):
        return None
    folder = Path(config).parent
    return folder if any((folder / name).is_file() for name in (INDEX_FILE, SINGLE_FILE)) else None


def _fetch(repository: str, revision: str | None) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    from huggingface_hub import HfApi, get_safetensors_metadata, hf_hub_download
    from huggingface_hub.utils import disable_progress_bars

    disable_progress_bars()
    # Asked once, before what the client would try six times: an unreachable hub is told after seconds.
    commit = HfApi().model_info(repository, revision=revision, timeout=HUB_TIMEOUT_S).sha
    config = read_json(Path(hf_hub_download(repository, "config.json", revision=commit)))
    files = get_safetensors_metadata(repository, revision=commit).files_metadata
    headers = [
        {
            name: {"dtype": tensor.dtype, "shape": tensor.shape, "data_offsets": tensor.data_offsets}
            for name, tensor in file.tensors.items()
        }
        for file in files.values()
    ]
    return config, headers


def _sentence(repository: str, revision: str | None, error: Exception) -> str:
    """Return what to tell of an error of the hub's client, which raises its own types and its HTTP library's."""
    from huggingface_hub.errors import EntryNotFoundError, HfHubHTTPError, NotASafetensorsRepoError

    if isinstance(error, UserMistake):
        return error.sentences[0]
    if isinstance(error, NotASafetensorsRepoError):
        return f"repository {repository} has no safetensors files: give one that has, or a GGUF file"
    if isinstance(error, HfHubHTTPError) and error.response is not None:
        what = "has no config.json" if isinstance(error, EntryNotFoundError) else "cannot be read"
        at = f" at revision {revision}" if revision else ""
        return (
            f"repository {repository}{at} {what} (the hub answers {error.response.status_code}): check the name, and "
            "HF_TOKEN if it is private"
        )
    offline = os.environ.get("HF_HUB_OFFLINE")
    cause = f"HF_HUB_OFFLINE={offline} forbids to ask the hub" if offline else "the hub cannot be reached"
    return f"model {repository} is not in the local cache and {cause}: give a folder with its files instead"
