"""Ready-made pipelines: folders beside this file that a user can run, or copy and change.

| file in a folder     | holds                                                                  |
| -------------------- | ---------------------------------------------------------------------- |
| `pipeline.toml`      | its name, what it does, and its options with their defaults            |
| `README.md`          | the same for people, and what it promises                              |
| `spark-pipeline.yml` | a project of Spark Declarative Pipelines, with `transformations/`; or: |
| `<name>.py`          | a program, where the declarative engine can't express it               |

Nothing here imports pyspark before it is used.
"""

from __future__ import annotations

import re
import shutil
from collections.abc import Iterable, Mapping
from pathlib import Path

import msgspec

from fanlog.errors import ConfigError, InvalidArgumentError
from fanlog.format.patterns import is_pattern
from fanlog.log.files import replace_file
from fanlog.spark.pipelines.kinds import OptionKind, check_value, continues, kept_value

FOLDER = Path(__file__).parent
DESCRIPTION = "pipeline.toml"
SPEC = "spark-pipeline.yml"
# Options of every pipeline. `state` is the folder of its progress.
STATE = "state"
MASTER = "master"
# An option of pipelines that read topics: the group that shows its progress on the broker.
GROUP = "group"
# In a state folder: the options that must not change, from its first run.
DECIDED = "decided.json"
# Placeholders in a spec: for its folder, which has to be absolute, and for the folder's name.
_FOLDER_WORD = "THIS_FOLDER"
_NAME_WORD = "THIS_NAME"


class PipelineOption(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    about: str
    default: str = ""
    required: bool = False
    kind: OptionKind = "text"
    # Input, work or output. Such an option stays the same as long as the state.
    decides: bool = False


class _Described(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    name: str
    about: str
    options: dict[str, PipelineOption]


class _Decided(msgspec.Struct, frozen=True):
    pipeline: str
    options: dict[str, str]


class Pipeline(msgspec.Struct, frozen=True):
    """A pipeline's folder and its description."""

    name: str
    folder: Path
    about: str
    options: dict[str, PipelineOption]

    @property
    def declarative(self) -> bool:
        return (self.folder / SPEC).exists()

    @property
    def program(self) -> Path:
        return self.folder / f"{self.name}.py"

    def settle(self, given: Mapping[str, str], state: Path) -> dict[str, str]:
        """The given options and the defaults of the others, all checked."""
        for name in given:
            if name not in self.options:
                raise InvalidArgumentError(
                    f"The pipeline {self.name} has no option {name!r}: "
                    f"it has {', '.join(self.options)}."
                )
        settled = {name: given.get(name, some.default) for name, some in self.options.items()}
        for name, some in self.options.items():
            if some.required and not settled[name]:
                raise InvalidArgumentError(
                    f"The pipeline {self.name} needs the option {name!r} ({some.about}): "
                    f"give --option {name}=..."
                )
            check_value(name, some, settled[name])
        # Two runs of a pipeline have two states, so that neither moves the other's group.
        if settled.get(GROUP) == "":
            settled[GROUP] = group_of(state)
        return settled


def check_same(pipeline: Pipeline, options: Mapping[str, str], state: Path) -> None:
    """Checks that a state folder is used for one thing. It has the options of its first run; a run
    with other input or output would resume at a wrong position."""
    path = state / DECIDED
    decided = {
        name: kept_value(some.kind, options[name])
        for name, some in pipeline.options.items()
        if some.decides
    }
    if path.exists():
        before = msgspec.json.decode(path.read_bytes(), type=_Decided)
        if before.pipeline != pipeline.name:
            raise ConfigError(
                f"{state} holds the progress of {before.pipeline}: give another --state for "
                f"{pipeline.name}."
            )
        for name, value in decided.items():
            was = before.options.get(name, value)
            if not continues(pipeline.options[name].kind, was, value):
                raise ConfigError(
                    f"{state} holds the progress of {pipeline.name} with {name}={was!r}: give "
                    f"another --state for {name}={value!r}."
                )
    if decided:
        state.mkdir(parents=True, exist_ok=True)
        replace_file(str(path), msgspec.json.encode(_Decided(pipeline.name, decided)), durable=True)


def group_of(state: Path) -> str:
    """The group of the run that has this state folder, unless an option names another."""
    return "pipeline." + re.sub(r"[^\w.-]+", "-", state.resolve().name)


def names() -> list[str]:
    return sorted(path.parent.name for path in FOLDER.glob(f"*/{DESCRIPTION}"))


def find(name_or_folder: str) -> Pipeline:
    """A ready-made pipeline by its name, or one of the user's by its folder."""
    if name_or_folder in names():
        return load(FOLDER / name_or_folder)
    folder = Path(name_or_folder)
    if (folder / DESCRIPTION).exists():
        return load(folder)
    raise InvalidArgumentError(
        f"There is no pipeline {name_or_folder!r}: use {', '.join(names())}, or a folder that "
        "`fanlog pipeline init` has made."
    )


def load(folder: Path) -> Pipeline:
    """The pipeline of a folder."""
    path = folder / DESCRIPTION
    try:
        described = msgspec.toml.decode(path.read_bytes(), type=_Described)
    except (OSError, msgspec.DecodeError) as fault:
        raise ConfigError(f"{path} is not a description of a pipeline: {fault}.") from None
    if not (folder / SPEC).exists() and not (folder / f"{described.name}.py").exists():
        raise ConfigError(f"{folder} needs a {SPEC}, or a program {described.name}.py.")
    return Pipeline(described.name, folder.resolve(), described.about, described.options)


def copy(pipeline: Pipeline, folder: Path) -> None:
    """Makes a folder for the user. Existing files are never replaced."""
    if folder.exists() and any(folder.iterdir()):
        raise InvalidArgumentError(
            f"The folder {folder} is not empty: name another, or empty it first."
        )
    ignored = shutil.ignore_patterns("__pycache__")
    shutil.copytree(pipeline.folder, folder, dirs_exist_ok=True, ignore=ignored)
    spec = folder / SPEC
    if spec.exists():
        home = folder.resolve()
        text = spec.read_text().replace(_FOLDER_WORD, str(home))
        spec.write_text(text.replace(f"pipeline.{_NAME_WORD}", group_of(home)))


def program_options(program: str, arguments: Iterable[str]) -> dict[str, str]:
    """The options of a pipeline's program, from its command line: `python archive.py lake=/data`.

    >>> program_options(__file__, sys.argv[1:])  # doctest: +SKIP
    """
    pipeline = load(Path(program).parent)
    given = parse_options(arguments)
    ours = {name: given.pop(name, default) for name, default in _everywhere(pipeline).items()}
    state = Path(ours[STATE])
    options = pipeline.settle(given, state)
    check_same(pipeline, options, state)
    return options | ours


def parse_options(arguments: Iterable[str]) -> dict[str, str]:
    given: dict[str, str] = {}
    for argument in arguments:
        name, equals, value = argument.partition("=")
        if not name or not equals:
            raise InvalidArgumentError(f"{argument!r} is not an option: write it as name=value.")
        given[name] = value
    return given


def _everywhere(pipeline: Pipeline) -> dict[str, str]:
    return {STATE: str(Path("fanlog-pipelines", pipeline.name)), MASTER: "local[*]"}


def topic_options(topics: str) -> dict[str, str]:
    """The options of the source for names separated by commas, or for a pattern."""
    return {"pattern" if is_pattern(topics) else "topics": topics}


def fault_in_short(fault: Exception) -> str:
    """Spark's error in one sentence, without its page of details.

    >>> fault_in_short(ValueError("[NO_SUCH] It is not there. SQLSTATE: 42601 (line 1)"))
    'It is not there'
    """
    return spark_said(str(fault).strip()) or type(fault).__name__


def spark_said(text: str) -> str:
    """The sentence after Spark's error code in a text; empty if there is none."""
    found = _SPARK_SAID.search(text)
    return found["said"].strip().rstrip(".") if found else ""


_SPARK_SAID = re.compile(r"\[[A-Z][A-Z0-9_.]+\] (?P<said>.+?)( SQLSTATE: .*)?$", re.MULTILINE)
