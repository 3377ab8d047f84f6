"""Where followers send browsers."""

from __future__ import annotations

import msgspec
import pytest

from fanlog.cluster.web_address import web_address
from fanlog.config import ClusterOptions, Config, TlsOptions, WebOptions


@pytest.mark.parametrize(
    ("host", "port", "native", "expected"),
    [
        ("10.0.0.1", 7422, "10.0.0.1:7420", "http://10.0.0.1:7422"),
        ("0.0.0.0", 7422, "node-a:7420", "http://node-a:7422"),
        ("::", 7422, "[fd00::1]:7420", "http://[fd00::1]:7422"),
        ("127.0.0.1", 7432, "127.0.0.1:7430", "http://127.0.0.1:7432"),
        # Only its own machine reaches it: a follower would send a browser to itself.
        ("127.0.0.1", 7422, "10.0.0.1:7420", ""),
        ("localhost", 7422, "node-a:7420", ""),
        ("10.0.0.1", -1, "10.0.0.1:7420", ""),
    ],
)
def test_the_web_address_is_one_that_others_reach(
    host: str, port: int, native: str, expected: str
) -> None:
    config = Config(web=WebOptions(host=host, port=port))
    assert web_address(config, f"fanlog://{native}") == expected


def test_with_certificates_it_is_https_and_a_setting_may_name_another() -> None:
    config = Config(
        web=WebOptions(host="0.0.0.0"), tls=TlsOptions(certificate_file="c", private_key_file="k")
    )
    assert web_address(config, "fanlogs://a:7420") == "https://a:7422"
    for given, expected in (
        ("https://fanlog.example.com/", "https://fanlog.example.com"),
        ("a:80", "http://a:80"),
    ):
        other = msgspec.structs.replace(config, cluster=ClusterOptions(advertise_web=given))
        assert web_address(other, "fanlogs://a:7420") == expected
