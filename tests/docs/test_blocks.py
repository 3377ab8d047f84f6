"""The examples in README.md and docs/ do what they say. Those with Spark are run in tests/spark."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from tests.docs.blocks import Reader, Step, documents, read_steps

# Documents whose shell commands are run as well.
FOLLOWED = (Path("docs/tutorial.md"),)

pytestmark = pytest.mark.timeout(400)


def steps_here(document: Path) -> list[Step]:
    return [
        step
        for step in read_steps(document)
        if not step.needs_spark and (step.language != "sh" or document in FOLLOWED)
    ]


def has_examples(document: Path) -> bool:
    return any(step.language == "python" and not step.not_run for step in steps_here(document))


@pytest.mark.parametrize("document", list(filter(has_examples, documents())), ids=str)
def test_the_examples_of_a_document_run(
    document: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    steps = steps_here(document)

    async def follow() -> None:
        reader = Reader(tmp_path)
        try:
            if not any("fanlog serve" in step.code for step in steps if step.background):
                reader.start_broker()
            await reader.follow(steps)
        finally:
            await reader.leave()

    asyncio.run(follow())


def written(folder: Path, text: str) -> list[Step]:
    page = folder / "page.md"
    page.write_text(text, encoding="utf-8")
    return read_steps(page)


async def test_a_reader_notices_an_example_that_fails(tmp_path: Path) -> None:
    steps = written(tmp_path, "# Page\n\n```python\nx = 1\nassert x == 2\n```\n")
    reader = Reader(tmp_path)
    with pytest.raises(AssertionError) as caught:
        await reader.follow(steps)
    assert caught.value.__notes__ == [f"in the example at {tmp_path / 'page.md'}:4"]
    assert caught.traceback[-1].lineno == 4  # counted from 0: the line of the assertion


async def test_blocks_of_a_page_share_names_and_comments_are_obeyed(tmp_path: Path) -> None:
    steps = written(
        tmp_path,
        "<!-- test\nseen = []\n-->\n"
        "<!-- until: len(seen) > 2 -->\n```python\nwhile True:\n    seen.append(1)\n"
        "    await asyncio.sleep(0)\n```\n"
        "<!-- not run: it would fail -->\n```python\nraise ValueError\n```\n"
        '```python title="said.py"\nprint("from a file")\n```\n'
        "```sh\npython said.py\n```\n"
        "<!-- background -->\n```sh\necho behind; sleep 60\n```\n"
        "<!-- test\nassert output == 'from a file\\n'\nshown('behind')\ndone = len(seen)\n-->\n"
        "```text\nnot code\n```\n",
    )
    assert [step.language for step in steps] == ["test", *["python"] * 3, "sh", "sh", "test"]
    reader = Reader(tmp_path)
    await reader.follow(steps)
    await reader.leave()
    assert reader.names["done"] > 2
    assert reader.programs[0].process.returncode is not None


def test_an_example_that_is_not_run_says_why(tmp_path: Path) -> None:
    with pytest.raises(AssertionError, match=r"page.md:1 does not say why"):
        written(tmp_path, "<!-- not run: -->\n```python\nx\n```\n")
