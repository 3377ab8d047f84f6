"""Every sentence that an error may say, read from the source: the commands, flags and settings that
it names exist, and every error class is documented. What a real cause leads to is tested in
`tests/cli/test_remedies.py` and `tests/client/test_remedies.py`."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import NamedTuple

import pytest
from typer.main import get_command

import fanlog
from fanlog import errors
from fanlog.cli.app import app
from fanlog.cli.options import all_options
from fanlog.config import ClientOptions, SparkOptions
from fanlog.errors import BY_CODE, FanlogError, allow_more, no_partition, wrong_value

SOURCE = Path(fanlog.__file__).parent
DOCS = SOURCE.parents[1] / "docs"
# Words in sentences that are written like a setting of the broker.
SETTING = re.compile(r"\b(broker|listener|redis|log|topic)\.([a-z_]+_[a-z_]+)\b")
COMMAND = re.compile(r"fanlog ((?:[a-z]+ ?)+)")
FLAG = re.compile(r"(?<![\w-])--[a-z][a-z-]+")
# A name with one of these ends, in a sentence, is a setting, and says whose it is.
BARE = re.compile(r"(?<![\w.])[a-z_]+_(?:max|min|bytes|seconds)\b(?!=)")
OF_CLIENTS = {*ClientOptions.__struct_fields__, *SparkOptions.__struct_fields__}
# Arguments of Python functions, fields of the protocol and settings of topics and queues.
ARGUMENTS = {
    "timeout_seconds", "session_seconds", "visibility_seconds", "delay_seconds", "first_seconds",
    "max_seconds", "wait_seconds",
}  # fmt: skip


class Sentence(NamedTuple):
    """A text of the source that people see when something fails; `{}` stands for what is put in."""

    where: str
    text: str


def _text(node: ast.expr) -> str:
    """What a string expression says, with `{}` for what is put in."""
    match node:
        case ast.Constant(value=str(value)):
            return value
        case ast.JoinedStr(values=parts):
            return "".join(_text(part) for part in parts)
        case ast.BinOp(left=left, op=ast.Add(), right=right):
            return _text(left) + _text(right)
        case ast.Call(func=ast.Name(id="allow_more"), args=args):
            return " ".join(_text(arg) for arg in args)
        case _:
            return "{}"


@cache
def sentences() -> tuple[Sentence, ...]:
    """Every text in the package that has a space in it and is no docstring."""
    return tuple(_sentences())


def _sentences() -> Iterator[Sentence]:
    for path in sorted(SOURCE.rglob("*.py")):
        if "bench" in path.parts:
            continue
        tree = ast.parse(path.read_text(encoding="utf-8"))
        within: set[ast.AST] = set()
        for node in ast.walk(tree):
            if isinstance(node, ast.Expr):  # a docstring
                within.update(ast.walk(node) if isinstance(node.value, ast.Constant) else ())
        for node in ast.walk(tree):
            if node in within or not isinstance(node, ast.Constant | ast.JoinedStr | ast.BinOp):
                continue
            within.update(ast.walk(node))
            text = _text(node)
            if " " in text:
                yield Sentence(f"{path.relative_to(SOURCE)}:{node.lineno}", text)


def commands() -> dict[str, set[str]]:
    """Every command of the command line, and its flags."""
    found: dict[str, set[str]] = {}

    def walk(command: object, words: tuple[str, ...]) -> None:
        flags = {flag for parameter in getattr(command, "params", ()) for flag in parameter.opts}
        found[" ".join(words)] = flags
        for name, sub in getattr(command, "commands", {}).items():
            walk(sub, (*words, name))

    walk(get_command(app), ())
    return found


def test_the_commands_that_sentences_name_exist() -> None:
    known = commands()
    wrong: list[str] = []
    for where, text in sentences():
        for words in COMMAND.findall(text):
            # The longest run of words that is a command counts; the first must be one.
            named = words.split()
            if named[0] in ("on", "is", "and", "reads", "was", "has", "installed", "to"):
                continue  # "the same release of fanlog on both sides"
            group = named[0]
            if group not in known or (
                len(named) > 1
                and any(name.startswith(f"{group} ") for name in known)
                and f"{group} {named[1]}" not in known
            ):
                wrong.append(f"{where}: fanlog {words}")
    assert not wrong, "\n".join(wrong)


def test_the_flags_that_sentences_name_exist() -> None:
    known = {flag for flags in commands().values() for flag in flags} | {"--help"}
    # Of redis-cli and curl.
    known |= {"--cacert"}
    wrong = [
        f"{where}: {flag}"
        for where, text in sentences()
        if not where.startswith("spark/sessions") and "java" not in text.lower()
        for flag in FLAG.findall(text)
        if flag not in known
    ]
    assert not wrong, "\n".join(wrong)


def test_the_settings_that_sentences_name_exist() -> None:
    known = set(all_options())
    wrong = [
        f"{where}: {setting[0]}.{setting[1]}"
        for where, text in sentences()
        for setting in SETTING.findall(text)
        if ".".join(setting) not in known and setting[1] not in OF_CLIENTS
    ]
    assert not wrong, "\n".join(wrong)


def test_settings_of_the_broker_are_named_with_their_section() -> None:
    """`topics_max` alone does not say where it is set."""
    options = [option for option in all_options().values() if option.section not in ("", "topic")]
    of_topics = {option.name for option in all_options().values() if option.section == "topic"}
    ours = {option.name for option in options} - of_topics
    wrong = [
        f"{where}: {name}"
        for where, text in sentences()
        for name in BARE.findall(text)
        if name in ours and name not in ARGUMENTS and name not in OF_CLIENTS
        if text.count(" ") > 3 and not where.startswith("config")
    ]
    assert not wrong, "\n".join(wrong)


@pytest.mark.parametrize("kind", BY_CODE.values(), ids=lambda kind: kind.__name__)
def test_every_error_has_a_docstring_a_code_and_a_place_in_the_docs(
    kind: type[FanlogError],
) -> None:
    assert kind.__doc__, "say what it means"
    assert kind.__doc__ != kind.__mro__[1].__doc__
    assert "code" in vars(kind), "a code of its own"
    assert re.fullmatch(r"[a-z_]+", kind.code)
    if kind.__module__ != errors.__name__:
        return  # a command's own
    documented = (DOCS / "protocol.md").read_text(encoding="utf-8")
    assert f"| `{kind.code}` | `{kind.__name__}` |" in documented


def test_no_two_errors_share_a_code() -> None:
    def walk(kind: type[FanlogError]) -> Iterator[type[FanlogError]]:
        yield kind
        for sub in kind.__subclasses__():
            yield from walk(sub)

    public = [kind for kind in walk(FanlogError) if kind.__module__ == errors.__name__]
    codes = [kind.code for kind in public]
    assert len(codes) == len(set(codes))


def test_the_sentence_of_a_limit_names_the_setting_and_where_it_is_set() -> None:
    said = allow_more("broker.topics_max")
    assert "broker.topics_max" in said
    assert "fanlog.toml" in said
    assert "restart" in said


def test_a_missing_partition_is_told_in_words_that_fit_one_and_many() -> None:
    assert (
        str(no_partition("t", 1, 7)) == "Topic 't' has one partition, 0; there is no partition 7."
    )
    assert "the partitions 0 to 3; there is no partition 7" in str(no_partition("t", 4, 7))


def test_a_wrong_value_is_told_with_its_name_first() -> None:
    said = "Expected `float`, got `str` - at `$.linger_ms`"
    assert wrong_value(said) == "linger_ms: expected float, got str"
