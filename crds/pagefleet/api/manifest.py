"""Read manifests the way the API server will judge them, and report every mistake with its line."""

from dataclasses import dataclass, field
from pathlib import Path as FilePath

from pydantic import ValidationError

from pagefleet.api import API_VERSION, GROUP, KIND
from pagefleet.api.manifest_messages import explain, path_text, shown
from pagefleet.api.manifest_tree import Document, Path, Position, Problem, read_documents
from pagefleet.api.v1alpha1 import InferenceService
from pagefleet.api.v1alpha1.autoscaling_schedule import CHECK_TIME_ZONES

MAX_FILE_BYTES = 1024 * 1024
"""A manifest larger than this is another kind of file, such as weights given by mistake."""


@dataclass(frozen=True)
class LoadedService:
    """A service and where it was written."""

    service: InferenceService
    file: str
    document: int
    """Number of its YAML document in the file, from 1."""
    line: int


@dataclass(frozen=True)
class SkippedObject:
    """An object of another kind, which pagefleet leaves alone."""

    kind: str
    name: str
    """`metadata.name`, or empty."""
    document: int
    line: int


@dataclass(frozen=True)
class ManifestError:
    """One mistake of the user, with its place. `str` gives the whole line to print."""

    file: str
    document: int | None
    """Number of the YAML document in the file, from 1; None for a mistake of the whole file."""
    line: int | None
    field: str
    """Path such as `spec.engine.blockSize`; empty for a mistake of the whole document."""
    message: str

    def __str__(self) -> str:
        line = "" if self.line is None else f":{self.line}"
        document = f" (document {self.document})" if self.document and self.document > 1 else ""
        path = f" {self.field}" if self.field else ""
        return f"{self.file}{line}{document}{path}: {self.message}"


@dataclass(frozen=True)
class ManifestSet:
    """What a file holds. Use the services only where there are no errors."""

    services: tuple[LoadedService, ...] = ()
    skipped: tuple[SkippedObject, ...] = ()
    errors: tuple[ManifestError, ...] = ()


def read_manifests(path: FilePath | str) -> ManifestSet:
    """Read the manifests in a file. Never raises: a file that can't be read is an error in the result."""
    file = str(path)
    try:
        with FilePath(path).open("rb") as stream:
            content = stream.read(MAX_FILE_BYTES + 1)
    except FileNotFoundError:
        return _file_error(file, "there is no such file")
    except IsADirectoryError:
        return _file_error(file, "this is a folder; name a file in it")
    except (OSError, ValueError) as error:  # ValueError: a NUL in the path
        return _file_error(file, f"the file can't be read: {getattr(error, 'strerror', None) or error}")
    if len(content) > MAX_FILE_BYTES:
        return _file_error(file, f"the file is larger than {MAX_FILE_BYTES // 2**20} MiB, so it is not a manifest")
    try:
        text = content.decode()
    except UnicodeDecodeError as error:
        line = content.count(b"\n", 0, error.start) + 1
        return _file_error(file, f"the byte 0x{content[error.start]:02X} is not UTF-8; save the file as UTF-8", line)
    return load_manifests(text, file)


def load_manifests(text: str, file: str) -> ManifestSet:
    """Read the manifests in a text; `file` only names it in errors. Never raises."""
    collector = _Collector(file)
    documents = list(read_documents(text))
    for document in documents:
        collector.add_document(document)
    if not (collector.services or collector.skipped or collector.errors):
        return _file_error(file, f"the file is empty; write an {KIND} of {API_VERSION}")
    collector.check_names()
    return collector.result()


def _file_error(file: str, message: str, line: int | None = None) -> ManifestSet:
    return ManifestSet(errors=(ManifestError(file, None, line, "", message),))


@dataclass
class _Collector:
    """Gathers the objects and mistakes of one file."""

    file: str
    services: list[LoadedService] = field(default_factory=list)
    places: list[tuple[Document, Path]] = field(default_factory=list)
    """Where each service stands, in the same order."""
    skipped: list[SkippedObject] = field(default_factory=list)
    errors: dict[tuple[Position, str], ManifestError] = field(default_factory=dict)
    """By place and message, so that a mistake behind an anchor that is used twice is told once."""

    def result(self) -> ManifestSet:
        errors = sorted(self.errors.items(), key=lambda item: (item[0][0].line, item[0][0].column))
        return ManifestSet(tuple(self.services), tuple(self.skipped), tuple(error for _, error in errors))

    def add_document(self, document: Document) -> None:
        for problem in document.problems:
            self._add_problem(problem)
        if document.value is not None:
            self._add_object(document, document.value, ())

    def _add_problem(self, problem: Problem) -> None:
        key = (problem.position, problem.message)
        place = path_text(problem.path)
        self.errors.setdefault(
            key, ManifestError(self.file, problem.document, problem.position.line, place, problem.message)
        )

    def _error(self, document: Document, path: Path, message: str) -> None:
        self._add_problem(Problem(document.index, document.position(path), path, message))

    def _add_object(self, document: Document, value: object, path: Path) -> None:
        if not isinstance(value, dict):
            self._error(document, path, f"{shown(value)} is not an object; write apiVersion, kind, metadata and spec")
            return
        api_version, kind = value.get("apiVersion"), value.get("kind")
        mistake = _header_mistake(api_version, kind)
        if mistake:
            name, message = mistake
            self._error(document, (*path, name) if name else path, message)
        elif kind in ("List", f"{KIND}List"):
            self._add_list(document, value.get("items"), (*path, "items"))
        elif api_version == API_VERSION:
            self._add_service(document, value, path)
        else:
            line = document.position(path).line
            self.skipped.append(SkippedObject(str(kind), _name_of(value), document.index, line))

    def _add_list(self, document: Document, items: object, path: Path) -> None:
        if not isinstance(items, list):
            self._error(document, path, "a List needs items; write them as a YAML list under `items:`")
            return
        for index, item in enumerate(items):
            self._add_object(document, item, (*path, index))

    def _add_service(self, document: Document, value: dict[str, object], path: Path) -> None:
        # `kubectl get -o yaml` prints a status too: it is no wish of the user's, and perhaps an older version's.
        written = {key: part for key, part in value.items() if key != "status"}
        try:
            service = InferenceService.from_manifest(written, context={CHECK_TIME_ZONES: True})
        except ValidationError as error:
            for mistake in explain(error):
                field_path = (*path, *mistake.path)
                if not any(_is_within(problem.path, field_path) for problem in document.problems):
                    self._error(document, field_path, mistake.message)
            return
        self.places.append((document, path))
        self.services.append(LoadedService(service, self.file, document.index, document.position(path).line))

    def check_names(self) -> None:
        """Find services that would overwrite each other, or that clients couldn't tell apart."""
        objects: dict[tuple[str, str], LoadedService] = {}
        models: dict[tuple[str, str], LoadedService] = {}
        for loaded, (document, path) in zip(self.services, self.places, strict=True):
            metadata, model = loaded.service.metadata, loaded.service.served_name
            twin = objects.setdefault((metadata.namespace, metadata.name), loaded)
            namesake = models.setdefault((metadata.namespace, model), loaded)
            if twin is not loaded:
                message = f"{metadata.name} is also the name of the service on line {twin.line}; rename one of them"
                self._error(document, (*path, "metadata", "name"), message)
            elif namesake is not loaded:
                message = f"{model} is also the model name of the service on line {namesake.line}; rename one of them"
                self._error(document, (*path, "spec", "model", "name"), message)


def _is_within(inner: Path, outer: Path) -> bool:
    return inner[: len(outer)] == outer


def _header_mistake(api_version: object, kind: object) -> tuple[str, str] | None:
    """Return the wrong one of apiVersion and kind, with a sentence; None where the object is ours, or surely not."""
    if kind is None and api_version is None:
        return "", f"this is not a Kubernetes object; write apiVersion: {API_VERSION} and kind: {KIND}"
    for name, value, example in (("apiVersion", api_version, API_VERSION), ("kind", kind, KIND)):
        if value is None:
            return name, f"is required; write {name}: {example}"
        if not isinstance(value, str):
            return name, f"{shown(value)} is not text; write {name}: {example}"
    api_version, kind = str(api_version), str(kind)
    if kind == "List":
        return None
    group = api_version.rpartition("/")[0]
    if group == GROUP:
        if api_version != API_VERSION:
            return "apiVersion", f"{shown(api_version)} is not a version that exists; write {API_VERSION}"
        if kind not in (KIND, f"{KIND}List"):
            return "kind", f"{shown(kind)} is not a kind of {GROUP}; write {KIND}"
    elif kind.lower() == KIND.lower() and ("pagefleet" in group or not group):
        return "apiVersion", f"{shown(api_version)} is not the group of this kind; write {API_VERSION}"
    return None


def _name_of(value: dict[str, object]) -> str:
    metadata = value.get("metadata")
    name = metadata.get("name") if isinstance(metadata, dict) else None
    return name if isinstance(name, str) else ""
