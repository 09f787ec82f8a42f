"""No example of the documentation is left out: each page that has one is run by a test of its own."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.pages import Page, pages

#: What a fence may say: the examples, and what is no Python. One that says nothing would be overlooked.
LANGUAGES = {"python", "console", "mermaid"}

TESTS = Path(__file__).parent


def unknown_languages(page: Page) -> list[str]:
    return [f"{page.name}, line {b.line}: {b.language!r}" for b in page.blocks if b.language not in LANGUAGES]


def pages_that_tests_run() -> set[str]:
    """The pages that a test module names in `Page("…").run(…)`, or keeps as `PAGE` and runs."""
    found = set[str]()
    for module in TESTS.glob("test_*.py"):
        text = module.read_text(encoding="utf-8")
        if re.search(r"(?:PAGE|Page\(\"[^\"]+\"\))\.run\(", text):
            found.update(re.findall(r'Page\("([^"]+)"\)', text))
    return found


def test_each_page_with_examples_is_run_by_a_test() -> None:
    with_examples = {page.name for page in pages() if page.examples}
    assert len(with_examples) >= 7
    assert with_examples - pages_that_tests_run() == set()


def test_each_fence_says_whether_it_is_an_example() -> None:
    assert [fence for page in pages() for fence in unknown_languages(page)] == []


@pytest.mark.parametrize("fence", ["```", "```py", "~~~", "````pycon"])
def test_a_fence_that_would_hide_an_example_is_seen(fence: str, tmp_path: Path) -> None:
    end = re.sub(r"\w", "", fence)
    (tmp_path / "page.md").write_text(f"# Words\n\n```python\na = 1\n```\n\n{fence}\nprint(1)\n{end}\n")
    page = Page(str(tmp_path / "page.md"))
    assert [example.text for example in page.examples] == ["a = 1\n"]
    assert unknown_languages(page) == [f"{page.name}, line 7: {fence.strip('`~')!r}"]


def test_all_examples_of_a_page_run_in_their_order_and_an_error_names_its_line(tmp_path: Path) -> None:
    (tmp_path / "page.md").write_text(
        "```python\na = 1\n```\nwords\n```python\nb = a + 1\n```\n```python\n\n1 / 0\n```\n"
    )
    names: dict[str, int] = {}
    with pytest.raises(ZeroDivisionError) as error:
        Page(str(tmp_path / "page.md")).run(names)
    assert names["b"] == 2
    assert error.traceback[-1].lineno + 1 == 10
