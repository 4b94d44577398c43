import subprocess
import sys

from pagefleet import api


def test_names_agree() -> None:
    assert f"{api.GROUP}/{api.VERSION}" == api.API_VERSION
    assert api.KIND.lower() + "s" == api.PLURAL


def test_group_sorts_after_kserve() -> None:
    """Bare `kubectl get inferenceservice` goes to the first group: other projects' users must not be surprised."""
    assert api.GROUP > "serving.kserve.io"


def test_import_has_no_side_effect() -> None:
    code = "import sys; import pagefleet.api; print('pydantic' in sys.modules, 'yaml' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, env=_path())
    assert done.stdout.split() == ["False", "False"]


def _path() -> dict[str, str]:
    return {"PYTHONPATH": ":".join(sys.path)}
