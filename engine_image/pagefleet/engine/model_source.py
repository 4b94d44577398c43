"""Find a model's files: a folder, a GGUF file, a package's data file, or a repository of the Hugging Face hub."""

import importlib.util
import os
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import dataclass
from pathlib import Path

from pagefleet.engine.download_progress import report_growth
from pagefleet.engine.errors import StartupError

PACKAGE_SCHEME = "package://"
HUB_FILES = ["*.json", "*.safetensors", "*.model", "*.jinja", "*.txt"]
"""What the engine reads of a hub repository: never pickled weights."""

HUB_TIMEOUT_S = 5.0
"""How long the hub may take to tell how much there is to download."""


@dataclass(frozen=True)
class ModelSource:
    """Point at files on this machine."""

    folder: Path
    gguf_file: str | None = None
    """Name of the GGUF file in the folder; None means config.json and safetensors."""
    is_quantized: bool = False
    """Whether the weights come from a quantized format, so that their stored dtype says nothing of their precision."""

    @property
    def path(self) -> Path:
        """Return the file or folder to show to the user."""
        return self.folder / self.gguf_file if self.gguf_file else self.folder


def resolve_model(
    model: str, on_progress: Callable[[float | None], None], *, revision: str | None = None
) -> ModelSource:
    """Find the model's files, downloading them when it is a hub id; raises StartupError.

    `on_progress` gets the share downloaded, from 0 to 1, or None while it is unknown. Present files are not fetched
    again. `revision` is a branch, tag or commit of the hub repository; files on this machine have none.
    """
    if model.startswith(PACKAGE_SCHEME):
        return _from_path(_package_file(model))
    if "://" in model:
        raise StartupError(f"model {model} has a scheme the engine cannot open; use a path, a hub id or package://m/f")
    if Path(model).exists():
        return _from_path(Path(model))
    if model.startswith((".", "/", "~")) or model.endswith(".gguf") or model.count("/") > 1:
        raise StartupError(f"model {model} does not exist; give a folder, a .gguf file or a hub id such as org/name")
    return ModelSource(_download(model, revision, on_progress))


def _from_path(path: Path) -> ModelSource:
    if path.is_dir():
        if (path / "config.json").is_file():
            return ModelSource(path)
        gguf = sorted(file.name for file in path.glob("*.gguf"))
        if len(gguf) == 1:
            return ModelSource(path, gguf[0], is_quantized=True)
        found = f"{len(gguf)} .gguf files, name one of them" if gguf else "neither config.json nor a .gguf file"
        raise StartupError(f"folder {path} holds {found}")
    if path.suffix != ".gguf":
        raise StartupError(f"file {path} is no model; give a folder with config.json, or a .gguf file")
    return ModelSource(path.parent, path.name, is_quantized=True)


def _package_file(model: str) -> Path:
    """Find a package's file without importing the package, whose own imports may not be installed."""
    module, _, name = model.removeprefix(PACKAGE_SCHEME).partition("/")
    package, *parts = module.split(".")
    try:
        spec = importlib.util.find_spec(package) if package else None
    except (ImportError, ValueError):
        spec = None
    if spec is None or not spec.submodule_search_locations:
        raise StartupError(f"model {model}: package {package or '(none)'} is not installed in this environment")
    folder = Path(next(iter(spec.submodule_search_locations)), *parts).resolve()
    path = (folder / name).resolve()
    if not name or not path.is_relative_to(folder) or not path.exists():
        raise StartupError(f"model {model}: package {module} has no file {name or '(none)'}")
    return path


def _download(repository: str, revision: str | None, on_progress: Callable[[float | None], None]) -> Path:
    from huggingface_hub.errors import HfHubHTTPError, HFValidationError, LocalEntryNotFoundError

    on_progress(None)
    try:
        folder = _fetch(repository, revision, on_progress)
    except HFValidationError as error:
        raise StartupError(f"model {repository} is neither a path nor a hub id such as org/name") from error
    except LocalEntryNotFoundError as error:
        offline = os.environ.get("HF_HUB_OFFLINE")
        cause = f"HF_HUB_OFFLINE={offline} forbids a download" if offline else "the hub cannot be reached"
        raise StartupError(f"model {repository} is not in the local cache and {cause}; give a path instead") from error
    except HfHubHTTPError as error:
        status = error.response.status_code if error.response is not None else "?"
        raise StartupError(
            f"the hub answers {status} for model {repository}"
            f"{f' at revision {revision}' if revision else ''}: check the name, and HF_TOKEN if it is private"
        ) from error
    except OSError as error:
        raise StartupError(f"model {repository} cannot be downloaded: {error}") from error
    if not (folder / "config.json").is_file():
        raise StartupError(f"repository {repository} holds no config.json, so it is not a model for this engine")
    return folder


def _fetch(repository: str, revision: str | None, on_progress: Callable[[float | None], None]) -> Path:
    from huggingface_hub import snapshot_download
    from huggingface_hub.constants import HF_HUB_CACHE
    from huggingface_hub.file_download import repo_folder_name

    cache = Path(HF_HUB_CACHE) / repo_folder_name(repo_id=repository, repo_type="model")
    missing_bytes = _missing_bytes(repository, revision, cache / "blobs")
    with report_growth(cache, missing_bytes, on_progress) if missing_bytes else nullcontext():
        return Path(snapshot_download(repository, revision=revision, allow_patterns=HUB_FILES))


def _missing_bytes(repository: str, revision: str | None, blobs: Path) -> int:
    """Return the bytes that a download will fetch; 0 also when the hub does not tell, which the download then says."""
    from huggingface_hub import HfApi
    from huggingface_hub.utils import filter_repo_objects

    try:
        info = HfApi().model_info(repository, revision=revision, files_metadata=True, timeout=HUB_TIMEOUT_S)
    except Exception:  # offline, not found, no permission: progress is a comfort, not a condition
        return 0
    wanted = filter_repo_objects(info.siblings or [], allow_patterns=HUB_FILES, key=lambda file: file.rfilename)
    # The cache names a blob by its hash: sha256 of large files, git's object id of the others.
    return sum(
        file.size or 0 for file in wanted if not (blobs / str(file.lfs.sha256 if file.lfs else file.blob_id)).exists()
    )
