"""A key that was revoked stays revoked, and one that was made is there, whenever the power goes."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

import fanlog
from fanlog.errors import UnauthenticatedError
from fanlog.identity import Role, Rules
from fanlog.security.keys import make_key
from tests.power.machine import FuseMachine, PoweredBroker
from tests.power.steps import assert_well, cut_power

RULES = Rules(role=Role.PRODUCER)


async def test_what_was_answered_about_keys_survives_a_power_cut(
    cuts: FuseMachine, tmp_path: Path
) -> None:
    file = tmp_path / "admin.key"
    file.write_text(make_key())
    file.chmod(0o600)
    login = {"FANLOG_SECURITY_AUTH": "true", "FANLOG_SECURITY_ADMIN_KEY_FILE": str(file)}
    broker = PoweredBroker(cuts, env=login)
    await asyncio.to_thread(broker.start)
    try:
        async with fanlog.connect(broker.url, key_file=str(file)) as admin:
            accounts = admin.accounts
            made = await asyncio.gather(
                *(accounts.create_key(f"key-{number}", rules=RULES) for number in range(30))
            )
            rotated = await accounts.rotate_key("key-0")
            for number in range(1, 30, 2):
                await accounts.revoke_key(f"key-{number}")
            await cut_power(broker)
            left = {key.name for key in await accounts.keys()} - {"admin"}
            assert left == {f"key-{number}" for number in range(0, 30, 2)}
            async with fanlog.connect(broker.url, key=rotated.key) as client:
                await client.publish("t", b"x")
            for gone in (made[0], made[1], made[29]):
                with pytest.raises(UnauthenticatedError):
                    await fanlog.connect(broker.url, key=gone.key)
            await assert_well(admin)
    finally:
        broker.kill()
