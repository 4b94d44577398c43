import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from pagefleet.api.manifest import load_manifests
from tests.api.manifests import HEAD, errors, manifest, names

BOMB = "a: &a [x,x,x,x,x,x,x,x,x,x]\n" + "".join(
    f"{name}: &{name} [{','.join([f'*{before}'] * 10)}]\n" for before, name in zip("abcdefgh", "bcdefghi", strict=True)
)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "m.yaml: the file is empty; write an InferenceService of serving.pagefleet.io/v1alpha1"),
        ("---\n# only a comment\n---\n", "m.yaml: the file is empty"),
        ("a:\n\tb: 1\n", "m.yaml:2: a tab stands where YAML takes only spaces"),
        ("a: b: c\n", "m.yaml:1: a ':' stands where none is allowed"),
        ("a:\n  b: 1\n c: 2\n", "m.yaml:3: the indentation does not match"),
        ('a: "b\n', "m.yaml:2: a quote is opened and never closed"),
        ("a: {b: 1\n", "m.yaml:2: a '{' is never closed"),
        ("a: *b\n", "m.yaml:1: an alias (*name) has no anchor"),
        ("a: b\nc\n", "m.yaml:3: a field has no ':'"),
        ("a: %b\n", "m.yaml:1: this is not YAML: found character '%'"),
        ("a: 1\nb: \x07\n", "m.yaml:2: the character U+0007 is not allowed in YAML"),
        ('a: "\\U7fffffff"\n', "m.yaml:1: a quoted text has an escape"),
        ("a: &a [*a]\n", "m.yaml:1: an alias (*name) stands inside its own anchor"),
        ("&a {b: {<<: *a}}\n", "m.yaml:1: an alias (*name) stands inside its own anchor"),
        (BOMB, "m.yaml:1: this document has more than 50000 values, counting"),
        ("[" * 200 + "]" * 200, "m.yaml:1: values are nested too deeply"),
        ("[" * 5000, "m.yaml:1: values are nested too deeply"),
    ],
    ids=lambda value: value[:20] if isinstance(value, str) else None,
)
def test_text_that_is_no_manifest_gets_one_sentence(text: str, message: str) -> None:
    (error,) = errors(text)
    assert error.startswith(message)


def test_documents_before_a_syntax_error_are_read() -> None:
    found = load_manifests(f"{manifest()}---\n\tx: 1\n", "m.yaml")
    assert names(found) == ["chat"]
    assert [str(error)[:20] for error in found.errors] == ["m.yaml:7 (document 2"]


YAML_PIECES = st.lists(
    st.sampled_from(
        [
            *"{}[]:,-&*!|>'\"%@`#?\n\t ",
            *("\n  ", "<<: *a", "&a ", "*a", "---\n", "kind: List\n", "items:\n", HEAD, "spec:\n"),
            *("0x_", "0b_", "1:99", ".nan", "2026-99-99", "!!int x", "!!set ", "!!float", "!!bool x", "~", "="),
            *("\\x", "é", "\ud800"),
        ]
    )
).map("".join)


@given(st.text() | YAML_PIECES | YAML_PIECES.map(lambda text: manifest(spec="  " + text)))
@example("a: 0x_\nb: 0b_\nc: !!int x\nd: !!bool x\ne: !!float ''\nf: !!int ''\n")
@example("a: " + "9" * 5000)
@example("? [a]\n: b\n? \n: c\n")
@example(manifest(spec="  template: {spec: {a: 2026-01-01, b: ~, c: 1e400, d: =}}\n"))
@settings(max_examples=300, deadline=None)
def test_any_text_gives_services_or_errors(text: str) -> None:
    found = load_manifests(text, "m.yaml")
    assert found.services or found.skipped or found.errors
    for error in found.errors:
        assert "\n" not in str(error)
        assert error.line is None or 1 <= error.line <= text.count("\n") + text.count("\r") + text.count("\x85") + 10
