"""Requests and answers about settings while a broker runs: the frame CONFIG, and `/v1/config`."""

from __future__ import annotations

from typing import Literal

import msgspec

SettingValue = bool | int | float | str


class SettingInfo(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A setting: its value, and where it comes from (`default`, `file`, `environment`, `flag`, or
    `temporary` until the next start). One that is not `live` needs a restart; `pending` is the
    value that it has then, where that is another. A secret shows only that there is one."""

    option: str
    value: SettingValue
    source: str
    live: bool
    where: str = ""
    pending: SettingValue | None = None


class SettingsShown(msgspec.Struct, frozen=True, kw_only=True):
    """All settings. `file` is where they are written to; empty if there is none."""

    settings: tuple[SettingInfo, ...]
    file: str = ""


class OptionInfo(msgspec.Struct, frozen=True, kw_only=True):
    """What a setting is for, and what it may be. `kind` is text, switch, whole, decimal or choice;
    `unit` is bytes or seconds, and `allowed` a phrase for people."""

    option: str
    description: str
    kind: str
    unit: str
    default: SettingValue
    allowed: str
    choices: tuple[str, ...]
    live: bool
    secret: bool


class OptionsShown(msgspec.Struct, frozen=True, kw_only=True):
    """Every option that there is, with its reason."""

    options: tuple[OptionInfo, ...]


class ChangedSetting(msgspec.Struct, frozen=True, kw_only=True):
    """A setting that has changed. It is in effect now if it is `live`, or after a restart."""

    option: str
    before: SettingValue
    after: SettingValue
    live: bool


class SettingsChanged(msgspec.Struct, frozen=True, kw_only=True):
    """What has changed. `file` is where it was written to; empty if it was not."""

    changed: tuple[ChangedSetting, ...]
    file: str = ""


class ConfigRequest(msgspec.Struct, frozen=True, omit_defaults=True):
    """Shows all settings, changes some (all or none of them; None takes one back to its default),
    or has the file read again. What is `temporary` is not written to the file."""

    action: Literal["show", "change", "reload"] = "show"
    values: dict[str, SettingValue | None] = {}
    temporary: bool = False
