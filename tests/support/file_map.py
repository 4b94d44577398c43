"""The README's file map, made of the modules' first sentences: `make map` writes it, a test compares it."""

import ast
import re
from pathlib import Path

ROOT = Path(__file__).parents[2]
PACKAGE_FOLDERS = ("crds", "operator", "autoscaler", "engine_image")
BEGIN, END = "<!-- file map: make map -->\n", "<!-- end of file map -->"


def first_sentence(module: Path) -> str:
    """Return the first sentence of a module's docstring, without its full stop."""
    text = " ".join((ast.get_docstring(ast.parse(module.read_text())) or "").split("\n\n")[0].split())
    return re.split(r"(?<=[.])\s+(?=[A-Z])", text)[0].rstrip(".")


def render() -> str:
    """Return the map: a table for each folder, a row for each module that holds code."""
    modules = sorted(path for folder in PACKAGE_FOLDERS for path in (ROOT / folder).rglob("*.py"))
    folders: dict[Path, list[Path]] = {}
    for module in modules:
        if module.name != "__init__.py" or len(ast.parse(module.read_text()).body) > 1:
            folders.setdefault(module.parent, []).append(module)
    lines = []
    for folder, members in folders.items():
        lines += [f"**`{folder.relative_to(ROOT)}/`**", "", "| file | what it is |", "|---|---|"]
        lines += [f"| `{member.name}` | {first_sentence(member)} |" for member in members]
        lines.append("")
    return "\n".join(lines)


def current(readme: str) -> str:
    """Return the map that a README holds."""
    return readme.split(BEGIN)[1].split(END)[0]


def main() -> None:
    """Write the map into the README."""
    path = ROOT / "README.md"
    before, rest = path.read_text().split(BEGIN)
    path.write_text(before + BEGIN + render() + END + rest.split(END)[1])


if __name__ == "__main__":
    main()
