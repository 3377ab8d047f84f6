"""Settings of a running broker: `fanlog config set` and `PATCH /v1/config` change them, and SIGHUP
reads the file again. Law: all or nothing. Before anything changes, every value is checked, every
component has accepted its values, and the file is on disk.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Coroutine, Mapping
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from fanlog.cli import toml_file
from fanlog.cli.logs import set_log_level
from fanlog.cli.options import Option, OptionValue, all_options, did_you_mean
from fanlog.cli.settings import (
    GivenOption,
    Setting,
    Settings,
    check_document,
    load_settings,
    read_document,
)
from fanlog.errors import ConfigError, FanlogError, InvalidArgumentError
from fanlog.format.settings import (
    ChangedSetting,
    OptionInfo,
    OptionsShown,
    SettingInfo,
    SettingsChanged,
    SettingsShown,
    SettingValue,
)

if TYPE_CHECKING:
    from fanlog.config import Config
    from fanlog.identity import Identity
    from fanlog.node import Node

logger = logging.getLogger("fanlog")

# Settings that one change may have.
_CHANGES_MAX = 200
# Characters of an unknown option's name that an error shows.
_NAME_LENGTH_MAX = 100
_TLS_ON = "tls.certificate_file"


class ServedSettings:
    """The settings of `fanlog serve`. `running` is what is in effect, and `wanted` what will be
    after a restart: they differ in what is not live."""

    def __init__(
        self,
        node: Node,
        settings: Settings,
        flags: Mapping[str, OptionValue | None],
        check: Callable[[Config], None],
    ) -> None:
        """`check` raises ConfigError for settings that are wrong together."""
        self._node = node
        self._flags = flags
        self._check = check
        self._running = settings
        self._wanted = dict(settings.by_path)
        self._turn = asyncio.Lock()
        self._changing: set[asyncio.Task[SettingsChanged]] = set()

    def show(self) -> SettingsShown:
        return SettingsShown(
            settings=tuple(self._info(setting) for setting in self._running.by_path.values()),
            file=str(self._running.file or ""),
        )

    def describe(self) -> OptionsShown:
        return _options_shown()

    def _info(self, setting: Setting) -> SettingInfo:
        option = setting.option
        wanted = self._wanted[option.path].value
        return SettingInfo(
            option=option.path,
            value=option.show(setting.value),
            source=setting.source,
            where=setting.where,
            live=option.live,
            pending=None if wanted == setting.value else option.show(wanted),
        )

    # Changes

    async def change(
        self, who: Identity, values: dict[str, SettingValue | None], *, temporary: bool
    ) -> SettingsChanged:
        return await self._whole(self._change(who, values, temporary=temporary))

    async def reload(self, who: Identity) -> SettingsChanged:
        return await self._whole(self._reload(who))

    async def _whole(self, work: Coroutine[Any, Any, SettingsChanged]) -> SettingsChanged:
        """Finishes the change even if the caller goes away. The thread that writes the file can't
        be stopped, so its values must take effect."""
        task = asyncio.get_running_loop().create_task(work)
        self._changing.add(task)
        task.add_done_callback(self._changing.discard)
        return await asyncio.shield(task)

    async def _change(
        self, who: Identity, values: dict[str, SettingValue | None], *, temporary: bool
    ) -> SettingsChanged:
        async with self._turn:
            try:
                wanted = self._checked(values, temporary=temporary)
                prepared = self._prepare(wanted, self._running.tables)
                if not temporary:
                    await self._node.core.threaded(lambda: self._write(values))
            except FanlogError as fault:
                self._note_failed(who, "config.set", ", ".join(values), fault)
                raise
            file = "" if temporary else str(self._running.file)
            return self._take(who, "config.set", wanted, prepared, file)

    async def _reload(self, who: Identity) -> SettingsChanged:
        async with self._turn:
            try:
                read = await self._node.core.threaded(self._read_again)
                prepared = self._prepare(read.by_path, read.tables)
            except FanlogError as fault:
                self._note_failed(who, "config.reload", str(self._running.file or ""), fault)
                raise
            accounts_changed = read.tables != self._running.tables
            file = str(self._running.file or "")
            taken = self._take(who, "config.reload", read.by_path, prepared, file)
            self._running.tables = read.tables
            if accounts_changed or not taken.changed:
                detail = "keys and users" if accounts_changed else "nothing has changed in it"
                self._node.core.audit.note(who, "config.reload", file, "ok", detail)
            return taken

    def _read_again(self) -> Settings:
        return load_settings(self._running.file, self._flags)

    def _checked(
        self, values: Mapping[str, SettingValue | None], *, temporary: bool
    ) -> dict[str, Setting]:
        """All settings, with these changed."""
        if not values or len(values) > _CHANGES_MAX:
            raise InvalidArgumentError(f"Give 1 to {_CHANGES_MAX} settings to change.")
        file = self._running.file
        if file is None and not temporary:
            raise ConfigError(
                "This broker was started without a configuration file, so it can't keep a "
                "change. Start it with --config FILE, or make the change temporary."
            )
        wanted = dict(self._wanted)
        for path, value in values.items():
            setting = wanted.get(path)
            if setting is None:
                # To look for what is near a name of a megabyte would hold the loop up.
                name = path[:_NAME_LENGTH_MAX]
                raise InvalidArgumentError(
                    f"There is no option {name!r}{did_you_mean(name, wanted)}"
                )
            self._check_source(setting, temporary=temporary)
            option = setting.option
            if value is None:
                wanted[path] = Setting(option, option.default)
                continue
            source = "temporary" if temporary else "file"
            where = "" if temporary else str(file)
            wanted[path] = Setting(option, option.read_flag(value, path), source, where)
        return wanted

    def _check_source(self, setting: Setting, *, temporary: bool) -> None:
        option = setting.option
        if temporary and not option.live:
            raise ConfigError(
                f"{option.path} needs a restart, so a temporary change has no effect. Leave "
                "--temporary out, and restart the broker."
            )
        if setting.source in ("environment", "flag") and not temporary:
            raise ConfigError(
                f"{option.path} comes from {setting.where}, which has precedence over the file. "
                "Change it there, and restart the broker."
            )

    def _prepare(
        self, wanted: Mapping[str, Setting], tables: dict[str, dict[str, Any]]
    ) -> Callable[[], None]:
        """Asks every component to check the settings, which may raise. `tables` are the keys and
        users of the file."""
        self._check(Settings(dict(wanted), tables).config)
        config = Settings(self._in_effect(wanted), tables).config
        change = self._node.prepare(config)

        def changed() -> None:
            change()
            set_log_level(config.telemetry.log_level)

        return changed

    def _in_effect(self, wanted: Mapping[str, Setting]) -> dict[str, Setting]:
        """The settings in effect until a restart, if these are wanted."""
        running = self._running.by_path
        return {
            path: one if self._is_live(one.option, wanted) else running[path]
            for path, one in wanted.items()
        }

    def _is_live(self, option: Option, wanted: Mapping[str, Setting]) -> bool:
        """Other certificates are live, but TLS is turned on and off with a restart."""
        running = self._running.by_path[_TLS_ON].value
        toggles = bool(running) != bool(wanted[_TLS_ON].value)
        return option.live and not (option.section == "tls" and toggles)

    def _write(self, values: Mapping[str, SettingValue | None]) -> None:
        file = self._running.file
        assert file is not None
        write_settings(file, values)

    def _take(
        self,
        who: Identity,
        action: Literal["config.set", "config.reload"],
        wanted: dict[str, Setting],
        prepared: Callable[[], None],
        file: str,
    ) -> SettingsChanged:
        before = self._wanted
        changed = tuple(
            ChangedSetting(
                option=path,
                before=one.option.show(before[path].value),
                after=one.option.show(one.value),
                live=self._is_live(one.option, wanted),
            )
            for path, one in wanted.items()
            if one.value != before[path].value
        )
        prepared()
        self._wanted = wanted
        self._running = replace(self._running, by_path=self._in_effect(wanted))
        audit = self._node.core.audit
        for one in changed:
            detail = f"{one.before} to {one.after}" + ("" if one.live else "; needs a restart")
            audit.note(who, action, one.option, "ok", detail)
            later = "" if one.live else "; it needs a restart"
            logger.info("%s is now %s, was %s%s", one.option, one.after, one.before, later)
        return SettingsChanged(changed=changed, file=file)

    def _note_failed(self, who: Identity, action: str, name: str, fault: FanlogError) -> None:
        self._node.core.audit.note(who, action, name, "failed", fault.code)


@cache
def _options_shown() -> OptionsShown:
    """They are the same for every broker."""
    return OptionsShown(
        options=tuple(
            OptionInfo(
                option=option.path,
                description=option.reason,
                kind=option.kind,
                unit=option.unit,
                default=option.show(option.default),
                allowed=option.allowed,
                choices=option.choices,
                live=option.live,
                secret=option.secret,
            )
            for option in all_options().values()
        )
    )


def write_settings(file: Path, values: Mapping[str, SettingValue | None]) -> None:
    """Sets options in a file. What else it says must be right, too. Blocks."""
    known = all_options()
    changes = {
        (known[path].section, known[path].name): None if value is None else known[path].read(value)
        for path, value in values.items()
    }
    read_document(file)
    try:
        with file.open(encoding="utf-8", newline="") as stream:
            text = toml_file.edited(stream.read(), changes)
    except ConfigError as fault:
        raise ConfigError(f"{file}: {fault}") from None
    for given in check_document(toml_file.parsed(text)):
        if not isinstance(given, GivenOption):
            raise ConfigError(f"{file}: {given} Nothing was changed.")
    toml_file.replace(file, text)
