"""The browser client as a module: its own tests in Node, its types, and its npm package."""

from __future__ import annotations

import json
import shutil
import tarfile
from pathlib import Path

import pytest

import fanlog
from tests.browser.node import MODULE, PACKAGE, ROOT, run_node, run_npm
from tests.servers import find_program

TYPES = """
import { connect, FanlogError, type Client, type Message, type Subscription } from "./fanlog.js";

interface Line { who: string; text: string }

async function page(client: Client): Promise<void> {
  const room: Subscription<Line> = client.subscribe<Line>("chat", { last: 50, presence: true });
  room.addEventListener("gap", (event) => console.log(event.detail.from));
  client.addEventListener("statechange", (e) => console.log(e.detail.nextAttempt?.toFixed()));
  for await (const message of room) {
    const text: string = message.value.text;
    const gap: string | undefined = message.gap?.reason;
    console.log(text, gap);
  }
  const { offset } = await client.publish("chat", { who: "ann", text: "hi" } satisfies Line);
  const answer: Message<number> = await client.request<number>("sums", [1, offset]);
  console.log(answer.value + 1);
  // @ts-expect-error there is no such start
  client.subscribe("chat", { start: "tomorrow" });
}

page(connect(["https://a.example", "https://b.example"], { user: "ann" })).catch((error) => {
  if (error instanceof FanlogError) console.log(error.code);
});
"""


@pytest.fixture
def package(tmp_path: Path) -> Path:
    """The npm package in a folder of its own, so that nothing is written into the sources."""
    for folder in (PACKAGE, MODULE):
        away = tmp_path / folder.relative_to(ROOT)
        copied = shutil.ignore_patterns("fanlog.js", "fanlog.d.ts", "*.tgz", "node_modules")
        shutil.copytree(folder, away, ignore=copied if folder == PACKAGE else None)
    shutil.copy(ROOT / "LICENSE", tmp_path)
    return tmp_path / PACKAGE.relative_to(ROOT)


def test_the_client_passes_its_own_tests(package: Path) -> None:
    run_node("copy-module.js", cwd=package)
    said = run_node("--test", "--test-reporter=tap", "test/client.test.js", cwd=package)
    assert "# fail 0" in said
    assert "# skipped 0" in said


def test_the_npm_package_holds_the_module_that_the_broker_serves(package: Path) -> None:
    run_npm("pack", "--offline", "--loglevel", "error", cwd=package)
    (packed,) = package.glob("*.tgz")
    with tarfile.open(packed) as files:
        contents = {
            name.removeprefix("package/"): file.read()
            for name in files.getnames()
            if (file := files.extractfile(name)) is not None
        }
    assert set(contents) == {"package.json", "README.md", "LICENSE", "fanlog.js", "fanlog.d.ts"}
    for name in ("fanlog.js", "fanlog.d.ts"):
        assert contents[name] == (MODULE / name).read_bytes()
    described = json.loads(contents["package.json"])
    assert described["version"] == fanlog.__version__
    assert not described.get("dependencies")


def test_the_module_has_the_version_of_the_broker() -> None:
    module = (MODULE / "fanlog.js").read_text(encoding="utf-8")
    assert f'export const VERSION = "{fanlog.__version__}";' in module


def test_the_module_loads_nothing_from_elsewhere() -> None:
    module = (MODULE / "fanlog.js").read_text(encoding="utf-8")
    assert "import(" not in module
    assert "import " not in module.replace("import.meta", "")


def test_the_types_are_strict(package: Path) -> None:
    compiler = find_program("tsc", "npm install --global typescript")
    run_node("copy-module.js", cwd=package)
    (package / "page.ts").write_text(TYPES, encoding="utf-8")
    strict = ["--strict", "--noEmit", "--target", "es2022", "--module", "nodenext"]
    strict += ["--lib", "es2023,dom,dom.iterable,dom.asynciterable", "--exactOptionalPropertyTypes"]
    run_node(str(Path(compiler).resolve()), *strict, "page.ts", cwd=package)
